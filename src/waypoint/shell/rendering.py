"""A screen as text, coloured text, a web page or a picture, and as the bytes that draw it on another terminal.

All of them show the lines of the scrollback that the screen was asked for, then exactly as many lines as it
has rows, empty ones too: a reader can rely on line *n* being row *n*.
"""

import html
import io
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from waypoint.errors import AbilityMissing
from waypoint.shell.screen import (
    AUTO_WRAP,
    BRACKETED_PASTE,
    CURSOR_KEYS,
    FOCUS_EVENTS,
    KEYPAD,
    MOUSE_EVENTS,
    MOUSE_FORMATS,
    ORIGIN,
    PLAIN,
    Cell,
    Colour,
    Line,
    Screen,
    Style,
)

__all__ = ["redraw", "render_ansi", "render_html", "render_png", "render_text", "searchable_text"]

Rgb = tuple[int, int, int]

FOREGROUND: Rgb = (229, 229, 229)
BACKGROUND: Rgb = (0, 0, 0)

FONTS = Path("/usr/share/fonts/truetype/dejavu")
FONT_NAMES = ("DejaVuSansMono", "DejaVuSansMono-Bold")
FONT_SIZE = 16

# xterm's: 16 colours by name, a cube of 6 x 6 x 6, 24 greys.
_NAMED = "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff"
_STEPS = (0, 95, 135, 175, 215, 255)
PALETTE: tuple[Rgb, ...] = (
    *((int(name[:2], 16), int(name[2:4], 16), int(name[4:], 16)) for name in _NAMED.split()),
    *((red, green, blue) for red in _STEPS for green in _STEPS for blue in _STEPS),
    *((grey, grey, grey) for grey in range(8, 248, 10)),
)

_REDRAWN_MODES = (
    frozenset({CURSOR_KEYS, ORIGIN, AUTO_WRAP, FOCUS_EVENTS, BRACKETED_PASTE}) | MOUSE_EVENTS | MOUSE_FORMATS
)
_EMPTY = Cell()
_ATTRIBUTES = {"bold": 1, "dim": 2, "italic": 3, "underline": 4, "blink": 5, "reverse": 7, "strike": 9}


def render_text(screen: Screen) -> str:
    """Lines without spaces at their ends, joined by line feeds; none after the last."""
    return "\n".join(
        "".join(cell.text for cell in line).rstrip(" ") for line in (*screen.scrollback, *screen.lines)
    )


def searchable_text(screen: Screen) -> str:
    """The text of a screen, with the blanks that a prompt leaves before the cursor."""
    lines = render_text(screen).split("\n")
    row = len(screen.scrollback) + screen.cursor_row
    lines[row] = lines[row].ljust(screen.cursor_column)
    return "\n".join(lines)


def render_ansi(screen: Screen) -> str:
    """As `render_text`, with the colours and attributes for showing it in a terminal."""
    return "\n".join(_coloured(line) for line in (*screen.scrollback, *screen.lines))


def render_html(screen: Screen) -> str:
    """A whole document that needs nothing else. The cursor is the element with the id ``cursor``."""
    lines = [*screen.scrollback, *screen.lines]
    body = "\n".join(
        "".join(_spans(_in_line(line, _cursor_column(screen, number - len(screen.scrollback)))))
        for number, line in enumerate(lines)
    )
    return (
        '<!DOCTYPE html>\n<html><head><meta charset="utf-8">'
        f"<title>{html.escape(screen.title or 'terminal')}</title></head>"
        f'<body style="margin:0;background:{_css(BACKGROUND)}">'
        f'<pre style="margin:0;padding:1ch;color:{_css(FOREGROUND)};background:{_css(BACKGROUND)};'
        f"font-family:'DejaVu Sans Mono',monospace;line-height:1.2\">{body}\n</pre></body></html>\n"
    )


def render_png(screen: Screen, *, font_size: int = FONT_SIZE) -> bytes:
    """A picture. Raises AbilityMissing without Pillow or the font; characters that it lacks become boxes."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise AbilityMissing(
            "Pillow is not installed; it is needed to draw pictures", hint="pip install 'statefork[png]'"
        ) from error
    try:
        regular, bold = (
            ImageFont.truetype(FONTS / f"{name}.ttf", font_size, layout_engine=ImageFont.Layout.BASIC)
            for name in FONT_NAMES
        )
    except OSError as error:
        raise AbilityMissing(
            f"the font DejaVu Sans Mono is not in {FONTS}", hint="apt-get install fonts-dejavu-core"
        ) from error

    lines = [*screen.scrollback, *screen.lines]
    columns = max(sum(cell.width for cell in line) for line in lines)
    ascent, descent = regular.getmetrics()
    across, down = round(regular.getlength("M")), ascent + descent
    image = Image.new("RGB", (columns * across, len(lines) * down), BACKGROUND)
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        top = number * down
        for column, cell, under_cursor in _in_line(
            line, _cursor_column(screen, number - len(screen.scrollback))
        ):
            left, right = column * across, (column + cell.width) * across - 1
            fg, bg = _colours(cell.style, under_cursor)
            if bg != BACKGROUND:
                draw.rectangle((left, top, right, top + down - 1), bg)
            for character in _drawn(cell.text):
                draw.text((left, top), character, fg, bold if cell.style.bold else regular)
            if cell.style.underline:
                draw.line((left, top + ascent + 1, right, top + ascent + 1), fg)
            if cell.style.strike:
                draw.line((left, top + ascent * 2 // 3, right, top + ascent * 2 // 3), fg)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def _drawn(text: str) -> Iterator[str]:
    """The characters to draw over each other: a letter and the accents that it has no form with."""
    composed = unicodedata.normalize("NFC", text)
    if composed[0] != " ":
        yield composed[0]
    yield from filter(unicodedata.combining, composed[1:])


def redraw(screen: Screen) -> bytes:
    """The bytes that make any terminal like xterm, of the same size, show this screen and continue from it.

    The screen below an alternate one, saved cursors and tab stops are not known here, so they are left out.
    """
    out = [
        "\x1b[!p\x0f\x1b(B\x1b[0m\x1b[?25l\x1b[?6l\x1b[?7h\x1b[4l\x1b[20l\x1b[r\x1b[?1049l\x1b[H\x1b[2J",
        *_scrolled_off(screen),
        "\x1b[?1049h\x1b[H\x1b[2J" if screen.is_alternate else "",
        *(
            f"\x1b[{row};1H{_line_in_columns(line)}"
            for row, line in enumerate(screen.lines, 1)
            if _visible(line)
        ),
    ]
    if screen.title:
        out.append(f"\x1b]2;{screen.title}\x07")
    if screen.margins:
        out.append("\x1b[{};{}r".format(*screen.margins))
    # First off, then on: turning off one kind of mouse events may turn off all.
    out += [f"\x1b[?{mode}l" for mode in sorted(_REDRAWN_MODES - screen.modes)]
    out += [f"\x1b[?{mode}h" for mode in sorted(_REDRAWN_MODES & screen.modes)]
    out.append("\x1b=" if KEYPAD in screen.modes else "\x1b>")
    first_row = screen.margins[0] if screen.margins and ORIGIN in screen.modes else 1
    out.append(f"\x1b[{screen.cursor_row + 2 - first_row};{screen.cursor_column + 1}H")
    out.append(_sgr(screen.pen))
    if screen.cursor_visible:
        out.append("\x1b[?25h")
    return "".join(out).encode()


def _scrolled_off(screen: Screen) -> Iterator[str]:
    """Write the scrollback from the top, then scroll what is left of it out of the screen."""
    for line in screen.scrollback:
        yield f"{_line_in_columns(line)}\x1b[0m\r\n"
    left = min(len(screen.scrollback), screen.rows - 1)
    if left:
        yield f"\x1b[{screen.rows};1H" + "\n" * left + "\x1b[H"


def _line_in_columns(line: Line) -> str:
    """A line as `_coloured`, but with each cell in its column even if terminals differ on a width before it."""
    out = []
    column = 1
    style = PLAIN
    is_sure = True
    for cell in _visible(line):
        if not is_sure:
            out.append(f"\x1b[{column}G")
        if cell.style != style:
            out.append(_sgr(cell.style))
            style = cell.style
        out.append(cell.text)
        column += cell.width
        is_sure = len(cell.text) == 1 and (cell.text < "\u0300" or "\u2500" <= cell.text < "\u25a0")
    return "".join(out) + ("\x1b[0m" if style != PLAIN else "")


def _coloured(line: Line) -> str:
    out = []
    before = PLAIN
    for style, cells in groupby(_visible(line), key=lambda cell: cell.style):
        if style != before:
            out.append(_sgr(style))
        out.extend(cell.text for cell in cells)
        before = style
    return "".join(out) + ("\x1b[0m" if before != PLAIN else "")


def _visible(line: Line) -> Line:
    """The line without the empty cells at its end."""
    end = len(line)
    while end and line[end - 1] == _EMPTY:
        end -= 1
    return line[:end]


@lru_cache(maxsize=4096)
def _sgr(style: Style) -> str:
    parts = ["0", *(str(number) for name, number in _ATTRIBUTES.items() if getattr(style, name))]
    for colour, base in ((style.fg, 30), (style.bg, 40)):
        match colour:
            case int() if colour < 8:
                parts.append(str(base + colour))
            case int() if colour < 16:
                parts.append(str(base + 60 + colour - 8))
            case int():
                parts.append(f"{base + 8};5;{colour}")
            case (red, green, blue):
                parts.append(f"{base + 8};2;{red};{green};{blue}")
    return f"\x1b[{';'.join(parts)}m"


def _cursor_column(screen: Screen, row: int) -> int | None:
    return screen.cursor_column if screen.cursor_visible and row == screen.cursor_row else None


def _in_line(line: Line, cursor_column: int | None) -> Iterator[tuple[int, Cell, bool]]:
    """Each cell with its column, and whether it is under the cursor; not the empty cells at the end."""
    column = 0
    shown = len(_visible(line))
    for number, cell in enumerate(line):
        under_cursor = cursor_column is not None and column <= cursor_column < column + cell.width
        if number < shown or (cursor_column is not None and column <= cursor_column):
            yield column, cell, under_cursor
        column += cell.width


def _spans(cells: Iterator[tuple[int, Cell, bool]]) -> Iterator[str]:
    # A wide character is alone in its element, which is two columns wide in every font.
    for (style, width, under_cursor), run in groupby(
        cells, key=lambda found: (found[1].style, found[1].width, found[2])
    ):
        texts = [html.escape(cell.text) for _, cell, _ in run]
        css = _css_of(style, under_cursor)
        name = ' id="cursor"' if under_cursor else ""
        for text in texts if width == 2 else ["".join(texts)]:
            wide = "display:inline-block;width:2ch;" if width == 2 else ""
            yield f'<span{name} style="{wide}{css}">{text}</span>' if wide or css else text


@lru_cache(maxsize=4096)
def _css_of(style: Style, under_cursor: bool) -> str:
    fg, bg = _colours(style, under_cursor)
    lines = [name for name, on in (("underline", style.underline), ("line-through", style.strike)) if on]
    return "".join(
        (
            f"color:{_css(fg)};" if fg != FOREGROUND else "",
            f"background:{_css(bg)};" if bg != BACKGROUND else "",
            "font-weight:bold;" if style.bold else "",
            "font-style:italic;" if style.italic else "",
            f"text-decoration:{' '.join(lines)};" if lines else "",
        )
    )


def _css(colour: Rgb) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


@lru_cache(maxsize=4096)
def _colours(style: Style, under_cursor: bool) -> tuple[Rgb, Rgb]:
    """The colours of text and background. The cursor is a block, so it swaps them."""
    fg, bg = _rgb(style.fg, FOREGROUND), _rgb(style.bg, BACKGROUND)
    if style.dim:
        fg = ((fg[0] + bg[0]) // 2, (fg[1] + bg[1]) // 2, (fg[2] + bg[2]) // 2)
    return (bg, fg) if style.reverse != under_cursor else (fg, bg)


def _rgb(colour: Colour, default: Rgb) -> Rgb:
    if colour is None:
        return default
    return PALETTE[colour] if isinstance(colour, int) else colour
