"""`millpond doctor` and damaged partitions that hold metadata alone: a subscription of Durable
Streams, the catalogs of access tokens that S2 clients were issued, of channels and of schedules."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.actors.store.changes import MetadataSet
from millpond.actors.streams.names import CHANNELS, SCHEDULES, TOKENS, subscription_cell
from millpond.node.cli.main import main
from tests.node.folders import empty_wal, flip, partition_of, rows, stopped


@pytest.mark.parametrize(
    ("cell", "name", "options"),
    [
        (
            subscription_cell(b"kitchen"),
            "the subscription 'kitchen'",
            ["--repair-subscription", "kitchen"],
        ),
        (TOKENS, "the catalog of tokens", ["--repair-tokens"]),
        (CHANNELS, "the catalog of channels", ["--repair-channels"]),
        (SCHEDULES, "the catalog of schedules", ["--repair-schedules"]),
    ],
    ids=["subscription", "tokens", "channels", "schedules"],
)
def test_metadata_is_named_and_repaired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], cell: bytes, name: str, options: list[str]
) -> None:
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(
            cell, [MetadataSet(b"key\0lost", bytes(4)), MetadataSet(b"key\0kept", bytes(4))]
        )
        store.write(cell, [MetadataSet(b"filler", bytes(2000))])
        store.write(b"box", rows(1000))
    empty_wal(partition_of(folder, cell))
    flip(partition_of(folder, cell), b"key\0lost")
    assert main(["doctor", "--data", str(folder)]) == 1
    out = capfd.readouterr().out
    assert f"{name} is not served; " in out
    assert f"`millpond doctor --data {folder} {' '.join(options)}`" in out
    assert main(["doctor", "--data", str(folder), *options]) == 1
    assert f"repaired    {name}" in capfd.readouterr().out
    content = partition_of(folder, cell).read_bytes()
    assert b"key\0kept" in content
    assert b"key\0lost" not in content
