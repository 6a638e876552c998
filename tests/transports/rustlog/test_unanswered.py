"""Requests that no stream answers, as if a disk had stalled (RB-34)."""

from __future__ import annotations

from millpond.actors.positions import Position
from millpond.actors.streams import messages as m
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.binary_codec import encode_request as binary
from millpond.transports.rustlog.client_codec import encode_request as json_form
from millpond.transports.rustlog.connection import rustlog_connection
from millpond.transports.rustlog.settings import ANSWER_S, RustlogSettings
from millpond.transports.server.pipelined import PipelinedConnection
from tests.conformance.rig import RecordedWire
from tests.transports.rustlog.test_flow import LongNames
from tests.transports.server.scripted_node import ScriptedNode

UNKNOWN = bytes.fromhex("fe01f4")
PING = binary(r.Ping())


def connect() -> tuple[ScriptedNode, RecordedWire, PipelinedConnection[object]]:
    node, wire = ScriptedNode(), RecordedWire()
    node.directory = LongNames()
    connection = rustlog_connection(1, node, RustlogSettings())
    connection.opened(wire)
    return node, wire, connection  # type: ignore[return-value]  # of any request


def appended(number: int) -> m.Appended:
    return m.Appended(number, number, 1, Position(1, 0), 1, 1)


def test_every_form_and_request_gets_error_500_within_thirty_seconds() -> None:
    for request, answer in (
        (binary(r.Produce("t", 0, [b"x"])), UNKNOWN),
        (binary(r.Produce("t", 0, [])), UNKNOWN),
        (binary(r.Fetch("t", 0, 0, 9, "")), UNKNOWN),
        (binary(r.Fetch("t", 0, 0, 9, "g")), UNKNOWN),
        (binary(r.OffsetCommit("g", "t", 0, 1)), UNKNOWN),
        (binary(r.OffsetCommit("g", "absent", 0, 1)), UNKNOWN),
        (binary(r.OffsetFetch("g", "t", 0)), UNKNOWN),
        (binary(r.CreateTopic("new", 1)), UNKNOWN),
        (binary(r.DescribePartition("t", 0)), UNKNOWN),
        (json_form(r.Produce("t", 0, [b"x"])), b'"code":500'),
        (json_form(r.Fetch("t", 0, 0)), b'"code":500'),
        (json_form(r.CreateTopic("new", 1)), b'"code":500'),
    ):
        node, wire, connection = connect()
        connection.received(request)
        node.batcher.submit_all()
        assert not wire.written and node.asked
        node.pass_time(connection, 2 * ANSWER_S)
        assert answer in wire.written and not wire.is_over, request
        before = len(wire.written)
        connection.received(PING)
        assert wire.written[before:] == PING, "the connection goes on"


def test_answers_in_between_count_and_late_ones_do_not() -> None:
    node, wire, connection = connect()
    produce = binary(r.Produce("t", 0, [b"x"]))
    connection.received(produce * 3 + PING)
    node.batcher.submit_all()
    node.pass_time(connection, ANSWER_S - 1)
    node.answer(appended(0))
    assert wire.written.count(b"\0\0\0\x0d\x01") == 1
    node.pass_time(connection, ANSWER_S - 1)
    assert wire.written.count(UNKNOWN) == 0
    node.pass_time(connection, ANSWER_S)
    assert wire.written.count(UNKNOWN) == 2 and wire.written.endswith(PING)
    before = bytes(wire.written)
    node.answer(appended(1), appended(2))
    assert wire.written == before, "nobody waits for these any more"
    connection.received(produce)
    node.batcher.submit_all()
    node.answer(appended(4))
    assert wire.written[len(before) :].startswith(b"\0\0\0\x0d\x01")


def test_a_connection_whose_requests_find_no_room_is_closed() -> None:
    node, wire, connection = connect()
    node.has_capacity = False
    connection.received(binary(r.Fetch("t", 0, 0, 9, "")) + PING)
    node.batcher.submit_all()
    node.pass_time(connection, ANSWER_S)
    assert UNKNOWN in wire.written and PING not in wire.written and not wire.is_over
    assert node.counters.overloaded == 0
    node.pass_time(connection, ANSWER_S)
    assert wire.is_over and node.counters.overloaded == 1


def test_room_in_time_keeps_the_connection() -> None:
    node, wire, connection = connect()
    node.has_capacity = False
    connection.received(binary(r.Fetch("t", 0, 0, 9, "")) + PING)
    node.batcher.submit_all()
    node.pass_time(connection, 2 * ANSWER_S - 1)
    node.free_mailbox()
    assert wire.written.endswith(PING)
    node.pass_time(connection, 2 * ANSWER_S)
    assert not wire.is_over


class Created(LongNames):
    """The partition of `t` has records."""

    def is_created(self, name: bytes) -> bool:
        return True


def test_a_request_to_many_streams_without_an_answer_holds_up_none_behind_it() -> None:
    """DescribeTopic and MetricsFetch, in both forms; their late answers reach nobody."""
    fetch, json_fetch = binary(r.Fetch("t", 0, 0, 9, "")), json_form(r.Fetch("t", 0, 0))
    for first, second in (
        (binary(r.DescribeTopic("t")), fetch),
        (json_form(r.DescribeTopic("t")), json_fetch),
    ):
        node, wire, connection = connect()
        node.directory = Created()
        connection.received(first)
        node.batcher.submit_all()
        asked = len(node.asked)
        assert asked and not wire.written
        node.pass_time(connection, 2 * ANSWER_S)
        assert wire.written
        connection.received(second)
        node.batcher.submit_all()
        assert len(node.asked) > asked, "the Fetch went to its stream"
        before = bytes(wire.written)
        node.pass_time(connection, 2 * ANSWER_S)
        assert len(wire.written) > len(before), "and is answered in time"


def test_a_late_group_fetch_does_not_let_others_pass_a_later_one() -> None:
    """RB-16: the late reply belongs to a request that was refused."""
    node, wire, connection = connect()
    group_fetch = binary(r.Fetch("t", 0, 0, 9, "g"))
    connection.received(group_fetch)
    first, late = len(node.asked), node.port
    assert first == 1
    node.pass_time(connection, 2 * ANSWER_S)
    assert UNKNOWN in wire.written
    refused = bytes(wire.written)
    connection.received(group_fetch + binary(r.OffsetCommit("g", "t", 0, 5)))
    node.batcher.submit_all()
    assert len(node.asked) == first + 1, "the commit waits"
    late.send((m.GroupOffset(0, None),))
    late.flush()
    node.batcher.submit_all()
    assert len(node.asked) == first + 1, "the commit still waits"
    assert wire.written == refused
