"""Offsets that groups commit to partitions of topics before these exist (RB-22)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Failed, Reply
from millpond.actors.store.interface import Fault
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOPICS
from millpond.actors.streams.settings import StreamLimits
from tests.actors.streams.harness import SlowMemory, StreamHarness, streams_in


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


def commit(
    streams: StreamHarness, topic: bytes, offset: int, partition: int = 0, group: bytes = b"g"
) -> Code | None:
    reply: Reply = streams.catalog(m.CommitEarlyOffset(7, topic, partition, group, offset))
    assert isinstance(reply, m.Done | m.StreamFailed) and reply.number == 7
    return reply.code if isinstance(reply, m.StreamFailed) else None


def create(streams: StreamHarness, topic: bytes, partitions: int) -> None:
    assert isinstance(streams.catalog(m.CreateTopic(7, topic, partitions)), m.Done)


def committed(streams: StreamHarness, name: bytes, group: bytes = b"g") -> int | None:
    return streams.one(m.GetGroupOffset(0, group), m.GroupOffset, name).offset


def test_a_stream_knows_what_was_committed_before_it(streams: StreamHarness) -> None:
    assert commit(streams, b"one", 4) is commit(streams, b"many", 5, partition=2) is None
    assert commit(streams, b"one", 6) is None
    assert streams.directory.early_offsets(b"one", 0) == {b"g": 6}
    create(streams, b"one", 1)
    create(streams, b"many", 3)
    assert committed(streams, b"one") == 6 and streams.describe(b"one").info.groups == {b"g": 6}
    assert [committed(streams, b"many/%d" % each) for each in range(3)] == [None, None, 5]
    assert committed(streams, b"one", b"h") is None


def test_a_commit_to_the_stream_replaces_the_early_one(streams: StreamHarness) -> None:
    assert commit(streams, b"one", 4) is commit(streams, b"one", 9, group=b"h") is None
    create(streams, b"one", 1)
    streams.one(m.CommitOffset(0, b"g", 1), m.Done, b"one")
    assert streams.directory.early_offsets(b"one", 0) == {b"h": 9}
    assert committed(streams, b"one") == 1 and committed(streams, b"one", b"h") == 9
    assert streams.directory.groups == 2


@pytest.mark.parametrize("fault", [None, Fault.NOT_STORED])
def test_a_commit_is_not_shown_before_it_is_durable(fault: Fault | None) -> None:
    store = SlowMemory()
    with streams_in(None, store=store) as streams:
        streams.create(b"t")
        store.is_slow, store.is_doomed = True, fault is not None
        port = streams.port()
        streams.scheduler.submit(
            TOPICS, Batch(port, [m.CommitEarlyOffset(7, b"t", 0, b"g", 4)]), streams.now
        )
        streams.settle()
        assert port.take() == [] and committed(streams, b"t") is None
        assert streams.directory.early_offsets(b"t", 0) == {}
        assert streams.describe(b"t").info.groups == {}
        assert streams.directory.groups == 1, "it is reserved"
        store.is_slow = False
        store.finish(fault)
        streams.settle()
        (reply,) = port.take()
        if fault is None:
            assert reply == m.Done(7) and committed(streams, b"t") == 4
        else:
            assert isinstance(reply, Failed) and reply.code is Code.STORAGE_FAILED
            assert committed(streams, b"t") is None
            streams.post(TOPICS, m.ForgetEarlyOffsets(0, b"t", 0, b"g"))  # builds it anew
            streams.settle()
            assert streams.directory.groups == 0


def test_a_commit_that_was_forgotten_before_it_was_durable_is_never_shown() -> None:
    store = SlowMemory()
    with streams_in(None, store=store) as streams:
        store.is_slow = True
        port = streams.port()
        streams.scheduler.submit(
            TOPICS, Batch(port, [m.CommitEarlyOffset(7, b"t", 0, b"g", 4)]), streams.now
        )
        streams.post(TOPICS, m.ForgetEarlyOffsets(0, b"t", 0))
        store.is_slow = False
        store.finish()
        streams.settle()
        assert port.take() == [m.Done(7)]
        assert streams.directory.early_offsets(b"t", 0) == {} and streams.directory.groups == 0


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_deleted_topic_takes_them(streams: StreamHarness, partitions: int) -> None:
    for partition in range(partitions):
        assert commit(streams, b"t", 4, partition) is None
    create(streams, b"t", partitions)
    assert isinstance(streams.catalog(m.DeleteTopic(7, b"t")), m.Done)
    create(streams, b"t", partitions)
    name = b"t" if partitions == 1 else b"t/1"
    assert committed(streams, name) is None and streams.directory.groups == 0


def test_a_restart_knows_them(tmp_path: Path) -> None:
    with streams_in(tmp_path) as streams:
        assert commit(streams, b"t", 4, 2**32 - 1, group=b"") is None
        assert commit(streams, b"t", 2**64 - 1, 0, group=b"\0g") is None
        assert commit(streams, b"u", 1) is None
        create(streams, b"u", 1)
        streams.one(m.CommitOffset(0, b"g", 2), m.Done, b"u")
        streams.restart()
        assert streams.directory.early_offsets(b"t", 2**32 - 1) == {b"": 4}
        assert streams.directory.early_offsets(b"t", 0) == {b"\0g": 2**64 - 1}
        assert streams.directory.early_offsets(b"u", 0) == {} and committed(streams, b"u") == 2


def test_they_are_bounded_with_all_other_groups() -> None:
    with streams_in(None, limits=StreamLimits(node_groups_max=2)) as streams:
        streams.create(b"s")
        streams.one(m.CommitOffset(0, b"g", 1), m.Done, b"s")
        assert commit(streams, b"t", 1) is None
        assert commit(streams, b"u", 1) is Code.GROUPS_FULL
        assert commit(streams, b"t", 2) is None
        assert streams.refused(m.CommitOffset(0, b"h", 1), b"s").code is Code.GROUPS_FULL
        streams.one(m.Delete(0), m.Done, b"s")
        assert commit(streams, b"u", 1) is None


def test_names_that_nothing_can_have(streams: StreamHarness) -> None:
    for topic in (b"", b"a/0", b"a b", b"x" * 256):
        assert commit(streams, topic, 1) is Code.MALFORMED
    assert commit(streams, b"a", 1, group=b"g" * 257) is Code.MALFORMED
    assert commit(streams, b"a", 1, group=b"g" * 256) is None
