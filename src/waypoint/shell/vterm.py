"""libvterm through ctypes: a terminal that takes bytes and returns cells.

The positions of the bits in its structures differ between versions. So they are not written down here but found out,
once: characters with known attributes are drawn and examined (``_learn_layout``).
The library must only be fed with what :mod:`waypoint.shell.sequences` lets through.
"""

import ctypes
import struct
from collections.abc import Callable
from functools import cache, lru_cache

from waypoint.errors import AbilityMissing
from waypoint.shell.screen import Cell, Colour, Line, Style
from waypoint.shell.sequences import original_codepoint

__all__ = ["VTerm", "parse_line", "require_libvterm"]

LIBRARY = "libvterm.so.0"
HINT = "apt-get install libvterm0"

# VTermScreenCell: 6 characters, the width, the bits of attributes, foreground, background.
_CELL = struct.Struct("=6Ib3xI4s4s")
MAX_CODEPOINTS = 6
_SECOND_HALF = 0xFFFFFFFF
_IS_INDEX, _IS_DEFAULT = 1, 6

# The SGR number of each attribute; libvterm has none for dim, so the filter selects font 1 for it.
_DRAWN_BY = {"bold": 1, "dim": 11, "italic": 3, "underline": 4, "blink": 5, "reverse": 7, "strike": 9}


class _Position(ctypes.Structure):
    _fields_ = (("row", ctypes.c_int), ("column", ctypes.c_int))


_LineCallback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _ScreenCallbacks(ctypes.Structure):
    _fields_ = (
        ("unused", ctypes.c_void_p * 6),
        ("push_line", _LineCallback),
        ("pop_line", _LineCallback),
        ("of_later_versions", ctypes.c_void_p * 8),
    )


def require_libvterm() -> None:
    """Raise AbilityMissing, saying how to get it, unless the library is there and known."""
    _learn_layout()


class VTerm:
    """A terminal of libvterm. ``push_line`` gets each line that scrolls off the main screen, as raw cells;
    ``pop_line`` returns the newest of them, or None, when the screen grows."""

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        push_line: Callable[[bytes], None],
        pop_line: Callable[[], bytes | None],
    ) -> None:
        def push(count: int, cells: int, _: object) -> int:
            push_line(ctypes.string_at(cells, count * _CELL.size))
            return 1

        def pop(count: int, cells: int, _: object) -> int:
            line = pop_line()
            if line is not None:
                ctypes.memmove(cells, _fit(line, count), count * _CELL.size)
            return line is not None

        self._library = _library()
        self._callbacks = _ScreenCallbacks(push_line=_LineCallback(push), pop_line=_LineCallback(pop))
        self._term = self._library.vterm_new(rows, columns)
        self._library.vterm_set_utf8(self._term, 1)
        self._state = self._library.vterm_obtain_state(self._term)
        self._screen = self._library.vterm_obtain_screen(self._term)
        self._library.vterm_screen_set_callbacks(self._screen, ctypes.byref(self._callbacks), None)
        self._library.vterm_screen_enable_altscreen(self._screen, 1)
        self._library.vterm_screen_reset(self._screen, 1)

    def close(self) -> None:
        if self._term is not None:
            self._library.vterm_free(self._term)
            self._term = self._state = self._screen = None

    def write(self, data: bytes) -> None:
        self._require_open()
        self._library.vterm_input_write(self._term, data, len(data))

    def resize(self, rows: int, columns: int) -> None:
        self._require_open()
        self._library.vterm_set_size(self._term, rows, columns)

    def ask(self, question: bytes) -> bytes:
        """The answer of the terminal to a sequence that asks for one."""
        answer = ctypes.create_string_buffer(256)
        self.write(question)
        length = self._library.vterm_output_read(self._term, answer, len(answer))
        return answer.raw[:length]

    def cursor(self) -> tuple[int, int]:
        self._require_open()
        position = _Position()
        self._library.vterm_state_get_cursorpos(self._state, ctypes.byref(position))
        return position.row, position.column

    def row(self, number: int, columns: int) -> bytes:
        """The raw cells of a row on the screen."""
        self._require_open()
        cells = ctypes.create_string_buffer(columns * _CELL.size)
        get_cell, screen, address = self._library.vterm_screen_get_cell, self._screen, ctypes.addressof(cells)
        position = _Position(number, 0)
        for column in range(columns):
            position.column = column
            get_cell(screen, position, address + column * _CELL.size)
        return cells.raw

    def _require_open(self) -> None:
        if self._term is None:
            raise ValueError("the terminal is closed")


def parse_line(raw: bytes) -> Line:
    """Cells whose widths add up to the columns, whatever libvterm has left of overwritten wide characters."""
    line = []
    at = 0
    while at < len(raw):
        cell = _parse_cell(raw[at : at + _CELL.size])
        line.append(cell)
        at += cell.width * _CELL.size
    return tuple(line)


@lru_cache(maxsize=1 << 14)
def _parse_cell(raw: bytes) -> Cell:
    *characters, width, attributes, fg, bg = _CELL.unpack(raw)
    style = _parse_style(attributes, fg, bg)
    if 0 in characters:
        del characters[characters.index(0) :]
    if not characters or characters[0] == _SECOND_HALF:
        return Cell(" ", 1, style)
    wanted = 1 if characters[0] < 0x300 else _columns_of(characters[0])
    if wanted > width:  # its right half was overwritten
        return Cell(" ", 1, style)
    text = "".join(chr(original_codepoint(character)) for character in characters)
    # An accent without a letter is put on a space. A narrow character may stand before half of a wide one.
    return Cell(text if wanted else f" {text}"[:MAX_CODEPOINTS], max(wanted, 1), style)


@lru_cache(maxsize=1 << 12)
def _parse_style(attributes: int, fg: bytes, bg: bytes) -> Style:
    masks = _learn_layout()
    return Style(
        **{name: bool(attributes & mask) for name, mask in masks.items()},
        fg=_parse_colour(fg),
        bg=_parse_colour(bg),
    )


def _parse_colour(raw: bytes) -> Colour:
    kind, first, second, third = raw
    if kind & _IS_DEFAULT:
        return None
    return first if kind & _IS_INDEX else (first, second, third)


def _fit(line: bytes, columns: int) -> bytes:
    """A line of another width, cut or filled up for libvterm, which trusts the widths in it."""
    size = columns * _CELL.size
    if len(line) > size and line[size - _CELL.size + 24] == 2:
        line = line[: size - _CELL.size]
    return (line + _blank_cell() * columns)[:size]


@lru_cache(maxsize=1 << 14)
def _columns_of(codepoint: int) -> int:
    """How many columns a character takes (0, 1 or 2), as libvterm counts, not Python's tables."""
    with _Scratch(1, 4) as term:
        term.write(chr(codepoint).encode())
        return term.cursor()[1]


class _Scratch(VTerm):
    """A terminal for one question."""

    def __init__(self, rows: int, columns: int) -> None:
        self.pushed: list[bytes] = []
        super().__init__(rows, columns, push_line=self.pushed.append, pop_line=lambda: None)

    def __enter__(self) -> "_Scratch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def _blank_cell() -> bytes:
    with _Scratch(1, 1) as term:
        return term.row(0, 1)


@cache
def _learn_layout() -> dict[str, int]:
    """The bit of each attribute. Raises AbilityMissing if cells are not laid out as this module expects."""
    with _Scratch(2, 3) as term:
        masks = {}
        for name, number in _DRAWN_BY.items():
            term.write(b"\x1b[0;%dm\x1b[HX" % number)
            masks[name] = int(_CELL.unpack_from(term.row(0, 3))[7])
        term.write(b"\x1b[0;38;2;1;2;3;48;5;4m\x1b[HXe\xcc\x81\x1b[0mY\n\n")
        found = [
            (*characters[:2], width, attributes, _parse_colour(fg), _parse_colour(bg))
            for line in term.pushed
            for *characters, width, attributes, fg, bg in _CELL.iter_unpack(line)
        ]
    expected = [
        (ord("X"), 0, 1, 0, (1, 2, 3), 4),
        (ord("e"), 0x301, 1, 0, (1, 2, 3), 4),
        (ord("Y"), 0, 1, 0, None, None),
    ]
    bits = set(masks.values())
    if found != expected or len(bits) != len(masks) or any(mask.bit_count() != 1 for mask in bits):
        raise AbilityMissing(f"{LIBRARY} is a version whose layout of cells is not known here", hint=HINT)
    return masks


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise AbilityMissing(
            f"{LIBRARY} is not installed; it is needed to draw terminals", hint=HINT
        ) from error
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    signatures: dict[str, tuple[type | None, list[type]]] = {
        "vterm_new": (pointer, [number, number]),
        "vterm_free": (None, [pointer]),
        "vterm_set_utf8": (None, [pointer, number]),
        "vterm_set_size": (None, [pointer, number, number]),
        "vterm_input_write": (size, [pointer, ctypes.c_char_p, size]),
        "vterm_output_read": (size, [pointer, ctypes.c_char_p, size]),
        "vterm_obtain_state": (pointer, [pointer]),
        "vterm_obtain_screen": (pointer, [pointer]),
        "vterm_state_get_cursorpos": (None, [pointer, pointer]),
        "vterm_screen_set_callbacks": (None, [pointer, pointer, pointer]),
        "vterm_screen_enable_altscreen": (None, [pointer, number]),
        "vterm_screen_reset": (None, [pointer, number]),
        "vterm_screen_get_cell": (number, [pointer, _Position, pointer]),
    }
    try:
        for name, (result, arguments) in signatures.items():
            function = library[name]
            function.restype, function.argtypes = result, arguments
            setattr(library, name, function)
    except AttributeError as error:
        raise AbilityMissing(f"{LIBRARY} is an unknown version: {error}", hint=HINT) from error
    return library
