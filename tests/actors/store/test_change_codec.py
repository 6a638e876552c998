"""Changes as bytes in the journal: all come back, and bytes that are none are told apart."""

from __future__ import annotations

from math import inf
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    Chunk,
    DeadlineSet,
    KeyExpired,
    KeyRetained,
    LogDeleted,
    LogTrimmed,
    MessageRemoved,
    MetadataSet,
    ModeSet,
    Origin,
    Position,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.journal.change_codec import BadChange, decode, encode
from millpond.actors.store.message_attributes import DueAt, UniqueKey
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTouched,
)

U16_MAX, U32_MAX, U64_MAX = 2**16 - 1, 2**32 - 1, 2**64 - 1

u32 = st.integers(0, U32_MAX)
u64 = st.integers(0, U64_MAX)
times = st.floats(allow_nan=False)
data = st.binary(max_size=64)
lefts = st.builds(StoredKey, u64, u32, times, st.binary(min_size=32, max_size=32))
origins = st.builds(Origin, u64, u32, st.text(max_size=20))
positions = st.builds(Position, u64, u64)
identities = st.binary(min_size=32, max_size=32)
subscribed = st.none() | st.integers(0, U64_MAX - 1)


def gone(message_id: int, key: int, left: StoredKey | None, size: int) -> MessageRemoved:
    """The row that stays for the key has the data of the removed message."""
    if left is not None:
        left = StoredKey(message_id, left.ttl, left.until, left.digest)
    return MessageRemoved(message_id, key, left, size)


changes = st.one_of(
    st.builds(StoredMessage, u64, u64, u32, times, data, st.just(0), st.none() | origins),
    st.builds(gone, u64, u64, st.none() | lefts, u32),
    st.builds(KeyRetained, u64, lefts),
    st.builds(KeyExpired, u64, st.booleans()),
    st.builds(AttemptsSet, u64, u32),
    st.builds(DeadlineSet, u64, times),
    st.builds(ModeSet, st.sampled_from(Mode)),
    st.builds(Subscriber, u32, identities, times, subscribed),
    st.builds(SubscriberTouched, u32, times, subscribed),
    st.builds(SubscriberRemoved, u32),
    st.builds(Acked, u32, u64),
    st.builds(AckedUpTo, u32, u64),
    st.builds(DueAt, u64, times),
    st.builds(UniqueKey, u64, st.binary(max_size=255)),
    st.builds(Chunk, u64, u32, u64, u64, positions, positions, data),
    st.builds(LogTrimmed, u64),
    st.builds(MetadataSet, data, st.none() | data),
    st.just(LogDeleted()),
)
many = st.lists(changes, max_size=6)

DIGEST = bytes(range(32))
LEFT = StoredKey(7, 60, 0.5, DIGEST)
HALF = pack("<d", 0.5)


def u(size: int, number: int) -> bytes:
    return number.to_bytes(size, "little")


@pytest.mark.parametrize(
    ("change", "wire"),
    [
        (
        StoredMessage(7, 8, 9, 0.5, b"ab"),
        b"\x01" + u(8, 7) + u(8, 8) + u(4, 9) + HALF + u(4, 2) + b"ab",
    ),
        (
            StoredMessage(7, 8, 9, 0.5, b"ab", 0, Origin(5, 3, "\u00e9")),
            b"\x02" + u(8, 7) + u(8, 8) + u(4, 9) + HALF + u(4, 2) + b"ab"
            b"" + u(8, 5) + u(4, 3) + u(2, 2) + b"\xc3\xa9",
        ),
        (MessageRemoved(7, 8, None, 5), b"\x03" + u(8, 7) + u(8, 8) + u(4, 5)),
        (
            MessageRemoved(7, 8, LEFT, 5),
            b"\x04" + u(8, 7) + u(8, 8) + u(4, 5) + u(4, 60) + HALF + DIGEST,
        ),
        (KeyRetained(8, LEFT), b"\x05" + u(8, 8) + u(8, 7) + u(4, 60) + HALF + DIGEST),
        (KeyExpired(8, was_left=True), b"\x06" + u(8, 8) + b"\x01"),
        (KeyExpired(8, was_left=False), b"\x06" + u(8, 8) + b"\x00"),
        (AttemptsSet(7, 4), b"\x07" + u(8, 7) + u(4, 4)),
        (ModeSet(Mode.QUEUE), b"\x08\x02"),
        (DeadlineSet(7, 0.5), b"\x15" + u(8, 7) + HALF),
        (Subscriber(3, DIGEST, 0.5, 9), b"\x09" + u(4, 3) + DIGEST + HALF + u(8, 9)),
        (Subscriber(3, DIGEST, 0.5), b"\x09" + u(4, 3) + DIGEST + HALF + b"\xff" * 8),
        (SubscriberTouched(3, 0.5, 0), b"\x0a" + u(4, 3) + HALF + u(8, 0)),
        (SubscriberTouched(3, 0.5), b"\x0a" + u(4, 3) + HALF + b"\xff" * 8),
        (SubscriberRemoved(3), b"\x0b" + u(4, 3)),
        (Acked(0, 7), b"\x0c" + u(4, 0) + u(8, 7)),
        (AckedUpTo(3, 7), b"\x0d" + u(4, 3) + u(8, 7)),
        (DueAt(7, 0.5), b"\x0e" + u(8, 7) + HALF),
        (UniqueKey(7, b"alice"), b"\x0f" + u(8, 7) + b"\x05alice"),
        (
            Chunk(1, 2, 3, 4, Position(5, 6), Position(7, 8), b"abc"),
            b"\x10" + u(8, 1) + u(4, 2) + b"".join(u(8, n) for n in (3, 4, 5, 6, 7, 8))
            + u(4, 3) + b"abc",
        ),
        (LogTrimmed(9), b"\x11" + u(8, 9)),
        (MetadataSet(b"name", b"xyz"), b"\x12" + u(2, 4) + u(4, 3) + b"namexyz"),
        (MetadataSet(b"name", None), b"\x13" + u(2, 4) + b"name"),
        (LogDeleted(), b"\x14"),
    ],
)  # fmt: skip
def test_each_change_has_its_bytes(change: Change, wire: bytes) -> None:
    assert encode([change]) == wire
    assert list(decode(wire)) == [change]


@given(many)
def test_changes_come_back_in_order(batch: list[Change]) -> None:
    assert list(decode(encode(batch))) == batch


@pytest.mark.parametrize(
    "change",
    [
        StoredMessage(
            U64_MAX, U64_MAX, U32_MAX, inf, b"", 0, Origin(U64_MAX, U32_MAX, "x" * U16_MAX)
        ),
        StoredMessage(0, 0, 0, -inf, b""),
        StoredMessage(1, 1, 1, 5e-324, b"\x00" * 2**20),
        MessageRemoved(U64_MAX, U64_MAX, StoredKey(U64_MAX, U32_MAX, inf, b"\xff" * 32), U32_MAX),
        Chunk(U64_MAX, U32_MAX, U64_MAX, 0, Position(U64_MAX, 0), Position(0, U64_MAX), b""),
        LogTrimmed(U64_MAX),
        MetadataSet(b"", b""),
        MetadataSet(b"n" * U16_MAX, None),
    ],
)
def test_extremes_come_back(change: Change) -> None:
    assert list(decode(encode([change]))) == [change]


def test_p2p_30_whose_connection_put_a_message_is_not_kept() -> None:
    assert list(decode(encode([StoredMessage(1, 2, 3, 4.0, b"x", source=99)]))) == [
        StoredMessage(1, 2, 3, 4.0, b"x")
    ]


@given(many, st.integers(0, 1000))
def test_a_body_that_is_cut_off_is_refused_or_has_fewer_changes(
    batch: list[Change], cut: int
) -> None:
    wire = encode(batch)
    cut = cut % (len(wire) + 1)
    found: list[Change] = []
    try:
        found += decode(wire[:cut])
    except BadChange:
        assert cut < len(wire)
    else:
        assert found == batch[: len(found)]
        assert encode(found) == wire[:cut]


@given(many.filter(bool), st.data())
def test_a_body_that_is_changed_gives_changes_or_is_refused(
    batch: list[Change], draw: st.DataObject
) -> None:
    wire = bytearray(encode(batch))
    for at in draw.draw(st.lists(st.integers(0, len(wire) - 1), min_size=1, max_size=4)):
        wire[at] = draw.draw(st.integers(0, 255))
    try:
        found = list(decode(bytes(wire)))
    except BadChange:
        return
    assert len(found) <= len(wire)


@given(st.binary(max_size=200))
def test_any_bytes_give_changes_or_are_refused(body: bytes) -> None:
    try:
        found = list(decode(body))
    except BadChange:
        return
    assert len(found) <= len(body)


def test_unknown_changes_are_refused() -> None:
    for op in {*range(256)} - {*range(1, 22)}:
        with pytest.raises(BadChange, match="no change at byte 0"):
            list(decode(bytes([op]) + bytes(100)))


@pytest.mark.parametrize("mode", [3, 255])
def test_unknown_modes_are_refused(mode: int) -> None:
    with pytest.raises(BadChange):
        list(decode(bytes([8, mode])))


def test_a_reason_that_is_no_text_is_refused() -> None:
    wire = encode([StoredMessage(1, 2, 3, 4.0, b"", 0, Origin(5, 6, "xx"))])
    with pytest.raises(BadChange):
        list(decode(wire[:-2] + b"\xff\xfe"))


def test_a_length_beyond_the_body_reserves_nothing() -> None:
    wire = encode([StoredMessage(1, 2, 3, 4.0, b"abc")])
    hostile = wire[:29] + b"\xff\xff\xff\xff" + wire[33:]
    with pytest.raises(BadChange, match="cut off"):
        list(decode(hostile))


def test_what_comes_before_a_bad_change_is_given() -> None:
    """A caller must therefore collect all changes before it folds any."""
    found = decode(encode([LogTrimmed(1)]) + b"\x00")
    assert next(found) == LogTrimmed(1)
    with pytest.raises(BadChange, match="byte 9"):
        next(found)
