"""The node's own stream API on the wire: what reaches a stream, what comes back, and the limits."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from millpond.actors.errors import Code, StorageFailed
from millpond.actors.messages import Failed, StreamRequest
from millpond.actors.positions import SeekBy
from millpond.actors.state import messages as s
from millpond.actors.store.changes import Position
from millpond.actors.store.interface import Seek
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOPICS, stream_cell
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.streams.operations import Operation
from millpond.transports.p2p.streams.requests import (
    ANSWERS_BYTES_MAX,
    READ_BYTES_MIN,
    REQUESTS_MAX,
    StreamRequests,
)

pytestmark = pytest.mark.wire

NOW = 1_763_683_200.0
CELL = stream_cell(b"s")
SPAN = m.RecordColumns(5, [b"a", b"b"], 7, Position(7, 1))


class Names:
    """A directory of three streams and two topics."""

    is_incomplete = False

    def check_complete(self) -> None:
        if self.is_incomplete:
            raise StorageFailed

    def names(self, prefix: bytes, after: bytes, limit: int) -> list[bytes]:
        names = [name for name in (b"a/1", b"a/2", b"b") if name.startswith(prefix)]
        return [name for name in names if name > after][:limit]

    def partitions(self, topic: bytes) -> int | None:
        return dict(self.topics()).get(topic)

    def topics(self) -> Iterable[tuple[bytes, int]]:
        return [(b"b", 1), (b"orders", 3)]


class Client:
    """A P2P client of the requests under test; packets are decoded."""

    def __init__(self, packet_bytes_max: int = 2**20) -> None:
        self.requests = StreamRequests(lambda: NOW, Names(), packet_bytes_max)

    def say(self, operation: int, number: int = 7, /, **fields: Any) -> list[p.Packet]:
        return self.say_raw(operation, number, msgspec.msgpack.encode(fields))

    def say_raw(self, operation: int, number: int, body: bytes) -> list[p.Packet]:
        return list(map(p.decode, self.requests.take(p.Stream(number, operation, body))))

    def asked(self) -> list[tuple[bytes, list[StreamRequest]]]:
        return [(cell, requests) for cell, requests, _ in self.requests.batches()]

    def deliver(self, reply: Any) -> list[p.Packet]:
        return list(map(p.decode, self.requests.answered(reply)))


def refused(code: Code, number: int = 7) -> list[p.Packet]:
    from millpond.transports.p2p.nacks import CODES

    return [p.Refused(p.STREAM, CODES[code], number.to_bytes(4, "big"))]


def read(start: Seek, count: int = 100, bytes_max: int = 262_144, until: float = 0.0) -> m.Read:
    return m.Read(7, start, count, bytes_max, until)


ID = {"ms": 2**64 - 1, "seq": 3}


@pytest.mark.parametrize(
    ("operation", "fields", "request_"),
    [
        (Operation.CREATE, {}, m.Create(7)),
        (
            Operation.CREATE,
            {"age_s": 60, "bytes_max": 2**40, "content_type": b"text/plain"},
            m.Create(7, m.Settings(60, 2**40, b"text/plain")),
        ),
        (Operation.APPEND, {"bodies": [b"", b"x"]}, m.Append(7, [b"", b"x"])),
        (
            Operation.APPEND,
            {
                "bodies": [b"x", b"y"],
                "ms": 2**64 - 1,
                "headers": [[], [[b"k", b"v"]]],
                "timestamps": [None, 2**64 - 1],
                "fence": b"f",
                "match": 0,
            },
            m.Append(7, [b"x", b"y"], 2**64 - 1, [[], [(b"k", b"v")]], [None, 2**64 - 1], b"f", 0),
        ),
        (Operation.READ, {}, read(Seek(SeekBy.SEQUENCE))),
        (
            Operation.READ,
            {"sequence": 2**64 - 1, "count": 1, "bytes_max": 1, "wait_ms": 1500},
            read(Seek(SeekBy.SEQUENCE, sequence=2**64 - 1), 1, 1, NOW + 1.5),
        ),
        (Operation.READ, {"timestamp": 9}, read(Seek(SeekBy.TIMESTAMP, timestamp=9))),
        (Operation.READ, {"id": ID}, read(Seek(SeekBy.ID, id=Position(2**64 - 1, 3)))),
        (Operation.DESCRIBE, {}, m.Describe(7)),
        (Operation.TRIM, {"sequence": 9}, m.Trim(7, 9)),
        (Operation.TRIM, {"id": ID}, m.Trim(7, Position(2**64 - 1, 3))),
        (Operation.DELETE, {}, m.Delete(7)),
        (Operation.CONFIGURE, {"age_s": 9}, m.Configure(7, m.Settings(9))),
        (Operation.COMMIT, {"group": b"g", "offset": 9}, m.CommitOffset(7, b"g", 9)),
        (Operation.COMMITTED, {"group": b""}, m.GetGroupOffset(7, b"")),
    ],
)
def test_a_request_reaches_the_cell_of_its_stream(
    operation: Operation, fields: dict[str, Any], request_: StreamRequest
) -> None:
    """3g: packets 0x92; the number of the request is the packet's."""
    client = Client()
    assert client.say(operation, stream=b"s", **fields) == []
    assert client.asked() == [(CELL, [request_])]
    assert client.asked() == []


def test_requests_of_one_read_are_one_batch_for_each_stream_in_their_order() -> None:
    client = Client()
    for number, name in enumerate((b"s", b"t", b"s")):
        client.say(Operation.DESCRIBE, number, stream=name)
    both = [(CELL, [m.Describe(0), m.Describe(2)]), (stream_cell(b"t"), [m.Describe(1)])]
    assert client.asked() == both


def test_requests_about_topics_go_to_the_catalog() -> None:
    client = Client()
    client.say(Operation.CREATE_TOPIC, 1, topic=b"orders", partitions=3)
    client.say(Operation.DELETE_TOPIC, 2, topic=b"orders")
    wanted: list[StreamRequest] = [m.CreateTopic(1, b"orders", 3), m.DeleteTopic(2, b"orders")]
    assert client.asked() == [(TOPICS, wanted)]
    for name in (b"a.b", b"orders/0", b"n\n", "é".encode()):
        assert client.say(Operation.DELETE_TOPIC, topic=name) == refused(Code.MALFORMED)


@pytest.mark.parametrize(
    ("reply", "operation", "told"),
    [
        (m.Done(7), Operation.TRIM, {}),
        (
            m.Appended(7, 2, 3, Position(9, 4), 8, 9),
            Operation.APPEND,
            {
                "first": 2,
                "count": 3,
                "id": {"ms": 9, "seq": 4},
                "first_timestamp": 8,
                "timestamp": 9,
            },
        ),
        (m.GroupOffset(7, None), Operation.COMMITTED, {"offset": None}),
        (m.GroupOffset(7, 0), Operation.COMMITTED, {"offset": 0}),
        (
            m.Records(7, [SPAN], 7, 2**64 - 1, 9),
            Operation.READ,
            {
                "spans": [
                    {
                        "first": 5,
                        "bodies": [b"a", b"b"],
                        "timestamp": 7,
                        "id": {"ms": 7, "seq": 1},
                        "timestamps": None,
                        "ids": None,
                        "headers": None,
                    }
                ],
                "next": 7,
                "tail": 2**64 - 1,
                "last_timestamp": 9,
            },
        ),
    ],
)
def test_an_answer_goes_back_as_a_map(
    reply: Any, operation: Operation, told: dict[str, Any]
) -> None:
    """3g: packets 0x93."""
    client = Client()
    client.say(operation, stream=b"s", **_needed(operation))
    (answer,) = client.deliver(reply)
    assert isinstance(answer, p.StreamReply)
    assert (answer.request_id, answer.operation) == (7, operation)
    assert msgspec.msgpack.decode(answer.body) == told
    assert client.requests.is_idle
    assert client.deliver(reply) == [], "answered once"


def _needed(operation: Operation) -> dict[str, Any]:
    match operation:
        case Operation.APPEND:
            return {"bodies": [b"x"]}
        case Operation.COMMITTED:
            return {"group": b"g"}
        case _:
            return {}


@pytest.mark.parametrize("code", [Code.UNKNOWN_STREAM, Code.FENCED, Code.BUFFER_FULL])
def test_a_refusal_of_a_stream_is_a_nack_with_the_request_id(code: Code) -> None:
    client = Client()
    client.say(Operation.DESCRIBE, stream=b"s")
    assert client.deliver(m.StreamFailed(7, code)) == refused(code)
    client.say(Operation.DESCRIBE, stream=b"s")
    assert client.deliver(Failed(m.Describe(7), code)) == refused(code)


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        (0, {}),
        (18, {"stream": b"s"}),
        (0x83, {"stream": b"s"}),
        (Operation.STATE, {"stream": b""}),
        (Operation.STATE_GET, {"stream": b"s", "type": "t"}),
        (Operation.STATE_GET, {"stream": b"s", "type": b"t", "key": "k"}),
        (Operation.STATE_SHOW, {"stream": b"s", "count": 0}),
        (Operation.STATE_SHOW, {"stream": b"s", "after": ["t"]}),
        (Operation.STATE_SHOW, {"stream": b"s", "bytes_max": 2**20 + 1}),
        (Operation.DESCRIBE, {}),
        (Operation.DESCRIBE, {"stream": b""}),
        (Operation.DESCRIBE, {"stream": bytes(1025)}),
        (Operation.DESCRIBE, {"stream": "text"}),
        (Operation.APPEND, {"stream": b"s", "bodies": []}),
        (Operation.APPEND, {"stream": b"s", "bodies": [1]}),
        (Operation.APPEND, {"stream": b"s", "bodies": [b"x"], "headers": []}),
        (Operation.APPEND, {"stream": b"s", "bodies": [b"x"], "headers": [[[b"k"]]]}),
        (Operation.APPEND, {"stream": b"s", "bodies": [b"x"], "timestamps": [1, 2]}),
        (Operation.APPEND, {"stream": b"s", "bodies": [b"x"], "ms": -1}),
        (Operation.READ, {"stream": b"s", "count": 0}),
        (Operation.READ, {"stream": b"s", "count": 1001}),
        (Operation.READ, {"stream": b"s", "bytes_max": 0}),
        (Operation.READ, {"stream": b"s", "wait_ms": 60_001}),
        (Operation.READ, {"stream": b"s", "id": {"ms": 1}}),
        (Operation.READ, {"stream": b"s", "id": ID, "timestamp": 1}),
        (Operation.CREATE, {"stream": b"s", "age_s": 0}),
        (Operation.CREATE, {"stream": b"s", "content_type": b"text/plain\r\nx: y"}),
        (Operation.CREATE, {"stream": b"s", "content_type": b"text/" + b"x" * 1024}),
        (Operation.CREATE_TOPIC, {"topic": b"t", "partitions": 1001}),
        (Operation.CREATE_TOPIC, {"topic": b"t", "partitions": 0}),
        (Operation.LIST, {"limit": 0}),
        (Operation.LIST, {"limit": 1001}),
    ],
)
def test_bad_requests_are_refused(operation: int, fields: dict[str, Any]) -> None:
    client = Client()
    assert client.say(operation, **fields) == refused(Code.MALFORMED)
    assert client.asked() == [] and client.requests.is_idle


def test_hostile_bodies_are_refused() -> None:
    client = Client()
    nested = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
    for operation in Operation:
        for body in (b"", b"\xc1", b"\x81", nested, b"\x80\x80", b"\xdf" + b"\xff" * 4):
            if operation is not Operation.CANCEL:
                assert client.say_raw(operation, 7, body) == refused(Code.MALFORMED)
    assert client.asked() == [] and client.requests.is_idle


def test_an_append_has_a_thousand_records_at_most() -> None:
    client = Client()
    assert client.say(Operation.APPEND, 1, stream=b"s", bodies=[b"x"] * 1000) == []
    told = client.say(Operation.APPEND, 2, stream=b"s", bodies=[b"x"] * 1001)
    assert told == refused(Code.DATA_TOO_LARGE, 2)


PAIR = [b"k", b"v"]


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ({"bodies": [b"xy"] * 1_000_000}, Code.DATA_TOO_LARGE),
        ({"bodies": [b"x"], "headers": [[]] * 4_000_000}, Code.MALFORMED),
        ({"bodies": [b"x"], "timestamps": [2**40] * 500_000}, Code.MALFORMED),
        ({"bodies": [b"x"], "headers": [[[b"", b""]] * 800_000]}, Code.DATA_TOO_LARGE),
        ({"bodies": [b"x"] * 1000, "headers": [[PAIR] * 33] * 1000}, Code.DATA_TOO_LARGE),
    ],
)
def test_an_append_of_too_many_parts_is_refused_before_they_are_built(
    columns: dict[str, Any], code: Code
) -> None:
    client = Client()
    body = msgspec.msgpack.encode({"stream": b"s", **columns})
    tracemalloc.start()
    try:
        assert client.say_raw(Operation.APPEND, 2, body) == refused(code, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert client.asked() == [] and client.requests.is_idle


def test_a_column_that_comes_twice_is_built_once() -> None:
    """Of a field that comes twice the last one counts."""
    client = Client()
    headers = msgspec.msgpack.encode([[PAIR] * 500_000])
    fields = {"stream": b"s", "bodies": [b"x" * 2**17], "headers": None}
    body = msgspec.msgpack.encode(fields)
    twice = b"\x84\xa7headers" + headers + body[1:]
    tracemalloc.start()
    try:
        assert client.say_raw(Operation.APPEND, 2, twice) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
    assert client.asked() == [(CELL, [m.Append(2, [b"x" * 2**17])])]


def test_an_append_has_32_768_headers_at_most() -> None:
    client = Client()
    bodies, headers = [b"x"] * 1000, [[PAIR] * 32] * 999 + [[PAIR] * 800]
    assert client.say(Operation.APPEND, 1, stream=b"s", bodies=bodies, headers=headers) == []
    headers[-1] = [PAIR] * 801
    told = client.say(Operation.APPEND, 2, stream=b"s", bodies=bodies, headers=headers)
    assert told == refused(Code.DATA_TOO_LARGE, 2)
    for wrong in ([1], [[1]], [[[b"k"]]], 1, {}):
        fields = {"stream": b"s", "bodies": [b"x" * 2**17], "headers": wrong}
        assert client.say(Operation.APPEND, 3, **fields) == refused(Code.MALFORMED, 3)


def test_names_and_topics_are_listed_page_by_page() -> None:
    client = Client()

    def page(operation: Operation, **fields: Any) -> Any:
        (answer,) = client.say(operation, **fields)
        assert isinstance(answer, p.StreamReply)
        return msgspec.msgpack.decode(answer.body)

    assert page(Operation.LIST) == {"names": [b"a/1", b"a/2", b"b"], "more": False}
    assert page(Operation.LIST, limit=2) == {"names": [b"a/1", b"a/2"], "more": True}
    assert page(Operation.LIST, after=b"a/2") == {"names": [b"b"], "more": False}
    assert page(Operation.LIST, prefix=b"a/", after=b"a/1") == {"names": [b"a/2"], "more": False}
    topics = [[b"b", 1], [b"orders", 3]]
    assert page(Operation.LIST_TOPICS) == {"topics": topics, "more": False}
    assert page(Operation.LIST_TOPICS, limit=1) == {"topics": topics[:1], "more": True}
    assert page(Operation.LIST_TOPICS, after=b"b") == {"topics": topics[1:], "more": False}
    assert page(Operation.LIST_TOPICS, topic=b"orders") == {"topics": topics[1:], "more": False}
    assert page(Operation.LIST_TOPICS, topic=b"none") == {"topics": [], "more": False}
    assert client.requests.is_idle


@pytest.mark.parametrize("operation", [Operation.LIST, Operation.LIST_TOPICS])
def test_nothing_is_listed_where_names_are_lost(
    operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Names, "is_incomplete", True)
    assert Client().say(operation) == refused(Code.STORAGE_FAILED)


def test_a_large_answer_comes_in_parts() -> None:
    client = Client(packet_bytes_max=1024)
    client.say(Operation.READ, stream=b"s")
    record = bytes(range(256)) * 20
    parts = client.deliver(m.Records(7, [m.RecordColumns(0, [record], 1, Position(1, 0))], 1, 1, 1))
    replies = [part for part in parts if isinstance(part, p.StreamReply)]
    assert len(replies) == len(parts) == 6
    assert all(len(p.encode(part)) <= 1024 for part in parts)
    assert [part.operation for part in replies] == [Operation.READ | p.MORE] * 5 + [Operation.READ]
    told = msgspec.msgpack.decode(b"".join(part.body for part in replies))
    assert told["spans"][0]["bodies"] == [record]


def test_requests_in_flight_are_limited() -> None:
    client = Client()
    for number in range(REQUESTS_MAX):
        assert client.say(Operation.DESCRIBE, number, stream=b"s") == []
    assert client.say(Operation.DESCRIBE, 99, stream=b"s") == refused(Code.BUFFER_FULL, 99)
    client.deliver(m.Done(3))
    assert client.say(Operation.DESCRIBE, 99, stream=b"s") == []


def test_a_number_is_used_once_at_a_time() -> None:
    client = Client()
    client.say(Operation.DESCRIBE, stream=b"s")
    assert client.say(Operation.TRIM, stream=b"s") == refused(Code.MALFORMED)
    (answer,) = client.deliver(m.Done(7))
    assert isinstance(answer, p.StreamReply) and answer.operation == Operation.DESCRIBE


def test_reads_share_the_bytes_of_their_answers() -> None:
    client = Client()
    for number in range(REQUESTS_MAX):
        client.say(Operation.READ, number, stream=b"s", bytes_max=2**30)
    ((_, requests),) = client.asked()
    sizes = [read.bytes_max for read in requests if isinstance(read, m.Read)]
    assert sizes[:8] == [2**20] * 8 and set(sizes[8:]) == {READ_BYTES_MIN}
    assert sum(sizes[:8]) == ANSWERS_BYTES_MAX
    client.deliver(m.Records(0, [], 0, 0, 0))
    client.deliver(m.StreamFailed(1, Code.UNKNOWN_STREAM))
    for number in range(8, REQUESTS_MAX):
        client.deliver(m.Records(number, [], 0, 0, 0))
    for number in (100, 101, 102):
        client.say(Operation.READ, number, stream=b"s", bytes_max=2**30)
    ((_, requests),) = client.asked()
    sizes = [read.bytes_max for read in requests if isinstance(read, m.Read)]
    assert sizes == [2**20, 2**20, READ_BYTES_MIN]


def test_lists_of_states_share_the_bytes_of_answers_with_reads() -> None:
    client = Client()
    for number in range(7):
        client.say(Operation.READ, number, stream=b"s", bytes_max=2**20)
    for number in (7, 8):
        client.say(Operation.STATE_SHOW, number, stream=b"s", bytes_max=2**20)
    shows = [each for _, requests in client.asked() for each in requests][7:]
    assert [show.bytes_max for show in shows] == [2**20, READ_BYTES_MIN]
    for number in (7, 8):
        client.deliver(s.Values(number, 0, [], False))
    client.say(Operation.STATE_SHOW, 9, stream=b"s", bytes_max=2**20)
    ((_, (again,)),) = client.asked()
    assert again.bytes_max == 2**20


def test_a_read_is_given_up_and_not_answered() -> None:
    client = Client()
    client.say(Operation.READ, 1, stream=b"s", wait_ms=1000)
    client.say(Operation.APPEND, 2, stream=b"s", bodies=[b"x"])
    for number in (1, 1, 2, 99):
        assert client.say_raw(Operation.CANCEL, number, b"") == []
    ((_, requests),) = client.asked()
    assert requests[2:] == [m.CancelRead(1)]
    assert client.deliver(m.Records(1, [SPAN], 7, 7, 9)) == []
    assert len(client.deliver(m.Appended(2, 0, 1, Position(1, 0), 1, 1))) == 1
    assert client.requests.is_idle


def test_at_the_end_of_input_only_waiting_reads_are_given_up() -> None:
    client = Client()
    client.say(Operation.READ, 1, stream=b"s", wait_ms=1000)
    client.say(Operation.READ, 2, stream=b"s")
    client.asked()
    client.requests.stop_waiting()
    assert client.asked() == [(CELL, [m.CancelRead(1)])] and not client.requests.is_idle
    assert len(client.deliver(m.Records(2, [], 0, 0, 0))) == 1
    assert client.requests.is_idle


def test_with_the_connection_all_reads_end() -> None:
    client = Client()
    client.say(Operation.READ, 1, stream=b"s", wait_ms=1000)
    client.say(Operation.READ, 2, stream=b"t")
    client.say(Operation.APPEND, 3, stream=b"u", bodies=[b"x"])
    assert client.requests.leave() == [CELL, stream_cell(b"t")]
    assert client.deliver(m.Appended(3, 0, 1, Position(1, 0), 1, 1)) == []


def test_requests_count_as_held_until_they_are_answered() -> None:
    client = Client()
    client.say(Operation.APPEND, 1, stream=b"s", bodies=[bytes(5000)])
    client.say(Operation.APPEND, 2, stream=b"s", bodies=[bytes(7000)])
    assert 12_000 < client.requests.held_bytes < 12_100
    client.deliver(m.Appended(1, 0, 1, Position(1, 0), 1, 1))
    assert 7_000 < client.requests.held_bytes < 7_100
    client.deliver(Failed(StreamRequest(2), Code.BUFFER_FULL))
    assert client.requests.held_bytes == 0
