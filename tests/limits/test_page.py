"""Each row of docs/reference/limits.md has the values of the code, and tests or a reason."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.limits.page import Row, rows
from tests.limits.values import NUMBERS

PAGE = list(rows())
SHOWN = tomllib.loads((Path(__file__).parent / "shown.toml").read_text("utf-8"))
LISTENERS = ("tcp", "ws", "s3p", "rustlog", "http1", "http2")
NODE, OTHERS, SHARED = "node", "others", "shared"
AT_LISTENERS = ("Connections", "Memory of connections")
"""Sections whose rows say of each listener how it is there."""

Cell = list[str] | str

of_each_row = pytest.mark.parametrize("row", PAGE, ids=lambda row: row.name)


def _cells(row: Row) -> dict[str, Cell]:
    return SHOWN[row.section][row.name]


def _tests(cell: Cell | None) -> list[str]:
    return cell if isinstance(cell, list) else []


def _function(test: str) -> str:
    return test.partition("[")[0]


def test_the_page_the_values_and_the_table_have_the_same_rows() -> None:
    named = [(row.section, row.name) for row in PAGE]
    assert named == [(section, name) for section, found in NUMBERS.items() for name in found]
    assert named == [(section, name) for section, found in SHOWN.items() for name in found]


@of_each_row
def test_the_numbers_of_a_row_are_those_of_the_code(row: Row) -> None:
    assert row.numbers == pytest.approx(list(NUMBERS[row.section][row.name]))


@of_each_row
def test_each_cell_of_a_row_names_tests_or_a_reason(row: Row) -> None:
    cells = _cells(row)
    assert set(cells) <= {*LISTENERS, NODE, OTHERS, SHARED}
    assert all(cells.values()), "an empty cell"
    assert isinstance(cells.get(OTHERS, ""), str) and isinstance(cells.get(SHARED, ""), str)
    missing = [each for each in LISTENERS if each not in cells]
    if row.section in AT_LISTENERS or NODE not in cells:
        assert bool(missing) == (OTHERS in cells), f"{missing}: {cells.get(OTHERS)}"


@of_each_row
def test_no_test_stands_for_two_listeners_without_a_reason(row: Row) -> None:
    cells = _cells(row)
    counted = Counter(test for each in LISTENERS for test in set(_tests(cells.get(each))))
    several = [test for test, count in counted.items() if count > 1]
    assert bool(several) == (SHARED in cells), several


def test_the_tests_of_the_table_are_collected(
    find_tests: Callable[[Iterable[str]], set[str]],
) -> None:
    named = {test for row in PAGE for cell in _cells(row).values() for test in _tests(cell)}
    found = find_tests({test.partition("::")[0] for test in named})
    functions = {_function(test) for test in found}
    assert not {test for test in named if test not in found and test not in functions}
