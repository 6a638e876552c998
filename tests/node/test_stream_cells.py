"""Settings of streams in the configuration, and streams after a restart of the node."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import anyio
import pytest

from millpond.actors.messages import Batch, Durability
from millpond.actors.state.checkpoint_store import state_file
from millpond.actors.store.changes import Chunk, LogSnapshot, MetadataSet
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.partitions.catalog import CATALOG, FIRST_SEQUENCE, Catalog
from millpond.actors.store.repair.quarantine import Damage, write_report
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import TOPICS, StagedPart, staged_cell, stream_cell
from millpond.actors.streams.stream import Stream
from millpond.node.cli.commands.config import settings
from millpond.node.client.streams.connect import connect_streams
from millpond.node.config import Config, ConfigError, LoadedConfig
from millpond.node.config_rules import StreamRule
from millpond.node.node import Node
from millpond.node.stream_cells import stream_rules
from millpond.node.stream_listeners import rustlog_settings, s3p_settings

RULES = ("logs/*=age=3600,bytes=1000000", "fast=durability=memory", "*=durability=os")
OFF = {"ws": "off", "s3p": "off", "rustlog": "off", "http": "off"}


def test_the_first_rule_that_matches_holds() -> None:
    config = Config(streams=tuple(map(StreamRule.parse, RULES)), stream_age_s=60, data="/folder")
    book = stream_rules(config)
    logs, fast = book.settings(b"logs/a"), book.settings(b"fast")
    assert (logs.age_s, logs.keep_bytes) == (3600, 1_000_000)
    assert (fast.age_s, fast.keep_bytes) == (60, 0)
    promises = [book.durability(name) for name in (b"logs/a", b"fast", b"other\xff")]
    assert promises == [Durability.DISK, Durability.MEMORY, Durability.OS]


def test_without_a_data_folder_nothing_is_more_than_memory() -> None:
    book = stream_rules(Config(streams=(StreamRule("*", durability=Durability.DISK),)))
    assert book.durability(b"any") is Durability.MEMORY


def test_rules_are_shown_as_they_are_given() -> None:
    config = Config(streams=tuple(map(StreamRule.parse, RULES)))
    assert settings(LoadedConfig(config))["streams"] == list(RULES)


@pytest.mark.parametrize(
    "text",
    [
        *("", "logs", "logs=", "logs=3600", "=age=5", "logs=age", "logs=age=-1"),
        *("logs=bytes=1.5", "logs=lease=3", "logs=age=5,queue", "logs=durability=tape"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="stream rule"):
        StreamRule.parse(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"s3p_count_default": 2000},
        {"s3p_record_bytes_max": 2**24},
        {"s3p_name_bytes_max": 4001},
        {"rustlog_frame_bytes_max": 10 * 2**20 + 1},
        {"stream_bytes_max": 0},
    ],
)
def test_limits_that_contradict_each_other_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Config(**wrong)  # type: ignore[arg-type]


def test_s3p_48_limits_reach_the_connections() -> None:
    config = Config(s3p_count_max=7, s3p_count_default=7, stream_idle_s=5, rustlog_records_max=9)
    s3p, rustlog = s3p_settings(config), rustlog_settings(config)
    assert (s3p.limits.count_max, s3p.limits.count_default, s3p.flow.idle_s) == (7, 7, 5)
    assert (rustlog.limits.records_max, rustlog.flow.idle_s) == (9, 5)


async def test_a_node_finds_its_streams_again(tmp_path: Path) -> None:
    config = Config(p2p="127.0.0.1:0", data=str(tmp_path / "data"), **OFF)
    async with Node(config) as node:
        async with connect_streams(f"tcp://{node.listeners['p2p']}") as streams:
            await streams.stream("orders").create()
            await streams.stream("orders").append([b"a", b"b"])
            await streams.create_topic("spread", 3)
            await streams.stream("spread/1").append(b"c")
    async with Node(config) as node:
        async with connect_streams(f"tcp://{node.listeners['p2p']}") as streams:
            assert node.services.directory.partitions(b"spread") == 3
            assert [each async for each in streams.names()] == [b"orders", b"spread/1"]
            assert (await streams.stream("orders").info()).tail == 2


async def test_streams_that_nobody_asks_for_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old records are removed although the node was stopped when they expired."""
    monkeypatch.setattr("millpond.node.stream_cells.ADOPT_AFTER_S", 0.01)
    config = Config(p2p="127.0.0.1:0", data=str(tmp_path / "data"), stream_age_s=1, **OFF)
    async with Node(config) as node:
        async with connect_streams(f"tcp://{node.listeners['p2p']}") as streams:
            await streams.stream("orders").create()
            await streams.stream("orders").append(b"x" * 1000)
    await anyio.sleep(1.1)
    async with Node(config) as node:
        assert stream_cell(b"orders") in node.scheduler.cells
        with anyio.fail_after(60):
            while node._store.usage.log_bytes:  # noqa: ASYNC110  # nobody tells of it
                await anyio.sleep(0.01)


async def test_cells_of_streams_are_no_channels() -> None:
    async with Node(Config(p2p="127.0.0.1:0", **OFF)) as node:
        async with connect_streams(f"tcp://{node.listeners['p2p']}") as streams:
            await streams.stream("orders").create()
            assert isinstance(node.scheduler.view(stream_cell(b"orders")), Stream)
            assert not any(name == TOPICS for name in node.scheduler.cells)


async def test_a_topic_whose_removal_was_stopped_goes_after_the_start(tmp_path: Path) -> None:
    """Without anybody asking for topics: until then its partitions would take records."""
    config = Config(p2p="127.0.0.1:0", data=str(tmp_path / "data"), **OFF)
    async with Node(config) as node:
        async with connect_streams(f"tcp://{node.listeners['p2p']}") as streams:
            await streams.create_topic("t", 2)
            await streams.stream("t/0").append(b"x")
        removed = [MetadataSet(b"topic\0t", None), MetadataSet(b"removed\0t", (2).to_bytes(4))]
        node._store.write(TOPICS, removed)
    async with Node(config) as node:
        with anyio.fail_after(60):
            while node._streams.directory.is_being_deleted(b"t/0"):  # noqa: ASYNC110  # nobody tells of it
                await anyio.sleep(0.01)
        async with connect_streams(f"tcp://{node.listeners['p2p']}") as streams:
            await streams.create_topic("t", 3)
            assert (await streams.stream("t/0").info()).tail == 0


async def test_checkpoints_of_damaged_streams_are_kept(tmp_path: Path) -> None:
    """Nothing else is left of the stream; a repair decides what becomes of its state."""
    async with Node(Config(p2p="127.0.0.1:0", data=str(tmp_path), **OFF)):  # type: ignore[arg-type]
        pass
    disk, reports = OsDisk(), tmp_path / "damaged"
    write_report(reports, disk, Damage("1.journal", "missing", stream_cell(b"lost")))
    files = {name: state_file(tmp_path, name) for name in (b"lost", b"gone")}
    disk.make_folder(files[b"lost"].parent)

    async def left() -> set[bytes]:
        for path in files.values():
            path.write_bytes(b"a checkpoint")
        async with Node(Config(p2p="127.0.0.1:0", data=str(tmp_path), **OFF)):  # type: ignore[arg-type]
            return {name for name, path in files.items() if path.exists()}

    assert await left() == {b"lost"}
    write_report(reports, disk, Damage("2.journal", "missing", is_all=True))
    assert await left() == {b"lost", b"gone"}, "any stream may be there"


async def test_rows_of_a_staged_part_count_from_0_also_after_a_loss_of_names(
    tmp_path: Path,
) -> None:
    """Writers say how many rows a part has; streams begin higher then."""
    config = Config(p2p="127.0.0.1:0", data=str(tmp_path), **OFF)  # type: ignore[arg-type]
    async with Node(config):
        pass
    with closing(Catalog(tmp_path / CATALOG, OsDisk())) as catalog:
        catalog.change_segments(marks={FIRST_SEQUENCE: 2**40})
    part = staged_cell(StagedPart(stream_cell(b"target"), b"writer", 1, b"id"))
    async with Node(config) as node:
        for cell, first in ((part, 0), (stream_cell(b"target"), 2**40)):
            kept = node._streams.load(cell)
            assert isinstance(kept, LogSnapshot)
            stream = node._streams.spawn(cell, kept)
            effects = stream.handle(Batch(None, [m.Create(0), m.Append(1, [b"row"])]), 1.0)
            assert [each.first for each in effects.changes if isinstance(each, Chunk)][-1] == first
