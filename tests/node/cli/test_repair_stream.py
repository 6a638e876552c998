"""`millpond doctor` and its repair for streams and the catalog of topics."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from millpond.actors.state.checkpoint_store import state_file
from millpond.actors.store.changes import Change, Chunk, MetadataSet, Position
from millpond.actors.streams.names import TOPICS, StagedPart, staged_cell, stream_cell
from millpond.node.cli.main import main
from tests.node.folders import empty_wal, flip, partition_of, rows, stopped

ORDERS = stream_cell(b"orders")
COUNT = 40


def chunks() -> list[Change]:
    return [
        Chunk(each, 1, each, each, Position(each, 0), Position(each, 0), b"record %d " % each * 99)
        for each in range(COUNT)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two records of a stream are damaged, and the metadata of the topics."""
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(ORDERS, chunks())
        store.write(
            TOPICS, [MetadataSet(b"topic\0lost", bytes(4)), MetadataSet(b"topic\0kept", bytes(4))]
        )
        store.write(TOPICS, [MetadataSet(b"filler", bytes(2000))])
        store.write(b"box", rows(1000))
    for name, data in ((ORDERS, b"record 3 "), (ORDERS, b"record 4 "), (TOPICS, b"topic\0lost")):
        empty_wal(partition_of(folder, name))
        flip(partition_of(folder, name), data)
    return folder


def told(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    capfd.readouterr()
    code = main(["doctor", *words])
    return code, capfd.readouterr().out


def test_doctor_names_the_stream_and_the_command_that_repairs_it(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out = told(capfd, "--data", str(folder))
    assert code == 1
    assert "stream 'orders' is not served; " in out
    assert f"`millpond doctor --data {folder} --repair-stream orders`" in out
    assert "the catalog of topics is not served; " in out
    assert f"`millpond doctor --data {folder} --repair-topics`" in out


def test_a_stream_is_repaired_and_what_it_lost_is_told_by_number(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = state_file(folder, b"orders")
    state.parent.mkdir()
    state.write_bytes(b"made of lost records as well")
    code, out = told(capfd, "--data", str(folder), "--repair-stream", "orders")
    assert code == 1 and not state.exists()
    assert "lost        records 3-4: not what was written" in out
    assert f"repaired    stream 'orders' has {COUNT - 2} records, and is served again" in out
    [moved] = [line.split()[2].rstrip(":") for line in out.splitlines() if "moved to" in line]
    assert b"record 5 " in Path(moved).read_bytes()
    assert "stream 'orders'" not in told(capfd, "--data", str(folder))[1]


def test_the_same_for_programs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = told(capfd, "--data", str(folder), "--repair-stream", "orders", "--json")
    assert code == 1
    found = json.loads(out)
    assert (found["stream"], found["messages"], found["lost"]) == ("orders", COUNT - 2, ["3-4"])


def test_skipped_sequences_are_not_counted_as_lost(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Catalog and journal are lost, and later the file of the stream."""
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(ORDERS, chunks())
        store.write(b"box", rows(1000))
    for path in [*folder.glob("catalogue.*"), *(folder / "journal").iterdir()]:
        path.unlink()
    words = ["--data", str(folder), "--repair-all", "--json"]
    code, out = told(capfd, *words)
    [first] = [found for line in out.splitlines() if "stream" in (found := json.loads(line))]
    assert code == 1 and first["skipped"] is not None
    partition_of(folder, ORDERS).unlink()
    code, out = told(capfd, *words)
    [second] = [found for line in out.splitlines() if "stream" in (found := json.loads(line))]
    assert code == 1 and second["lost"] and second["lost_count"] is None


def test_the_catalog_of_topics_is_repaired(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = told(capfd, "--data", str(folder), "--repair-topics")
    assert code == 1 and "lost        1 of its properties" in out
    assert "repaired    the catalog of topics" in out
    content = partition_of(folder, TOPICS).read_bytes()
    assert b"topic\0kept" in content and b"topic\0lost" not in content


def test_a_channel_is_not_taken_for_the_stream_of_its_name(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--data", str(folder), "--repair", "orders"]) == 4
    assert "channel 'orders': the node keeps nothing" in capfd.readouterr().err
    assert main(["doctor", "--data", str(folder), "--repair-stream", "box"]) == 4
    assert "stream 'box': the node keeps nothing" in capfd.readouterr().err


def test_a_name_of_any_bytes_can_be_repaired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, name = tmp_path / "data", b"\xff 'x'"
    with stopped(folder) as store:
        store.write(stream_cell(name), chunks())
        store.write(b"box", rows(1000))
    empty_wal(partition_of(folder, stream_cell(name)))
    flip(partition_of(folder, stream_cell(name)), b"record 0 ")
    words = ["--data", str(folder), "--repair-stream", os.fsdecode(name)]
    code, out = told(capfd, *words)
    assert code == 1 and f"has {COUNT - 1} records" in out


def test_a_damaged_part_of_a_batch_is_told_as_that(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    part = staged_cell(StagedPart(ORDERS, b"q1", 3, b"p1"))
    with stopped(tmp_path / "data") as store:
        store.write(part, chunks())
        store.write(b"box", rows(1000))
    empty_wal(partition_of(tmp_path / "data", part))
    flip(partition_of(tmp_path / "data", part), b"record 3 ")
    code, out = told(capfd, "--data", str(tmp_path / "data"))
    assert code == 1
    assert "a part of batch 3 of 'q1' for the stream 'orders' is not served; " in out
    assert "it writes the batch again" in out and "--repair" not in out
