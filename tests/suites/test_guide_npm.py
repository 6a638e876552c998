"""The programs of docs/guides/clients.md in JavaScript, with the published packages, against one
node, and the versions that the page names."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.documents import matches
from tests.node.processes import serving
from tests.suites.caches import HERE
from tests.suites.cargo import CLI, SDK
from tests.suites.guide import PAGE, SHOWN_NODE, VERSIONS, programs
from tests.suites.npm import installed

FOLDERS = {
    "@s2-dev/streamstore": "s2-npm",
    "@durable-streams/client": "durable-npm",
    "@durable-streams/state": "state-npm",
    "@durable-streams/y-durable-streams": "yjs-npm",
}
LIMIT_S = 60.0
QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0")


def test_the_versions_of_the_page_are_those_that_are_tested() -> None:
    assert set(programs("js")) == set(FOLDERS)
    assert {package for package, where in VERSIONS if where == "npm"} == set(FOLDERS)
    crates = {
        f"{package}-{each}" for (package, where), each in VERSIONS.items() if where == "cargo"
    }
    assert crates == {CLI, SDK}
    for (package, where), number in VERSIONS.items():
        if where == "npm":
            told = json.loads((HERE / FOLDERS[package] / "package.json").read_text("utf-8"))
            assert told["dependencies"][package] == number
        elif where == "PyPI":
            assert version(package) == number
            assert f"from {package.replace('-', '_')} import" in PAGE


@pytest.mark.parametrize("package", FOLDERS)
def test_the_program_prints_what_the_page_shows(package: str, tmp_path: Path) -> None:
    folder = installed(FOLDERS[package], ())
    program, shown = programs("js")[package]
    with serving(*QUIET, limit_s=LIMIT_S) as node:
        path = folder / "guide.mjs"
        path.write_text(program.replace(SHOWN_NODE, node.ready["listeners"]["http"]))
        done = subprocess.run(
            ("node", path.name), cwd=folder, capture_output=True, timeout=LIMIT_S, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    assert matches(done.stdout.decode(), shown), done.stdout.decode()
