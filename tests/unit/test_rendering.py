"""Screens as text, coloured text, web page and picture, and as bytes that redraw them on another terminal."""

import builtins
import html.parser
import io
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from support.terminal_output import BASH, LESS, VIM_STARTS, after, anything
from waypoint.errors import AbilityMissing
from waypoint.shell import rendering
from waypoint.shell.emulator import Emulator, Screen
from waypoint.shell.rendering import PALETTE, redraw, render_ansi, render_html, render_png, render_text

COLOURS = b'plain \x1b[1;31mred\x1b[0m \x1b[48;5;20mblue  \x1b[0m\r\n<b>&"\r\n\r\n  \x1b[7m \x1b[0m end'


# --- text ------------------------------------------------------------------------------------------------------


def test_text_has_a_line_for_each_row_without_trailing_spaces() -> None:
    assert render_text(after(COLOURS, 6, 20)) == 'plain red blue\n<b>&"\n\n    end\n\n'
    assert render_text(after(b"", 3, 5)) == "\n\n"


def test_the_scrollback_is_above_the_screen() -> None:
    screen = after(b"1\r\n2\r\n3\r\n4", 2, 5, scrollback=10)
    assert render_text(screen) == "1\n2\n3\n4"
    assert render_ansi(screen) == "1\n2\n3\n4"
    assert Reader(render_html(screen)).text.split() == ["1", "2", "3", "4"]
    assert picture(screen).height == 2 * picture(replace(screen, scrollback=())).height


def test_coloured_text_resets_its_colours_on_each_line() -> None:
    assert render_ansi(after(COLOURS, 5, 20)).split("\n") == [
        "plain \x1b[0;1;31mred\x1b[0m \x1b[0;48;5;20mblue  \x1b[0m",
        '<b>&"',
        "",
        "  \x1b[0;7m \x1b[0m end",
        "",
    ]
    assert "\x1b[0;2;93;48;2;1;2;3mx\x1b[0m" in render_ansi(after(b"\x1b[2;93;48;2;1;2;3mx", 1, 5))


@settings(deadline=None)
@given(st.lists(anything, max_size=5))
def test_coloured_text_looks_the_same_in_a_terminal(pieces: list[bytes]) -> None:
    screen = after(b"".join(pieces), 6, 30)
    shown = after(render_ansi(screen).replace("\n", "\r\n").encode(), 6, 30)
    assert shown.lines == screen.lines


# --- web page --------------------------------------------------------------------------------------------------


class Reader(html.parser.HTMLParser):
    """Collects the text a browser would show, and the text marked as the cursor."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = self.cursor = self._inside = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._inside = "cursor" if ("id", "cursor") in attrs else tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside != "title":
            self.text += data
        if self._inside == "cursor":
            self.cursor = data


def test_text_in_a_page_is_escaped() -> None:
    screen = after(b"\x1b]2;</title><script>\x07<script>alert(1)</script> &amp;\x1b[3D", 2, 40)
    page = render_html(screen)
    reader = Reader(page)
    assert reader.tags == {"html", "head", "meta", "title", "body", "pre", "span"}
    assert reader.text.strip() == "<script>alert(1)</script> &amp;"
    assert reader.cursor == "m"
    assert page.isascii()


def test_a_page_has_the_colours_and_two_columns_for_wide_characters() -> None:
    page = render_html(after("\x1b[1;4;38;5;196mred\x1b[0;2mdim\x1b[0m日本".encode(), 1, 20))
    assert "color:#ff0000;font-weight:bold;text-decoration:underline;" in page
    assert "color:#727272;" in page
    assert page.count("display:inline-block;width:2ch;") == 2


def test_a_hidden_cursor_is_not_shown() -> None:
    assert 'id="cursor"' in render_html(after(b"x"))
    assert 'id="cursor"' not in render_html(after(b"x\x1b[?25l"))


# --- picture ---------------------------------------------------------------------------------------------------


def picture(screen: Screen) -> Image.Image:
    image = Image.open(io.BytesIO(render_png(screen)))
    assert image.format == "PNG"
    return image


def corner(screen: Screen, row: int, column: int) -> object:
    """The first pixel of a cell, where no letter has ink."""
    image = picture(screen)
    return image.getpixel((image.width // screen.columns * column, image.height // screen.rows * row))


def test_a_picture_has_the_size_of_the_screen() -> None:
    small, large = picture(after(b"x", 5, 20)), picture(after(b"x", 10, 60))
    assert (large.width, large.height) == (small.width * 3, small.height * 2)
    assert small.width % 20 == 0
    assert small.height % 5 == 0


def test_a_picture_shows_colours_and_the_cursor() -> None:
    screen = after("\x1b[48;5;196m \x1b[48;2;1;2;3m \x1b[0;7m \x1b[0;44m日\x1b[0m".encode(), 2, 10)
    assert [corner(screen, 0, column) for column in range(7)] == [
        PALETTE[196],
        (1, 2, 3),
        rendering.FOREGROUND,
        PALETTE[4],
        PALETTE[4],
        rendering.FOREGROUND,
        rendering.BACKGROUND,
    ]
    assert corner(replace(screen, modes=frozenset()), 0, 5) == rendering.BACKGROUND


def test_a_picture_shows_letters_and_bold_ones_heavier() -> None:
    def ink(data: bytes) -> int:
        histogram = picture(after(data + b"\x1b[?25l", 1, 20)).convert("L").histogram()
        return sum(level * count for level, count in enumerate(histogram))

    assert ink(b"") == 0
    assert 0 < ink(b"\x1b[2mhello") < ink(b"hello") < ink(b"\x1b[1mhello")
    assert ink(b"hello") < ink(b"\x1b[4mhello")
    assert ink(b"hello") < ink(b"\x1b[9mhello")
    assert ink(b"e") < ink("e\u0301".encode()) == ink("é".encode())
    assert ink(b"x") < ink("x\u0301".encode())


def test_without_pillow_or_the_font_the_error_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "FONT_NAMES", ("NoSuchFont", "NoSuchFont-Bold"))
    with pytest.raises(AbilityMissing) as raised:
        render_png(after(b"x"))
    assert raised.value.hint == "apt-get install fonts-dejavu-core"

    screen = after(b"x")
    real_import = builtins.__import__

    def without_pillow(name: str, *args: object, **named: object) -> object:
        if name == "PIL":
            raise ImportError(name)
        return real_import(name, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(AbilityMissing) as raised:
        render_png(screen)
    assert raised.value.hint == "pip install 'statefork[png]'"


# --- another terminal ------------------------------------------------------------------------------------------

words = st.text(st.sampled_from("ab 12─é日本✅🧪e\u0301\u0301\u200d"), max_size=12).map(str.encode)
moves = st.builds(
    lambda row, column: b"\x1b[%d;%dH" % (row, column),
    st.integers(min_value=0, max_value=9),
    st.integers(min_value=0, max_value=25),
)
attributes = st.lists(
    st.sampled_from("0 1 2 3 4 5 7 9 22 31 44 95 106 38;5;77 48;5;9 38;2;1;2;3 48;2;4;5;6".split()),
    max_size=4,
).map(lambda numbers: f"\x1b[{';'.join(numbers)}m".encode())
others = st.sampled_from(
    [*(b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?1h", b"\x1b[?2004h", b"\x1b[?25l", b"\x1b[?7l", b"\x1b=", b"\x1b[?1002;1006h"),
    *(b"\x1b[2;4r", b"\x1b[?6h", b"\x1b]2;title <&>\x07", b"\x1b[J", b"\x1b[1K", b"\x1b[2P", b"\x1b[L", b"\r\n" * 4),
    *(b"\x1b[4h", b"\x1b[20h", b"\x1b(0", b"\x1b)0\x0e")]
)  # fmt: skip
output = st.lists(words | moves | attributes | others | anything, max_size=12).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(output, st.sampled_from([1, 2, 6]), st.sampled_from([1, 2, 3, 20]))
@example(BASH, 10, 40)
@example(VIM_STARTS, 10, 40)
@example(LESS, 10, 40)
@example("\x1b[20G\u0301e\u0301".encode(), 2, 20)
def test_a_redrawn_screen_is_identical(data: bytes, rows: int, columns: int) -> None:
    screen = after(data, rows, columns)
    assert after(redraw(screen), rows, columns) == screen


@settings(deadline=None)
@given(output, output)
def test_redrawing_leaves_nothing_of_what_the_terminal_showed_before(shown: bytes, data: bytes) -> None:
    screen = after(data + b"\x1b]2;title\x07", 6, 20)
    with Emulator(6, 20) as other:
        other.feed(shown)
        other.feed(b"\x1b\\" + redraw(screen))
        assert other.screen() == screen


@settings(deadline=None)
@given(output, st.integers(min_value=0, max_value=20))
def test_the_scrollback_is_redrawn_too(data: bytes, count: int) -> None:
    screen = after(b"one\r\ntwo\r\n" * 5 + data, 6, 20, scrollback=count)
    assert after(redraw(screen), 6, 20, scrollback=count) == screen


def test_output_after_redrawing_continues_at_the_cursor() -> None:
    before, then = b"\x1b[2;3r\x1b[?6h\x1b[1;31mone\r\n", b"two\r\nthree"
    with Emulator(5, 20) as other:
        other.feed(redraw(after(before, 5, 20)))
        other.feed(then)
        assert other.screen() == after(before + then, 5, 20)
