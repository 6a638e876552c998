"""Streams that are made after a loss of names: they begin above all sequences that a lost stream of
their name may have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.partitions.catalog import CATALOG, FIRST_SEQUENCE, Catalog
from millpond.actors.store.repair.repair import LogRules, repair
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.durable.fork_log import base_of
from millpond.actors.streams.names import stream_cell
from millpond.actors.streams.settings import StreamLimits
from tests.actors.streams.harness import StreamHarness, bodies_of, rows_of, streams_in
from tests.actors.streams.test_forks import FORK, SOURCE, all_of, fork, made
from tests.node.folders import empty_wal, flip, partition_of

FIRST = 2**40
TEXT = b"text/plain"


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(tmp_path / "data", limits=StreamLimits(bytes_max=200_000)) as opened:
        opened.create(b"old")
        opened.append(b"a", name=b"old")
        opened.create(SOURCE)
        opened.append(b"a", b"b", name=SOURCE)
        opened.close()
        with closing(Catalog(tmp_path / "data" / CATALOG, OsDisk())) as catalog:
            catalog.change_segments(marks={FIRST_SEQUENCE: FIRST})
        opened.open()
        yield opened


def created(streams: StreamHarness, name: bytes) -> None:
    streams.create(name)


def created_as_durable_stream(streams: StreamHarness, name: bytes) -> None:
    spec = d.CreateSpec(TEXT, None, False, [])
    (reply,) = streams.ask(d.DurableCreate(0, spec), name=name)
    assert isinstance(reply, d.DurableCreated)


def created_as_topic(streams: StreamHarness, name: bytes) -> None:
    assert isinstance(streams.catalog(m.CreateTopic(0, name, 1)), m.Done)


@pytest.mark.parametrize("make", [created, created_as_durable_stream, created_as_topic])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_new_stream_begins_above_lost_ones(
    streams: StreamHarness, make: Callable[[StreamHarness, bytes], None], restarts: bool
) -> None:
    make(streams, b"new")
    if restarts:
        streams.restart()
    assert streams.append(b"1", b"2", name=b"new").first == FIRST
    if restarts:
        streams.restart()
    rows = [(row[0], row[3]) for row in rows_of(streams.read(0, name=b"new"))]
    assert rows == [(FIRST, b"1"), (FIRST + 1, b"2")]
    assert streams.append(b"3", name=b"new").first == FIRST + 2


def test_streams_that_are_known_go_on_where_they_were(streams: StreamHarness) -> None:
    assert streams.append(b"b", name=b"old").first == 1
    assert bodies_of(streams.read(0, name=b"old")) == [b"a", b"b"]


def test_a_stream_that_is_deleted_at_once_begins_at_0_as_ever(streams: StreamHarness) -> None:
    """Its clients know of the deletion."""
    again = m.Create(2), m.Append(3, [b"2"])
    *_, appended = streams.ask(m.Create(0), m.Delete(1), *again, name=b"new")
    assert isinstance(appended, m.Appended) and appended.first == 0
    streams.restart()
    assert bodies_of(streams.read(0, name=b"new")) == [b"2"]


def test_a_stream_that_is_deleted_can_be_made_again(streams: StreamHarness) -> None:
    for body in (b"1", b"2"):
        streams.create(b"new")
        streams.append(body, name=b"new")
        streams.restart()
        assert bodies_of(streams.read(0, name=b"new")) == [body]
        streams.one(m.Delete(0), m.Done, b"new")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("bodies", [[], [b"c"]])
def test_the_own_records_of_a_new_fork_begin_above_lost_ones(
    streams: StreamHarness, bodies: list[bytes], restarts: bool
) -> None:
    """Inherited records keep their sequences; none is between."""
    created = made(fork(streams, bodies=bodies))
    assert created.tail == FIRST + len(bodies)
    if restarts:
        streams.restart()
    assert streams.append(b"d", name=FORK).first == created.tail
    if restarts:
        streams.restart()
    assert all_of(streams, FORK) == [b"a", b"b", *bodies, b"d"]
    for start in (2, 3, FIRST):
        rows = [(row[0], row[3]) for row in rows_of(streams.read(start, name=FORK))]
        assert rows == list(enumerate([*bodies, b"d"], FIRST))


def test_a_fork_of_such_a_fork_has_its_records_too(streams: StreamHarness) -> None:
    """It may leave between the inherited and the own records as well."""
    made(fork(streams, bodies=[b"c", b"d"]))
    made(fork(streams, b"behind", FORK, FIRST + 1, bodies=[b"e"]))
    made(fork(streams, b"between", FORK, 2, bodies=[b"e"]))
    for _ in range(2):
        assert all_of(streams, b"behind") == [b"a", b"b", b"c", b"e"]
        assert all_of(streams, b"between") == [b"a", b"b", b"e"]
        streams.restart()
    assert streams.append(b"f", name=b"between").first == FIRST + 1


def test_the_file_of_such_a_fork_has_no_hole(streams: StreamHarness) -> None:
    """Neither for reads, nor for a repair."""
    assert streams.folder is not None
    bodies = [b"record %d " % each * 40 for each in range(30)]
    made(fork(streams, bodies=[b"c"]))
    for body in bodies:
        streams.append(body, name=FORK)
    for _ in range(2):
        streams.append(*[b"filler" * 200] * 20, name=SOURCE)
        streams.advance(5.0)
    path = partition_of(streams.folder, stream_cell(FORK))
    assert all_of(streams, FORK) == [b"a", b"b", b"c", *bodies]
    streams.close()
    empty_wal(path)
    flip(path, bodies[20][:20])
    done = repair(streams.folder, OsDisk(), stream_cell(FORK), LogRules(base_of=base_of))
    assert (done.lost_records, done.messages) == ([(FIRST + 21, FIRST + 21)], 32)
    streams.open()
    assert all_of(streams, FORK) == [b"a", b"b", b"c", *bodies[:20], *bodies[21:]]


def test_a_fork_that_is_refused_leaves_the_name_as_it_was(streams: StreamHarness) -> None:
    """Its first record is larger than any chunk may be."""
    refused = fork(streams, bodies=[bytes(streams.limits.bytes_max + 1)])
    assert not isinstance(refused, d.DurableCreated)
    created(streams, FORK)
    assert streams.append(b"1", name=FORK).first == FIRST
