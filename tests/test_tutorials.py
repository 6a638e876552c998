"""Tutorials: their commands and programs run as they stand.

A file of their own, so that they run beside README and guides (`pytest --dist loadfile`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import SPARK, TUTORIALS, name_of, run_page


@pytest.mark.readme
@pytest.mark.parametrize("path", TUTORIALS, ids=name_of)
def test_the_page_shows_what_happens(path: Path, tmp_path: Path) -> None:
    """The chat ends on Ctrl-C as well, though it could read on."""
    run_page(path.read_text("utf-8"), tmp_path, interrupts_last=path.stem == "chat")


@pytest.mark.spark
def test_the_spark_tutorial_shows_what_happens(tmp_path: Path) -> None:
    run_page(SPARK.read_text("utf-8"), tmp_path, limit_s=150)
