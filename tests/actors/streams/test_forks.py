"""Forks: shared records, references, deletion; also where a node stops in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Reply
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.store.changes import MetadataSet
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.repair.repair import LogRules, repair
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.durable.fork_log import base_of, fork_chain
from millpond.actors.streams.names import stream_cell
from tests.actors.streams.harness import (
    StreamHarness,
    at_timestamp,
    bodies_of,
    read_of,
    rows_of,
    streams_in,
)
from tests.node.folders import empty_wal, flip, partition_of

TEXT = b"text/plain"
SOURCE, FORK, GRANDCHILD = b"source", b"fork", b"grandchild"


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(tmp_path / "data") as opened:
        yield opened


def make(streams: StreamHarness, name: bytes, *bodies: bytes, **fields: Any) -> None:
    spec = d.CreateSpec(TEXT, fields.get("lifetime"), False, list(bodies))
    (reply,) = streams.ask(d.DurableCreate(0, spec), name=name)
    assert isinstance(reply, d.DurableCreated) and reply.is_new, reply


def fork(
    streams: StreamHarness,
    name: bytes = FORK,
    source: bytes = SOURCE,
    at: int | None = None,
    *,
    prefix: Sequence[bytes] = (),
    **fields: Any,
) -> Reply:
    asked = d.ForkSource(source, at, len(b"".join(prefix)))
    spec = d.CreateSpec(
        fields.get("content_type"),
        fields.get("lifetime"),
        False,
        fields.get("bodies", []),
        asked,
    )
    (found,) = streams.ask(m.Describe(0), name=source)
    incarnation = found.incarnation if isinstance(found, m.StreamDescription) else 0
    request = d.Fork(0, stream_cell(name), spec, at, list(prefix), incarnation)
    (reply,) = streams.ask(request, name=source)
    return reply


def made(reply: Reply) -> d.DurableCreated:
    assert isinstance(reply, d.DurableCreated) and reply.is_new, reply
    return reply


def reason(reply: Reply) -> d.RefusalReason:
    assert isinstance(reply, d.DurableRefused), reply
    return reply.reason


def all_of(streams: StreamHarness, name: bytes, start: int | Seek = 0) -> list[bytes]:
    """Everything, by as many reads as it takes."""
    bodies: list[bytes] = []
    while True:
        records = streams.read(start, name=name)
        if not records.spans:
            return bodies
        bodies += bodies_of(records)
        start = records.next


def state_of(streams: StreamHarness, name: bytes) -> str:
    (reply,) = streams.ask(m.Describe(0), name=name)
    if isinstance(reply, m.StreamDescription):
        return "there"
    assert isinstance(reply, m.StreamFailed) and reply.code is Code.UNKNOWN_STREAM
    return "deleted" if reply.is_tombstone else "gone"


def delete(streams: StreamHarness, name: bytes) -> None:
    streams.one(m.Delete(0), m.Done, name)
    streams.settle()


def test_a_fork_shares_what_was_there_and_nothing_later(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a", b"b")
    assert made(fork(streams)).tail == 2
    streams.append(b"source", name=SOURCE)
    streams.append(b"fork", name=FORK)
    assert all_of(streams, FORK) == [b"a", b"b", b"fork"]
    assert all_of(streams, SOURCE) == [b"a", b"b", b"source"]
    assert all_of(streams, FORK, 1) == [b"b", b"fork"]


def test_a_fork_is_a_stream_for_all_views(streams: StreamHarness) -> None:
    make(streams, SOURCE)
    for body in (b"a", b"b", b"c"):
        streams.advance(0.01)
        streams.append(body, name=SOURCE)
    made(fork(streams, at=2))
    streams.advance(0.01)
    streams.append(b"x", name=FORK)
    rows = list(rows_of(streams.read(0, name=FORK)))
    assert [(row[0], row[3]) for row in rows] == [(0, b"a"), (1, b"b"), (2, b"x")]
    assert sorted(row[1] for row in rows) == [row[1] for row in rows]
    assert sorted(row[2] for row in rows) == [row[2] for row in rows]
    for sequence, timestamp, position, body in rows:
        assert bodies_of(streams.read(position, name=FORK))[0] == body
        assert bodies_of(streams.read(at_timestamp(timestamp), name=FORK))[0] == body
        assert bodies_of(streams.read(sequence, name=FORK))[0] == body
    streams.one(m.Trim(0, 1), m.Done, FORK)
    assert all_of(streams, FORK) == [b"b", b"x"]
    assert all_of(streams, SOURCE) == [b"a", b"b", b"c"]


def test_forks_of_forks_begin_anywhere_in_what_they_inherit(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a", b"b")
    made(fork(streams))
    streams.append(b"c", name=FORK)
    made(fork(streams, GRANDCHILD, FORK))
    streams.append(b"d", name=GRANDCHILD)
    made(fork(streams, b"early", GRANDCHILD, 1))
    streams.append(b"e", name=b"early")
    assert all_of(streams, GRANDCHILD) == [b"a", b"b", b"c", b"d"]
    assert all_of(streams, b"early") == [b"a", b"e"]


def test_a_prefix_and_a_body_follow_what_is_inherited(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"first", b"second")
    made(fork(streams, at=1, prefix=[b"sec"], bodies=[b"!"]))
    assert all_of(streams, FORK) == [b"first", b"sec", b"!"]


def test_what_cannot_be_forked(streams: StreamHarness) -> None:
    assert reason(fork(streams)) is d.RefusalReason.SOURCE_MISSING
    make(streams, SOURCE, b"a")
    assert reason(fork(streams, at=2)) is d.RefusalReason.BEYOND_SOURCE
    assert reason(fork(streams, content_type=b"image/png")) is d.RefusalReason.CONFLICT
    make(streams, FORK)
    assert reason(fork(streams)) is d.RefusalReason.CONFLICT
    delete(streams, SOURCE)
    assert state_of(streams, SOURCE) == "gone"


def test_a_fork_again_is_the_same_one(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a")
    made(fork(streams))
    streams.append(b"b", name=SOURCE)
    again = fork(streams)
    assert isinstance(again, d.DurableCreated) and not again.is_new
    assert reason(fork(streams, at=0)) is d.RefusalReason.CONFLICT
    delete(streams, FORK)
    delete(streams, SOURCE)
    assert state_of(streams, SOURCE) == "gone"


def test_a_source_with_forks_is_deleted_with_the_last_one(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a")
    made(fork(streams))
    made(fork(streams, b"other"))
    delete(streams, SOURCE)
    assert state_of(streams, SOURCE) == "deleted"
    assert SOURCE not in streams.directory.streams
    assert streams.refused(m.Create(0), SOURCE).code is Code.STREAM_EXISTS
    assert streams.refused(m.Append(0, [b"x"]), SOURCE).code is Code.UNKNOWN_STREAM
    assert streams.refused(m.Delete(0), SOURCE).code is Code.UNKNOWN_STREAM
    assert reason(fork(streams, b"third")) is d.RefusalReason.SOURCE_DELETED
    assert all_of(streams, FORK) == [b"a"]
    delete(streams, FORK)
    assert state_of(streams, SOURCE) == "deleted"
    delete(streams, b"other")
    assert state_of(streams, SOURCE) == "gone"
    make(streams, SOURCE, b"new")
    assert all_of(streams, SOURCE) == [b"new"]


def test_a_chain_goes_from_its_end(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a")
    made(fork(streams))
    streams.append(b"b", name=FORK)
    made(fork(streams, GRANDCHILD, FORK))
    delete(streams, SOURCE)
    delete(streams, FORK)
    assert [state_of(streams, each) for each in (SOURCE, FORK)] == ["deleted", "deleted"]
    assert all_of(streams, GRANDCHILD) == [b"a", b"b"]
    delete(streams, GRANDCHILD)
    assert {state_of(streams, each) for each in (SOURCE, FORK, GRANDCHILD)} == {"gone"}


def test_all_of_it_outlives_a_restart(kept: StreamHarness) -> None:
    make(kept, SOURCE, *(b"s%d" % each for each in range(50)))
    made(fork(kept, at=30))
    kept.append(b"own", name=FORK)
    kept.append(b"later", name=SOURCE)
    delete(kept, SOURCE)
    kept.restart()
    expected = [b"s%d" % each for each in range(30)] + [b"own"]
    assert all_of(kept, FORK) == expected
    assert state_of(kept, SOURCE) == "deleted"
    kept.append(b"more", name=FORK)
    kept.restart()
    assert all_of(kept, FORK) == [*expected, b"more"]
    delete(kept, FORK)
    assert state_of(kept, SOURCE) == "gone"


def test_chunks_in_files_are_stitched(kept: StreamHarness) -> None:
    """More than the journal holds, so that most of it is read from the partitions."""
    for turn in range(40):
        if not turn:
            make(kept, SOURCE)
        kept.append(*(b"%03d" % turn + b"x" * 500 for _ in range(5)), name=SOURCE)
        kept.advance(2)
    made(fork(kept, at=101))
    for turn in range(20):
        kept.append(b"own%02d" % turn + b"y" * 500, name=FORK)
        kept.advance(2)
    kept.restart()
    found = [body[:5] for body in all_of(kept, FORK)]
    assert found[:101] == [b"%03dxx" % (each // 5) for each in range(101)]
    assert found[101:] == [b"own%02d" % each for each in range(20)]


def test_a_fork_that_was_noted_and_never_made_holds_nothing_up(kept: StreamHarness) -> None:
    make(kept, SOURCE, b"a")
    ref = MetadataSet(b"ref\0" + (7).to_bytes(8), stream_cell(FORK))
    kept.store.write(stream_cell(SOURCE), [ref])
    kept.restart()
    delete(kept, SOURCE)
    kept.settle()
    assert state_of(kept, SOURCE) == "gone"


def test_a_deleted_source_asks_for_its_forks_after_a_restart(kept: StreamHarness) -> None:
    make(kept, SOURCE, b"a")
    made(fork(kept))
    delete(kept, SOURCE)
    # The fork goes, and the node stops before its source hears of it.
    real = kept.scheduler._effects._forward
    kept.scheduler._effects._forward = lambda name, batch: None
    kept.one(m.Delete(0), m.Done, FORK)
    kept.scheduler._effects._forward = real
    kept.restart()
    assert state_of(kept, SOURCE) in ("deleted", "gone")
    kept.settle()
    assert state_of(kept, SOURCE) == "gone"


def test_an_expired_source_with_forks_is_a_tombstone_too(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a", lifetime=d.Lifetime(10))
    made(fork(streams, lifetime=d.Lifetime(100)))
    streams.advance(11)
    assert state_of(streams, SOURCE) == "deleted"
    assert all_of(streams, FORK) == [b"a"]
    streams.advance(108)
    assert state_of(streams, FORK) == state_of(streams, SOURCE) == "gone"


def test_a_fork_inherits_its_lifetime_and_type_and_no_producers(streams: StreamHarness) -> None:
    make(streams, SOURCE, lifetime=d.Lifetime(10))
    producer = d.Producer(b"p", 0, 0)
    for name in (SOURCE, FORK):
        if name == FORK:
            reply = made(fork(streams))
            assert (reply.content_type, reply.lifetime) == (TEXT, d.Lifetime(10))
        (done,) = streams.ask(d.DurableAppend(0, [b"x"], TEXT, b"1", producer), name=name)
        assert isinstance(done, d.DurableAppended) and done.is_new


def test_who_waits_at_a_fork_is_not_woken_by_its_source(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a")
    made(fork(streams))
    port = streams.port()
    streams.say(port, read_of(1, wait_until=streams.now + 60), name=FORK)
    streams.append(b"source", name=SOURCE)
    assert port.take() == []
    streams.append(b"fork", name=FORK)
    (records,) = port.take()
    assert isinstance(records, m.Records) and bodies_of(records) == [b"fork"]


def test_old_records_of_a_fork_go_by_themselves(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"old")
    streams.advance(50)
    streams.append(b"new", name=SOURCE)
    made(fork(streams))
    settings = m.Settings(age_s=60, content_type=TEXT)
    streams.one(m.Configure(0, settings, is_for_all=True), m.Done, FORK)
    streams.advance(20)
    assert all_of(streams, FORK) == [b"new"]
    assert streams.describe(FORK).info.trim_point == 1
    assert all_of(streams, SOURCE) == [b"old", b"new"]


def test_a_topic_does_not_take_the_name_of_a_tombstone(streams: StreamHarness) -> None:
    make(streams, b"orders", b"a")
    made(fork(streams, FORK, b"orders"))
    delete(streams, b"orders")
    reply = streams.catalog(m.CreateTopic(7, b"orders", 3))
    assert isinstance(reply, m.StreamFailed) and reply.code is Code.STREAM_EXISTS


def test_claims_of_strangers_change_nothing(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a")
    made(fork(streams))
    for mail in (
        d.ReleaseFork(0, stream_cell(b"stranger"), 1),
        d.CheckFork(0, stream_cell(b"x"), 5),
    ):
        streams.scheduler.submit(stream_cell(SOURCE), Batch(None, [mail]), streams.now)
        streams.settle()
    delete(streams, SOURCE)
    assert state_of(streams, SOURCE) == "deleted"


@given(
    st.lists(st.tuples(st.sampled_from("afd"), st.integers(0, 5), st.integers(0, 9)), max_size=30)
)
@settings(max_examples=60, deadline=None)
def test_forks_read_like_copies(steps: list[tuple[str, int, int]]) -> None:
    """Appends, forks and deletions in any order: each stream has what a copy would have."""
    streams = StreamHarness()
    make(streams, b"0")
    expected: dict[bytes, list[bytes]] = {b"0": []}
    born = 1
    for at, (kind, which, where) in enumerate(steps):
        if not expected:
            break
        name = sorted(expected)[which % len(expected)]
        if kind == "a":
            bodies = [b"%d-%d" % (at, each) for each in range(where % 3 + 1)]
            streams.append(*bodies, name=name)
            expected[name] += bodies
        elif kind == "f":
            point = where % (len(expected[name]) + 1)
            made(fork(streams, b"%d" % born, name, point))
            expected[b"%d" % born] = expected[name][:point]
            born += 1
        else:
            delete(streams, name)
            del expected[name]
    assert {name: all_of(streams, name) for name in expected} == expected
    for name in list(expected):
        delete(streams, name)
    assert not streams.store._logs.keys() & {stream_cell(b"%d" % each) for each in range(born)}


def test_the_log_of_a_fork_ends_where_the_fork_does() -> None:
    assert fork_chain([], b"s", 5) == [(b"s", 5)]
    assert fork_chain([(b"s", 5)], b"f", 9) == [(b"s", 5), (b"f", 9)]
    assert fork_chain([(b"s", 5)], b"f", 3) == [(b"s", 3)]
    assert fork_chain([(b"s", 5)], b"f", 5) == [(b"s", 5)]
    assert fork_chain([], b"s", 0) == []


def test_a_seek_that_asks_for_little_gets_little(streams: StreamHarness) -> None:
    make(streams, SOURCE, b"a", b"b", b"c")
    made(fork(streams, at=2))
    streams.append(b"x", name=FORK)
    records = streams.read(Seek(SeekBy.SEQUENCE, 1), name=FORK, count=1)
    assert bodies_of(records) == [b"b"] and records.next == 2
    assert bodies_of(streams.read(0, name=FORK, bytes_max=1)) == [b"a"]


def test_a_fork_that_is_damaged_and_repaired_has_what_it_inherited(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    bodies = [b"record %d " % each * 40 for each in range(30)]
    with streams_in(folder) as streams:
        make(streams, SOURCE, *bodies[:10])
        made(fork(streams))
        for body in bodies[10:]:
            streams.append(body, name=FORK)
        streams.append(*[b"filler" * 200] * 20, name=SOURCE)
        streams.advance(5.0)
        streams.append(*[b"filler" * 200] * 20, name=SOURCE)
    path = partition_of(folder, stream_cell(FORK))
    empty_wal(path)
    for lost in (10, 11, 20):
        flip(path, bodies[lost][:20])
    done = repair(folder, OsDisk(), stream_cell(FORK), LogRules(base_of=base_of))
    assert (done.lost_records, done.messages) == ([(10, 11), (20, 20)], 27)
    left = [body for at, body in enumerate(bodies) if at not in (10, 11, 20)]
    with streams_in(folder) as streams:
        assert all_of(streams, FORK) == left
        assert streams.describe(FORK).info.trim_point == 0
        streams.append(b"more", name=FORK)
        made(fork(streams, GRANDCHILD, FORK, 15))
        assert all_of(streams, GRANDCHILD) == left[:13]
    with streams_in(folder) as streams:
        assert all_of(streams, FORK) == [*left, b"more"]
