"""Log lines of the file worker when a file fails."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from millpond.actors.messages import Mode
from millpond.actors.store.changes import ModeSet, StoredMessage
from millpond.actors.store.interface import Fault
from tests.actors.store.harness import NOW, SMALL, Run, young_id

NAME = b"chat/\xff1"


def told(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
    return line


def closed_with_file(folder: Path) -> Path:
    """A node that ended; gives the file of its channel."""
    run = Run(folder, SMALL)
    old = young_id(60)
    run.write(NAME, ModeSet(Mode.PAIR), StoredMessage(old, 1, 600, NOW + 600, b"data" * 1000))
    run.flush()
    path = run.file(NAME)
    assert path.exists()
    run.close()
    return path


def test_a_damaged_file_is_told_of_with_its_channel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = closed_with_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"data" * 100, b"date" * 100))
    run = Run(tmp_path, SMALL)
    assert run.finish(run.store.load(NAME)) is Fault.DAMAGED
    assert told(caplog).startswith(f"damaged: name={NAME!r} where=")
    run.close()


def test_a_file_that_cannot_be_read_is_told_of_with_its_channel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = closed_with_file(tmp_path)
    run = Run(tmp_path, SMALL)
    path.unlink()
    path.mkdir()
    assert run.finish(run.store.load(NAME)) is Fault.UNREADABLE
    assert told(caplog).startswith(f"partition not read or written: name={NAME!r} error=")
    run.close()
