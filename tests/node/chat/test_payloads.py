"""Payloads that chats send and store: fixed bytes both ways, and hostile ones refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.chat.payloads import (
    TEXT_BYTES_MAX,
    Receipt,
    Text,
    UnknownPayload,
    decode_payload,
    encode_payload,
)
from millpond.node.chat.records import (
    Kind,
    Record,
    State,
    Unreadable,
    conversation_stream,
    decode_record,
    encode_record,
    is_newer,
)

UUID = "00112233445566778899aabbccddeeff"
WORDS = [
    (
        Text("5f3a9c01", 1, 1763683200000, "hi"),
        b'{"kind":"text","line":"5f3a9c01","n":1,"at":1763683200000,"text":"hi"}',
    ),
    (
        Text("5f3a9c01", 2, 1763683260000, "hello", "edit", UUID),
        b'{"kind":"text","line":"5f3a9c01","n":2,"at":1763683260000,"text":"hello",'
        b'"action":"edit","about":"00112233445566778899aabbccddeeff"}',
    ),
    (
        Text("5f3a9c01", 3, 1763683320000, "deleted a message", "delete", UUID),
        b'{"kind":"text","line":"5f3a9c01","n":3,"at":1763683320000,"text":"deleted a message",'
        b'"action":"delete","about":"00112233445566778899aabbccddeeff"}',
    ),
    (
        Receipt.of_state(State.DELIVERED, [UUID]),
        b'{"kind":"receipt","state":"delivered","of":["00112233445566778899aabbccddeeff"]}',
    ),
]
RECORDS = [
    (
        Record(1, Kind.OUT, 5, UUID, "hi", State.WAITING, 1, "5f3a9c01"),
        b'{"v":1,"kind":"out","at":5,"uuid":"00112233445566778899aabbccddeeff","text":"hi",'
        b'"state":"waiting","n":1,"line":"5f3a9c01"}',
    ),
    (
        Record(1, Kind.IN, 5, UUID, "ok", n=4, line="5f3a9c01", action="react", about="0" * 32),
        b'{"v":1,"kind":"in","at":5,"uuid":"00112233445566778899aabbccddeeff","text":"ok","n":4,'
        b'"line":"5f3a9c01","action":"react","about":"00000000000000000000000000000000"}',
    ),
    (
        Record(1, Kind.STATE, 6, UUID, state=State.READ),
        b'{"v":1,"kind":"state","at":6,"uuid":"00112233445566778899aabbccddeeff","state":"read"}',
    ),
    (
        Record(1, Kind.NOTE, 7, text="gap", line="5f3a9c01", missing=(2, 3)),
        b'{"v":1,"kind":"note","at":7,"text":"gap","line":"5f3a9c01","missing":[2,3]}',
    ),
]


@pytest.mark.parametrize(("words", "clear"), WORDS)
def test_words_have_these_bytes(words: Text | Receipt, clear: bytes) -> None:
    assert encode_payload(words) == clear
    assert decode_payload(clear) == words


@pytest.mark.parametrize(("record", "body"), RECORDS)
def test_records_have_these_bytes(record: Record, body: bytes) -> None:
    assert encode_record(record) == body
    assert decode_record(body) == record


@pytest.mark.parametrize(
    "clear",
    [
        b"",
        b"hello",
        b"[" * 100_000,
        b'{"kind":"video"}',
        b'{"kind":"text","line":"5f3a9c01","n":0,"at":1,"text":"hi"}',
        b'{"kind":"text","line":"5f3a9c01","n":1,"at":1,"text":""}',
        b'{"kind":"text","line":"5F3A9C0","n":1,"at":1,"text":"hi"}',
        b'{"kind":"text","line":"5f3a9c01","n":1,"at":-1,"text":"hi"}',
        b'{"kind":"text","line":"5f3a9c01","n":1,"at":1,"text":"\xff"}',
        b'{"kind":"text","line":"5f3a9c01","n":1,"at":1,"text":"\\ud800"}',
        b'{"kind":"text","line":"5f3a9c01","n":1,"at":1,"text":"hi","action":"EDIT"}',
        b'{"kind":"text","line":"5f3a9c01","n":1,"at":1,"text":"hi","action":"edit","about":"0"}',
        b'{"kind":"receipt","state":"waiting","of":[]}',
        b'{"kind":"receipt","state":"read","of":["xyz"]}',
        b'{"kind":"receipt","state":"read","of":[],"knows":[' + b",".join([b'"x"'] * 33) + b"]}",
        b'{"kind":"receipt","state":"read","of":[],"knows":["' + b"x" * 33 + b'"]}',
        encode_payload(Text("5f3a9c01", 1, 1, "x" * (TEXT_BYTES_MAX + 1))),
    ],
    ids=lambda clear: repr(clear[:60]),
)
def test_what_is_not_said_like_this_is_not_understood(clear: bytes) -> None:
    with pytest.raises(UnknownPayload):
        decode_payload(clear)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for decode, refusal in ((decode_payload, UnknownPayload), (decode_record, Unreadable)):
        try:
            decode(body)  # type: ignore[operator]
        except refusal:
            continue


def test_records_of_later_versions_are_passed_over() -> None:
    with pytest.raises(Unreadable):
        decode_record(b'{"v":2,"kind":"out","at":5}')


def test_a_fate_is_news_if_it_says_more() -> None:
    for earlier, later in (
        (State.WAITING, State.KEPT),
        (State.KEPT, State.SENT),
        (State.SENT, State.DELIVERED),
        (State.DELIVERED, State.READ),
        (State.SENT, State.EXPIRED),
        (State.EXPIRED, State.DELIVERED),
    ):
        assert is_newer(later, earlier)
        assert not is_newer(earlier, later)
        assert not is_newer(later, later)


def test_a_conversation_has_the_name_of_the_peer() -> None:
    assert conversation_stream(bytes(32)) == b"chat/" + b"a" * 52
