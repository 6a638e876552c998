"""JSON mode, events, cursors and offsets, without a node."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.positions import Position
from millpond.actors.streams.messages import RecordColumns
from millpond.transports.http.durable.json_mode import (
    MESSAGES,
    NotJson,
    array_of,
    is_message,
    messages_of,
)
from millpond.transports.http.durable.live import EPOCH_S, next_cursor
from millpond.transports.http.durable.offsets import minted_sequence_of, offset_of, sequence_of
from millpond.transports.http.durable.protocol import content_type_of
from millpond.transports.http.durable.sse import closed_event, control_event, data_event
from millpond.transports.http.json_arrays import ArrayTooLong

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=())),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
    max_leaves=12,
)
MANY = 100
SPACES = st.sampled_from(["", " ", "\n\t", "\r\n "])


class EncodedColumns:
    def __init__(self, span: RecordColumns) -> None:
        self.span = span

    def encoded(self, record_format: Any) -> bytes:
        return bytes(record_format.encode(self.span))


def span_of(bodies: list[bytes]) -> RecordColumns:
    return RecordColumns(0, bodies, 0, Position(0, 0))


@given(st.lists(VALUES, max_size=6), SPACES, st.booleans())
def test_an_array_is_flattened_once_and_each_message_is_as_it_was(
    values: list[Any], space: str, is_ascii: bool
) -> None:
    words = [
        json.dumps(each, ensure_ascii=True if _has_half(each) else is_ascii) for each in values
    ]
    body = f"{space}[{space}{f'{space},{space}'.join(words)}{space}]{space}".encode()
    messages = messages_of(body, MANY)
    assert messages == [word.encode() for word in words]
    again = array_of([EncodedColumns(span_of(messages))])
    assert json.loads(again) == values
    assert messages_of(again, MANY) == messages


@given(VALUES, SPACES)
def test_a_value_is_one_message(value: Any, space: str) -> None:
    word = json.dumps(value)
    messages = messages_of(f"{space}{word}{space}".encode(), MANY)
    if isinstance(value, list):
        assert [json.loads(each) for each in messages] == value
    else:
        assert messages == [word.encode()]
    assert is_message(word.encode())


def _has_half(value: Any) -> bool:
    return bool(re.search(r"\\ud[89a-f]", json.dumps(value)))


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"NaN", b"[NaN]", b"Infinity", b"01", b"1.", b"tru", b"1 2", b"[1,]"),
        *(b'"\xff"', b'"a\nb"', b'"\\x"', b"{1:2}", b"[1] 2", b"\xef\xbb\xbf1", b'["\\ud800",]'),
        *(b'"\\ud800" NaN', b'{"a":"\\ud800"} 1', b'"\\u12"', b"[" * 200_000),
        b'["\\ud800"' + b"[" * 200_000,
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(NotJson):
        messages_of(body, MANY)
    assert not is_message(body)


@given(st.lists(st.one_of(VALUES.map(lambda each: json.dumps(each).encode()), st.binary())))
def test_whatever_is_in_a_stream_is_shown_as_an_array(bodies: list[bytes]) -> None:
    good = [body for body in bodies if is_message(body)]
    written = MESSAGES.encode(span_of(bodies))
    shown = array_of([EncodedColumns(span_of(bodies))])
    assert [json.loads(each) for each in good] == json.loads(shown)
    ends = [0, *MESSAGES.ends(span_of(bodies))]
    pieces = [written[begin:end] for begin, end in pairwise(ends)]
    assert pieces == [body + b"," if body in good and is_message(body) else b"" for body in bodies]


def test_bodies_that_are_json_only_together_are_none() -> None:
    assert array_of([EncodedColumns(span_of([b'"a', b'b","c"', b"1"]))]) == b"[1]"
    assert array_of([EncodedColumns(span_of([b"[1", b"2]"]))]) == b"[]"


def events_in(text: bytes) -> list[tuple[str, str]]:
    """As browsers read them: lines end with CR, LF or both; an empty one ends an event."""
    found, kind, data = [], "", list[str]()
    for line in re.split("\r\n|\r|\n", text.decode("utf-8", "replace")):
        name, _, value = line.partition(":")
        if not line:
            if data:
                found.append((kind, "\n".join(data)))
            kind, data = "", []
        elif name == "event":
            kind = value.removeprefix(" ")
        elif name == "data":
            data.append(value.removeprefix(" "))
    return found


@given(st.text(st.sampled_from("ab :\r\n")))
def test_nobody_forges_an_event(text: str) -> None:
    event = data_event(text.encode(), is_text=True)
    (found,) = events_in(event)
    assert found == ("data", re.sub("\r\n|\r", "\n", text))


@given(st.binary(max_size=50))
def test_bytes_come_back(content: bytes) -> None:
    ((kind, data),) = events_in(data_event(content, is_text=False)) or (("data", ""),)
    assert kind == "data" and b64decode(data) == content


def test_control_events_are_as_clients_look_for_them() -> None:
    event = control_event(7, b"123", is_at_tail=True)
    assert event.startswith(b"event: control\ndata:{")
    ((_, data),) = events_in(event)
    assert json.loads(data) == {
        "streamNextOffset": offset_of(7).decode(),
        "streamCursor": "123",
        "upToDate": True,
    }
    ((_, data),) = events_in(closed_event(7))
    assert json.loads(data) == {"streamNextOffset": offset_of(7).decode(), "streamClosed": True}


@given(st.integers(0, 10**15), st.floats(0, 0.999))
def test_a_cursor_grows(theirs: int, dice: float) -> None:
    now = EPOCH_S + 20 * 1000 + 7
    assert next_cursor(now, None, dice) == b"1000"
    grown = int(next_cursor(now, str(theirs), dice))
    assert grown >= 1000
    assert grown > theirs and grown <= max(theirs, 1000) + 181


@pytest.mark.parametrize("given_", ["", "x", "-5", "1.5", "9" * 40, "\u0663"])
def test_a_cursor_that_is_none_counts_for_nothing(given_: str) -> None:
    assert next_cursor(EPOCH_S + 40, given_, 0.5) == b"2"


@given(st.lists(VALUES, max_size=8), SPACES, st.integers(1, 8), st.booleans())
def test_the_limit_counts_messages_and_not_commas(
    values: list[Any], space: str, messages_max: int, has_half: bool
) -> None:
    words = [json.dumps(each) for each in values]
    if has_half:
        words.append('["\\ud800", 1]')  # takes the slower parser
    body = f"[{space}{f'{space},'.join(words)}]".encode()
    if len(words) <= messages_max:
        assert messages_of(body, messages_max) == [word.encode() for word in words]
    else:
        with pytest.raises(ArrayTooLong):
            messages_of(body, messages_max)


@pytest.mark.parametrize("rest", [b"1]", b"x]", b"", b"1]]"])
def test_too_many_messages_are_refused_before_they_are_decoded(rest: bytes) -> None:
    """Bytes beyond the limit are not read, so that their number costs nothing."""
    with pytest.raises(ArrayTooLong):
        messages_of(b"[" + b"1," * 1_000_000 + rest, 10_000)
    with pytest.raises(ArrayTooLong):
        messages_of(b"[" + b'"\\ud800",' * 100_000 + rest, 1_000)


def test_one_message_may_have_many_parts() -> None:
    inner = b"[" + b"1," * 20_000 + b"1]"
    assert messages_of(b"[%b]" % inner, 10_000) == [inner]
    assert messages_of(b'{"a":%b}' % inner, 10_000) == [b'{"a":%b}' % inner]


@pytest.mark.parametrize(
    "body", ['["\\ud800"', '["\\ud800",]', '["\\ud800" 1]', '["\\ud800"]]', '["\\ud800"] 1']
)
def test_a_broken_array_with_half_a_character_is_not_json(body: str) -> None:
    with pytest.raises(NotJson):
        messages_of(body.encode(), MANY)
    assert not is_message(body.encode())


@given(st.integers(0, 10**16 - 1), st.integers(0, 10**16 - 1))
def test_offsets_sort_like_sequences(one: int, other: int) -> None:
    assert (offset_of(one) < offset_of(other)) == (one < other)
    assert sequence_of(offset_of(one).decode()) == one
    assert minted_sequence_of(offset_of(one).decode()) == one


@given(st.integers(0, 10**16 - 1), st.integers(1, 10**16 - 1))
def test_an_offset_inside_of_a_record_begins_with_that_record(one: int, half: int) -> None:
    inside = f"{one:016d}_{half:016d}"
    assert sequence_of(inside) == one
    assert minted_sequence_of(inside) is None


@pytest.mark.parametrize("offset", ["", "1", "1_1", "0" * 33, "0" * 16 + "_" + "0" * 15 + "x"])
def test_what_is_no_offset(offset: str) -> None:
    assert sequence_of(offset) is None


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, None),
        (b" ", None),
        (b"text/plain; charset=utf-8", b"text/plain; charset=utf-8"),
        (b"nonsense", b"application/octet-stream"),
        (b"a/b\r\nx: y", b"application/octet-stream"),
    ],
)
def test_content_types(given_: bytes | None, expected: bytes | None) -> None:
    assert content_type_of(given_) == expected
