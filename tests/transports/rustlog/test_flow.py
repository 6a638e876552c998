"""Bounds of memory for a RustLog client: small requests with large answers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf

from millpond.actors.positions import Position
from millpond.actors.streams import messages as m
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.client_codec import encode_request
from millpond.transports.rustlog.connection import rustlog_connection
from millpond.transports.rustlog.decoder import DecodedRequest
from millpond.transports.rustlog.settings import RustlogSettings
from millpond.transports.server.pipelined import FlowSettings, PipelinedConnection
from tests.conformance.rig import RecordedWire
from tests.transports.server.scripted_node import NoTopics, ScriptedNode

FLOW = FlowSettings(pass_bytes_max=50_000, in_flight_bytes_max=200_000)
ABSENT = encode_request(r.DescribePartition("absent", 0))
PRODUCE = encode_request(r.Produce("t", 0, [b"x"]))


class LongNames(NoTopics):
    """The topic `t`, and others that make every Error of an absent one long."""

    def partitions(self, topic: bytes) -> int | None:
        return 1 if topic == b"t" else None

    def topics(self) -> Iterable[tuple[bytes, int]]:
        return [(b"%03d" % each + b"n" * 250, 1) for each in range(100)]


PING = encode_request(r.Ping())
METRICS = encode_request(r.MetricsFetch())


def connect(
    flow: FlowSettings = FLOW,
) -> tuple[ScriptedNode, RecordedWire, PipelinedConnection[DecodedRequest]]:
    node, wire = ScriptedNode(), RecordedWire()
    node.directory = LongNames()
    connection = rustlog_connection(1, node, RustlogSettings(flow=flow))
    connection.opened(wire)
    return node, wire, connection


def test_errors_longer_than_their_requests_leave_in_several_passes() -> None:
    node, wire, connection = connect()
    connection.received(ABSENT * 100)
    one = len(wire.written) // 2
    assert one > 25_000 and wire.paused and connection.deadline == node.time
    node.pass_time(connection, 0)
    assert len(wire.written) == 100 * one and not wire.paused


def test_answers_behind_a_request_that_takes_long_are_bounded() -> None:
    node, wire, connection = connect()
    connection.received(PRODUCE)
    for _ in range(10):
        connection.received(ABSENT * 5)
        node.pass_time(connection, 0)
    kept = sum(len(each.data) for each in connection._early_replies.values())  # type: ignore
    assert 200_000 < kept < 260_000 and wire.paused and not wire.written
    node.answer(m.Appended(0, 0, 1, Position(1, 0), 1, 1))
    node.pass_time(connection, 0)
    assert wire.written.count(b"TOPIC_NOT_FOUND") == 0
    assert wire.written.count(b"not found") == 50 and not wire.paused


def test_no_topic_is_unknown_and_no_list_is_given_where_names_are_lost() -> None:
    node, wire, connection = connect()
    node.directory.is_incomplete = True  # type: ignore[misc]  # of the test's own
    for request in (ABSENT, encode_request(r.ListTopics())):
        before = len(wire.written)
        connection.received(request)
        answer = bytes(wire.written[before:])
        assert b'"code":503' in answer and b"storage failed" in answer


def test_answers_that_need_no_stream_are_written_as_they_are_made() -> None:
    """So a client that does not read them is noticed before there are many."""
    node, wire, connection = connect(FlowSettings(unread_bytes_max=100_000))
    wire.reads, wire.high_water_bytes = False, 2**16
    connection.received(METRICS * 1000)
    assert 0 < wire.unsent_bytes < 65_536, "of one pass"
    node.pass_time(connection, 0)
    assert wire.paused and 100_000 < wire.unsent_bytes_peak < 250_000
    while wire.congested:
        wire.unsent_bytes = 0
        connection.uncongested()
        node.pass_time(connection, 0)
    assert wire.written.count(b"MetricsFetchResponse") == 1000 and not wire.paused
    assert wire.unsent_bytes_peak < 250_000


def test_small_requests_of_one_read_are_answered_in_passes() -> None:
    node, wire, connection = connect()
    connection.received(PING * 2000)
    counts = [wire.written.count(b"Pong")]
    while wire.paused:
        connection.deadline = inf
        connection.wake(node.time)
        counts.append(wire.written.count(b"Pong"))
    assert counts[-1] == 2000 and not wire.paused
    assert max(after - before for before, after in pairwise([0, *counts])) <= 256


def test_requests_whose_answers_take_long_to_make_are_few_in_a_pass() -> None:
    _, wire, connection = connect(FlowSettings())
    connection.received(METRICS * 1000)
    assert 0 < wire.written.count(b"MetricsFetchResponse") < 50 and wire.paused
