"""Every row of the requirements has a test that carries its number, or a stated exception."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TABLE = tomllib.loads((HERE / "rows.toml").read_text("utf-8"))


def _numbers(rows: int | list[list[int]]) -> list[int]:
    """The numbers of a family: up to the last one, or ranges where there are gaps."""
    ranges = [[1, rows]] if isinstance(rows, int) else rows
    return [number for first, last in ranges for number in range(first, last + 1)]


ROWS = [
    f"{family}-{number:02}" for family, rows in TABLE["rows"].items() for number in _numbers(rows)
]
_TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
_FAMILIES = "|".join(family.lower() for family in TABLE["rows"])
_ROW = re.compile(rf"(?<![a-z0-9])({_FAMILIES})_(\d\d)(?!\d)")


def rows_of(test: str) -> set[str]:
    """The rows that a test's name carries: `test_pa_09_...` shows PA-09."""
    return {f"{family.upper()}-{number}" for family, number in _ROW.findall(test)}


def shown_rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for test in _TEST.findall(path.read_text("utf-8")):
            for row in rows_of(test):
                found.setdefault(row, []).append(f"{path.name}::{test}")
    return found


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_a_test_or_a_reason(row: str) -> None:
    tests = TABLE["tests"].get(row, [])
    reason = TABLE["exceptions"].get(row)
    assert bool(tests) != bool(reason), f"{row}: {tests or reason or 'neither test nor reason'}"


@pytest.mark.parametrize("row", ROWS)
def test_the_table_names_the_tests_that_carry_the_row(row: str) -> None:
    assert sorted(TABLE["tests"].get(row, [])) == sorted(shown_rows().get(row, []))


def test_the_table_names_rows_that_exist() -> None:
    named = {*shown_rows(), *TABLE["tests"], *TABLE["exceptions"], *TABLE["partly"]}
    assert named <= set(ROWS)


def test_names_carry_rows() -> None:
    name = "test_p2p_25_pa_39_refusals"
    assert rows_of(name) == {"P2P-25", "PA-39"} and rows_of("test_apa_01_ps_1") == set()
