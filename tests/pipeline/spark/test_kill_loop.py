"""A few kills of the kill loop; `python -m tests.pipeline.spark.kill_loop` runs many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.spark.kill_loop import run


@pytest.mark.full
def test_a_few_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    assert "0 lost, 0 doubled, 0 stuck" in run(tmp_path, kills=8, seed=5)
