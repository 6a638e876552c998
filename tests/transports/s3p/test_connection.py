"""An S3P connection and a scripted node: order, waiting, limits, endings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Reply, StreamFailed, StreamReply, StreamRequest
from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import (
    Append,
    Appended,
    Create,
    Delete,
    Done,
    FinishRead,
    Read,
    RecordColumns,
    Records,
    Trim,
)
from millpond.actors.streams.names import stream_cell
from millpond.transports.s3p.connection import S3pSettings, s3p_connection
from millpond.transports.server.pipelined import DECODED_BYTES_MAX, REQUEST_BYTES, FlowSettings
from tests.conformance.rig import RecordedWire
from tests.transports.server.scripted_node import ScriptedNode

pytestmark = pytest.mark.wire

ORDERS, OTHERS = stream_cell(b"orders"), stream_cell(b"others")


def array(*elements: bytes | Sequence[bytes]) -> bytes:
    parts = [b"*%d\r\n" % len(elements)]
    for each in elements:
        if isinstance(each, bytes):
            parts.append(b"$%d\r\n%b\r\n" % (len(each), each))
        else:
            parts.append(array(*each))
    return b"".join(parts)


def create(name: bytes = b"orders") -> bytes:
    return array(b"CREATE", name, [])


def append(*records: bytes, name: bytes = b"orders", ms: bytes | None = None) -> bytes:
    return array(b"APPEND", name, [] if ms is None else [b"ID", ms], records)


def read(name: bytes = b"orders", **options: int | bytes) -> bytes:
    pairs: list[bytes] = []
    for key, value in options.items():
        pairs += [key.encode(), value if isinstance(value, bytes) else b"%d" % value]
    return array(b"READ", name, pairs)


def trim(name: bytes = b"orders", min_id: bytes = b"5-0") -> bytes:
    return array(b"TRIM", name, [b"MIN_ID", min_id])


def appended(number: int, ms: int = 7, seq: int = 0) -> Appended:
    return Appended(number, 0, 1, Position(ms, seq), ms, ms)


def records(number: int, *bodies: bytes) -> Records:
    spans = [RecordColumns(0, list(bodies), 7, Position(7, 0))] if bodies else []
    return Records(number, spans, len(bodies), len(bodies), 7)


class ScriptedConnection:
    """A connection on a wire that records."""

    def __init__(self, settings: S3pSettings | None = None, node: ScriptedNode | None = None):
        self.node = node or ScriptedNode()
        self.wire = RecordedWire()
        self.connection = s3p_connection(1, self.node, settings or S3pSettings())
        self.connection.opened(self.wire)

    def say(self, *commands: bytes) -> None:
        if not self.wire.is_over:
            self.connection.received(b"".join(commands))

    def take_bytes(self) -> bytes:
        data = bytes(self.wire.written)
        self.wire.written.clear()
        return data

    def asked(self) -> list[StreamRequest]:
        requests = [request for _, request in self.node.asked]
        self.node.asked.clear()
        return requests


def test_each_command_is_a_request_with_the_next_number() -> None:
    line = ScriptedConnection()
    line.say(create(), append(b"a", b"b", ms=b"50"), array(b"DELETE", b"orders", []))
    assert line.asked() == [Create(0), Append(1, [b"a", b"b"], 50), Delete(2)]
    assert line.node.batches == [(ORDERS, 3)]
    line.node.answer(Done(0), appended(1, 50, 1), Done(2))
    assert line.take_bytes() == b"+OK\r\n$4\r\n50-1\r\n+OK\r\n"


def test_s3p_46_answers_leave_in_the_order_of_the_commands_across_streams() -> None:
    line = ScriptedConnection()
    line.say(append(b"1"), append(b"2", name=b"others"), append(b"3"), append(b"4"))
    assert line.node.batches == [(ORDERS, 1), (OTHERS, 1), (ORDERS, 2)]
    line.node.answer(appended(2, 9), appended(3, 9, 1))
    line.node.answer(appended(1, 8))
    assert line.take_bytes() == b""
    line.node.answer(appended(0))
    assert line.take_bytes() == b"$3\r\n7-0\r\n$3\r\n8-0\r\n$3\r\n9-0\r\n$3\r\n9-1\r\n"


def test_s3p_46_commands_behind_a_waiting_read_wait() -> None:
    line = ScriptedConnection()
    line.say(append(b"1"), read(BLOCK=1000), append(b"2"), append(b"3", name=b"others"))
    first, waiting = line.asked()
    assert isinstance(waiting, Read) and waiting.wait_until == line.node.time + 1
    line.node.answer(appended(first.number))
    assert line.take_bytes() == b"$3\r\n7-0\r\n"
    line.say(append(b"4"))
    assert line.asked() == []
    line.node.answer(records(1, b"x"))
    assert line.asked() == [Append(2, [b"2"]), Append(3, [b"3"]), Append(4, [b"4"])]
    line.node.answer(appended(2), appended(3), appended(4))
    assert line.take_bytes() == b"*2\r\n$3\r\n7-0\r\n$1\r\nx\r\n" + b"$3\r\n7-0\r\n" * 3


@pytest.mark.parametrize("first", [read(), trim()])
def test_nothing_passes_a_read_or_a_trim_that_the_store_looks_for(first: bytes) -> None:
    line = ScriptedConnection()
    line.say(first, append(b"1"), read(), read(name=b"others"))
    assert len(line.asked()) == 1
    line.node.answer(records(0) if b"READ" in first else Done(0))
    assert [type(each) for each in line.asked()] == [Append, Read]
    line.node.answer(appended(1))
    assert line.asked() == []
    line.node.answer(records(2))
    assert [type(each) for each in line.asked()] == [Read]


def test_s3a_26_read_ahead_is_bounded_behind_a_waiting_read_only() -> None:
    line = ScriptedConnection()
    line.say(read(BLOCK=1000))
    line.say(append(bytes(2**15) + b"x"))
    assert not line.wire.paused
    line.say(append(bytes(2**16)))
    assert line.wire.paused
    line.node.answer(records(0))
    assert not line.wire.paused and len(line.asked()) == 3


def test_s3a_26_an_end_while_a_read_waits_ends_the_wait_and_answers_the_rest() -> None:
    line = ScriptedConnection()
    line.say(read(BLOCK=1000), append(b"1"), read(BLOCK=1000))
    line.asked()
    line.connection.eof()
    assert line.asked() == [FinishRead(0)]
    line.node.answer(records(0))
    following, last = line.asked()
    assert following == Append(1, [b"1"])
    assert isinstance(last, Read) and last.wait_until == 0.0
    line.node.answer(appended(1))
    line.node.answer(records(2, b"1"))
    assert line.take_bytes() == b"*0\r\n$3\r\n7-0\r\n*2\r\n$3\r\n7-0\r\n$1\r\n1\r\n"
    assert line.wire.closed


def test_s3p_40_s3a_30_an_end_behind_a_read_in_flight() -> None:
    """The client gets existing records, also behind an unfinished commit, or from the disk."""
    line = ScriptedConnection()
    line.say(append(b"1"), read(BLOCK=1000))
    line.asked()
    line.connection.eof()
    assert line.asked() == [FinishRead(1)]
    line.node.answer(Failed(FinishRead(1), Code.QUARANTINED))
    line.node.answer(appended(0))
    assert line.take_bytes() == b"$3\r\n7-0\r\n" and not line.wire.closed
    line.node.answer(records(1, b"1"))
    assert line.take_bytes() == b"*2\r\n$3\r\n7-0\r\n$1\r\n1\r\n" and line.wire.closed


def test_s3a_30_an_end_right_after_a_command_is_no_reason_not_to_answer() -> None:
    line = ScriptedConnection()
    line.say(create())
    line.connection.eof()
    assert not line.wire.closed
    line.node.answer(Done(0))
    assert line.take_bytes() == b"+OK\r\n" and line.wire.closed


def test_s3p_49_an_end_in_the_middle_of_a_command_executes_nothing() -> None:
    line = ScriptedConnection()
    line.say(append(b"never")[:-3])
    line.connection.eof()
    assert line.asked() == [] and line.take_bytes() == b"" and line.wire.closed


def test_s3p_49_a_client_that_is_gone_waits_no_longer() -> None:
    line = ScriptedConnection()
    line.say(read(BLOCK=1000), append(b"1"))
    line.asked()
    line.connection.ended()
    assert line.node.detached == [ORDERS] and line.node.connections == set()
    line.node.answer(records(0, b"late"))
    assert line.asked() == [] and line.take_bytes() == b""


def test_s3p_44_commands_before_an_error_are_answered_and_none_after_it() -> None:
    line = ScriptedConnection()
    line.say(append(b"1"), read(BLOCK=1000), append(b"2"), b":1\r\n", append(b"never"))
    line.say(append(b"never"))
    line.node.answer(appended(0))
    line.node.answer(records(1))
    assert [type(each) for each in line.asked()] == [Append, Read, Append]
    assert not line.wire.closed
    line.node.answer(appended(2))
    output = line.take_bytes()
    assert output.startswith(b"$3\r\n7-0\r\n*0\r\n$3\r\n7-0\r\n-ERR_BAD_FORMAT ")
    assert output.endswith(b"\r\n") and output.count(b"-ERR") == 1 and line.wire.closed


SOFT = [
    (create(), Code.STREAM_EXISTS, b"-ERR_STREAM_EXISTS stream orders already exists\r\n"),
    (append(b"1"), Code.UNKNOWN_STREAM, b"-ERR_UNKNOWN_STREAM stream orders does not exist\r\n"),
    (read(), Code.UNKNOWN_STREAM, b"-ERR_UNKNOWN_STREAM stream orders does not exist\r\n"),
    (
        append(b"1", ms=b"1700000001000"),
        Code.NON_MONOTONIC_ID,
        b"-ERR_NON_MONOTONIC_ID provided timestamp ID 1700000001000 is not greater than last "
        b"appended ID 1700000001234\r\n",
    ),
    (
        append(b"1"),
        Code.NON_MONOTONIC_ID,
        b"-ERR_NON_MONOTONIC_ID the IDs of stream orders are used up\r\n",
    ),
]


@pytest.mark.parametrize(("command", "code", "answer"), SOFT)
def test_s3p_45_soft_errors_leave_the_connection_open(
    command: bytes, code: Code, answer: bytes
) -> None:
    line = ScriptedConnection()
    line.say(command, create())
    line.node.answer(StreamFailed(0, code, last_id=Position(1700000001234, 1)))
    line.node.answer(Done(1))
    assert line.take_bytes() == answer + b"+OK\r\n" and not line.wire.closed


FATAL = [
    (Code.BUFFER_FULL, b"-ERR_LIMITS the stream or the node is full\r\n"),
    (Code.STORAGE_FAILED, b"-ERR_LIMITS storage failed\r\n"),
    (Code.QUARANTINED, b"-ERR_LIMITS the stream failed too often and is quarantined\r\n"),
    (Code.PART_OF_TOPIC, b"-ERR_LIMITS the stream is a partition of a topic\r\n"),
    (Code.FENCED, b"-ERR_LIMITS refused\r\n"),
    (Code.OUTCOME_UNKNOWN, b""),
]


@pytest.mark.parametrize("is_refused", [True, False], ids=["by-the-node", "by-the-stream"])
@pytest.mark.parametrize(("code", "answer"), FATAL)
def test_s3a_36_errors_without_a_code_end_the_connection(
    code: Code, answer: bytes, is_refused: bool
) -> None:
    line = ScriptedConnection()
    line.say(append(b"1"), append(b"2"), append(b"3"), append(b"4", name=b"others"))
    first, second, third, _ = line.asked()
    failure: Reply = Failed(second, code) if is_refused else StreamFailed(second.number, code)
    line.node.answer(appended(third.number))
    line.node.answer(appended(first.number), failure)
    line.node.answer(appended(3))
    assert line.take_bytes() == b"$3\r\n7-0\r\n" + answer and line.wire.closed


def test_s3a_36_a_client_without_rights_is_refused_at_its_first_command() -> None:
    node = ScriptedNode()
    node.admits_clients = False
    line = ScriptedConnection(node=node)
    assert line.take_bytes() == b"" and node.handshakes == 0
    line.say(create())
    assert line.take_bytes() == b"-ERR_LIMITS access refused\r\n"
    assert line.wire.closed and line.asked() == [] and node.counters.refused == 1


def test_s3p_48_one_connection_too_many_is_refused() -> None:
    node = ScriptedNode()
    node.accepts_connections = False
    line = ScriptedConnection(node=node)
    assert line.take_bytes() == b"-ERR_LIMITS too many connections\r\n" and line.wire.closed
    line.connection.ended()
    assert node.connections == set()


def settings(**flow: int | float) -> S3pSettings:
    return S3pSettings(flow=FlowSettings(**flow))  # type: ignore[arg-type]


@pytest.mark.parametrize("said", [b"", create()[:-4]], ids=["between", "within"])
def test_s3a_31_an_idle_connection_is_closed_without_a_word(said: bytes) -> None:
    line = ScriptedConnection(settings(idle_s=10))
    line.node.pass_time(line.connection, 8)
    if said:
        line.say(said)
    line.node.pass_time(line.connection, 1.9 if not said else 9.9)
    assert not line.wire.is_over
    line.node.pass_time(line.connection, 0.2)
    assert line.wire.closed and line.take_bytes() == b""


def test_s3a_31_an_idle_timer_throws_nothing_away() -> None:
    line = ScriptedConnection(settings(idle_s=10))
    for byte in create():
        line.say(bytes((byte,)))
        line.node.pass_time(line.connection, 9.5)
    assert line.asked() == [Create(0)]


def test_s3a_31_a_waiting_read_is_not_idle_and_what_follows_it_counts_from_its_answer() -> None:
    line = ScriptedConnection(settings(idle_s=10))
    line.say(read(BLOCK=60000))
    line.node.pass_time(line.connection, 55)
    line.node.answer(records(0))
    line.node.pass_time(line.connection, 9.9)
    assert line.take_bytes() == b"*0\r\n" and not line.wire.closed
    line.node.pass_time(line.connection, 0.2)
    assert line.wire.closed


def test_a_client_that_does_not_read_is_read_no_further_and_aborted_in_the_end() -> None:
    line = ScriptedConnection(settings(idle_s=10, unread_bytes_max=1000))
    line.wire.high_water_bytes = 1000
    line.wire.reads = False
    line.say(read())
    line.node.answer(records(0, bytes(2000)))
    assert line.wire.paused
    line.say(read())  # what was on its way
    assert len(line.asked()) == 1
    line.node.pass_time(line.connection, 19)
    line.wire.unsent_bytes -= 1
    line.node.pass_time(line.connection, 10)
    assert not line.wire.is_over
    line.node.pass_time(line.connection, 20)
    assert line.wire.aborted and line.node.counters.stalled == 1


def test_a_client_that_reads_again_is_read_again() -> None:
    line = ScriptedConnection(settings(unread_bytes_max=1000))
    line.wire.high_water_bytes = 1000
    line.wire.reads = False
    line.say(read())
    line.node.answer(records(0, bytes(2000)))
    line.say(read(), append(b"1"))
    line.wire.unsent_bytes = 0
    line.connection.uncongested()
    assert len(line.asked()) == 2 and line.wire.paused, "a READ is under way"
    line.node.answer(records(1))
    assert not line.wire.paused and line.asked() == [Append(2, [b"1"])]


def test_a_full_mailbox_stops_the_reading() -> None:
    line = ScriptedConnection()
    line.node.has_capacity = False
    line.say(append(b"1"), append(b"2", name=b"others"), append(b"3"))
    assert line.node.batches == [(ORDERS, 1)] and line.wire.paused
    line.connection.eof()
    line.node.free_mailbox()
    assert line.node.batches == [(ORDERS, 1), (OTHERS, 1), (ORDERS, 1)]
    line.node.answer(appended(0), appended(1), appended(2))
    assert line.wire.closed and line.take_bytes().count(b"7-0") == 3


def test_requests_in_flight_are_bounded_in_bytes() -> None:
    line = ScriptedConnection(settings(in_flight_bytes_max=1000))
    line.say(append(bytes(600), name=b"others"), append(bytes(600)), append(bytes(600)))
    assert line.node.batches == [(OTHERS, 1), (ORDERS, 2)]
    line.say(append(b"4"))
    assert len(line.asked()) == 3 and line.wire.paused
    line.node.answer(appended(0), appended(1))
    assert line.asked() == []
    line.node.answer(appended(2))
    assert line.asked() == [Append(3, [b"4"])] and not line.wire.paused


def test_requests_in_flight_are_bounded_in_number() -> None:
    line = ScriptedConnection(settings(in_flight_max=2))
    line.say(*[append(b"x")] * 3)
    assert len(line.asked()) == 3, "what one read brought goes together"
    line.say(append(b"4"))
    assert line.asked() == [] and line.wire.paused
    line.node.answer(appended(0))
    assert line.asked() == [Append(3, [b"4"])] and not line.wire.paused


LONG = [append(b"%d" % number) for number in range(3000)]


def test_a_long_read_is_decoded_in_parts() -> None:
    """Decoded requests take more memory than their bytes."""
    line = ScriptedConnection()
    line.say(*LONG)
    numbers: list[int] = []
    while asked := line.asked():
        assert len(asked) <= 2 * len(LONG) * DECODED_BYTES_MAX // len(b"".join(LONG))
        numbers += [each.number for each in asked]
        left = len(LONG) - len(numbers)
        assert line.connection.held_bytes >= left * len(LONG[0]) + len(asked) * REQUEST_BYTES
        assert line.wire.paused == bool(left)
        line.node.answer(*(appended(each.number) for each in asked))
    assert numbers == [*range(len(LONG))]
    assert line.take_bytes().count(b"7-0") == len(LONG)
    assert not line.wire.paused and line.connection.held_bytes == 0


@pytest.mark.parametrize("rest", [b"", b"*1\r\n$-5\r\n"], ids=["", "and an error"])
def test_what_came_before_the_end_is_answered_however_long_it_is(rest: bytes) -> None:
    line = ScriptedConnection()
    line.say(*LONG, rest)
    line.connection.eof()
    while asked := line.asked():
        assert not line.wire.closed
        line.node.answer(*(appended(each.number) for each in asked))
    told = line.take_bytes()
    assert told.count(b"7-0") == len(LONG) and line.wire.closed
    assert (b"-ERR" in told) == bool(rest)


def test_a_node_that_stops_takes_nothing_more_of_a_long_read() -> None:
    line = ScriptedConnection()
    line.say(*LONG)
    taken = line.asked()
    line.connection.start_drain()
    line.node.answer(*(appended(each.number) for each in taken))
    assert line.asked() == [] and line.wire.closed
    assert line.take_bytes().count(b"7-0") == len(taken) < len(LONG)


def test_large_answers_let_others_run() -> None:
    line = ScriptedConnection(settings(pass_bytes_max=1000))
    node = line.node
    original = node.submit

    def at_once(cell: bytes, batch: object, now: float) -> bool:
        original(cell, batch, now)  # type: ignore[arg-type]
        (_, request) = node.asked[-1]
        node.answer(records(request.number, bytes(600)))
        return True

    node.submit = at_once  # type: ignore[method-assign,assignment]
    line.say(*[read()] * 5)
    assert len(line.asked()) == 2 and line.connection.deadline == node.time
    node.pass_time(line.connection, 0)
    assert len(line.asked()) == 3
    assert line.take_bytes().count(bytes(600)) == 5


def test_a_node_that_stops_answers_what_it_took_and_closes() -> None:
    line = ScriptedConnection()
    line.say(append(b"1"), read(BLOCK=1000), append(b"2"))
    line.asked()
    line.connection.start_drain()
    assert line.asked() == [FinishRead(1)] and not line.wire.closed
    line.node.answer(appended(0), records(1))
    assert line.take_bytes() == b"$3\r\n7-0\r\n*0\r\n" and line.wire.closed
    quiet = ScriptedConnection()
    quiet.connection.start_drain()
    assert quiet.wire.closed and quiet.take_bytes() == b""


def test_a_node_whose_drain_time_is_over_closes_at_once() -> None:
    line = ScriptedConnection()
    line.say(append(b"1"), read(BLOCK=1000))
    line.connection.close()
    assert line.wire.closed and line.node.detached == [ORDERS]
    line.node.answer(appended(0), records(1))
    assert line.take_bytes() == b""


def test_requests_and_bytes_are_counted() -> None:
    line = ScriptedConnection()
    said = create() + append(b"1")
    line.say(said, b"nonsense")
    counters = line.node.counters
    assert counters.malformed == 1
    traffic = {
        name: (each.connections, each.requests) for name, each in line.node.protocol_stats.items()
    }
    assert traffic.pop("s3p") == (1, 2) and set(traffic.values()) == {(0, 0)}
    assert line.node.protocol_stats["s3p"].bytes_in == len(said) + 8


def test_a_reply_without_a_request_is_an_error() -> None:
    class Strange(StreamReply, frozen=True, gc=False):
        pass

    line = ScriptedConnection()
    line.say(create())
    with pytest.raises(AssertionError):
        line.node.answer(Strange(0))


def test_trim_carries_its_id() -> None:
    line = ScriptedConnection()
    line.say(trim(min_id=b"007-1"))
    assert line.asked() == [Trim(0, Position(7, 1))]
