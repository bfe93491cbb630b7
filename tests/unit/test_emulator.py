"""The emulator shows what a person would see, for the output of real programs and for harmful output."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.terminal_output import (
    BASH,
    DEADLY,
    LESS,
    TOP,
    VIM_ENDS,
    VIM_INSERTS,
    VIM_STARTS,
    after,
    anything,
)
from waypoint.errors import AbilityMissing, UsageError
from waypoint.shell import vterm
from waypoint.shell.emulator import Cell, Emulator, Screen, Style
from waypoint.shell.rendering import render_text

sizes = st.sampled_from([1, 2, 3, 5, 10, 24, 80])


def text(screen: Screen) -> str:
    return render_text(screen).rstrip("\n")


def cells(data: bytes) -> list[Cell]:
    """The cells of the first row, up to its last character."""
    line = list(after(data).lines[0])
    while line and line[-1] == Cell():
        line.pop()
    return line


def style(data: bytes) -> Style:
    return cells(data + b"x")[0].style


# --- programs --------------------------------------------------------------------------------------------------


def test_a_shell_shows_its_prompt_with_the_cursor_after_it() -> None:
    screen = after(BASH)
    assert text(screen) == (
        "bash-5.2# ls --color=always /tmp/vt/lsd\ndir  link  readme  run.sh\n"
        "bash-5.2# printf 'a\\rb\\n'\nb\nbash-5.2#"
    )
    assert (screen.cursor_row, screen.cursor_column, screen.cursor_visible) == (4, 10, True)
    assert screen.bracketed_paste
    assert not screen.is_alternate
    assert [cell.style for cell in screen.lines[1][:5:4]] == [Style(bold=True, fg=4), Style()]


def test_vim_uses_the_whole_screen_and_restores_it() -> None:
    with Emulator(10, 40) as emulator:
        emulator.feed(BASH)
        before = emulator.screen()
        emulator.feed(b"\x1b]0;shell\x07vim\r\n")
        emulator.feed(VIM_STARTS)
        screen = emulator.screen()
        assert screen.is_alternate
        assert screen.application_cursor
        assert screen.bracketed_paste
        assert text(screen) == (
            "int main(void)\n{\n        return 0; /* ok */\n}\n~\n~\n~\n~\n~\n"
            '"/tmp/vt/hello.c" 4L, 1,1           All'
        )
        assert (screen.cursor_row, screen.cursor_column, screen.cursor_visible) == (0, 0, True)
        assert screen.lines[2][8].style == Style(fg=130)
        emulator.feed(VIM_INSERTS)
        assert emulator.screen().lines[1][:5] == tuple(Cell(letter) for letter in "hello")
        assert emulator.screen().cursor_column == 5
        emulator.feed(VIM_ENDS)
        screen = emulator.screen()
    assert not screen.is_alternate
    assert not screen.application_cursor
    assert text(screen) == text(before) + " vim"
    assert (screen.cursor_row, screen.cursor_column) == (5, 0)
    assert screen.title == "shell"


def test_less_wraps_long_lines() -> None:
    lines = text(after(LESS)).splitlines()
    assert lines[2:5] == [
        "# Updated from https://www.iana.org/assi",
        "gnments/service-names-port-numbers/servi",
        "ce-names-port-numbers.xhtml .",
    ]
    assert lines[-1] == "/etc/services"
    assert after(LESS).lines[-1][0].style.reverse


def test_plain_output_is_shown_unchanged() -> None:
    assert text(after(TOP)) == TOP.decode().replace("\r\n", "\n").rstrip()


def test_only_the_last_state_of_a_progress_bar_is_shown() -> None:
    screen = after(b"".join(b"\r%3d%% [%-10s]\x1b[K" % (n * 10, b"#" * n) for n in range(8)))
    assert text(screen) == " 70% [#######   ]"
    assert screen.cursor_column == 17


def test_line_drawing_characters_are_shown_in_both_encodings() -> None:
    assert text(after(b"\x1b(0lqk\x1b(B\r\n\x1b)0\x0emqj\x0f q")) == "┌─┐\n└─┘ q"
    assert text(after("┌─┐\r\n└─┘".encode())) == "┌─┐\n└─┘"


# --- characters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "widths"),
    [
        ("日本", [2, 2]),
        ("✅ok", [2, 1, 1]),
        ("🧪🫠🥲", [2, 2, 2]),  # newer than libvterm's tables
        ("e\u0301a\u0308\u0323", [1, 1]),
        ("👩\u200d🚀", [2, 2]),
        ("⚠\ufe0f!", [1, 1]),
        ("각", [2]),
        ("\u1112\u1161\u11ab", [2]),
        ("─é€", [1, 1, 1]),
    ],
)
def test_characters_have_the_width_that_programs_count_with(printed: str, widths: list[int]) -> None:
    line = cells(printed.encode())
    assert "".join(cell.text for cell in line) == printed
    assert [cell.width for cell in line] == widths


def test_a_wide_character_does_not_fit_into_the_last_column() -> None:
    screen = after("abc字d".encode(), 3, 4)
    assert text(screen) == "abc\n字d"


@pytest.mark.parametrize(
    ("printed", "seen"),
    [("字\rx", "x"), ("字\x1b[2Gx", " x"), ("日本\x1b[2Gx", " x本"), ("日本\r\x1b[P", " 本")],
)
def test_half_of_an_overwritten_wide_character_is_blank(printed: str, seen: str) -> None:
    screen = after(printed.encode(), 2, 10)
    assert text(screen) == seen
    assert all(sum(cell.width for cell in line) == 10 for line in screen.lines)


def test_japanese_accents_are_combined_with_their_letters() -> None:
    assert [cell.text for cell in cells("か\u3099は\u309aあ\u3099".encode())] == ["が", "ぱ", "あ"]


def test_invalid_utf8_is_shown_as_a_replacement_character() -> None:
    assert text(after(b"a\xffb\xc3")) == "a\ufffdb"


# --- styles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ("1", Style(bold=True)),
        ("2", Style(dim=True)),
        ("1;2", Style(bold=True, dim=True)),
        ("1;2;22", Style()),
        ("2m\x1b[22;39", Style()),
        ("1m\x1b[>4;2", Style(bold=True)),
        ("1m\x1b[38;5;<1m\x1b[38;2;;7;m\x1b[3;4>", Style(bold=True, fg=(0, 7, 0), italic=True)),
        ("3;4;5;7;9", Style(italic=True, underline=True, blink=True, reverse=True, strike=True)),
        ("21", Style(underline=True)),
        ("4:3", Style(underline=True)),
        ("4;4:0", Style()),
        ("31;42", Style(fg=1, bg=2)),
        ("91;102", Style(fg=9, bg=10)),
        ("38;5;200", Style(fg=200)),
        ("48:5:17", Style(bg=17)),
        ("38;2;1;2;3", Style(fg=(1, 2, 3))),
        ("38:2:1:2:3", Style(fg=(1, 2, 3))),
        ("38:2::1:2:3;1", Style(fg=(1, 2, 3), bold=True)),
        ("58;2;1;2;3;3", Style(italic=True)),
        ("0;1;3;38;2;1;2;3;48;2;4;5;6;9;27;7;27;7;27", Style(bold=True, italic=True, strike=True, fg=(1, 2, 3), bg=(4, 5, 6))),
        ("31;39;42;49", Style()),
        ("12;8;99;1000000;38;5", Style()),
    ],
)  # fmt: skip
def test_attributes_and_colours_are_understood(numbers: str, expected: Style) -> None:
    assert style(f"\x1b[{numbers}m".encode()) == expected
    assert after(f"\x1b[{numbers}m".encode()).pen == expected


def test_erasing_keeps_the_background_colour() -> None:
    assert after(b"\x1b[44m\x1b[K").lines[0][39] == Cell(" ", 1, Style(bg=4))


# --- what the terminal keeps -----------------------------------------------------------------------------------


def test_lines_that_scrolled_off_are_kept_in_order() -> None:
    with Emulator(4, 20, history=50) as emulator:
        emulator.feed(b"".join(b"line %d\r\n" % number for number in range(100)))
        assert render_text(emulator.screen(2)) == "line 95\nline 96\nline 97\nline 98\nline 99\n"
        assert len(emulator.screen(1000).scrollback) == 50
        assert emulator.screen().scrollback == ()
        emulator.feed(b"\x1b[?1049h" + b"other\r\n" * 20 + b"\x1b[?1049l")
        assert render_text(emulator.screen(1)).startswith("line 96\n")
        emulator.feed(b"\x1b[H\x1b[2J\x1b[3J")
        assert emulator.screen(10).scrollback == ()


def test_scrolled_lines_reappear_when_the_window_grows() -> None:
    with Emulator(6, 20) as emulator:
        emulator.feed(b"".join(b"line %d\r\n" % number for number in range(5)))
        before = emulator.screen()
        emulator.resize(2, 20)
        assert text(emulator.screen()) == "line 4"
        emulator.resize(6, 20)
        assert emulator.screen() == before
        emulator.resize(2, 3)
        emulator.resize(6, 20)
        assert emulator.screen().lines[0][0] == Cell("l")


def test_sequences_that_libvterm_lacks_are_understood() -> None:
    assert text(after(b"-\x1b[9b>")) == "---------->"
    assert text(after(b"ab\x1b[scd\x1b[u!\x1b[K")) == "ab!"
    assert after(b"\x1b[?1006;1000h").wants_mouse
    assert after(b"\x1b[?1006;1000h").modes >= {1000, 1006}
    assert not after(b"\x1b[?1003h\x1b[?1000l").wants_mouse
    assert after(b"\x1b[?25l\x1b7\x1b[?25h\x1b8").cursor_visible
    assert after(b"\x1b[?47hx").is_alternate
    assert text(after(b"of a stream cut inside of vim\x1b[?1049l$")) == "of a stream cut inside of vim$"
    assert not after(b"\x1b[?1049h\x1bc").is_alternate
    assert text(after(b"below\x1b[?1049habove\x1bcx")) == "x"
    assert not after(b"\x1b[?1;6h\x1b[2;3r\x1b[!p").modes & {1, 6}


def test_titles_are_set_saved_and_restored() -> None:
    assert after("\x1b]0;täst\x07".encode()).title == "täst"
    assert after(b"\x1b]2;one\x1b\\\x1b[22;0t\x1b]2;two\x07").title == "two"
    assert after(b"\x1b]2;one\x1b\\\x1b[22;0t\x1b]2;two\x07\x1b[23;0t\x1b[23;0t").title == "one"
    assert after(b"\x1b]2;a\rb\x1b\\").title == "ab"


def test_margins_are_kept_until_the_size_changes() -> None:
    with Emulator(10, 20) as emulator:
        emulator.feed(b"\x1b[2;4r\x1b[4;1Ha\r\nb\r\nc")
        assert emulator.screen().margins == (2, 4)
        assert text(emulator.screen()) == "\na\nb\nc"
        emulator.feed(b"\x1b[5;5r\x1b[9;99r")
        assert emulator.screen().margins == (9, 10)
        emulator.resize(3, 20)
        assert emulator.screen().margins is None


# --- anything at all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (3, 3), (24, 80), (500, 500)])
def test_no_output_crashes_the_emulator(size: tuple[int, int]) -> None:
    with Emulator(*size) as emulator:
        for data in DEADLY:
            with Emulator(*size) as fresh:
                fresh.feed(data)
            emulator.feed(data)
        screen = emulator.screen()
    assert len(screen.lines) == size[0]
    assert all(sum(cell.width for cell in line) == size[1] for line in screen.lines)


@settings(deadline=None)
@given(st.lists(anything | st.tuples(sizes, sizes), max_size=12), sizes, sizes)
def test_any_bytes_and_sizes_give_a_complete_screen(
    steps: list[bytes | tuple[int, int]], rows: int, columns: int
) -> None:
    with Emulator(rows, columns, history=20) as emulator:
        for step in steps:
            if isinstance(step, tuple):
                rows, columns = step
                emulator.resize(rows, columns)
            else:
                emulator.feed(step)
            screen = emulator.screen(20)
            assert (len(screen.lines), screen.columns) == (rows, columns)
            assert all(sum(cell.width for cell in line) == columns for line in screen.lines)
            assert 0 <= screen.cursor_row < rows
            assert 0 <= screen.cursor_column < columns


@settings(deadline=None)
@given(st.lists(anything, max_size=6), st.integers(min_value=1, max_value=7))
def test_a_stream_may_be_split_anywhere(pieces: list[bytes], size: int) -> None:
    data = b"".join(pieces)
    with Emulator(5, 20) as emulator:
        for at in range(0, len(data), size):
            emulator.feed(data[at : at + size])
        assert emulator.screen(100) == after(data, 5, 20, scrollback=100)


lines = st.lists(
    st.sampled_from(
        [
            b"a\r\n",
            b"b\n",
            b"\n",
            "字é\r\n".encode(),
            b"\x1b[31mc\r\n",
            b"\x1b[0md\x1b[K\r\n",
            b"\te\r\n",
            b"f" * 25,
        ]
    ),
    min_size=1,
)


@settings(deadline=None)
@given(
    st.sampled_from([b"", b"x\r\ny", b"\x1b[2;4r", b"\x1b[4;5r", b"\x1b[1;3r", b"\x1b[?7l", b"\x1b[?1049h", b"\x1b[1;3r\x1b[5H"]),
    lines,
    st.integers(min_value=1, max_value=30),
    anything,
)  # fmt: skip
def test_long_output_gives_the_same_screen_at_once_or_in_pieces(
    before: bytes, some: list[bytes], times: int, end: bytes
) -> None:
    data = [before, *some * times, end]
    with Emulator(5, 20, history=8) as whole, Emulator(5, 20, history=8) as slow:
        whole.feed(b"".join(data))
        for piece in data:
            slow.feed(piece)
        assert whole.screen(8) == slow.screen(8)


@pytest.mark.parametrize(
    "line",
    [
        b"y\r\n",
        b"a line of a log, as long as such lines are, with a number at its end: 17\r\n",
        b"\x1b[32mINFO\x1b[0m \x1b[2m12:00\x1b[22m done in \x1b[1;33m12\x1b[0m ms\r\n",
        b"\x1b[12;40H\x1b[38;5;12mtext\x1b[m\x1b[K",
    ],
)
def test_a_megabyte_is_processed_quickly(line: bytes) -> None:
    data = line * ((1 << 20) // len(line))

    def seconds() -> float:
        with Emulator(40, 120) as emulator:
            start = time.process_time()
            emulator.feed(data)
            return time.process_time() - start

    assert any(seconds() < 0.4 for _ in range(10))  # some 50 ms on an idle machine


# --- the library -----------------------------------------------------------------------------------------------


def test_using_a_closed_emulator_is_an_error() -> None:
    emulator = Emulator(2, 2)
    emulator.close()
    emulator.close()
    with pytest.raises(ValueError, match="closed"):
        emulator.feed(b"text")
    with pytest.raises(ValueError, match="closed"):
        emulator.screen()


@pytest.mark.parametrize("size", [(0, 80), (24, 0), (24, 1001), (-1, 5)])
def test_an_impossible_size_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        Emulator(*size)


@pytest.fixture
def forgotten_library() -> Iterator[None]:
    vterm._library.cache_clear()
    vterm._learn_layout.cache_clear()
    yield
    vterm._library.cache_clear()
    vterm._learn_layout.cache_clear()


@pytest.mark.usefixtures("forgotten_library")
def test_a_missing_library_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vterm, "LIBRARY", "libvterm-not-there.so.0")
    with pytest.raises(AbilityMissing, match="not installed") as raised:
        Emulator(2, 2)
    assert raised.value.hint == "apt-get install libvterm0"


@pytest.mark.usefixtures("forgotten_library")
def test_a_library_with_another_cell_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vterm, "_DRAWN_BY", {"bold": 0, "italic": 3})
    with pytest.raises(AbilityMissing, match="version"):
        Emulator(2, 2)
