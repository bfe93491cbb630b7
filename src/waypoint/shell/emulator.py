"""A terminal without a window: it takes what programs print and works out what a person would see.

``libvterm`` does the work (:mod:`waypoint.shell.vterm`), on sequences that are safe for it
(:mod:`waypoint.shell.sequences`). It moves the whole screen in memory for each line that scrolls, so of long
plain output it gets only what can still be seen at the end.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from waypoint.errors import UsageError
from waypoint.shell.screen import ALTERNATE, PLAIN, Cell, Colour, Line, Screen, Style
from waypoint.shell.sequences import ERASE_HISTORY, SequenceFilter, is_combining
from waypoint.shell.vterm import VTerm, parse_line, require_libvterm

__all__ = ["Cell", "Colour", "Emulator", "Line", "Screen", "Style"]

MAX_SIZE = 1000
DEFAULT_HISTORY = 1000

CHUNK = 4096  # characters; libvterm puts four bytes on the stack for each that is left of a write

# Sequences that leave the cursor in its row, and those of them whose effect outlasts the row.
_LASTING = r"\[[\d;]*m|\[\?(?:1|7|25|100[0-6]|1015|2004)[hl]|[()][0AB]|n"
_ENDS_RUN = re.compile(rf"\x1b(?!{_LASTING}|\[[\d;]*[@CDGKPX`])")
_LASTS = re.compile(rf"\x1b(?:{_LASTING})|[\x0e\x0f]")

_CLAMP_CURSOR = b"\x1b[0n"  # does nothing else: after any sequence the cursor is inside the screen

_ATTRIBUTES = {1: "bold", 3: "italic", 4: "underline", 5: "blink", 7: "reverse", 9: "strike", 11: "dim"}


class Emulator:
    """A terminal of the given size. ``history`` is how many lines that scrolled away are kept for `screen`.

    Close it, or use it as a context manager: Python does not free the library's memory. Not for several threads.
    Raises AbilityMissing if libvterm is not installed.
    """

    def __init__(self, rows: int, columns: int, *, history: int = DEFAULT_HISTORY) -> None:
        _check_size(rows, columns)
        require_libvterm()
        self._rows = rows
        self._columns = columns
        self._filter = SequenceFilter(rows, columns)
        self._history: deque[bytes] = deque(maxlen=history)
        self._scrolled = 0
        self._vterm = VTerm(rows, columns, push_line=self._push_line, pop_line=self._pop_line)
        self._vterm.write(b"\x1b7")  # a cursor to restore for a stream that begins after it was saved

    def __enter__(self) -> "Emulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._vterm.close()

    def feed(self, data: bytes) -> None:
        """Show what a program printed: any bytes, cut anywhere."""
        first, *others = self._filter.pass_on(data).split(ERASE_HISTORY)
        self._show(first)
        for text in others:
            self._history.clear()
            self._show(text)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size. Lines that no longer fit go to the history, and return from it when they fit again."""
        _check_size(rows, columns)
        self._write(self._filter.flush())
        if self._filter.margins is not None:  # libvterm would scroll outside of the new screen
            row, column = self._vterm.cursor()
            self._vterm.write(b"\x1b[r\x1b[%d;%dH" % (row + 1, column + 1))
        self._filter.resize(rows, columns)
        self._vterm.resize(rows, columns)
        self._vterm.write(_CLAMP_CURSOR)  # the cursor may have scrolled off with its line
        self._rows = rows
        self._columns = columns

    def screen(self, scrollback: int = 0) -> Screen:
        """What is seen now, and the last ``scrollback`` lines above it."""
        self._write(self._filter.flush())
        row, column = self._vterm.cursor()
        above = list(self._history)[-scrollback:] if scrollback > 0 else []
        return Screen(
            rows=self._rows,
            columns=self._columns,
            lines=tuple(parse_line(self._vterm.row(number, self._columns)) for number in range(self._rows)),
            scrollback=tuple(map(parse_line, above)),
            cursor_row=row,
            cursor_column=column,
            title=self._filter.title,
            pen=_parse_pen(self._vterm.ask(b"\x1bP$qm\x1b\\")),
            margins=self._filter.margins,
            modes=frozenset(self._filter.modes),
        )

    @property
    def is_alternate(self) -> bool:
        """Whether a full-screen program shows its own screen."""
        return ALTERNATE in self._filter.modes

    @property
    def scrolled(self) -> int:
        """How many lines have scrolled away until now."""
        return self._scrolled

    def _push_line(self, line: bytes) -> None:
        self._scrolled += 1
        self._history.append(line)

    def _pop_line(self) -> bytes | None:
        return self._history.pop() if self._history else None

    def _show(self, text: str) -> None:
        if text.count("\n") <= self._lines_kept:
            self._write(text)
            return
        at = 0
        for start, end in self._plain_runs(text):
            self._write(text[at:start])
            self._show_end_of(text[start:end])
            at = end
        self._write(text[at:])

    @property
    def _lines_kept(self) -> int:
        """After this many lines nothing that came before them can be seen or asked for."""
        return self._rows + (self._history.maxlen or 0) + 1

    def _plain_runs(self, text: str) -> Iterator[tuple[int, int]]:
        """Long parts in which the cursor only moves along its row, or to the next."""
        start = 0
        for match in _ENDS_RUN.finditer(text):
            if match.start() - start > self._lines_kept:
                yield start, match.start()
            start = match.end()
        if len(text) - start > self._lines_kept:
            yield start, len(text)

    def _show_end_of(self, run: str) -> None:
        """Write as little of the run as shows the same as all of it. Once a line feed was seen to scroll a line away,
        each of them does, and the last ones push out all that was before."""
        if run.count("\n") <= self._lines_kept + self._rows:
            self._write(run)
            return
        begun = _after_lines(run, self._rows)
        self._write(run[: begun - 1])
        before = self._scrolled
        self._write("\n")
        if self._scrolled > before:
            # A line may start in the column where the one before it ended; after a return its column is known.
            rest = run.rfind("\r", begun, _before_lines(run, self._lines_kept))
            if rest >= 0:
                self._write("".join(_LASTS.findall(run, begun, rest)))
                begun = rest
        self._write(run[begun:])

    def _write(self, text: str) -> None:
        at = 0
        while at < len(text):
            end = at + CHUNK
            while at < end < len(text) and is_combining(text[end]):
                end -= 1
            end = end if end > at else at + CHUNK
            self._vterm.write(text[at:end].encode())
            at = end


def _check_size(rows: int, columns: int) -> None:
    if not (1 <= rows <= MAX_SIZE and 1 <= columns <= MAX_SIZE):
        raise UsageError(f"a terminal has 1 to {MAX_SIZE} rows and columns, not {rows} and {columns}")


def _after_lines(text: str, count: int) -> int:
    at = 0
    for _ in range(count):
        at = text.index("\n", at) + 1
    return at


def _before_lines(text: str, count: int) -> int:
    """Where the last ``count`` line feeds begin."""
    at = len(text)
    for _ in range(count):
        at = text.rindex("\n", 0, at)
    return at


def _parse_pen(answer: bytes) -> Style:
    """The answer to DECRQSS: ``ESC P 1 $ r ATTRIBUTES m ESC \\``, colours with colons."""
    _, _, attributes = answer.decode("ascii", "replace").partition("$r")
    pen = PLAIN
    for part in filter(None, attributes.partition("m")[0].split(";")):
        number, *values = map(int, part.split(":"))
        if number in _ATTRIBUTES:
            pen = replace(pen, **{_ATTRIBUTES[number]: True})
            continue
        colour: Colour = number % 10 + (8 if number >= 90 else 0)
        match values:
            case [5, index]:
                colour = index
            case [2, red, green, blue]:
                colour = (red, green, blue)
        pen = replace(pen, fg=colour) if number // 10 in (3, 9) else replace(pen, bg=colour)
    return pen
