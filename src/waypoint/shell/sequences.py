"""What of a program's output may reach libvterm: escape sequences that are whole, known and within bounds.

libvterm trusts its input. Versions 0.1.4 (Debian 12) and 0.3.3 (Debian 13) both write out of bounds or loop for
ever on a few bytes that any program can print: many parameters, an 8-bit control as UTF-8, a repeat with
nothing to repeat, a wide character in one column, a saved cursor outside a shrunk screen. So every sequence is
either known to be harmless, translated, or dropped. As a gain, the modes and the title are known here
without asking the library, and what it lacks is expressed by what it has.
"""

import codecs
import re
import unicodedata
from functools import lru_cache

from waypoint.shell.screen import (
    ALTERNATE,
    AUTO_WRAP,
    BRACKETED_PASTE,
    CURSOR_KEYS,
    CURSOR_VISIBLE,
    FOCUS_EVENTS,
    KEYPAD,
    MOUSE_EVENTS,
    MOUSE_FORMATS,
    ORIGIN,
)

__all__ = ["ERASE_HISTORY", "SequenceFilter", "is_combining", "original_codepoint"]

ERASE_HISTORY = "\x1b[3J"
"""Left in the text for the caller, who keeps the history."""

MAX_NUMBERS = 15
LONGEST = 80  # of the sequences that pass
MAX_HELD = 16  # a letter with more accents than a cell holds
MAX_PENDING = 1 << 16
MAX_TITLE = 1024
MAX_TITLES_KEPT = 16

# Vertical tabs and form feeds are line feeds; other controls do nothing, inside of sequences too.
_LINE_FEEDS = bytes.maketrans(b"\x0b\x0c", b"\n\n")
_IGNORED = bytes([*range(0x07), *range(0x10, 0x18), 0x19, *range(0x1C, 0x20), 0x7F])

# --- sequences that pass as they are; libvterm takes 16 numbers of 31 bits each -----------------------

_ATTRIBUTE = r"(?:0?[013-579]?|2[34579]|[34][0-79]|9[0-7]|10[0-7])"
_COLOUR = r"[34]8;(?:5;\d{1,3}|2;\d{1,3};\d{1,3};\d{1,3})"
_HARMLESS = (
    rf"\[(?:{_ATTRIBUTE};){{0,4}}(?:(?:{_COLOUR}|{_ATTRIBUTE})(?:;{_COLOUR})?)?m"
    r"|\[\d{0,4}(?:;\d{0,4})?[@A-IKLMPSTXZ`adefjk]"
    r"|\[[012]?J|\[[03]?g"
    r"|\[11m|\[22;10m|[()][0AB]|[7DEHMn]"
)

# Translations that are too frequent for a function call each time. libvterm has no dim, but fonts that
# nobody uses: font 1 stands for dim. With ASCII selected it cuts text at every other character; the set that
# "n" selects is UTF-8.
_FREQUENT_TRANSLATIONS = (
    ("\x1b[2m", "\x1b[11m"),
    ("\x1b[22m", "\x1b[22;10m"),
    ("\x1b(B", "\x1b(B\x1bn"),
    ("\x1b(0", "\x1b(0\x0f"),
)

_STRING = r"[]P_^X][^\x07\x18\x1a\x1b]*"
_CONTROL = r"\[[0-?]*[ -/]*"
_OTHER = r"[ -/]*"

_NOT_HARMLESS = re.compile(
    rf"\x1b(?!{_HARMLESS})"
    rf"(?:(?P<string>{_STRING})(?:\x07|\x1b\\)?"
    rf"|\[(?P<numbers>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~]?)"
    rf"|(?P<other>{_OTHER}[0-~]?))"
)
_UNFINISHED = re.compile(rf"\x1b(?:{_STRING}\x1b?|{_CONTROL}|{_OTHER})\Z")
_ENDS_IN_SEQUENCE = re.compile(rf"\x1b(?:{_CONTROL}[@-~]|{_OTHER}[0-~])\Z")

_EIGHT_BIT_CONTROLS = re.compile("[\x80-\x9f]+")
# libvterm takes these for combining and for wide at once, and counts columns that are not there.
_WIDE_MARKS = "\u302a-\u302f\u3099\u309a"
_ANY_WIDE_MARK = re.compile(f"[{_WIDE_MARKS}]")
_WITH_WIDE_MARKS = re.compile(f"([^{_WIDE_MARKS}]?)([{_WIDE_MARKS}])+")
_MAYBE_WIDE = re.compile("[\u1100-\U0010ffff]")

# Emoji younger than libvterm's tables, which take them for narrow. Programs count two columns for them, so each
# is passed on as an unassigned character of plane 3, where all are wide.
_YOUNG_EMOJI = re.compile(
    "[\U0001f6d5-\U0001f6df\U0001f6f7-\U0001f6fc\U0001f7e0-\U0001f7f0\U0001f90c-\U0001f90f\U0001f91f"
    "\U0001f928-\U0001f92f\U0001f931\U0001f932\U0001f93f\U0001f94c-\U0001f94f\U0001f95f-\U0001f97f"
    "\U0001f992-\U0001f9bf\U0001f9c1-\U0001f9ff\U0001fa70-\U0001faff]"
)
_EMOJI_SHIFT = 0x20000

# --- private modes -----------------------------------------------------------------------------------------

_DEFAULT_MODES = frozenset({AUTO_WRAP, CURSOR_VISIBLE})
_SCREENS_AND_CURSORS = frozenset({47, 1047, 1048, 1049})
_KNOWN_MODES = (
    frozenset({CURSOR_KEYS, ORIGIN, AUTO_WRAP, CURSOR_VISIBLE, FOCUS_EVENTS, BRACKETED_PASTE})
    | MOUSE_EVENTS
    | MOUSE_FORMATS
)

# Full reset, which libvterm does only in part; the last one saves a cursor: a program may restore one it never saved.
_RESET = "\x1b[?1047l\x1b[?1000l\x1b[?1006l\x1bc\x1b7"
_SOFT_RESET = "\x1b[0m\x1b[4l\x1b[?1l\x1b[?7h\x1b[?25h\x1b7\x1b[?6l\x1b[r\x1b8"


def original_codepoint(codepoint: int) -> int:
    """The character that a program printed, from the one that libvterm was given."""
    return codepoint - _EMOJI_SHIFT if 0x3F000 <= codepoint <= 0x3FAFF else codepoint


def is_combining(character: str) -> bool:
    """Whether a character is an accent or the like, without a column of its own."""
    return unicodedata.category(character) in ("Mn", "Me", "Cf") or "\u1160" <= character <= "\u11ff"


class SequenceFilter:
    """One stream of output. ``modes``, ``margins`` and ``title`` are as the text given out so far leaves them."""

    def __init__(self, rows: int, columns: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._held = ""
        self._last = ""
        self._kept_titles: list[str] = []
        self.title = ""
        self.modes = set(_DEFAULT_MODES)
        self.resize(rows, columns)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size. That resets the margins."""
        self._rows = rows
        self._columns = columns
        self.margins: tuple[int, int] | None = None

    def pass_on(self, data: bytes) -> str:
        """The text for libvterm, up to the last whole sequence; the rest is kept until it is whole.

        So is the last character: libvterm puts an accent on the last column only if it comes with its letter.
        """
        text = self._pending + self._decoder.decode(data.translate(_LINE_FEEDS, _IGNORED))
        text = self._without_tail(text)
        for usual, translated in _FREQUENT_TRANSLATIONS:
            text = text.replace(usual, translated)
        passed = _NOT_HARMLESS.sub(self._translate, text)
        if text:
            self._last = "" if _ENDS_IN_SEQUENCE.search(text, max(len(text) - LONGEST, 0)) else text[-1]
        if "\x18" in passed or "\x1a" in passed:
            passed = passed.replace("\x18", "").replace("\x1a", "")
        passed = self._fit_to_width_tables(self._held + passed)
        end = _last_character(passed)
        self._held = passed[end : end + MAX_HELD]
        return passed[:end]

    def flush(self) -> str:
        """The last character, when nothing more is to be put on it."""
        held, self._held = self._held, ""
        return held

    def _without_tail(self, text: str) -> str:
        last = text.rfind("\x1b")
        # The escape may be the first half of the end of a string, so the one before it counts too.
        tail = _UNFINISHED.search(text, max(text.rfind("\x1b", 0, last), 0)) if last >= 0 else None
        if tail is None:
            self._pending = ""
            return text
        self._pending = tail[0] if len(tail[0]) < MAX_PENDING else "\x1bX"
        return text[: tail.start()]

    def _fit_to_width_tables(self, text: str) -> str:
        if text.isascii():
            return text
        text = _EIGHT_BIT_CONTROLS.sub("", text)
        if _ANY_WIDE_MARK.search(text):
            text = _WITH_WIDE_MARKS.sub(_compose, text)
        if self._columns == 1:
            return _MAYBE_WIDE.sub(lambda match: match[0] if _is_narrow(match[0]) else "\ufffd", text)
        return _YOUNG_EMOJI.sub(lambda match: chr(ord(match[0]) + _EMOJI_SHIFT), text)

    def _translate(self, match: re.Match[str]) -> str:
        if match.lastgroup == "string":
            self._read_title(match["string"])
        elif match.lastgroup == "final":
            numbers, between, final = match.group("numbers", "between", "final")
            if numbers.startswith("?"):
                return self._set_modes(numbers[1:], final) if final in ("h", "l") and not between else ""
            if numbers.startswith(("<", "=", ">")):
                return ""
            return self._translate_control(match, numbers, between + final)
        else:
            return self._translate_escape(match["other"])
        return ""

    def _translate_escape(self, what: str) -> str:
        match what:
            case "8":
                return "\x1b8" + self._settle_cursor()
            case "c":
                self.modes = set(_DEFAULT_MODES)
                self.margins = None
                return _RESET
            case "=":
                self.modes.add(KEYPAD)
            case ">":
                self.modes.discard(KEYPAD)
        return ""

    def _translate_control(self, match: re.Match[str], numbers: str, kind: str) -> str:
        match kind:
            case "m":
                return _attributes(numbers)
            case "r":
                return self._set_margins(*_numbers(numbers + ";;")[:2])
            case "b":
                return self._repeat(match, _numbers(numbers)[0])
            case "h" | "l":
                return "".join(f"\x1b[{mode}{kind}" for mode in _numbers(numbers) if mode in (4, 20))
            case "J":
                return ERASE_HISTORY if numbers == "3" else ""
            case "s":
                return "\x1b7" if not numbers else ""
            case "u":
                return "\x1b8" + self._settle_cursor() if not numbers else ""
            case "t":
                self._push_or_pop_title(_numbers(numbers)[0])
            case "!p":
                self.modes -= {CURSOR_KEYS, ORIGIN, KEYPAD}
                self.modes |= _DEFAULT_MODES
                self.margins = None
                return _SOFT_RESET
        return ""

    def _settle_cursor(self) -> str:
        """Sent after restoring the cursor: it is as visible as before and, as after any sequence, inside the screen."""
        return f"\x1b[?25{'h' if CURSOR_VISIBLE in self.modes else 'l'}"

    def _set_modes(self, numbers: str, letter: str) -> str:
        change = _plain_modes(numbers, letter)
        if change is None:
            return "".join(self._set_mode(mode, letter) for mode in _numbers(numbers))
        text, off, on = change
        self.modes -= off
        self.modes |= on
        return text

    def _set_mode(self, mode: int, letter: str) -> str:
        if mode not in _SCREENS_AND_CURSORS:
            return self._set_modes(str(mode), letter)
        if mode == 1048:
            return "\x1b7" if letter == "h" else "\x1b8" + self._settle_cursor()
        if (letter == "h") == (ALTERNATE in self.modes):
            return ""
        self.modes ^= {ALTERNATE}
        if mode != 1049:
            return f"\x1b[?1047{letter}"
        return "\x1b[?1049h" if letter == "h" else "\x1b[?1049l" + self._settle_cursor()

    def _set_margins(self, top: int, bottom: int) -> str:
        top, bottom = max(top, 1), min(bottom or self._rows, self._rows)
        if top >= bottom:
            return ""
        self.margins = (top, bottom) if (top, bottom) != (1, self._rows) else None
        return f"\x1b[{top};{bottom}r"

    def _repeat(self, match: re.Match[str], count: int) -> str:
        at = match.start()
        last = match.string[at - 1] if at else self._last
        if not last.isprintable() or _ENDS_IN_SEQUENCE.search(match.string, max(at - LONGEST, 0), at):
            return ""
        return last * min(max(count, 1), self._columns)

    def _read_title(self, string: str) -> None:
        kind, _, content = string.partition(";")
        if kind in ("]0", "]2"):
            self.title = "".join(filter(str.isprintable, content[:MAX_TITLE]))

    def _push_or_pop_title(self, what: int) -> None:
        if what == 22:
            self._kept_titles = [*self._kept_titles[1 - MAX_TITLES_KEPT :], self.title]
        elif what == 23 and self._kept_titles:
            self.title = self._kept_titles.pop()


def _last_character(text: str) -> int:
    """Where the last character with its accents begins, or the end if a control is last."""
    at = len(text) - 1
    while at > 0 and is_combining(text[at]):
        at -= 1
    if at < 0 or text[at] < " " or _ENDS_IN_SEQUENCE.search(text, max(at + 1 - LONGEST, 0), at + 1):
        return len(text)
    return at


def _is_narrow(character: str) -> bool:
    """Surely narrow: below the Chinese and the like, where libvterm's tables know nothing that Python's do not."""
    return character < "\u2e80" and unicodedata.east_asian_width(character) not in ("W", "F")


def _numbers(text: str) -> list[int]:
    """The numbers of a sequence, at least one; what is missing or too large counts as 0, as in most sequences."""
    return [int(part) if part.isdecimal() and len(part) < 5 else 0 for part in text.split(";")[:MAX_NUMBERS]]


def _compose(match: re.Match[str]) -> str:
    composed = unicodedata.normalize("NFC", match[1] + match[2])
    return composed if match[1] and len(composed) == 1 else match[1]


@lru_cache(maxsize=1024)
def _plain_modes(numbers: str, letter: str) -> tuple[str, frozenset[int], frozenset[int]] | None:
    """The text that sets modes, the modes it turns off, and those it turns on; None if one is more than on or off."""
    modes = _numbers(numbers)
    if not _SCREENS_AND_CURSORS.isdisjoint(modes):
        return None
    on: set[int] = set()
    off: set[int] = set()
    known = [mode for mode in modes if mode in _KNOWN_MODES]
    for mode in known:
        # Of the kinds of mouse events, and of their formats, there is one at a time.
        replaced = next((group for group in (MOUSE_EVENTS, MOUSE_FORMATS) if mode in group), {mode})
        off |= replaced
        on -= replaced
        if letter == "h":
            on.add(mode)
    # libvterm takes one at a time.
    return "".join(f"\x1b[?{mode}{letter}" for mode in known), frozenset(off), frozenset(on)


@lru_cache(maxsize=4096)
def _attributes(numbers: str) -> str:
    """SGR in the numbers that libvterm knows, not too many at once."""
    parts = numbers.split(";")
    out: list[str] = []
    while parts:
        first, *more = parts.pop(0).split(":")
        match first.lstrip("0") if len(first) < 5 else "unknown":
            case "38" | "48" | "58" as target:
                colour = _colour(more or parts[:4], has_space=len(more) > 4)
                if not more:
                    del parts[: {"5": 2, "2": 4}.get(parts[0] if parts else "", 0)]
                if colour and target != "58":
                    out.append(f"{target};{colour}")
            case "2":
                out.append("11")
            case "22":
                out.append("22;10")
            case "4":
                out.append("24" if more[:1] == ["0"] else "4")
            case "21":
                out.append("4")
            case "6":
                out.append("5")
            case plain if re.fullmatch(_ATTRIBUTE, plain):
                out.append(plain)
    return "".join(f"\x1b[{';'.join(out[at : at + 3])}m" for at in range(0, len(out), 3))


def _colour(parts: list[str], *, has_space: bool) -> str:
    """``5;INDEX`` or ``2;RED;GREEN;BLUE`` from what follows 38; colons allow a colour space before the red."""
    match parts:
        case ["5", *values]:
            values = values[:1]
        case ["2", *values]:
            values = values[1:4] if has_space else values[:3]
            values += [""] * (3 - len(values))
        case _:
            return ""
    if not values or not all(re.fullmatch(r"\d{0,3}", value) and int(value or 0) < 256 for value in values):
        return ""
    return ";".join([parts[0], *(value or "0" for value in values)])
