"""The line that is typed: keys in, text out, whatever pieces the bytes come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.chat.payloads import TEXT_BYTES_MAX
from millpond.node.cli.chat.line_editor import (
    LINES_KEPT_MAX,
    TEXT_CHARS_MAX,
    KeyCommand,
    LineEditor,
    Submitted,
    is_shown,
    text_width,
)

LEFT, RIGHT, UP, DOWN = "\x1b[D", "\x1b[C", "\x1b[A", "\x1b[B"
KEYS = [LEFT, RIGHT, UP, DOWN, "\x01", "\x05", "\x7f", "\x0b", "\x15", "\x17", "\x1b[3~", "\r"]


def typed(*keys: str) -> LineEditor:
    editor = LineEditor()
    list(editor.feed("".join(keys).encode()))
    return editor


@pytest.mark.parametrize(
    ("keys", "text", "cursor"),
    [
        ("helo" + LEFT + "l", "hello", 4),
        ("\x01".join(("world", "hello ")), "hello world", 6),
        ("one two three\x17\x17", "one ", 4),
        ("abc" + LEFT + "\x0b", "ab", 2),
        ("abc" + LEFT + "\x15", "c", 0),
        ("abc" + LEFT + LEFT + "\x1b[3~", "ac", 1),
        ("abc\x7f\x08", "a", 1),
        ("e\u0301x" + LEFT + "\x7f", "x", 0),
        ("ab\x1b[31~c\x1bOPd\x1b[99;5Xe", "abcde", 5),
        ("\x7f" + LEFT + RIGHT + DOWN + "\x1b[3~a", "a", 1),
        ("a\x1b\rb", "a\nb", 3),
        ("\x1b[200~a\r\x1b[Ab\tc\x1b[201~d", "a\nb cd", 6),
        ("tab\there\x00", "tabhere", 7),
        (
            "全\u3000角 \u00a0\U0001fa77\x1b[200~\u202f\x1b[201~",
            "全\u3000角 \u00a0\U0001fa77\u202f",
            7,
        ),
    ],
)
def test_keys_change_the_line(keys: str, text: str, cursor: int) -> None:
    editor = typed(keys)
    assert (editor.text, editor.cursor) == (text, cursor)


def test_enter_gives_the_line_and_earlier_lines_come_back() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"one\rtwo\r\r")) == [
        Submitted("one"),
        Submitted("two"),
        Submitted(""),
    ]
    list(editor.feed(b"draft" + UP.encode()))
    assert editor.text == "two"
    list(editor.feed((UP + UP).encode()))
    assert editor.text == "one"
    list(editor.feed((DOWN + DOWN + DOWN).encode()))
    assert editor.text == "draft"


def test_ctrl_d_leaves_only_from_an_empty_line() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"ab\x01\x04")) == []
    assert editor.text == "b"
    assert list(editor.feed(b"\x04\x04")) == [KeyCommand.LEAVE]
    assert list(editor.feed(b"\x0c")) == [KeyCommand.REDRAW]


@given(
    st.lists(st.one_of(st.sampled_from(KEYS), st.characters(codec="utf-8")), max_size=30),
    st.data(),
)
def test_any_split_gives_the_same_line(keys: list[str], data: st.DataObject) -> None:
    whole = "".join(keys).encode()
    once, pieces = LineEditor(), LineEditor()
    expected = list(once.feed(whole))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += pieces.feed(whole[start:end])
    assert found == expected
    assert (pieces.text, pieces.cursor) == (once.text, once.cursor)


@given(st.binary(max_size=100), st.integers(2, 40))
def test_any_bytes_leave_a_line_that_fits(data: bytes, columns: int) -> None:
    editor = LineEditor()
    list(editor.feed(data))
    assert 0 <= editor.cursor <= len(editor.text)
    shown, column = editor.window(columns)
    assert column < columns and text_width(shown) <= columns
    assert all(map(is_shown, shown))


def test_limits_hold() -> None:
    editor = typed("x" * (TEXT_CHARS_MAX + 10))
    assert len(editor.text) == TEXT_CHARS_MAX > TEXT_BYTES_MAX  # cut off, and refused for it
    editor = LineEditor()
    for number in range(LINES_KEPT_MAX + 10):
        list(editor.feed(b"%d\r" % number))
    list(editor.feed(UP.encode() * (LINES_KEPT_MAX + 20)))
    assert editor.text == "10"
    list(LineEditor().feed(b"\x1b[" + b"1" * 10_000))


@pytest.mark.parametrize(
    ("keys", "text", "told"),
    [
        ("/l", "/list", []),
        ("/t", "/to ", []),
        ("/to ", "/to ", ["/to al", "/to alice", "/to bob"]),
        ("/to a", "/to al", []),
        ("/to al", "/to al", ["/to al", "/to alice"]),
        ("/to b", "/to bob", []),
        ("/to bob", "/to bob", []),
        ("/to x", "/to x", []),
        ("", "", []),
        ("hello", "hello", []),
        ("/to b" + LEFT, "/to b", []),
    ],
)
def test_a_line_is_completed_as_far_as_it_is_clear(keys: str, text: str, told: list[str]) -> None:
    editor = typed(keys)
    assert list(editor.feed(b"\t")) == [KeyCommand.COMPLETE]
    assert editor.complete(["/list", "/to al", "/to alice", "/to bob"]) == told
    assert editor.text == text
    if not keys.startswith(text):
        assert editor.cursor == len(text)


def test_a_tab_that_is_pasted_completes_nothing() -> None:
    editor = LineEditor()
    assert list(editor.feed(b"\x1b[200~/t\tx\x1b[201~")) == [] and editor.text == "/t x"
