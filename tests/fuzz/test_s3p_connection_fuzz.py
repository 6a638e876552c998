"""Hostile bytes on S3P connections of a whole node: however they are cut, the answers are the same,
in order, and at most the last one is an error that ends the connection."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.rig import RecordedWire, Rig
from tests.conformance.s3p_peer import append, array, create, delete, read, trim

pytestmark = pytest.mark.wire

COMMANDS = [
    create(),
    create(b"others"),
    append(b"hello", b"world", ID=5),
    append(b"\r\n*0\r\n"),
    append(b"x" * 600, ID=7, name=b"others"),
    append(b"x", ID=6),
    read(COUNT=3),
    read(MIN_ID="5-1", BLOCK=50),
    read(b"others", BLOCK=10, MIN_ID="9-9"),
    trim(MIN_ID="5-1"),
    delete(b"others"),
    array(b"READ", b"orders", [b"count", b"0"]),
    b"nonsense\r\n",
]
PIECES = [
    b"\r\n",
    b"\r",
    b"\n",
    b"$",
    b"*",
    b"0",
    b"-1",
    b"$0\r\n\r\n",
    b"*0\r\n",
    b"\xff",
    b"9" * 25,
]
REPLY = re.compile(
    rb"\+OK\r\n|-ERR_(?:BAD_FORMAT|LIMITS|STREAM_EXISTS|UNKNOWN_STREAM|NON_MONOTONIC_ID) [ -~]+\r\n"
    rb"|\$\d+\r\n\d+-\d+\r\n|\*\d+\r\n"
)
FATAL = re.compile(rb"-ERR_(?:BAD_FORMAT|LIMITS) ")

quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def sessions(draw: st.DrawFn) -> bytes:
    """Commands one after the other, with a few bytes changed."""
    said = b"".join(draw(st.lists(st.sampled_from(COMMANDS), max_size=12)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(said)))
        gone = draw(st.integers(0, 3))
        said = said[:at] + draw(st.sampled_from(PIECES)) + said[at + gone :]
    return said


def answers_to(said: bytes, cuts: list[int]) -> tuple[bytes, int]:
    """The output of the node, and the number of commands it read; the client ends its side."""
    rig, wire = Rig(), RecordedWire()
    connection = rig.node.new_session("s3p")
    connection.opened(wire)
    edges = sorted({0, len(said), *(cut % (len(said) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        if not wire.is_over:
            connection.received(said[start:end])
        rig.settle()
    rig.advance(1)
    if not wire.is_over:
        connection.eof()
    rig.settle()
    assert wire.closed and not wire.aborted
    connection.ended()
    assert not rig.node.registry.connections
    return bytes(wire.written), rig.node.services.protocol_stats["s3p"].requests


def replies_in(data: bytes) -> list[bytes]:
    """Replies, and nothing else."""
    found = []
    at = 0
    while at < len(data):
        match = REPLY.match(data, at)
        assert match is not None, data[at : at + 80]
        found.append(match[0])
        at = match.end()
        for _ in range(int(match[0][1:-2]) if match[0][:1] == b"*" else 0):
            header = re.compile(rb"\$(\d+)\r\n").match(data, at)
            assert header is not None
            at = header.end() + int(header[1]) + 2
            assert data[at - 2 : at] == b"\r\n"
    return found


@quick
@given(sessions(), st.lists(st.integers(0, 10_000), max_size=30))
def test_s3p_11_any_cut_gives_the_same_answers(said: bytes, cuts: list[int]) -> None:
    data, commands = answers_to(said, [])
    assert answers_to(said, cuts) == (data, commands)
    replies = replies_in(data)
    fatal = [bool(FATAL.match(each)) for each in replies]
    assert not any(fatal[:-1])
    assert len(replies) == commands + sum(fatal)


@quick
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_s3p_47_any_bytes(said: bytes, cuts: list[int]) -> None:
    data, commands = answers_to(said, cuts)
    assert commands == 0
    assert all(FATAL.match(each) for each in replies_in(data)) and data.count(b"-ERR") <= 1
