"""The published Yjs server of Durable Streams with a node below it: it reads behind its snapshots
from offsets that it computes itself (docs/reference/durable-streams.md#offsets)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.node.processes import serving
from tests.suites.npm import installed

CHECKS_S = 110.0
CHECKS = 10
QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0", "--long-poll", "1")


@pytest.fixture(scope="session")
def folder() -> Path:
    """With the server, the provider and the checks."""
    return installed("yjs-npm", ("checks.mjs",))


def test_the_yjs_server(folder: Path) -> None:
    with serving(*QUIET, limit_s=CHECKS_S) as node:
        done = subprocess.run(
            ("node", "checks.mjs", f"http://{node.ready['listeners']['http']}"),
            cwd=folder,
            capture_output=True,
            timeout=CHECKS_S,
            check=False,
        )
    lines: list[dict[str, Any]] = [json.loads(each) for each in done.stdout.splitlines()]
    assert lines and lines[-1] == {"done": CHECKS}, (lines, done.stderr.decode())
    failed = [each for each in lines[:-1] if not each["ok"]]
    assert not failed, "\n".join(f"{each['name']}: {each['error']}" for each in failed)
