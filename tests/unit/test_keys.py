"""Names of keys become what a keyboard sends; all other words are typed as they are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waypoint.shell.keys import KEYS, encode_keys, key_names


@pytest.mark.parametrize(
    ("word", "sent"),
    [
        ("Enter", b"\r"),
        ("Escape", b"\x1b"),
        ("Esc", b"\x1b"),
        ("Tab", b"\t"),
        ("BTab", b"\x1b[Z"),
        ("S-Tab", b"\x1b[Z"),
        ("Space", b" "),
        ("BSpace", b"\x7f"),
        ("Up", b"\x1b[A"),
        ("Home", b"\x1b[H"),
        ("PageUp", b"\x1b[5~"),
        ("PPage", b"\x1b[5~"),
        ("NPage", b"\x1b[6~"),
        ("DC", b"\x1b[3~"),
        ("Insert", b"\x1b[2~"),
        ("F1", b"\x1bOP"),
        ("F5", b"\x1b[15~"),
        ("F12", b"\x1b[24~"),
    ],
)
def test_keys_are_found_by_name(word: str, sent: bytes) -> None:
    assert encode_keys([word]) == sent


@pytest.mark.parametrize(
    ("word", "sent"),
    [
        ("C-c", b"\x03"),
        ("C-C", b"\x03"),
        ("^c", b"\x03"),
        ("^[", b"\x1b"),
        ("^^", b"\x1e"),
        ("C-^", b"\x1e"),
        ("C-@", b"\0"),
        ("C-Space", b"\0"),
        ("C-_", b"\x1f"),
        ("C-/", b"\x1f"),
        ("C-?", b"\x7f"),
        ("C-\\", b"\x1c"),
        ("M-x", b"\x1bx"),
        ("M-X", b"\x1bX"),
        ("M--", b"\x1b-"),
        ("M-é", b"\x1b\xc3\xa9"),
        ("C-M-a", b"\x1b\x01"),
        ("M-C-a", b"\x1b\x01"),
        ("M-^a", b"\x1b\x01"),
        ("M-Enter", b"\x1b\r"),
        ("M-BSpace", b"\x1b\x7f"),
        ("C-BSpace", b"\x08"),
        ("S-Up", b"\x1b[1;2A"),
        ("M-Up", b"\x1b[1;3A"),
        ("C-Up", b"\x1b[1;5A"),
        ("C-S-Left", b"\x1b[1;6D"),
        ("C-M-S-End", b"\x1b[1;8F"),
        ("C-PageUp", b"\x1b[5;5~"),
        ("S-F1", b"\x1b[1;2P"),
        ("C-F5", b"\x1b[15;5~"),
        ("M-BTab", b"\x1b\x1b[Z"),
    ],
)
def test_modifiers_are_encoded_as_in_xterm(word: str, sent: bytes) -> None:
    assert encode_keys([word]) == sent


@pytest.mark.parametrize("mode", [False, True])
def test_arrow_keys_follow_the_mode_the_program_asked_for(mode: bool) -> None:
    lead = b"\x1bO" if mode else b"\x1b["
    for word, letter in (
        ("Up", b"A"),
        ("Down", b"B"),
        ("Right", b"C"),
        ("Left", b"D"),
        ("Home", b"H"),
        ("End", b"F"),
    ):
        assert encode_keys([word], application_cursor=mode) == lead + letter
    assert encode_keys(["C-Up"], application_cursor=mode) == b"\x1b[1;5A"
    assert encode_keys(["PageUp", "F1"], application_cursor=mode) == b"\x1b[5~\x1bOP"


@pytest.mark.parametrize(
    "word",
    ["", "ls -l", "enter", "ENTER", "C-Foo", "M-ab", "C-", "^", "^Foo", "C-é", "C-ß", "S-a", "C-1", "F13", "C-M-", "日本", "a\nb"],
)  # fmt: skip
def test_all_other_words_are_typed(word: str) -> None:
    assert encode_keys([word]) == word.encode()


def test_words_are_sent_without_a_separator() -> None:
    assert encode_keys(["echo", "Space", "hi", "Enter"]) == b"echo hi\r"
    assert encode_keys([]) == b""


def test_in_literal_mode_no_word_is_a_key() -> None:
    assert encode_keys(["Enter", "C-c"], literal=True) == b"EnterC-c"


@settings(deadline=None)
@given(st.text())
def test_any_text_can_be_sent(text: str) -> None:
    assert encode_keys([text], literal=True) == text.encode("utf-8", "surrogateescape")
    encode_keys([text])


def test_bytes_that_are_not_utf8_arrive_unchanged() -> None:
    assert encode_keys([b"caf\xe9".decode("utf-8", "surrogateescape")]) == b"caf\xe9"


def test_the_help_lists_every_key_once() -> None:
    keys, _, modifiers = key_names().partition("; ")
    assert sorted(keys.replace("/", " ").split()) == sorted(KEYS)
    assert "PageUp/PgUp/PPage" in keys
    assert "C-" in modifiers
