"""The public conformance suite of Durable Streams, and its published TypeScript client, against a
node (docs/reference/http-apis.md)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.node.processes import environment, serving
from tests.suites.npm import installed

SUITE_S, CHECKS_S = 150.0, 90.0
TESTS = 338
"""All, with the six of subscriptions."""
CHECKS = 9
QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0", "--long-poll", "0.5")
BUSY = {"MILLPOND_HTTP_HEARTBEAT_S": "0.05"}
"""Heartbeats in between disturb nobody."""


@pytest.fixture(scope="session")
def folder() -> Path:
    """With the suite, the client and the checks."""
    scripts = ("conformance.test.mjs", "vitest.config.mjs", "checks.mjs")
    return installed("durable-npm", scripts)


def conform(folder: Path, out: Path) -> None:
    """Run the suite once."""
    report = out / "report.json"
    with serving(*QUIET, limit_s=SUITE_S, env=environment(**BUSY)) as node:
        url = f"http://{node.ready['listeners']['http']}"
        command = ("node_modules/.bin/vitest", "run", "--reporter=json", f"--outputFile={report}")
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            env={**os.environ, "MILLPOND_URL": url},
            timeout=SUITE_S,
            check=False,
        )
    assert report.exists(), done.stderr.decode()[-2000:]
    found = json.loads(report.read_text())
    results = [each for file in found["testResults"] for each in file["assertionResults"]]
    failed = [
        f"{each['fullName']}: {each['failureMessages'][0][:300]}"
        for each in results
        if each["status"] == "failed"
    ]
    assert not failed, "\n".join(failed)
    assert found["numPassedTests"] == TESTS


def test_the_conformance_suite(folder: Path, tmp_path: Path) -> None:
    conform(folder, tmp_path)


@pytest.mark.full
def test_the_conformance_suite_three_times(folder: Path, tmp_path: Path) -> None:
    """It draws seeds."""
    for turn in range(3):
        (out := tmp_path / str(turn)).mkdir()
        conform(folder, out)


def test_the_typescript_client(folder: Path) -> None:
    with serving(*QUIET, limit_s=CHECKS_S, env=environment(**BUSY)) as node:
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
