"""Each row of docs/reference/comparison.md names a verdict, and a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/comparison.md"
COLUMNS = 6
VERDICT = re.compile(r"(has|less|better)\b")


def rows() -> list[list[str]]:
    """The cells of all rows below the heads of the tables."""
    found = []
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("Feature", "---"):
            found.append(cells)
    return found


@pytest.mark.parametrize("cells", rows(), ids=lambda cells: cells[0])
def test_a_row_has_a_verdict_and_a_test_that_exists(cells: list[str]) -> None:
    assert len(cells) == COLUMNS and all(cells)
    assert VERDICT.match(cells[1]), cells[1]
    path, _, function = cells[-1].strip("`").partition("::")
    assert (ROOT / path).exists(), path
    if function:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert function in {each.name for each in ast.walk(tree) if isinstance(each, kinds)}


def test_the_page_has_rows_of_every_verdict() -> None:
    found = {match[0] for cells in rows() if (match := VERDICT.match(cells[1]))}
    assert found == {"has", "less", "better"} and len(rows()) > 30
