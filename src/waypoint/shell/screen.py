"""What a terminal shows at one moment: plain values to compare, to render and to draw again.

Read next: :mod:`waypoint.shell.emulator`, which makes them, and :mod:`waypoint.shell.rendering`.
"""

from dataclasses import dataclass

__all__ = [
    "ALTERNATE",
    "AUTO_WRAP",
    "BRACKETED_PASTE",
    "CURSOR_KEYS",
    "CURSOR_VISIBLE",
    "FOCUS_EVENTS",
    "KEYPAD",
    "MOUSE_EVENTS",
    "MOUSE_FORMATS",
    "ORIGIN",
    "PLAIN",
    "Cell",
    "Colour",
    "Line",
    "Screen",
    "Style",
]

Colour = int | tuple[int, int, int] | None
"""An index into the palette of 256, red, green and blue, or the terminal's own default."""

# Private modes of DEC and xterm, by the numbers with which programs set them.
CURSOR_KEYS, ORIGIN, AUTO_WRAP, CURSOR_VISIBLE, KEYPAD = 1, 6, 7, 25, 66
MOUSE_EVENTS = frozenset({1000, 1002, 1003})  # clicks; drags too; every move
MOUSE_FORMATS = frozenset({1005, 1006, 1015})
FOCUS_EVENTS, ALTERNATE, BRACKETED_PASTE = 1004, 1049, 2004


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How a character is shown."""

    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    blink: bool = False
    reverse: bool = False
    strike: bool = False
    fg: Colour = None
    bg: Colour = None


PLAIN = Style()


@dataclass(frozen=True, slots=True)
class Cell:
    """One character with the accents on it, one or two columns wide. An empty cell is a space."""

    text: str = " "
    width: int = 1
    style: Style = PLAIN


Line = tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A screen: ``lines`` are on it, ``scrollback`` is what stood above them, oldest first.

    The widths of the cells of a line add up to ``columns``; a line of the scrollback keeps the width that it
    had when it scrolled away. Rows and columns of the cursor count from 0. ``margins`` are the first and the last row
    that scroll, counted from 1, unless all do. ``pen`` is the style of what will be written next, and ``modes``
    are the private modes that are on.
    """

    rows: int
    columns: int
    lines: tuple[Line, ...]
    scrollback: tuple[Line, ...] = ()
    cursor_row: int
    cursor_column: int
    title: str
    pen: Style
    margins: tuple[int, int] | None
    modes: frozenset[int]

    @property
    def cursor_visible(self) -> bool:
        return CURSOR_VISIBLE in self.modes

    @property
    def is_alternate(self) -> bool:
        """Whether a full-screen program shows its own screen; the one below it is shown again when it ends."""
        return ALTERNATE in self.modes

    @property
    def application_cursor(self) -> bool:
        """Whether arrow keys must be sent in their other form (DECCKM)."""
        return CURSOR_KEYS in self.modes

    @property
    def bracketed_paste(self) -> bool:
        return BRACKETED_PASTE in self.modes

    @property
    def wants_mouse(self) -> bool:
        return not self.modes.isdisjoint(MOUSE_EVENTS)
