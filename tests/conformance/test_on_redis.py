"""The suites of P2P, S3P, RustLog and HTTP pass on a store in Redis."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.redis_server import needs_redis

pytestmark = [needs_redis, pytest.mark.full, pytest.mark.crash]

SUITES = (
    ("tests/conformance", "tcp-uvloop"),
    ("tests/node/http", "not trio"),
)


@pytest.mark.parametrize(("folder", "chosen"), SUITES)
def test_the_suite_passes(folder: str, chosen: str) -> None:
    words = ("-p", "tests.conformance.on_redis", folder, "-m", "not full", "-k", chosen)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-4000:]
