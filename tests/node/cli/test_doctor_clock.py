"""`millpond doctor` checks the clock against the data folder, and confirms it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from millpond.node import clock_file
from millpond.node.cli.main import main
from millpond.node.clock import ClockReading
from millpond.node.environment import current_environment
from tests.node.folders import stopped
from tests.node.processes import serving

HOUR_S = 3600.0


def told(folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Level and text of the finding about the clock of the folder."""
    main(["doctor", "--json", "--data", str(folder)])
    lines = map(json.loads, capfd.readouterr().out.splitlines())
    (found,) = [each for each in lines if each["check"] == "clock of data"]
    return found["level"], found["text"]


def this_boot(seconds: float) -> ClockReading:
    boot = current_environment().boot
    assert boot is not None, "Linux has one"
    return ClockReading(time.time() + seconds, boot.name, boot.uptime())


def test_the_clock_is_compared_with_the_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    with stopped(folder):
        pass
    clock_file.store_reading(folder, this_boot(-100))
    assert told(folder, capfd) == ("ok", "the wall clock agrees with the data folder")
    clock_file.store_reading(folder, this_boot(2 * HOUR_S))
    level, text = told(folder, capfd)
    assert level == "warn" and text.startswith(("7200 s behind", "7199 s behind"))
    assert f"`millpond doctor --data {folder} --confirm-clock`" in text
    clock_file.store_reading(folder, this_boot(-2 * HOUR_S))
    level, text = told(folder, capfd)
    assert level == "warn" and "expiry is held" in text
    clock_file.store_reading(folder, ClockReading(time.time() - 2 * HOUR_S, "another boot", 9.0))
    level, text = told(folder, capfd)
    assert level == "ok" and text.startswith("last used 7200 s ago")


def test_a_confirmation_needs_a_folder(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--confirm-clock"]) == 2
    assert "--data" in capfd.readouterr().err


def test_a_node_goes_back_to_a_clock_that_was_confirmed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    with serving("--data", str(folder)):
        pass
    reading = clock_file.stored_reading(folder)
    assert reading is not None and abs(reading.time - time.time()) < HOUR_S
    clock_file.store_reading(folder, ClockReading(time.time() + 48 * HOUR_S))
    with serving("--data", str(folder)):
        reading = clock_file.stored_reading(folder)
        assert reading is not None and reading.time - time.time() > 47 * HOUR_S
    assert main(["doctor", "--data", str(folder), "--confirm-clock"]) == 0
    assert "confirmed: it is " in capfd.readouterr().out
    with serving("--data", str(folder)):
        reading = clock_file.stored_reading(folder)
        assert reading is not None and abs(reading.time - time.time()) < HOUR_S
    assert not (folder / clock_file.CONFIRMATION).exists()
