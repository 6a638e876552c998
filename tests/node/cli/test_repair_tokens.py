"""`millpond doctor` and the catalog of access tokens that S2 clients were issued."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.actors.store.changes import MetadataSet
from millpond.actors.streams.names import TOKENS
from millpond.node.cli.main import main
from tests.node.folders import empty_wal, flip, partition_of, rows, stopped


def test_the_catalog_of_tokens_is_named_and_repaired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(
            TOKENS, [MetadataSet(b"token\0lost", bytes(4)), MetadataSet(b"token\0kept", bytes(4))]
        )
        store.write(TOKENS, [MetadataSet(b"filler", bytes(2000))])
        store.write(b"box", rows(1000))
    empty_wal(partition_of(folder, TOKENS))
    flip(partition_of(folder, TOKENS), b"token\0lost")
    assert main(["doctor", "--data", str(folder)]) == 1
    out = capfd.readouterr().out
    assert "the catalog of tokens is not served; " in out
    assert f"`millpond doctor --data {folder} --repair-tokens`" in out
    assert main(["doctor", "--data", str(folder), "--repair-tokens"]) == 1
    assert "repaired    the catalog of tokens" in capfd.readouterr().out
    content = partition_of(folder, TOKENS).read_bytes()
    assert b"token\0kept" in content
    assert b"token\0lost" not in content
