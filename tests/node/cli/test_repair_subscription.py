"""`millpond doctor` and a damaged subscription of Durable Streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.actors.store.changes import MetadataSet
from millpond.actors.streams.names import subscription_cell
from millpond.node.cli.main import main
from tests.node.folders import empty_wal, flip, partition_of, rows, stopped

CELL = subscription_cell(b"kitchen")


def test_a_subscription_is_named_and_repaired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(
            CELL, [MetadataSet(b"link\0lost", bytes(4)), MetadataSet(b"link\0kept", bytes(4))]
        )
        store.write(CELL, [MetadataSet(b"filler", bytes(2000))])
        store.write(b"box", rows(1000))
    empty_wal(partition_of(folder, CELL))
    flip(partition_of(folder, CELL), b"link\0lost")
    assert main(["doctor", "--data", str(folder)]) == 1
    out = capfd.readouterr().out
    assert "the subscription 'kitchen' is not served; " in out
    assert f"`millpond doctor --data {folder} --repair-subscription kitchen`" in out
    assert main(["doctor", "--data", str(folder), "--repair-subscription", "kitchen"]) == 1
    assert "repaired    the subscription 'kitchen'" in capfd.readouterr().out
    content = partition_of(folder, CELL).read_bytes()
    assert b"link\0kept" in content
    assert b"link\0lost" not in content
