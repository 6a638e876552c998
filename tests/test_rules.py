"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.sentences import pronoun_sentences, texts_of

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
ELSEWHERE = tomllib.loads((TESTS / "conformance" / "rows.toml").read_text("utf-8"))["elsewhere"]
PACKAGES = ("actors", "transports", "node", "pipeline", "pyspark_millpond")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
COMMENTED = (
    *("actors", "transports", "node", "pipeline", "millpond", "pyspark_millpond"),
    *("clients", "deploy", "scripts", "tests"),
)
SUFFIXES = (".py", ".pyi", ".js", ".mjs", ".ts", ".css", ".toml", ".sh")
GENERATED = ("node_modules", "dist", "__pycache__", "_pb2.")
SOURCES = sorted(
    path
    for folder in COMMENTED
    for path in (ROOT / folder).rglob("*")
    if (path.suffix in SUFFIXES or (folder == "scripts" and not path.suffix))
    and path.is_file()
    and not any(part in str(path) for part in GENERATED)
)
CLOCK_OR_DICE = re.compile(
    r"\btime\.time\(|\btime\.monotonic\b|perf_counter|random\.(random|randint|uniform|choice|shuffle)\("
)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_packages_are_found() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(PACKAGES)


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if name_of(path).startswith(("actors", "transports"))],
    ids=name_of,
)
def test_time_and_chance_are_arguments(path: Path) -> None:
    found = [line for line in path.read_text().splitlines() if CLOCK_OR_DICE.search(line)]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.py", '"""What a worker counts."""\nx = 1  # Who asks?\n# Who\n# waits.\n', 2),
        ("a.py", 'x = "What is left."\n# A node, what it\n# is.\n', 0),
        ("a.js", "/** What is shown. */\nlet x; // Whose it is.\n// A\n// What.\n", 2),
        ("a.toml", "# Whatever is set.\nx = 1\n", 1),
    ],
)
def test_the_rule_of_nouns_finds_comments(tmp_path: Path, name: str, text: str, count: int) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    found = [each for part in texts_of(tmp_path / name) for each in pronoun_sentences(part)]
    assert len(found) == count


@pytest.mark.parametrize("folder", COMMENTED)
def test_sentences_of_docstrings_and_comments_begin_with_a_noun(folder: str) -> None:
    paths = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == folder]
    assert paths
    found = [
        (name_of(path), each)
        for path in paths
        for part in texts_of(path)
        for each in pronoun_sentences(part)
    ]
    assert found == []


def test_the_parts_of_the_tests_are_those_that_the_pages_tell_of() -> None:
    script = (ROOT / "scripts" / "test").read_text("utf-8")
    page = (ROOT / "docs" / "internals" / "reliability.md").read_text("utf-8")
    names = [line.partition(":")[0] for line in PROJECT["pytest"]["ini_options"]["markers"]]
    markers = {name for name in names if "(" not in name}  # one with an argument is no part
    told = r"scripts/test (\w+)  "
    assert set(re.findall(told, script)) == set(re.findall(told, page)) == markers | {"fast"}


@pytest.mark.parametrize(
    ("row", "test"), [(row, test) for row, tests in ELSEWHERE.items() for test in tests]
)
def test_rows_that_are_shown_elsewhere_are_shown_there(row: str, test: str) -> None:
    """The test exists, and cites the row: in its name, its docstring or its module's."""
    path, name = test.split("::")
    module = ast.parse((TESTS / path).read_text("utf-8"))
    (function,) = (
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )
    words = (name, ast.get_docstring(function) or "", ast.get_docstring(module) or "")
    assert row in " ".join(words).upper().replace("_", "-")
