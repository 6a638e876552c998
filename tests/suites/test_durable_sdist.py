"""The published Python client's own tests, unmodified, against a node. They are in its sdist, and
start a server of Durable Streams by node, in whose place a module names the node's address."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.node.processes import serving
from tests.suites.caches import cache, run_or_skip

pytest.importorskip("durable_streams", reason="an extra, `dev`")
pytestmark = pytest.mark.full

CASES = 269
LIMIT_S = 200.0
QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0")
PACKAGE = Path("packages", "client-py")
SERVER = Path("packages", "server", "dist", "index.js")
MODULE = """export class DurableStreamTestServer {
  async start() { return "http://%s/v1/stream/sdist" }
  async stop() {}
}
"""


@pytest.fixture
def sdist() -> Path:
    """The sdist of the installed version."""
    if shutil.which("node") is None:
        pytest.skip("no node here: the client's tests start their server by it")
    number = version("durable-streams")
    file = cache() / f"durable_streams-{number}.tar.gz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        words = ("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        wanted = f"durable-streams=={number}"
        run_or_skip(
            (sys.executable, *words, "--no-binary", ":all:", "-d", ".", wanted), file.parent
        )
    return file


def test_the_client_s_own_tests(sdist: Path, tmp_path: Path) -> None:
    """In a workspace of the layout that they look for."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    (tmp_path / "pnpm-workspace.yaml").touch()
    (tmp_path / "package.json").write_text('{"type": "module"}')
    for each in (PACKAGE, SERVER):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
    unpacked.rename(tmp_path / PACKAGE)
    environment = {each: word for each, word in os.environ.items() if "PYTEST" not in each}
    with serving(*QUIET, limit_s=LIMIT_S) as node:
        (tmp_path / SERVER).write_text(MODULE % node.ready["listeners"]["http"])
        done = subprocess.run(
            (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"),
            cwd=tmp_path / PACKAGE,
            env=environment,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
            text=True,
        )
    assert done.returncode == 0, done.stdout
    assert f"\n{CASES} passed in " in done.stdout, done.stdout
