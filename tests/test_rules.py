"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("actors", "transports", "node")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
VAGUE = {"utils", "helpers", "common", "base", "manager", "service"}
CLOCK_OR_DICE = re.compile(
    r"time\.time|time\.monotonic|perf_counter|random\.(random|randint|uniform|choice|shuffle)\("
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_the_rooms_are_found() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(ROOMS)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if not name_of(path).startswith("node")], ids=name_of
)
def test_time_and_chance_are_arguments(path: Path) -> None:
    found = [line for line in path.read_text().splitlines() if CLOCK_OR_DICE.search(line)]
    assert found == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_is_small_and_named_for_what_it_holds(path: Path) -> None:
    text = path.read_text()
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert path.stem not in VAGUE
    assert len(text.splitlines()) <= 400
    assert {node.name: lines_of(node) for node in functions if lines_of(node) > 70} == {}
