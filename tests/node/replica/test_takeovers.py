"""Takeovers of a killed, a paused and a parted owner by its standby."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.replica import kill_loop
from tests.node.replica.kill_loop import Ending


@pytest.mark.parametrize("takeovers", (2, pytest.param(50, marks=pytest.mark.full)))
def test_no_takeover_loses_or_doubles_anything(tmp_path: Path, takeovers: int) -> None:
    """An owner that was paused, or did not reach the object store until the other one had taken
    over, acknowledges nothing when it goes on, and ends with a code of its own."""
    endings = (Ending.PAUSE, Ending.PART, Ending.KILL)
    report = kill_loop.run(tmp_path, takeovers, takeover_s=1.0, endings=endings)
    assert report.acknowledged and not report.findings
