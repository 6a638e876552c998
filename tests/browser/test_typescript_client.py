"""The TypeScript client in Chromium, against a node that is started again."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread

from millpond.testing import run_node
from tests.browser.chromium import Tab
from tests.suites.typescript_client import SECOND, bundled, check_first, node_key


async def test_a_page_uses_the_client(tab: Tab, tmp_path: Path) -> None:
    program = bundled("page.ts", tmp_path / "page.js", "--format=iife")
    with run_node(folder=tmp_path / "data") as node:
        # A page of the node's own: its origin is one that the listener takes.
        await tab.open(f"http://{node.listeners['ws']}/")
        await tab.until("document.readyState === 'complete'")
        await tab.run(program.read_text("utf-8"))
        key = node_key(tmp_path / "data")
        check_first(await tab.run(f"first({node.ws_url!r}, {{}}, {key!r})"))
        await anyio.to_thread.run_sync(node.stop)
        await tab.run("window.told = second(); 0")
        await anyio.to_thread.run_sync(node.start)
        assert await tab.run("window.told") == SECOND
        # The page itself would go on trying to connect when the node is gone.
        await tab.open("about:blank")
        tab.errors.clear()  # of connections that were refused, as they should be
