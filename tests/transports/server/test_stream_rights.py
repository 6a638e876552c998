"""Rights in single streams (P2P-24): what S3P, RustLog and packets 92 answer without them.

S3A-36, RLA-33, docs/reference/wire-protocol.md. The node answers as the test says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from millpond.actors.errors import Code, NotAllowed
from millpond.actors.messages import Rights
from millpond.actors.positions import Position
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.nacks import CODES
from millpond.transports.p2p.streams.operations import LISTED_MAX, Operation, listed
from millpond.transports.p2p.streams.requests import StreamRequests
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.client_codec import encode_request
from millpond.transports.rustlog.connection import rustlog_connection
from millpond.transports.rustlog.decoder import DecodedRequest
from millpond.transports.rustlog.settings import RustlogSettings
from millpond.transports.s3p.commands import Command
from millpond.transports.s3p.connection import S3pSettings, s3p_connection
from millpond.transports.server.pipelined import FlowSettings, PipelinedConnection
from millpond.transports.server.refusals import Refusal
from tests.conformance.rig import RecordedWire
from tests.transports.s3p.test_connection import append, appended, array, create, read, trim
from tests.transports.server.scripted_node import NoTopics, ScriptedNode

pytestmark = pytest.mark.wire

ERR_REFUSED = b"-ERR_LIMITS access refused\r\n"
PUT, GET, LIST, ADMIN = Rights.PUT, Rights.GET, Rights.LIST, Rights.ADMIN
EACH = (PUT, GET, LIST, ADMIN)
COMMANDS = {
    create(): PUT,
    append(b"x"): PUT,
    read(): GET,
    trim(): ADMIN,
    array(b"DELETE", b"orders", []): ADMIN,
}


def s3p(**rights: Rights) -> tuple[ScriptedNode, RecordedWire, PipelinedConnection[Command]]:
    node, wire = node_with(rights), RecordedWire()
    connection = s3p_connection(1, node, S3pSettings(flow=FlowSettings()))
    connection.opened(wire)
    return node, wire, connection


def node_with(rights: dict[str, Rights]) -> ScriptedNode:
    node = ScriptedNode()
    node.others = Rights.NONE
    node.rights = {name.encode(): each for name, each in rights.items()}
    return node


@pytest.mark.parametrize(("command", "needed"), COMMANDS.items(), ids=lambda each: repr(each)[:12])
def test_s3a_36_each_command_takes_one_right_in_its_stream(command: bytes, needed: Rights) -> None:
    for right in EACH:
        node, wire, connection = s3p(orders=right, others=Rights.ALL)
        connection.received(command)
        assert len(node.asked) == (right == needed)
        assert wire.closed is (right != needed)
        assert bytes(wire.written) == (b"" if right == needed else ERR_REFUSED)
        assert node.refusals == ([] if right == needed else [Refusal.NOT_ALLOWED])


def test_s3a_36_commands_before_a_refused_one_are_answered_and_those_behind_are_not() -> None:
    node, wire, connection = s3p(orders=PUT)
    connection.received(append(b"a") + append(b"b") + read() + append(b"c"))
    assert [len(request.bodies) for _, request in node.asked] == [1, 1]  # type: ignore[attr-defined]
    connection.received(append(b"d"))
    assert len(node.asked) == 2 and not wire.closed and wire.written == b""
    node.answer(appended(0), appended(1, 8))
    assert bytes(wire.written) == b"$3\r\n7-0\r\n$3\r\n8-0\r\n" + ERR_REFUSED and wire.closed


def test_streams_that_are_not_there_are_refused_like_those_that_are() -> None:
    outcomes = set()
    for name in (b"secret", b"absent"):
        _, wire, connection = s3p(orders=PUT, secret=LIST)
        connection.received(read(name))
        outcomes.add(bytes(wire.written))
    assert outcomes == {ERR_REFUSED}


class Topics(NoTopics):
    def partitions(self, topic: bytes) -> int | None:
        return dict(self.topics()).get(topic)

    def topics(self) -> Iterable[tuple[bytes, int]]:
        return [(b"mine", 1), (b"others", 1)]


def rustlog(
    **rights: Rights,
) -> tuple[ScriptedNode, RecordedWire, PipelinedConnection[DecodedRequest]]:
    node, wire = node_with(rights), RecordedWire()
    node.directory = Topics()
    connection = rustlog_connection(1, node, RustlogSettings())
    connection.opened(wire)
    return node, wire, connection


def received(wire: RecordedWire) -> list[dict[str, Any]]:
    data, found = bytes(wire.written), []
    wire.written.clear()
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        found.append(json.loads(data[4:end]))
        data = data[end:]
    return found


REFUSED_ERROR = {"type": "Error", "code": 400, "message": "access refused", "details": None}
REQUESTS = [
    (r.Produce("mine", 0, [b"x"]), PUT),
    (r.CreateTopic("mine", 2), PUT),
    (r.Fetch("mine", 0, 0, 100), GET),
    (r.OffsetCommit("g", "mine", 0, 1), GET),
    (r.OffsetFetch("g", "mine", 0), GET),
    (r.DescribePartition("mine", 0), GET | LIST),
    (r.DescribeTopic("mine"), GET | LIST),
]


@pytest.mark.parametrize(("asked", "needed"), REQUESTS, ids=lambda each: type(each).__name__)
def test_rla_33_each_request_takes_one_right_and_the_connection_stays(
    asked: Any, needed: Rights
) -> None:
    """PING shows that it stays."""
    frame = encode_request(asked)
    for right in EACH:
        node, wire, connection = rustlog(mine=right, others=Rights.ALL)
        connection.received(frame + encode_request(r.Ping()))
        is_allowed = bool(right & needed)
        assert not wire.closed
        if is_allowed:
            assert REFUSED_ERROR not in received(wire) and node.refusals == []
        else:
            assert received(wire) == [REFUSED_ERROR, {"type": "Pong"}] and node.asked == []
            assert node.refusals == [Refusal.NOT_ALLOWED]


def test_rla_33_hidden_topics_are_not_named() -> None:
    _, wire, connection = rustlog(mine=LIST, absent=GET)
    connection.received(encode_request(r.ListTopics()) + encode_request(r.Fetch("absent", 0, 0, 9)))
    topics, error = received(wire)
    assert [each["name"] for each in topics["topics"]] == ["mine"]
    assert error["details"] == {"available_topics": ["mine"]}
    for name in ("others", "nowhere"):
        connection.received(encode_request(r.Fetch(name, 0, 0, 9)))
        assert received(wire) == [REFUSED_ERROR]


def test_metrics_of_all_topics_take_list_everywhere() -> None:
    for rights, kind in (({"": LIST}, "MetricsFetchResponse"), ({"mine": LIST}, "Error")):
        _, wire, connection = rustlog(**rights)
        connection.received(encode_request(r.MetricsFetch()))
        (answer,) = received(wire)
        assert answer["type"] == kind


def test_rights_that_are_taken_away_hold_no_longer_on_connections_that_are_open() -> None:
    node, wire, connection = rustlog(mine=PUT)
    produce = encode_request(r.Produce("mine", 0, [b"x"]))
    connection.received(produce)
    assert len(node.asked) == 1
    node.answer(m.Appended(0, 0, 1, Position(1, 0), 1, 1))
    node.rights[b"mine"] = GET
    connection.reauthorize()
    connection.received(produce)
    assert len(node.asked) == 1 and received(wire)[-1] == REFUSED_ERROR
    node.admits_clients = False
    connection.reauthorize()
    assert wire.closed


class Names(Topics):
    def names(self, prefix: bytes, after: bytes, limit: int) -> list[bytes]:
        return [name for name in (b"mine", b"other") if name > after][:limit]


OPERATIONS = {
    Operation.CREATE: PUT,
    Operation.APPEND: PUT,
    Operation.READ: GET,
    Operation.DESCRIBE: GET | LIST,
    Operation.TRIM: ADMIN,
    Operation.DELETE: ADMIN,
    Operation.CONFIGURE: ADMIN,
    Operation.COMMIT: GET,
    Operation.COMMITTED: GET,
    Operation.CREATE_TOPIC: PUT,
    Operation.DELETE_TOPIC: ADMIN,
    Operation.STATE: GET,
    Operation.STATE_GET: GET,
    Operation.STATE_SHOW: GET,
}
FIELDS: dict[Operation, dict[str, Any]] = {
    Operation.APPEND: {"bodies": [b"x"]},
    Operation.TRIM: {"sequence": 1},
    Operation.COMMIT: {"group": b"g", "offset": 1},
    Operation.COMMITTED: {"group": b"g"},
    Operation.CREATE_TOPIC: {"partitions": 2},
    Operation.STATE_GET: {"type": "t", "key": "k"},
}


def stream_requests(rights: dict[bytes, Rights]) -> StreamRequests:
    return StreamRequests(lambda: 0.0, Names(), 2**20, rights.get)


def send(at: StreamRequests, operation: Operation, **fields: Any) -> list[p.Packet]:
    body = msgspec.msgpack.encode(fields)
    return list(map(p.decode, at.take(p.Stream(7, operation, body))))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_3g_each_operation_takes_one_right_in_its_stream(operation: Operation) -> None:
    name = "topic" if "TOPIC" in operation.name else "stream"
    for right in EACH:
        at = stream_requests({b"mine": right, b"other": Rights.ALL})
        told = send(at, operation, **{name: b"mine"}, **FIELDS.get(operation, {}))
        is_allowed = bool(right & OPERATIONS[operation])
        refusal = p.Refused(p.STREAM, CODES[Code.NOT_ALLOWED], (7).to_bytes(4, "big"))
        assert told == ([] if is_allowed else [refusal])
        assert bool(list(at.batches())) is is_allowed


def test_3g_lists_show_only_allowed_names() -> None:
    at = stream_requests({b"mine": LIST, b"others": GET, b"other": GET})
    for operation, field, found in (
        (Operation.LIST, "names", [b"mine"]),
        (Operation.LIST_TOPICS, "topics", [[b"mine", 1]]),
    ):
        (answer,) = send(at, operation)
        assert isinstance(answer, p.StreamReply)
        assert msgspec.msgpack.decode(answer.body) == {field: found, "more": False}


def test_a_list_in_which_little_is_for_one_ends_with_an_answer_or_a_narrower_question() -> None:
    names = [b"%05d" % number for number in range(LISTED_MAX + 5)]
    last = names[LISTED_MAX - 1]

    def rights(name: bytes) -> Rights:
        return LIST if name == last else GET

    assert listed(names, lambda name: name, 10, rights) == ([last], True)
    assert listed(names[-5:], lambda name: name, 10, rights) == ([], False)
    with pytest.raises(NotAllowed):
        listed(names, lambda name: name, 10, lambda name: GET)


def test_the_cell_of_a_stream_gets_no_requests_without_rights() -> None:
    """The same in any order of the requests of one read."""
    node, wire, connection = rustlog(mine=PUT)
    frames = [r.Produce("mine", 0, [b"a"]), r.Produce("others", 0, [b"b"])]
    connection.received(b"".join(map(encode_request, frames * 3)))
    assert {cell for cell, _ in node.asked} == {stream_cell(b"mine")}
    assert node.refusals == [Refusal.NOT_ALLOWED] * 3
    node.answer(*(m.Appended(number, 0, 1, Position(1, 0), 1, 1) for number in (0, 2, 4)))
    assert [each["type"] for each in received(wire)] == ["ProduceResponse", "Error"] * 3
