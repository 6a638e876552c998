"""The console in a browser."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from millpond import Config, Node, connect
from tests.browser.chromium import Tab
from tests.ports import free_port

HOSTILE = '<img src=x onerror="window.ran = true">\u202egpj'
TEXT = "document.querySelector('main').innerText"


@pytest.fixture
async def node(homes: AsyncExitStack, tmp_path: Path) -> Node:
    config = Config(
        data=str(tmp_path / "data"),
        http=f"127.0.0.1:{free_port()}",
        drain_timeout_s=0.5,
        **{"ws": "off", "s3p": "off", "rustlog": "off", "p2p": "127.0.0.1:0"},
    )
    return await homes.enter_async_context(Node(config))


def page(node: Node, path: str = "") -> str:
    return f"http://{node.listeners['http']}/millpond/#/{path}"


def url(node: Node) -> str:
    return f"tcp://{node.listeners['p2p']}"


async def says(tab: Tab, *words: str) -> None:
    """Wait until the view has all of these."""
    for word in words:
        await tab.until(f"{TEXT}.includes({word!r})")


async def test_the_overview_is_live_and_shows_names_as_text(tab: Tab, node: Node) -> None:
    async with connect(url(node), HOSTILE) as channel:
        await channel.put(b"x")
        await tab.open(f"http://{node.listeners['http']}/")
        await says(tab, "Everything is in order.", "Channels", "<img src=x")
        assert await tab.run("location.pathname") == "/millpond/"
        assert "\\u{202e}gpj" in await tab.text("main")
        before = await tab.run("document.querySelector('.plot svg').getAttribute('aria-label')")
        await channel.put(b"y")
        shown = "document.querySelector('.plot svg').getAttribute('aria-label')"
        await tab.until(f"/in [0-9.]+\\/s/.test({shown}) && {shown} !== {before!r}")
    assert not await tab.run("'ran' in window")


async def test_a_channel_is_found_read_and_purged_by_the_keyboard(tab: Tab, node: Node) -> None:
    async with connect(url(node), "orders/eu") as channel, connect(url(node), "zoo") as other:
        await channel.put(b'{"to":"<b>alice</b>","n":12345678901234567890}')
        await other.put(b"\x00\xff")
    await tab.open(page(node, "channels"))
    await says(tab, "orders/eu", "zoo")
    await tab.press("/")
    await tab.type("ders")
    await tab.until(f"!{TEXT}.includes('zoo')")
    await tab.run("document.querySelector('tbody a').focus()")
    await tab.press("Enter")
    await says(tab, "oldest first", '"<b>alice</b>"')
    await tab.run("document.querySelector('tbody button').focus()")
    await tab.press("Enter")
    body = await tab.text("pre.body")
    assert body == '{\n  "to": "<b>alice</b>",\n  "n": 12345678901234567890\n}'
    await tab.run(
        "[...document.querySelectorAll('button')].find((b) => b.innerText === 'Purge').focus()"
    )
    await tab.press("Enter")
    await tab.until("document.querySelector('dialog')?.open")
    assert "1 message (46 B) go" in await tab.text("dialog")
    assert await tab.run("document.activeElement.innerText") == "Cancel"
    await tab.press("Tab")
    await tab.press("Enter")
    await says(tab, "No messages.")
    assert not await tab.run("!!document.querySelector('dialog')")
