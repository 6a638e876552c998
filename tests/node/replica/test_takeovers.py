"""Takeovers of a killed and a paused owner by its standby, as an operator and clients see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.replica import kill_loop


@pytest.mark.parametrize("takeovers", (2, pytest.param(50, marks=pytest.mark.full)))
def test_no_takeover_loses_or_doubles_anything(
    tmp_path: Path, takeovers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second owner is paused until the other one has taken over: it acknowledges nothing
    when it wakes up, and ends with a code of its own."""
    monkeypatch.setattr(kill_loop, "PAUSED_EACH", 2)
    report = kill_loop.run(tmp_path, takeovers, takeover_s=1.0)
    assert report.acknowledged and not report.findings
