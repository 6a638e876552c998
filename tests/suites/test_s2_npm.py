"""The published TypeScript client of S2 against a node, over fetch and over HTTP/2
(docs/reference/s2.md)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.node.processes import serving
from tests.suites.npm import installed

CHECKS_S = 90.0
CHECKS = 25
GRACE_S = 1


@pytest.fixture(scope="session")
def folder() -> Path:
    """With the client and the checks."""
    return installed("s2-npm", ("checks.mjs",))


def test_the_typescript_client(folder: Path, tmp_path: Path) -> None:
    """A.1 to A.9: every check of checks.mjs, with retries off."""
    config = tmp_path / "millpond.toml"
    config.write_text(f"s2_trim_grace_s = {GRACE_S}\n")
    quiet = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0", "--config", str(config))
    with serving(*quiet, limit_s=CHECKS_S) as node:
        url = f"http://{node.ready['listeners']['http']}"
        done = subprocess.run(
            ("node", "checks.mjs", url),
            cwd=folder,
            capture_output=True,
            timeout=CHECKS_S,
            check=False,
        )
    lines: list[dict[str, Any]] = [json.loads(each) for each in done.stdout.splitlines()]
    assert lines and lines[-1] == {"done": CHECKS}, (lines, done.stderr.decode())
    failed = [each for each in lines[:-1] if not each["ok"]]
    assert not failed, "\n".join(f"{each['name']}: {each['error']}" for each in failed)
