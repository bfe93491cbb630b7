"""Keys by name, as a keyboard would send them: the words of ``tmux send-keys``, the bytes of xterm.

A word that is not a key is text. So is one that only looks like a key (``C-Foo``) or is spelled differently:
``Enter`` is the key, ``enter`` is five letters.
"""

import re
from collections.abc import Sequence

__all__ = ["KEYS", "encode_keys", "key_names"]

KEYS: dict[str, str] = {
    "Enter": "\r",
    "Escape": "\x1b",
    "Esc": "\x1b",
    "Tab": "\t",
    "BTab": "\x1b[Z",
    "Space": " ",
    "BSpace": "\x7f",
    "Up": "\x1b[A",
    "Down": "\x1b[B",
    "Right": "\x1b[C",
    "Left": "\x1b[D",
    "Home": "\x1b[H",
    "End": "\x1b[F",
    "PageUp": "\x1b[5~",
    "PgUp": "\x1b[5~",
    "PPage": "\x1b[5~",
    "PageDown": "\x1b[6~",
    "PgDn": "\x1b[6~",
    "NPage": "\x1b[6~",
    "Insert": "\x1b[2~",
    "IC": "\x1b[2~",
    "Delete": "\x1b[3~",
    "DC": "\x1b[3~",
    "F1": "\x1bOP",
    "F2": "\x1bOQ",
    "F3": "\x1bOR",
    "F4": "\x1bOS",
    "F5": "\x1b[15~",
    "F6": "\x1b[17~",
    "F7": "\x1b[18~",
    "F8": "\x1b[19~",
    "F9": "\x1b[20~",
    "F10": "\x1b[21~",
    "F11": "\x1b[23~",
    "F12": "\x1b[24~",
}
"""What each key sends.

Before a name, or before one character, may stand ``C-`` (control; also ``^``), ``M-`` (alt) and ``S-`` (shift),
in any order: ``C-c``, ``^D``, ``M-x``, ``C-M-a``, ``S-Up``, ``C-Left``, ``S-Tab``. Shift goes with names only: a
shifted character is written as itself.
"""

_SHIFT, _ALT, _CONTROL = 1, 2, 4
_MODIFIERS = {"S-": _SHIFT, "M-": _ALT, "C-": _CONTROL, "^": _CONTROL}
_WORD = re.compile(r"((?:[CMS]-)*\^?)(.+)", re.DOTALL)
_CURSOR_KEY = re.compile(r"\x1b\[([A-DFH])")
_FUNCTION_KEY = re.compile(r"\x1b(?:O|\[)(\d*)([A-Z~])")

# Control with a character: letters and @[\]^_ lose their upper bits; these few are a custom of terminals.
_BY_CUSTOM = {" ": "\0", "?": "\x7f", "/": "\x1f"} | dict(
    zip("2345678", "\0\x1b\x1c\x1d\x1e\x1f\x7f", strict=True)
)


def encode_keys(words: Sequence[str], *, application_cursor: bool = False, literal: bool = False) -> bytes:
    """The bytes for ``words``, one after the other with nothing between them.

    ``application_cursor`` is what `Screen.application_cursor` says; with ``literal`` no word is a key.
    """
    texts = [word if literal else _encode(word, application_cursor=application_cursor) for word in words]
    return "".join(texts).encode("utf-8", "surrogateescape")


def key_names() -> str:
    """The names, to be shown to people; slashes separate several names of one key."""
    names: dict[str, list[str]] = {}
    for name, sent in KEYS.items():
        names.setdefault(sent, []).append(name)
    keys = " ".join("/".join(same) for same in names.values())
    return f"{keys}; with C- (or ^), M-, S- before them, also C-x ^x M-x C-M-x for characters"


def _encode(word: str, *, application_cursor: bool) -> str:
    match = _WORD.fullmatch(word)
    if match is None:
        return word
    modifiers = 0
    for prefix in re.findall(r"[CMS]-|\^", match[1]):
        modifiers |= _MODIFIERS[prefix]
    name = match[2]
    if name in KEYS:
        return _modified(name, modifiers, application_cursor=application_cursor)
    if len(name) != 1 or modifiers == 0 or modifiers & _SHIFT:
        return word
    if modifiers & _CONTROL:
        character = _BY_CUSTOM.get(name) or _control(name)
        if not character:
            return word
        name = character
    return ("\x1b" if modifiers & _ALT else "") + name


def _control(character: str) -> str:
    upper = character.upper()
    return chr(ord(upper) & 0x1F) if character.isascii() and "@" <= upper <= "_" else ""


def _modified(name: str, modifiers: int, *, application_cursor: bool) -> str:
    sent = KEYS[name]
    if name == "Tab" and modifiers & _SHIFT:
        name, sent = "BTab", KEYS["BTab"]
    if name == "BTab":
        modifiers &= ~_SHIFT
    number_and_letter = _FUNCTION_KEY.fullmatch(sent)
    if number_and_letter is None or name == "BTab":
        # One byte, on which control does little and shift nothing.
        if modifiers & _CONTROL:
            sent = {" ": "\0", "\x7f": "\b"}.get(sent, sent)
        return ("\x1b" if modifiers & _ALT else "") + sent
    if modifiers:
        number, letter = number_and_letter.groups()
        return f"\x1b[{number or 1};{modifiers + 1}{letter}"
    if application_cursor:
        return _CURSOR_KEY.sub("\x1bO\\1", sent)
    return sent
