"""The memory of a channel without connections, measured in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
IDLE_BYTES_MAX = 400


def measure(channels: int, channels_per_s: int) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.actors.channels.idle_channels", str(channels)]
    done = subprocess.run(
        [*command, str(channels_per_s)], cwd=ROOT, capture_output=True, check=True, timeout=300
    )
    measured: dict[str, float] = json.loads(done.stdout)
    print(f"\n{channels} channels, bytes of resident memory for each: {measured}")
    return measured


@pytest.mark.full
def test_p2p_27_a_channel_that_was_left_or_whose_keys_are_over_costs_nothing_to_speak_of() -> None:
    measured = measure(100_000, channels_per_s=250)
    assert measured["joined and left"] <= IDLE_BYTES_MAX
    assert measured["after the key window"] <= IDLE_BYTES_MAX
    assert measured["cells left"] == 0
