"""The programs of docs/guides/clients.md in JavaScript, with the published packages, against one
node; those in Python are run with the page (tests/documents.py)."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import pytest

from tests.documents import ROOT, Block, blocks_of, matches
from tests.node.processes import serving
from tests.suites.caches import HERE
from tests.suites.npm import installed

PAGE = (ROOT / "docs" / "guides" / "clients.md").read_text("utf-8")
SHOWN_NODE = "127.0.0.1:7404"
FOLDERS = {
    "@s2-dev/streamstore": "s2-npm",
    "@durable-streams/client": "durable-npm",
    "@durable-streams/state": "state-npm",
}
LIMIT_S = 60.0
QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0")
_ROW = re.compile(r"^\| `([^`]+)` \| ([0-9.]+) \| (PyPI|npm) \|$", re.MULTILINE)
_NAMED = re.compile(r"// (\S+)\n")


def _programs() -> dict[str, tuple[str, str]]:
    """The program and what it prints, by the package that its first line names."""
    blocks: list[Block] = blocks_of(PAGE)
    found = {}
    for block, after in pairwise(blocks):
        if block.language == "js":
            named = _NAMED.match(block.text)
            assert named is not None and after.language == "text", block.text
            found[named[1]] = (block.text, after.text)
    return found


VERSIONS = {package: (number, where) for package, number, where in _ROW.findall(PAGE)}


def test_the_versions_of_the_page_are_those_that_are_tested() -> None:
    assert set(_programs()) == set(FOLDERS)
    for package, (number, where) in VERSIONS.items():
        if where == "npm":
            told = json.loads((HERE / FOLDERS[package] / "package.json").read_text("utf-8"))
            assert told["dependencies"][package] == number
        else:
            assert version(package) == number
            assert f"from {package.replace('-', '_')} import" in PAGE
    assert set(FOLDERS) <= set(VERSIONS)


@pytest.mark.parametrize("package", FOLDERS)
def test_the_program_prints_what_the_page_shows(package: str, tmp_path: Path) -> None:
    folder = installed(FOLDERS[package], ())
    program, shown = _programs()[package]
    with serving(*QUIET, limit_s=LIMIT_S) as node:
        path = folder / "guide.mjs"
        path.write_text(program.replace(SHOWN_NODE, node.ready["listeners"]["http"]))
        done = subprocess.run(
            ("node", path.name), cwd=folder, capture_output=True, timeout=LIMIT_S, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    assert matches(done.stdout.decode(), shown), done.stdout.decode()
