"""Basins: namespaces of streams that the other views do not see (docs/reference/s2.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from gc import collect, get_objects
from itertools import pairwise
from pathlib import Path

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Reply, StreamRequest
from millpond.actors.streams import messages as m
from millpond.actors.streams.catalogs.basins import (
    BASINS_MAX,
    DELETES_AT_ONCE,
    METADATA_BYTES_MAX,
    BasinDirectory,
)
from millpond.actors.streams.catalogs.catalog import DELETE_RETRY_S
from millpond.actors.streams.names import BASINS, basin_cell
from tests.actors.streams.harness import (
    NAME,
    OWN_BASIN,
    StreamHarness,
    bodies_of,
    read_of,
    streams_in,
)

OTHER = b"other-basin"
CELL = basin_cell(OTHER, NAME)


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


def ask(streams: StreamHarness, message: StreamRequest) -> Reply:
    return streams.ask_cell(BASINS, message)


def names(streams: StreamHarness) -> list[tuple[bytes, bool]]:
    return [(name, is_removed) for name, _, is_removed in streams.basins.all()]


def fill(streams: StreamHarness) -> None:
    """A basin with a stream that has a record, beside a stream of the same name."""
    assert ask(streams, m.CreateBasin(1, OTHER, b"notes")) == m.Done(1)
    streams.create()
    streams.append(b"mine")
    assert streams.ask_cell(CELL, m.Create(1)) == m.Done(1)
    assert isinstance(streams.ask_cell(CELL, m.Append(2, [b"theirs"])), m.Appended)


def test_a_basin_of_very_many_streams_is_deleted_step_by_step() -> None:
    count = 5 * DELETES_AT_ONCE
    with streams_in(None) as streams:
        assert ask(streams, m.CreateBasin(1, OTHER, b"")) == m.Done(1)
        for number in range(count):
            assert streams.ask_cell(basin_cell(OTHER, b"%d" % number), m.Create(1)) == m.Done(1)
        directory = streams.basins.streams(OTHER)
        port, left = streams.port(), [count]
        streams.scheduler.submit(BASINS, Batch(port, [m.DeleteBasin(2, OTHER)]), streams.now)
        assert port.take() == [m.Done(2)]
        has_more = True
        while has_more:
            left.append(len(directory.streams))
            has_more = streams.scheduler.turn(streams.now)
        left.append(len(directory.streams))
        steps = [before - after for before, after in pairwise(left)]
        assert sum(steps) == count and max(steps) <= DELETES_AT_ONCE
        assert names(streams) == [(OWN_BASIN, False)]


def test_a_basin_whose_streams_do_not_answer_is_told_again(
    streams: StreamHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """More of them than are told at a time."""
    caplog.set_level(logging.CRITICAL)
    count = DELETES_AT_ONCE + 20
    assert ask(streams, m.CreateBasin(1, OTHER, b"")) == m.Done(1)
    for number in range(count):
        assert streams.ask_cell(basin_cell(OTHER, b"%d" % number), m.Create(1)) == m.Done(1)
    streams.crash_on = {m.Delete}
    assert ask(streams, m.DeleteBasin(2, OTHER)) == m.Done(2)
    assert len(streams.basins.streams(OTHER).streams) >= 20, "nobody made way for them"
    assert names(streams) == [(OTHER, True), (OWN_BASIN, False)]
    streams.crash_on = set()
    streams.advance(10 * DELETE_RETRY_S)
    assert names(streams) == [(OWN_BASIN, False)]


def test_streams_of_basins_are_apart(streams: StreamHarness) -> None:
    fill(streams)
    assert streams.bodies() == [b"mine"]
    records = streams.ask_cell(CELL, read_of())
    assert isinstance(records, m.Records)
    assert bodies_of(records) == [b"theirs"]
    assert streams.directory.names() == [NAME]
    assert streams.basins.streams(OTHER).names() == [NAME]
    assert streams.basins.streams(OWN_BASIN) is streams.directory


def test_a_basin_is_made_once_and_its_notes_change(streams: StreamHarness) -> None:
    made_ms = streams.now_ms
    assert ask(streams, m.CreateBasin(1, OTHER, b"a")) == m.Done(1)
    streams.advance(5)
    assert ask(streams, m.CreateBasin(2, OTHER, b"b")) == m.StreamFailed(2, Code.STREAM_EXISTS)
    assert ask(streams, m.ConfigureBasin(3, OTHER, b"c")) == m.Done(3)
    basin = streams.basins.find(OTHER)
    assert basin is not None
    assert (basin.created_ms, basin.metadata) == (made_ms, b"c")
    assert names(streams) == [(OTHER, False), (OWN_BASIN, False)]


def test_the_nodes_own_basin_is_always_there(streams: StreamHarness) -> None:
    assert ask(streams, m.CreateBasin(1, OWN_BASIN, b"")) == m.StreamFailed(1, Code.STREAM_EXISTS)
    assert ask(streams, m.DeleteBasin(1, OWN_BASIN)) == m.StreamFailed(1, Code.UNKNOWN_STREAM)
    assert ask(streams, m.ConfigureBasin(1, OWN_BASIN, b"x")) == m.Done(1)
    assert names(streams) == [(OWN_BASIN, False)]
    basin = streams.basins.find(OWN_BASIN)
    assert basin is not None
    assert basin.metadata == b"x"


@pytest.mark.parametrize("message", [m.ConfigureBasin(1, OTHER, b""), m.DeleteBasin(1, OTHER)])
def test_what_is_not_there(streams: StreamHarness, message: StreamRequest) -> None:
    assert ask(streams, message) == m.StreamFailed(1, Code.UNKNOWN_STREAM)


def test_a_basin_goes_with_its_streams(streams: StreamHarness) -> None:
    fill(streams)
    assert ask(streams, m.DeleteBasin(1, OTHER)) == m.Done(1)
    assert names(streams) == [(OWN_BASIN, False)]
    assert isinstance(streams.ask_cell(CELL, read_of()), m.StreamFailed)
    assert streams.bodies() == [b"mine"]
    assert ask(streams, m.CreateBasin(2, OTHER, b"")) == m.Done(2)
    assert streams.ask_cell(CELL, m.Create(3)) == m.Done(3)
    records = streams.ask_cell(CELL, read_of())
    assert isinstance(records, m.Records)
    assert not records.spans


def test_nothing_is_made_in_a_basin_that_is_not_there(streams: StreamHarness) -> None:
    made = streams.ask_cell(CELL, m.Create(1))
    assert isinstance(made, m.StreamFailed)
    assert streams.basins.streams(OTHER).names() == []


def test_a_deleted_basin_that_was_stopped_half_way_goes_on(tmp_path: Path) -> None:
    with streams_in(tmp_path / "data") as streams:
        fill(streams)
        port = streams.port()
        streams.say(port, m.Describe(1))  # so that the stream is in use
        streams.settle()
        streams.crash_on = {m.Delete}
        made_ms = streams.now_ms
        streams.advance(5)
        assert ask(streams, m.DeleteBasin(1, OTHER)) == m.Done(1)
        assert names(streams) == [(OTHER, True), (OWN_BASIN, False)]
        going = next(row for name, row, _ in streams.basins.all() if name == OTHER)
        assert going.created_ms <= made_ms < going.removed_ms <= streams.now_ms
        refused = ask(streams, m.CreateBasin(2, OTHER, b""))
        assert refused == m.StreamFailed(2, Code.STREAM_EXISTS)
        streams.crash_on = set()
        streams.restart()
        streams.advance(60)
        assert names(streams) == [(OWN_BASIN, False)]
        assert streams.basins.streams(OTHER).names() == []


def test_what_is_kept(tmp_path: Path) -> None:
    with streams_in(tmp_path / "data") as streams:
        fill(streams)
        ask(streams, m.ConfigureBasin(1, OWN_BASIN, b"own"))
        before = list(streams.basins.all())
        streams.restart()
        own = {name: basin.metadata for name, basin, _ in streams.basins.all()}
        assert list(streams.basins.all()) == before
        assert own == {OWN_BASIN: b"own", OTHER: b"notes"}
        assert streams.basins.streams(OTHER).names() == [NAME]
        records = streams.ask_cell(CELL, read_of())
        assert isinstance(records, m.Records)
        assert bodies_of(records) == [b"theirs"]


def test_limits(streams: StreamHarness) -> None:
    large = ask(streams, m.CreateBasin(1, OTHER, bytes(METADATA_BYTES_MAX + 1)))
    assert large == m.StreamFailed(1, Code.DATA_TOO_LARGE)
    port = streams.port()
    for at in range(BASINS_MAX):
        streams.post(BASINS, m.CreateBasin(0, b"basin-%d" % at, b""))
    streams.settle()
    assert ask(streams, m.CreateBasin(1, OTHER, b"")) == m.StreamFailed(1, Code.BUFFER_FULL)
    assert not port.take()


def test_nothing_is_remembered_of_basins_that_are_gone(streams: StreamHarness) -> None:
    """Nor of those that somebody only asked for."""
    collect()
    earlier = [each for each in get_objects() if type(each) is BasinDirectory]
    for number in range(50):
        name = b"basin-%d" % number
        assert ask(streams, m.CreateBasin(1, name, b"")) == m.Done(1)
        assert streams.ask_cell(basin_cell(name, NAME), m.Create(1)) == m.Done(1)
        assert ask(streams, m.DeleteBasin(1, name)) == m.Done(1)
        streams.basins.streams(b"asked-%d" % number)
    streams.advance(60)
    collect()
    kept = [each for each in get_objects() if type(each) is BasinDirectory]
    assert {id(each) for each in kept} <= {id(each) for each in earlier}


def test_a_basin_made_again_has_what_is_in_its_streams(streams: StreamHarness) -> None:
    """Also one of which a cell is still in memory, because it crashed."""
    fill(streams)
    streams.crash_on = {m.Describe}
    streams.ask_cell(CELL, m.Describe(1))
    streams.crash_on = set()
    for _ in range(3):
        assert ask(streams, m.DeleteBasin(1, OTHER)) == m.Done(1)
        streams.advance(1)
        assert not list(streams.basins.all())[1:]
        assert ask(streams, m.CreateBasin(1, OTHER, b"")) == m.Done(1)
        assert streams.basins.streams(OTHER).names() == []
        assert streams.ask_cell(CELL, m.Create(1)) == m.Done(1)
        assert streams.basins.streams(OTHER).names() == [NAME]
