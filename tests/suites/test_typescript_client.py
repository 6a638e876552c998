"""The TypeScript client in Node, against a node that is started again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from millpond.testing import run_node
from tests.suites.npm import installed
from tests.suites.typescript_client import (
    NAME,
    SECOND,
    SOURCES,
    bundled,
    check_first,
    node_key,
    run,
)

LIMIT_S = 60.0


def test_its_types_are_sound() -> None:
    compiler = installed(NAME, ()) / "node_modules" / ".bin" / "tsc"
    run([str(compiler), "--project", str(SOURCES / "tsconfig.json")], {})


def test_a_program_in_node(tmp_path: Path) -> None:
    options = ("--platform=node", "--format=esm", "--external:node:*")
    banner = (
        "--banner:js=import { createRequire } from 'node:module';"
        "const require = createRequire(import.meta.url);"
    )
    program = bundled("program.ts", tmp_path / "program.mjs", *options, banner)
    with run_node(folder=tmp_path / "data") as node:
        running = subprocess.Popen(
            ["node", str(program), node.ws_url, node_key(tmp_path / "data")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert running.stdin is not None
            assert running.stdout is not None
            check_first(json.loads(running.stdout.readline()))
            node.stop()
            running.stdin.write(b"\n")
            running.stdin.flush()
            node.start()
            told, _ = running.communicate(timeout=LIMIT_S)
            assert json.loads(told) == SECOND
            assert running.returncode == 0
        finally:
            running.kill()
            running.wait(LIMIT_S)
