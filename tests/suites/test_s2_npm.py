"""The published TypeScript client of S2 against a node, over fetch and over HTTP/2
(docs/reference/s2.md)."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.node.processes import serving
from tests.suites.issued_tokens import QUIET, guarded_node
from tests.suites.npm import installed

CHECKS_S = 90.0
CHECKS = 25
GRACE_S = 1


@pytest.fixture(scope="session")
def folder() -> Path:
    """With the client and the checks."""
    return installed("s2-npm", ("checks.mjs",))


@pytest.mark.parametrize("is_guarded", [False, True], ids=["open", "guarded"])
def test_the_typescript_client(folder: Path, tmp_path: Path, is_guarded: bool) -> None:
    """A.1 to A.9: every check of checks.mjs, with retries off; at an open node, which takes any
    token, and with a token that the node issued (S2X-27)."""
    config = tmp_path / "millpond.toml"
    config.write_text(f"s2_trim_grace_s = {GRACE_S}\n")
    words = ("--config", str(config))
    with ExitStack() as stack:
        if is_guarded:
            at = stack.enter_context(guarded_node(tmp_path, *words, limit_s=CHECKS_S))
        else:
            node = stack.enter_context(serving(*QUIET, *words, limit_s=CHECKS_S))
            at = f"http://{node.ready['listeners']['http']}", "ignored"
        done = subprocess.run(
            ("node", "checks.mjs", *at),
            cwd=folder,
            capture_output=True,
            timeout=CHECKS_S,
            check=False,
        )
    lines: list[dict[str, Any]] = [json.loads(each) for each in done.stdout.splitlines()]
    assert lines and lines[-1] == {"done": CHECKS}, (lines, done.stderr.decode())
    failed = [each for each in lines[:-1] if not each["ok"]]
    assert not failed, "\n".join(f"{each['name']}: {each['error']}" for each in failed)
