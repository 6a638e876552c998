"""`millpond doctor --scrub`: a running node reads everything, also what nobody requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.node.cli.main import main
from tests.node.folders import empty_wal, flip, partition_of, rows, stopped
from tests.node.processes import serving

BOX = b"box"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(BOX, rows(600))
    empty_wal(partition_of(folder, BOX))
    return folder


def test_a_running_node_finds_what_nobody_has_read_yet(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving("--data", str(folder)) as node:
        words = ["doctor", "--json", "--scrub", "--connect", node.urls["tcp"]]
        for is_damaged in (False, True):
            if is_damaged:
                flip(partition_of(folder, BOX), b"message 77 ")
            capfd.readouterr()
            code = main(words)
            lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
            findings = [(each["check"], each["level"]) for each in lines]
            assert ("scrub", "ok") in findings
            assert (code == 1) is is_damaged
            texts = [
                each["text"]
                for each in lines
                if (each["check"], each["level"]) == ("damage", "fail")
            ]
            assert any("channel 'box'" in text for text in texts) is is_damaged


def test_without_a_node_the_folder_is_read_by_the_command(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--scrub", "--data", str(folder)]) == 0
    flip(partition_of(folder, BOX), b"message 77 ")
    assert main(["doctor", "--scrub", "--data", str(folder)]) == 1
    assert "channel 'box' is not served" in capfd.readouterr().out


def test_without_node_and_folder_nothing_is_scrubbed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLPOND_DATA", str(tmp_path / "absent"))
    main(["doctor", "--scrub", "--connect", "tcp://127.0.0.1:9"])
    assert "no running node with a data folder" in capfd.readouterr().out
