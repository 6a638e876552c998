"""Runs what docs/guides/clients.md shows against a node, and compares what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from millpond.node.config import Config
from millpond.node.node import Node

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "guides" / "clients.md").read_text("utf-8")
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE)
LIMIT_S = 30


@pytest.fixture(scope="module")
def listeners() -> Iterator[dict[str, str]]:
    free = dict.fromkeys(("p2p", "ws", "s3p", "rustlog"), "127.0.0.1:0") | {"http": "off"}

    async def serve() -> Node:
        return Node(Config(drain_timeout_s=0.5, **free))

    with start_blocking_portal() as portal:
        node = portal.call(serve)
        with portal.wrap_async_context_manager(node):
            yield node.listeners


def test_every_python_block_shows_what_it_prints() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") >= 5


@pytest.mark.parametrize(("code", "shown"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_what_is_shown_is_what_happens(listeners: dict[str, str], code: str, shown: str) -> None:
    here = code.replace("127.0.0.1:7402", listeners["s3p"])
    here = here.replace("127.0.0.1:7403", listeners["rustlog"])
    done = subprocess.run(
        [sys.executable, "-c", here], capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT
    )
    assert (done.stderr, done.stdout) == ("", shown)
