"""A node in another process, and commands in this one; `tests.node.cli` has others."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from millpond.node.cli.main import main
from tests.node.processes import Serving, serving
from tests.node.stream_commands import OFF, Run, Told

MODULE_S = 90.0
"""A node serves all tests of a module."""


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving(*OFF, limit_s=MODULE_S) as ready:
        yield ready


@pytest.fixture(params=["tcp", "ws"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(
    node: Serving,
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Run:
    """Run a command in this process, against the node in the other."""
    monkeypatch.setenv("MILLPOND_CONNECT", node.urls[scheme])

    def run(*words: str) -> Told:
        code = main(words)
        out, err = capfdbinary.readouterr()
        return Told(code, out, err.decode())

    return run


@pytest.fixture
def name() -> str:
    return f"test-{uuid4().hex}"
