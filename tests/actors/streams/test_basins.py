"""Basins: namespaces of streams that the other views do not see (http.md A.2, A.6)."""

from __future__ import annotations

from collections.abc import Iterator
from gc import collect, get_objects
from pathlib import Path

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Reply, StreamRequest
from millpond.actors.streams import messages as m
from millpond.actors.streams.catalogs.basins import BASINS_MAX, METADATA_BYTES_MAX, BasinDirectory
from millpond.actors.streams.names import BASINS, basin_cell
from tests.actors.streams.lake import NAME, OWN_BASIN, Lake, bodies_of, lake_in, read_of

OTHER = b"other-basin"
CELL = basin_cell(OTHER, NAME)


@pytest.fixture(params=["memory", "disk"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with lake_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


def ask(lake: Lake, message: StreamRequest) -> Reply:
    return lake.ask_cell(BASINS, message)


def names(lake: Lake) -> list[tuple[bytes, bool]]:
    return [(name, is_removed) for name, _, is_removed in lake.basins.all()]


def fill(lake: Lake) -> None:
    """A basin with a stream that has a record, beside a stream of the same name."""
    assert ask(lake, m.CreateBasin(1, OTHER, b"notes")) == m.Done(1)
    lake.create()
    lake.append(b"mine")
    assert lake.ask_cell(CELL, m.Create(1)) == m.Done(1)
    assert isinstance(lake.ask_cell(CELL, m.Append(2, [b"theirs"])), m.Appended)


def test_streams_of_basins_are_apart(lake: Lake) -> None:
    fill(lake)
    assert lake.bodies() == [b"mine"]
    records = lake.ask_cell(CELL, read_of())
    assert isinstance(records, m.Records)
    assert bodies_of(records) == [b"theirs"]
    assert lake.directory.names() == [NAME]
    assert lake.basins.streams(OTHER).names() == [NAME]
    assert lake.basins.streams(OWN_BASIN) is lake.directory


def test_a_basin_is_made_once_and_its_notes_change(lake: Lake) -> None:
    made_ms = lake.now_ms
    assert ask(lake, m.CreateBasin(1, OTHER, b"a")) == m.Done(1)
    lake.advance(5)
    assert ask(lake, m.CreateBasin(2, OTHER, b"b")) == m.StreamFailed(2, Code.STREAM_EXISTS)
    assert ask(lake, m.ConfigureBasin(3, OTHER, b"c")) == m.Done(3)
    basin = lake.basins.find(OTHER)
    assert basin is not None
    assert (basin.created_ms, basin.metadata) == (made_ms, b"c")
    assert names(lake) == [(OTHER, False), (OWN_BASIN, False)]


def test_the_nodes_own_basin_is_always_there(lake: Lake) -> None:
    assert ask(lake, m.CreateBasin(1, OWN_BASIN, b"")) == m.StreamFailed(1, Code.STREAM_EXISTS)
    assert ask(lake, m.DeleteBasin(1, OWN_BASIN)) == m.StreamFailed(1, Code.UNKNOWN_STREAM)
    assert ask(lake, m.ConfigureBasin(1, OWN_BASIN, b"x")) == m.Done(1)
    assert names(lake) == [(OWN_BASIN, False)]
    basin = lake.basins.find(OWN_BASIN)
    assert basin is not None
    assert basin.metadata == b"x"


@pytest.mark.parametrize("message", [m.ConfigureBasin(1, OTHER, b""), m.DeleteBasin(1, OTHER)])
def test_what_is_not_there(lake: Lake, message: StreamRequest) -> None:
    assert ask(lake, message) == m.StreamFailed(1, Code.UNKNOWN_STREAM)


def test_a_basin_goes_with_its_streams(lake: Lake) -> None:
    fill(lake)
    assert ask(lake, m.DeleteBasin(1, OTHER)) == m.Done(1)
    assert names(lake) == [(OWN_BASIN, False)]
    assert isinstance(lake.ask_cell(CELL, read_of()), m.StreamFailed)
    assert lake.bodies() == [b"mine"]
    assert ask(lake, m.CreateBasin(2, OTHER, b"")) == m.Done(2)
    assert lake.ask_cell(CELL, m.Create(3)) == m.Done(3)
    records = lake.ask_cell(CELL, read_of())
    assert isinstance(records, m.Records)
    assert not records.spans


def test_nothing_is_made_in_a_basin_that_is_not_there(lake: Lake) -> None:
    made = lake.ask_cell(CELL, m.Create(1))
    assert isinstance(made, m.StreamFailed)
    assert lake.basins.streams(OTHER).names() == []


def test_a_deleted_basin_that_was_stopped_half_way_goes_on(tmp_path: Path) -> None:
    with lake_in(tmp_path / "data") as lake:
        fill(lake)
        port = lake.port()
        lake.say(port, m.Describe(1))  # so that the stream is in use
        lake.settle()
        lake.crash_on = {m.Delete}
        made_ms = lake.now_ms
        lake.advance(5)
        assert ask(lake, m.DeleteBasin(1, OTHER)) == m.Done(1)
        assert names(lake) == [(OTHER, True), (OWN_BASIN, False)]
        going = next(row for name, row, _ in lake.basins.all() if name == OTHER)
        assert going.created_ms <= made_ms < going.removed_ms <= lake.now_ms
        refused = ask(lake, m.CreateBasin(2, OTHER, b""))
        assert refused == m.StreamFailed(2, Code.STREAM_EXISTS)
        lake.crash_on = set()
        lake.restart()
        lake.advance(60)
        assert names(lake) == [(OWN_BASIN, False)]
        assert lake.basins.streams(OTHER).names() == []


def test_what_is_kept(tmp_path: Path) -> None:
    with lake_in(tmp_path / "data") as lake:
        fill(lake)
        ask(lake, m.ConfigureBasin(1, OWN_BASIN, b"own"))
        before = list(lake.basins.all())
        lake.restart()
        own = {name: basin.metadata for name, basin, _ in lake.basins.all()}
        assert list(lake.basins.all()) == before
        assert own == {OWN_BASIN: b"own", OTHER: b"notes"}
        assert lake.basins.streams(OTHER).names() == [NAME]
        records = lake.ask_cell(CELL, read_of())
        assert isinstance(records, m.Records)
        assert bodies_of(records) == [b"theirs"]


def test_limits(lake: Lake) -> None:
    large = ask(lake, m.CreateBasin(1, OTHER, bytes(METADATA_BYTES_MAX + 1)))
    assert large == m.StreamFailed(1, Code.DATA_TOO_LARGE)
    port = lake.port()
    for at in range(BASINS_MAX):
        lake.post(BASINS, m.CreateBasin(0, b"basin-%d" % at, b""))
    lake.settle()
    assert ask(lake, m.CreateBasin(1, OTHER, b"")) == m.StreamFailed(1, Code.BUFFER_FULL)
    assert not port.take()


def test_nothing_is_remembered_of_basins_that_are_gone(lake: Lake) -> None:
    """Nor of those that somebody only asked for."""
    for number in range(50):
        name = b"basin-%d" % number
        assert ask(lake, m.CreateBasin(1, name, b"")) == m.Done(1)
        assert lake.ask_cell(basin_cell(name, NAME), m.Create(1)) == m.Done(1)
        assert ask(lake, m.DeleteBasin(1, name)) == m.Done(1)
        lake.basins.streams(b"asked-%d" % number)
    lake.advance(60)
    collect()
    assert not [each for each in get_objects() if isinstance(each, BasinDirectory)]


def test_a_basin_made_again_has_what_is_in_its_streams(lake: Lake) -> None:
    """Also one of which a cell is still in memory, because it crashed."""
    fill(lake)
    lake.crash_on = {m.Describe}
    lake.ask_cell(CELL, m.Describe(1))
    lake.crash_on = set()
    for _ in range(3):
        assert ask(lake, m.DeleteBasin(1, OTHER)) == m.Done(1)
        lake.advance(1)
        assert not list(lake.basins.all())[1:]
        assert ask(lake, m.CreateBasin(1, OTHER, b"")) == m.Done(1)
        assert lake.basins.streams(OTHER).names() == []
        assert lake.ask_cell(CELL, m.Create(1)) == m.Done(1)
        assert lake.basins.streams(OTHER).names() == [NAME]
