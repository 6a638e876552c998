"""Length-prefixed frames: any split gives the same packets, a bad length keeps no body."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.errors import FrameEmpty, FrameTooLarge
from millpond.transports.p2p.framing import CORRELATED_BYTES, LengthPrefixed

pytestmark = pytest.mark.wire

LIMIT = 4096


def prefixed(packets: list[bytes]) -> bytes:
    """The stream, made without the code under test."""
    return b"".join(struct.pack(">I", len(packet)) + packet for packet in packets)


def fed(framing: LengthPrefixed, pieces: list[bytes]) -> list[bytes]:
    return [packet for piece in pieces for packet in framing.feed(piece)]


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(places), len(wire)]
    return [wire[start:end] for start, end in pairwise(edges)]


packet_lists = st.lists(
    st.binary(min_size=1, max_size=40) | st.sampled_from([b"\x03" + bytes(8), bytes(300), bytes(5)])
)


def test_a_frame_is_a_length_and_a_packet() -> None:
    """3a, 3i: one LIST_MSG_ACK of no ids, and a goodbye."""
    wire = bytes.fromhex("00000001 09 00000003 ffff00")
    framing = LengthPrefixed(LIMIT)
    assert framing.feed(wire) == [b"\x09", b"\xff\xff\x00"]
    assert framing.frame([b"\x09", b"\xff\xff\x00"]) == wire
    assert framing.error is None


@given(packet_lists, st.data())
def test_any_split_gives_the_same_packets(packets: list[bytes], data: st.DataObject) -> None:
    wire = LengthPrefixed(LIMIT).frame(packets)
    assert wire == prefixed(packets)
    places = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))
    assert fed(LengthPrefixed(LIMIT), cut(wire, places)) == packets


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 4, 5, 7, 4099])
@pytest.mark.parametrize(
    "packets",
    [
        [b"a"],
        [bytes([n]) * 13 for n in range(40)],
        [bytes([n]) * 13 for n in range(40)] + [b"tail", b"t"],
        [b"head"] + [bytes([n]) * 13 for n in range(40)],
        [bytes(LIMIT), b"x", bytes(LIMIT - 1)],
        [bytes(n) for n in range(1, 60)],
    ],
    ids=["one", "run", "run and tail", "head and run", "largest", "growing"],
)
def test_runs_and_remainders_come_out_in_order(packets: list[bytes], piece_bytes: int) -> None:
    wire = prefixed(packets)
    pieces = [wire[at : at + piece_bytes] for at in range(0, len(wire), piece_bytes)]
    assert fed(LengthPrefixed(LIMIT), pieces) == packets


def test_a_run_that_only_looks_even_is_read_by_its_lengths() -> None:
    """Headers that agree in their last byte alone, or in the first frames alone, are no run."""
    packets = [bytes(3)] * 9 + [bytes(3 + 256)] + [bytes(3)] * 9
    assert LengthPrefixed(LIMIT).feed(prefixed(packets)) == packets
    inside = [prefixed([bytes(3)] * 20)] * 3
    assert LengthPrefixed(LIMIT).feed(prefixed(inside)) == inside


@pytest.mark.parametrize("packets", [[bytes(5000)], [b"a", bytes(5000), b"b"], []])
def test_frames_of_any_size_can_be_written(packets: list[bytes]) -> None:
    assert LengthPrefixed(LIMIT).frame(packets) == prefixed(packets)


@pytest.mark.parametrize("piece_bytes", [1, 3, 1000])
@pytest.mark.parametrize(
    ("length", "error"),
    [
        ("00000000", FrameEmpty),
        ("00001001", FrameTooLarge),
        ("01000000", FrameTooLarge),
        ("7fffffff", FrameTooLarge),
        ("ffffffff", FrameTooLarge),
    ],
)
def test_a_bad_length_ends_the_stream_and_loses_nothing_before_it(
    length: str, error: type[Exception], piece_bytes: int
) -> None:
    """PA-24, PA-34, RL-02: refused from its four bytes; what follows is ignored."""
    good = [b"one", b"two"]
    wire = prefixed(good) + bytes.fromhex(length) + b"body" + prefixed([b"three"])
    framing = LengthPrefixed(LIMIT)
    pieces = [wire[at : at + piece_bytes] for at in range(0, len(wire), piece_bytes)]
    assert fed(framing, pieces) == good
    assert type(framing.error) is error
    assert framing.feed(prefixed([b"late"])) == []


def test_a_bad_run_is_refused_at_its_first_length() -> None:
    for frame in (bytes(4), prefixed([bytes(LIMIT + 1)])):
        framing = LengthPrefixed(LIMIT)
        assert framing.feed(frame * 40) == []
        assert framing.error is not None


def test_a_bad_length_behind_a_long_packet_is_seen() -> None:
    framing = LengthPrefixed(LIMIT)
    wire = prefixed([bytes(100)]) + bytes(4)
    assert fed(framing, [wire[:50], wire[50:]]) == [bytes(100)]
    assert isinstance(framing.error, FrameEmpty)


def test_the_error_has_the_numbers() -> None:
    framing = LengthPrefixed(LIMIT)
    framing.feed(bytes.fromhex("00a00000"))
    assert isinstance(framing.error, FrameTooLarge)
    assert (framing.error.size, framing.error.size_max) == (0xA00000, LIMIT)


def test_the_limit_itself_is_legal() -> None:
    """RL-03."""
    framing = LengthPrefixed(LIMIT)
    assert framing.feed(prefixed([bytes(LIMIT)])) == [bytes(LIMIT)]
    assert framing.error is None


def test_an_announced_length_costs_no_memory() -> None:
    """3a: the body is collected as it comes."""
    framing = LengthPrefixed(2**24 - 1)
    assert framing.feed(bytes.fromhex("00ffffff") + b"start") == []
    assert len(framing._body) == 5
    assert framing._body.__sizeof__() < 1024


def test_dribbled_bytes_are_each_kept_once() -> None:
    """Linear cost: what is kept grows by what came, and is empty after each packet."""
    framing = LengthPrefixed(2**16)
    packet = bytes(range(256)) * 16
    wire = prefixed([packet, packet])
    seen: list[bytes] = []
    for count in range(len(wire)):
        seen += framing.feed(wire[count : count + 1])
        into_frame = (count + 1) % (len(packet) + 4)
        assert len(framing._body) == max(into_frame - 4, 0)
    assert seen == [packet, packet]


def test_nothing_in_gives_nothing_out() -> None:
    framing = LengthPrefixed(LIMIT)
    assert framing.feed(b"") == []
    assert framing.feed(b"\0\0") == []
    assert framing.feed(b"") == []
    assert framing.feed(b"\0\x01x") == [b"x"]


def test_plain_tcp_adds_nothing_of_its_own() -> None:
    framing = LengthPrefixed(LIMIT)
    assert (framing.take_output(), framing.close_frame(1000)) == (b"", b"")


@given(packet_lists.filter(bool), st.data())
def test_a_packet_that_is_skipped_is_kept_nowhere_and_the_others_come(
    packets: list[bytes], data: st.DataObject
) -> None:
    framing, wire = LengthPrefixed(LIMIT), prefixed(packets)
    start = data.draw(st.integers(1, len(wire)))
    found = framing.feed(wire[:start])
    first = framing.skip_packet()
    assert framing.skip_packet() == b"" and not (first and framing.buffered_bytes)
    places = data.draw(st.lists(st.integers(0, len(wire) - start), max_size=8))
    expected = list(packets)
    if first:
        skipped = expected.pop(len(found))
        assert skipped.startswith(first) and len(first) <= CORRELATED_BYTES
    assert found + fed(framing, cut(wire[start:], places)) == expected


def test_the_first_bytes_of_a_skipped_packet_tell_which_it_was() -> None:
    framing = LengthPrefixed(2**20)
    framing.feed((2**19).to_bytes(4, "big") + b"\x06\0\0\0\x07\0\0\0\0data")
    assert framing.skip_packet() == b"\x06\0\0\0\x07\0\0\0\0"
    assert framing.buffered_bytes == 0
