"""The console in a browser."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from millpond import Config, Node, connect
from millpond.jobs import Queue, Reject, Worker
from millpond.node.client.streams.connect import connect_streams
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


async def press_button(tab: Tab, text: str, where: str = "main") -> None:
    """Press the button with this text by the keyboard, once it is there."""
    every = f"[...document.querySelectorAll('{where} button')]"
    found = f"{every}.find((each) => each.innerText === {text!r} && !each.disabled)"
    await tab.until(f"(({found})?.focus(), !!({found}))")
    await tab.press("Enter")


async def test_a_stream_is_followed_appended_to_and_trimmed_with_a_warning(
    tab: Tab, node: Node
) -> None:
    async with connect_streams(url(node)) as streams:
        stream = streams.stream("weather")
        await stream.create()
        await stream.append([b"%d" % number for number in range(70)])
        await stream.commit("readers", 10)
        await tab.open(page(node, "streams"))
        await says(tab, "weather", "60")  # records of lag
        await tab.click("tbody a")
        await tab.until("document.querySelectorAll('button.link').length === 50")
        await press_button(tab, "Older")
        await tab.until("document.querySelector('button.link').innerText === '0'")
        await press_button(tab, "Follow")
        await tab.until("document.querySelector('button.link').innerText === '69'")
        await stream.append(HOSTILE.encode())
        await says(tab, "<img src=x")
        await press_button(tab, "Append")
        await tab.until("document.querySelector('dialog')?.open")
        await tab.type("by hand")
        await press_button(tab, "Append", "dialog")
        await says(tab, "by hand")
        await press_button(tab, "Trim")
        await tab.until("document.querySelector('dialog')?.open")
        await tab.run("document.querySelector('dialog input').value = ''")
        await tab.type("20")
        await press_button(tab, "Show what goes", "dialog")
        await tab.until("document.querySelector('dialog')?.innerText.includes('20 records go')")
        assert "readers has not read 10 of them" in await tab.text("dialog")
        await press_button(tab, "Remove 20 records", "dialog")
        await tab.until("!document.querySelector('dialog')")
        assert (await stream.info()).trim_point == 20
    assert not await tab.run("'ran' in window")


async def test_a_queue_is_paused_and_a_dead_job_is_retried(tab: Tab, node: Node) -> None:
    async def fail(payload: dict[str, str]) -> None:
        raise Reject(f"{HOSTILE} is nobody")

    async with Queue(url(node), "mail") as queue:
        await queue.put({"to": "<b>alice</b>"})
        async with Worker(url(node), fail, queues=["mail"]) as worker:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                with anyio.fail_after(30):
                    while not (await queue.counts()).dead:  # noqa: ASYNC110
                        await anyio.sleep(0.05)
                tasks.cancel_scope.cancel()
        await tab.open(page(node, "jobs"))
        await says(tab, "mail")
        await tab.click("tbody a")
        await press_button(tab, "Pause")
        await says(tab, "Resume")
        assert (await queue.counts()).paused
        await tab.click("[data-state=dead]")
        await says(tab, "is nobody")
        await tab.run("document.querySelector('tbody a').focus()")
        await tab.press("Enter")
        await says(tab, '"to": "<b>alice</b>"', "Why it failed")
        await press_button(tab, "Retry")
        await tab.until("location.hash === '#/queue/jobs%2fmail'")
        assert (await queue.counts()).ready == 1
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
    await press_button(tab, "Purge")
    await tab.until("document.querySelector('dialog')?.open")
    assert "1 message (46 B) go" in await tab.text("dialog")
    assert await tab.run("document.activeElement.innerText") == "Cancel"
    await tab.press("Tab")
    await tab.press("Enter")
    await says(tab, "No messages.")
    assert not await tab.run("!!document.querySelector('dialog')")
