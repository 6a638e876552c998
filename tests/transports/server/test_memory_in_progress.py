"""Requests in a mailbox or a commit: their bytes count in the memory budget until they are
answered."""

from __future__ import annotations

import msgspec
import pytest

from millpond.transports.p2p.streams.operations import Operation
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection, Rig

MIB = 2**20
WAIT_S = 5.0
CHANNEL = b"chat/1"


def _hold(rig: Rig, cell: bytes) -> None:
    """Let a cell run only after WAIT_S, as one whose behaviour has crashed."""
    rig.node.scheduler.cells[cell].resumes_at = rig.node.clock.now() + WAIT_S


def _send(line: RecordedConnection, *packets: bytes) -> int:
    line.say(*packets)
    return line.connection.held_bytes


def test_puts_count_until_they_are_answered() -> None:
    rig = Rig(packet_bytes_max=8 * MIB)
    memory = rig.node.services.memory
    line = rig.logged_in(CHANNEL)
    assert _send(line, p.put(1, bytes(MIB))) == 0, "it is answered at once"
    line.take_packets()
    _hold(rig, CHANNEL)
    assert 3 * MIB < _send(line, p.put(2, bytes(MIB)), p.put(3, bytes(2 * MIB))) < 4 * MIB
    assert not line.connection.waits_for_client
    rig.advance(1.0)
    assert 3 * MIB < memory.used_bytes < 4 * MIB
    rig.advance(WAIT_S)
    assert [each[:5] for each in line.take_packets()] == [b"\x07" + p.u32(2), b"\x07" + p.u32(3)]
    assert line.connection.held_bytes == memory.used_bytes == 0


def test_small_puts_count_for_more_than_their_bytes() -> None:
    rig = Rig()
    line = rig.logged_in(CHANNEL)
    _hold(rig, CHANNEL)
    puts = [p.put(key, b"x") for key in range(1, 601)]
    assert _send(line, *puts) > 600 * 256, "also those that are handled in the next turn"
    rig.advance(2 * WAIT_S)
    assert len(line.take_packets()) == 600 and line.connection.held_bytes == 0


def test_a_put_that_a_channel_refuses_does_not_count_any_more() -> None:
    rig = Rig(packet_bytes_max=8 * MIB, channel_bytes_max=MIB)
    line = rig.logged_in(CHANNEL)
    _hold(rig, CHANNEL)
    assert _send(line, *[p.put(key, bytes(MIB // 2)) for key in range(1, 6)]) > 2 * MIB
    rig.advance(2 * WAIT_S)
    answered = [each[0] for each in line.take_packets()]
    assert sorted(set(answered)) == [0x07, 0xFF] and len(answered) == 5
    assert line.connection.held_bytes == 0


@pytest.mark.parametrize("size", [100, 300_000])
def test_a_connection_that_leaves_holds_nothing(size: int) -> None:
    rig = Rig()
    line = rig.logged_in(CHANNEL)
    _hold(rig, CHANNEL)
    assert _send(line, p.put(1, bytes(size))) >= size
    line.end()
    rig.advance(2 * WAIT_S)
    assert line.connection.held_bytes == rig.node.services.memory.used_bytes == 0
    listed = rig.logged_in(CHANNEL, flags=0).ask(p.list_())[-1]
    assert len(listed) == 9, "what was sent is stored"


def _stream(rig: Rig, records: int, over: str = "tcp") -> RecordedConnection:
    """A connection that made the stream `s` with records of 1 MiB."""
    line = rig.logged_in(CHANNEL, {p.EXTENSIONS: b"\x92\x93"}, over=over)
    _ask(line, 1, Operation.CREATE)
    for number in range(records):
        _ask(line, number + 2, Operation.APPEND, bodies=[bytes(MIB)])
    return line


def _packet(number: int, operation: Operation, **fields: object) -> bytes:
    return p.stream(number, operation, msgspec.msgpack.encode({"stream": b"s", **fields}))


def _ask(line: RecordedConnection, number: int, operation: Operation, **fields: object) -> None:
    (answer,) = line.ask(_packet(number, operation, **fields))
    assert answer[0] == 0x93, answer


def _answered(line: RecordedConnection) -> list[int]:
    """The numbers of the requests that were answered since the last call, in their order."""
    return [int.from_bytes(each[1:5], "big") for each in line.take_packets() if each[0] == 0x93]


@pytest.mark.parametrize("over", ["tcp", "ws"])
def test_reads_of_a_stream_wait_for_the_memory_of_their_answers(over: str) -> None:
    rig = Rig(packet_bytes_max=8 * MIB)
    memory = rig.node.services.memory
    line = _stream(rig, 4, over)
    others_bytes = memory.settings.bytes_max - memory.connections_bytes - 9 * MIB
    assert memory.promise(others_bytes)
    reads = [_packet(each, Operation.READ, bytes_max=MIB, sequence=each) for each in range(4)]
    line.say(*reads)
    assert _answered(line) == [0, 1, 2, 3], "there is room for all of them"
    assert memory.promised_bytes == others_bytes, "what is answered takes no memory any more"
    assert memory.promise(4 * MIB)
    line.say(*reads, p.put(9, b"x"))
    rig.advance(0.2)
    assert [each[0] for each in line.take_packets()] == [0x07], "four answers may take 8 MiB"
    assert memory.waiting == 1
    memory.keep_promise(4 * MIB)
    rig.advance(1.0)
    answers = line.take_packets()
    assert [each[0] for each in answers] == [0x93] * 4
    assert memory.promised_bytes == others_bytes


def test_reads_that_wait_for_memory_end_with_their_connection() -> None:
    rig = Rig(packet_bytes_max=8 * MIB)
    memory = rig.node.services.memory
    line = _stream(rig, 1)
    others_bytes = memory.settings.bytes_max - memory.connections_bytes
    assert memory.promise(others_bytes)
    line.say(_packet(9, Operation.READ, bytes_max=MIB))
    assert memory.waiting == 1
    line.end()
    assert memory.waiting == 0 and memory.promised_bytes == others_bytes


def test_a_read_that_waits_for_records_takes_no_memory() -> None:
    rig = Rig(packet_bytes_max=8 * MIB)
    memory = rig.node.services.memory
    line = _stream(rig, 1)
    others_bytes = memory.settings.bytes_max - memory.connections_bytes
    assert memory.promise(others_bytes)
    line.say(_packet(9, Operation.READ, sequence=1, wait_ms=60_000))
    assert memory.waiting == 1, "there might have been records"
    memory.keep_promise(others_bytes)
    rig.advance(1.0)
    assert memory.waiting == memory.promised_bytes == 0
    line.say(_packet(10, Operation.APPEND, bodies=[b"x"]))
    assert sorted(_answered(line)) == [9, 10]
