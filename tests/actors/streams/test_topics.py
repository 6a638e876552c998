"""Topics of several partitions: one name is one thing, in both directions (RL-29, RLA-02, 3g)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Reply
from millpond.actors.streams import messages as m
from tests.actors.streams.lake import Lake, lake_in, read_of


@pytest.fixture(params=["memory", "disk"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with lake_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


def create(lake: Lake, topic: bytes, partitions: int) -> Code | None:
    return code_of(lake.catalogue(m.CreateTopic(7, topic, partitions)))


def delete(lake: Lake, topic: bytes) -> Code | None:
    return code_of(lake.catalogue(m.DeleteTopic(8, topic)))


def code_of(reply: Reply) -> Code | None:
    assert isinstance(reply, m.Done | m.StreamFailed) and reply.number in (7, 8)
    return reply.code if isinstance(reply, m.StreamFailed) else None


def topics(lake: Lake) -> dict[bytes, int]:
    return dict(lake.directory.topics())


def test_a_topic_of_one_partition_is_a_stream(lake: Lake) -> None:
    assert create(lake, b"orders", 1) is None
    assert topics(lake) == {b"orders": 1}
    lake.append(b"a", name=b"orders")
    assert create(lake, b"orders", 1) is Code.STREAM_EXISTS
    assert create(lake, b"orders", 4) is Code.STREAM_EXISTS
    assert lake.refused(m.Create(0), b"orders").code is Code.STREAM_EXISTS
    assert delete(lake, b"orders") is None
    assert delete(lake, b"orders") is Code.UNKNOWN_STREAM
    assert topics(lake) == {}


def test_a_stream_with_the_name_of_a_topic_is_one(lake: Lake) -> None:
    for name in (b"orders", b"no topic", b"a/0", b"caf\xc3\xa9"):
        lake.create(name)
    assert topics(lake) == {b"orders": 1}
    assert lake.directory.partitions(b"orders") == 1
    assert lake.directory.partitions(b"a/0") is None


def test_partitions_are_there_from_the_start(lake: Lake) -> None:
    assert create(lake, b"orders", 3) is None
    assert topics(lake) == {b"orders": 3}
    for partition in range(3):
        name = b"orders/%d" % partition
        assert lake.bodies(name=name) == []
        assert lake.describe(name).info.tail == 0
        assert lake.refused(m.Create(0), name).code is Code.STREAM_EXISTS
        assert lake.refused(m.Delete(0), name).code is Code.PART_OF_TOPIC
    for name in (b"orders/3", b"orders/00", b"orders/", b"orders", b"/0", b"orders/-1"):
        assert lake.refused(read_of(), name).code is Code.UNKNOWN_STREAM
    assert lake.directory.names() == [], "an unused partition costs nothing"
    assert lake.append(b"x", name=b"orders/2").first == 0
    assert lake.directory.names() == [b"orders/2"]


def test_one_name_is_one_thing(lake: Lake) -> None:
    lake.create(b"jobs/1")
    assert create(lake, b"jobs", 2) is Code.STREAM_EXISTS
    assert create(lake, b"jobs", 1) is None
    assert create(lake, b"mails", 2) is None
    assert create(lake, b"mails", 2) is Code.STREAM_EXISTS
    assert lake.refused(m.Create(0), b"mails").code is Code.STREAM_EXISTS
    lake.create(b"mails/2")
    assert topics(lake) == {b"jobs": 1, b"mails": 2}


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
def test_rl_29_names_and_counts(lake: Lake, topic: bytes, partitions: int) -> None:
    assert create(lake, topic, partitions) is Code.MALFORMED
    assert create(lake, b"a" * 255, 1000) is None


def test_a_deleted_topic_takes_its_partitions(lake: Lake) -> None:
    assert create(lake, b"orders", 3) is None
    lake.append(b"x", name=b"orders/1")
    waiting = lake.port()
    lake.say(waiting, read_of(wait_until=lake.now + 60), name=b"orders/2")
    assert delete(lake, b"orders") is None
    (nothing,) = waiting.take()
    assert isinstance(nothing, m.Records) and not nothing.spans
    assert lake.refused(read_of(), b"orders/1").code is Code.UNKNOWN_STREAM
    assert (topics(lake), lake.directory.names()) == ({}, [])
    assert create(lake, b"orders", 2) is None
    assert lake.append(b"y", name=b"orders/1").first == 0
    assert delete(lake, b"nothing") is Code.UNKNOWN_STREAM


def test_a_restart_knows_them_all(tmp_path: Path) -> None:
    with lake_in(tmp_path) as lake:
        assert create(lake, b"orders", 1000) is None
        assert create(lake, b"mails", 2) is None
        lake.append(b"x", name=b"orders/999")
        lake.one(m.CommitOffset(0, b"g", 1), m.Done, b"orders/5")
        assert delete(lake, b"mails") is None
        lake.restart()
        assert topics(lake) == {b"orders": 1000}
        assert lake.directory.names() == [b"orders/5", b"orders/999"]
        assert lake.bodies(name=b"orders/999") == [b"x"]
        assert lake.bodies(name=b"orders/3") == []
        assert lake.one(m.GetGroupOffset(0, b"g"), m.GroupOffset, b"orders/5").offset == 1


def test_what_a_stop_left_of_a_removed_topic_goes_at_the_next_start(tmp_path: Path) -> None:
    with lake_in(tmp_path) as lake:
        assert create(lake, b"orders", 3) is None
        lake.append(b"x", name=b"orders/1")
        lake.scheduler._forward = lambda name, batch: None
        lake.scheduler._effects._forward = lambda name, batch: None
        assert delete(lake, b"orders") is None
        assert lake.directory.names() == [b"orders/1"]
        assert create(lake, b"orders", 3) is Code.STREAM_EXISTS, "not before all of it is gone"
        lake.restart()
        assert lake.directory.names() == []
        assert create(lake, b"orders", 3) is None
        assert lake.append(b"y", name=b"orders/1").first == 0


def test_topics_are_in_the_order_of_their_names_while_they_come_and_go(lake: Lake) -> None:
    def listed() -> list[tuple[bytes, int]]:
        return list(lake.directory.topics())

    for name in (b"m", b"c", b"no topic", b"x"):
        lake.create(name)
    assert listed() == [(b"c", 1), (b"m", 1), (b"x", 1)]
    assert create(lake, b"d", 2) is create(lake, b"a", 3) is None
    lake.create(b"b")
    lake.create(b"z")
    lake.append(b"x", name=b"m")
    assert listed() == [
        (b"a", 3),
        (b"b", 1),
        (b"c", 1),
        (b"d", 2),
        *((n, 1) for n in (b"m", b"x", b"z")),
    ]
    assert delete(lake, b"m") is delete(lake, b"a") is delete(lake, b"z") is None
    assert listed() == [(b"b", 1), (b"c", 1), (b"d", 2), (b"x", 1)]
    lake.create(b"m")
    assert listed() == [(b"b", 1), (b"c", 1), (b"d", 2), (b"m", 1), (b"x", 1)]
