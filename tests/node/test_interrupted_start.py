"""A start that fails: the ids of the run before are not given out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.node import clock_file
from millpond.node.clock import IDS_LEAD_S, Boot, Clock, ClockReading
from millpond.node.config import Config
from millpond.node.node import Node

T = 1_800_000_000.0


async def test_after_a_reboot_keeps_the_bound_of_the_ids(tmp_path: Path) -> None:
    """The power fails, the clock is an hour behind, and the first start does not get far."""
    clock_file.store_reading(tmp_path, ClockReading(T, "A", 1000.0, T, T + IDS_LEAD_S))
    uptime = [5.0]

    def node() -> Node:
        boot = Boot("B", lambda: uptime[0])
        clock = Clock(lambda: uptime[0], lambda: T - 3600 + uptime[0], boot=boot)
        off = dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off")
        return Node(Config(data=str(tmp_path), p2p="127.0.0.1:0", **off), clock=clock)

    (tmp_path / "journal").write_bytes(b"")  # a file in the place of the folder
    with pytest.raises(OSError):
        async with node():
            pass
    (tmp_path / "journal").unlink()
    uptime[0] += 4
    async with node() as again:
        assert again.clock.now() + again.clock_status().ids_ahead_s >= T + IDS_LEAD_S
