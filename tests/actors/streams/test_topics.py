"""Topics of several partitions: one name is one thing, in both directions (RL-29, RLA-02, 3g)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Reply
from millpond.actors.streams import messages as m
from tests.actors.streams.harness import StreamHarness, read_of, streams_in


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


def create(streams: StreamHarness, topic: bytes, partitions: int) -> Code | None:
    return code_of(streams.catalog(m.CreateTopic(7, topic, partitions)))


def delete(streams: StreamHarness, topic: bytes) -> Code | None:
    return code_of(streams.catalog(m.DeleteTopic(8, topic)))


def code_of(reply: Reply) -> Code | None:
    assert isinstance(reply, m.Done | m.StreamFailed) and reply.number in (7, 8)
    return reply.code if isinstance(reply, m.StreamFailed) else None


def topics(streams: StreamHarness) -> dict[bytes, int]:
    return dict(streams.directory.topics())


def test_a_topic_of_one_partition_is_a_stream(streams: StreamHarness) -> None:
    assert create(streams, b"orders", 1) is None
    assert topics(streams) == {b"orders": 1}
    streams.append(b"a", name=b"orders")
    assert create(streams, b"orders", 1) is Code.STREAM_EXISTS
    assert create(streams, b"orders", 4) is Code.STREAM_EXISTS
    assert streams.refused(m.Create(0), b"orders").code is Code.STREAM_EXISTS
    assert delete(streams, b"orders") is None
    assert delete(streams, b"orders") is Code.UNKNOWN_STREAM
    assert topics(streams) == {}


def test_a_stream_with_the_name_of_a_topic_is_one(streams: StreamHarness) -> None:
    for name in (b"orders", b"no topic", b"a/0", b"caf\xc3\xa9"):
        streams.create(name)
    assert topics(streams) == {b"orders": 1}
    assert streams.directory.partitions(b"orders") == 1
    assert streams.directory.partitions(b"a/0") is None


def test_partitions_are_there_from_the_start(streams: StreamHarness) -> None:
    assert create(streams, b"orders", 3) is None
    assert topics(streams) == {b"orders": 3}
    for partition in range(3):
        name = b"orders/%d" % partition
        assert streams.bodies(name=name) == []
        assert streams.describe(name).info.tail == 0
        assert streams.refused(m.Create(0), name).code is Code.STREAM_EXISTS
        assert streams.refused(m.Delete(0), name).code is Code.PART_OF_TOPIC
    for name in (b"orders/3", b"orders/00", b"orders/", b"orders", b"/0", b"orders/-1"):
        assert streams.refused(read_of(), name).code is Code.UNKNOWN_STREAM
    assert streams.directory.names() == [], "an unused partition costs nothing"
    assert streams.append(b"x", name=b"orders/2").first == 0
    assert streams.directory.names() == [b"orders/2"]


def test_one_name_is_one_thing(streams: StreamHarness) -> None:
    streams.create(b"jobs/1")
    assert create(streams, b"jobs", 2) is Code.STREAM_EXISTS
    assert create(streams, b"jobs", 1) is None
    assert create(streams, b"mails", 2) is None
    assert create(streams, b"mails", 2) is Code.STREAM_EXISTS
    assert streams.refused(m.Create(0), b"mails").code is Code.STREAM_EXISTS
    streams.create(b"mails/2")
    assert topics(streams) == {b"jobs": 1, b"mails": 2}


@pytest.mark.parametrize(
    ("topic", "partitions"),
    [
        (b"", 1),
        (b"a/b", 2),
        (b"a\n", 2),
        (b"caf\xc3\xa9", 2),
        (b"a" * 256, 2),
        (b"a", 0),
        (b"a", 1001),
    ],
)
def test_rl_29_names_and_counts(streams: StreamHarness, topic: bytes, partitions: int) -> None:
    assert create(streams, topic, partitions) is Code.MALFORMED
    assert create(streams, b"a" * 255, 1000) is None


def test_a_deleted_topic_takes_its_partitions(streams: StreamHarness) -> None:
    assert create(streams, b"orders", 3) is None
    streams.append(b"x", name=b"orders/1")
    waiting = streams.port()
    streams.say(waiting, read_of(wait_until=streams.now + 60), name=b"orders/2")
    assert delete(streams, b"orders") is None
    (nothing,) = waiting.take()
    assert isinstance(nothing, m.Records) and not nothing.spans
    assert streams.refused(read_of(), b"orders/1").code is Code.UNKNOWN_STREAM
    assert (topics(streams), streams.directory.names()) == ({}, [])
    assert create(streams, b"orders", 2) is None
    assert streams.append(b"y", name=b"orders/1").first == 0
    assert delete(streams, b"nothing") is Code.UNKNOWN_STREAM


def test_a_restart_knows_them_all(tmp_path: Path) -> None:
    with streams_in(tmp_path) as streams:
        assert create(streams, b"orders", 1000) is None
        assert create(streams, b"mails", 2) is None
        streams.append(b"x", name=b"orders/999")
        streams.one(m.CommitOffset(0, b"g", 1), m.Done, b"orders/5")
        assert delete(streams, b"mails") is None
        streams.restart()
        assert topics(streams) == {b"orders": 1000}
        assert streams.directory.names() == [b"orders/5", b"orders/999"]
        assert streams.bodies(name=b"orders/999") == [b"x"]
        assert streams.bodies(name=b"orders/3") == []
        assert streams.one(m.GetGroupOffset(0, b"g"), m.GroupOffset, b"orders/5").offset == 1


def test_what_a_stop_left_of_a_removed_topic_goes_at_the_next_start(tmp_path: Path) -> None:
    with streams_in(tmp_path) as streams:
        assert create(streams, b"orders", 3) is None
        streams.append(b"x", name=b"orders/1")
        streams.scheduler._forward = lambda name, batch: None
        streams.scheduler._effects._forward = lambda name, batch: None
        assert delete(streams, b"orders") is None
        assert streams.directory.names() == [b"orders/1"]
        assert create(streams, b"orders", 3) is Code.STREAM_EXISTS, "not before all of it is gone"
        streams.restart()
        assert streams.directory.names() == []
        assert create(streams, b"orders", 3) is None
        assert streams.append(b"y", name=b"orders/1").first == 0


def test_topics_are_in_the_order_of_their_names_while_they_come_and_go(
    streams: StreamHarness,
) -> None:
    def listed() -> list[tuple[bytes, int]]:
        return list(streams.directory.topics())

    for name in (b"m", b"c", b"no topic", b"x"):
        streams.create(name)
    assert listed() == [(b"c", 1), (b"m", 1), (b"x", 1)]
    assert create(streams, b"d", 2) is create(streams, b"a", 3) is None
    streams.create(b"b")
    streams.create(b"z")
    streams.append(b"x", name=b"m")
    assert listed() == [
        (b"a", 3),
        (b"b", 1),
        (b"c", 1),
        (b"d", 2),
        *((n, 1) for n in (b"m", b"x", b"z")),
    ]
    assert delete(streams, b"m") is delete(streams, b"a") is delete(streams, b"z") is None
    assert listed() == [(b"b", 1), (b"c", 1), (b"d", 2), (b"x", 1)]
    streams.create(b"m")
    assert listed() == [(b"b", 1), (b"c", 1), (b"d", 2), (b"m", 1), (b"x", 1)]
