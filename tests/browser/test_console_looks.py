"""The console for eyes of all kinds, fingers, keyboards and screen readers, and hostile content."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from millpond import Config, Node, connect
from millpond.jobs import Limits, Queue, Step, join
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.records import NewRecord
from tests.browser.chromium import Tab
from tests.browser.test_console import HOSTILE, page, says, url
from tests.browser.test_looks import CONTRAST_MIN, CONTRASTS, TOUCH_PX
from tests.ports import free_port

PHONE = (390, 844)
DESK = (1180, 760)
LARGE = 2**20 - 4096
NAMED = "orders/" + "x" * 240
PAGES = (
    *("", "channels", "channel/orders", "channel/orders?tab=consumers", "streams", "stream/log"),
    *("stream/log?tab=state", "stream/log?tab=groups", "jobs", "queue/jobs%2fmail"),
    *("queue/jobs%2fmail?tab=workers", "queue/jobs%2fmail?tab=flows", "events", "peers"),
    *("queue/jobs%2fmail?tab=schedules", "queue/jobs%2fmail?tab=limits", "replica"),
)


@pytest.fixture
async def node(homes: AsyncExitStack, tmp_path: Path) -> Node:
    """A node with one of everything, and names and bodies that nobody wants."""
    config = Config(
        data=str(tmp_path / "data"),
        http=f"127.0.0.1:{free_port()}",
        replica=f"file:{tmp_path}/objects",
        drain_timeout_s=0.5,
        **{"ws": "off", "s3p": "off", "rustlog": "off", "p2p": "127.0.0.1:0"},
    )
    running = await homes.enter_async_context(Node(config))
    for name in (HOSTILE, NAMED, "orders"):
        async with connect(url(running), name) as channel:
            for data in (HOSTILE.encode(), b"\x00\xff\x1b[31m", b"\xd7\x90\xd7\x91 <b>", b"{}"):
                await channel.put(data)
    async with connect(url(running), "orders") as channel:
        await channel.put(b"<b>" * (LARGE // 3))
    async with connect_streams(url(running)) as streams:
        log = streams.stream("log")
        await log.create()
        headers = [(b"trace", HOSTILE.encode()), (b"\xff", b"\x00")]
        await log.append([NewRecord(HOSTILE.encode(), headers=headers), b"\x00", b"x" * 200_000])
        await log.commit(HOSTILE, 1)
        await streams.stream(HOSTILE).create()
    async with Queue(url(running), "mail") as queue:
        await queue.put({HOSTILE: HOSTILE}, name="send")
        await queue.put_flow(join(Step(payload=HOSTILE), [Step(payload=1)]))
        await queue.set_limits(Limits(concurrency=3, rate="100/m"))
    return running


async def seen(tab: Tab, node: Node, path: str) -> None:
    """A page with all that it asks for."""
    await tab.open(page(node, path))
    await tab.until("document.body.dataset.state === 'open' && !!document.querySelector('main h1')")
    await tab.until("document.querySelectorAll('main table, main .empty').length > 0")


async def test_all_pages_suit_all_readers(tab: Tab, node: Node) -> None:
    """Each page is loaded once, on a telephone, and then shown in a window of a desk."""
    for path in PAGES:
        await tab.resize(*PHONE, phone=True)
        await seen(tab, node, path)
        await check_telephone(tab, path)
        await tab.resize(*DESK)
        for scheme in ("light", "dark"):
            await tab.prefer(prefers_color_scheme=scheme)
            found = await tab.run(CONTRASTS)
            assert len(found) > 10
            assert [each for each in found if each[0] < CONTRAST_MIN] == [], (path, scheme)
        await check_screen_reader(tab, path)
        text = await tab.text("body")
        assert not {*"\u202e\x00\x1b\u200b"} & {*text}, path
        assert await tab.run("document.querySelector('main img') === null"), path
    assert not await tab.run("'ran' in window")


async def check_telephone(tab: Tab, path: str) -> None:
    """Nothing scrolls sideways, and all can be hit with a finger."""
    assert await tab.run("document.documentElement.scrollWidth") <= PHONE[0], path
    small = f"""[...document.querySelectorAll('button, input, select, nav a')]
        .filter((each) => each.checkVisibility() && each.clientWidth > 0)
        .filter((each) => !each.matches('.link, [type=checkbox]'))
        .filter((each) => each.getBoundingClientRect().height < {TOUCH_PX})
        .map((each) => each.outerHTML)"""
    assert await tab.run(small) == [], path
    cut = """[...document.querySelectorAll('main input')]
        .filter((each) => each.checkVisibility() && each.clientWidth < 100)
        .map((each) => each.outerHTML)"""
    assert await tab.run(cut) == [], path


async def check_screen_reader(tab: Tab, path: str) -> None:
    """All controls and parts of the page have names."""
    tree = await tab.call("Accessibility.getFullAXTree")
    nodes = [each for each in tree["nodes"] if not each.get("ignored")]

    def names(role: str) -> list[str]:
        return [_name(each) for each in nodes if each["role"]["value"] == role]

    for role in ("button", "textbox", "searchbox", "link", "tab", "columnheader", "table"):
        assert "" not in names(role), (path, role)
    assert "Sections" in names("navigation")
    assert len(names("heading")) >= 1 and len(names("main")) == 1
    assert await tab.run("document.getElementById('news').getAttribute('aria-live')")
    assert len({*names("tab")}) == len(names("tab"))
    if names("tab"):
        assert len(names("tabpanel")) == 1


async def test_a_telephone_has_the_menu(tab: Tab, node: Node) -> None:
    await tab.resize(*PHONE, phone=True)
    await seen(tab, node, "")
    await tab.click("#menu a[data-path=jobs]")
    await says(tab, "Job queues")


async def test_the_keyboard_reaches_everything_and_is_seen(tab: Tab, node: Node) -> None:
    await seen(tab, node, "queue/jobs%2fmail")
    await tab.run("document.getElementById('skip').focus()")
    await tab.press("Enter")
    assert await tab.run("document.activeElement.id") == "main"
    await tab.run("document.querySelector('[data-tab=jobs]').focus()")
    for key, chosen in (("ArrowRight", "workers"), ("End", "limits"), ("ArrowRight", "jobs")):
        await tab.press(key)
        assert await tab.run("document.activeElement.dataset.tab") == chosen
        assert await tab.run("document.querySelector('[aria-selected=true]').dataset.tab") == chosen
    await tab.press("Tab")
    assert await tab.run("document.activeElement.dataset.state") == "ready"
    assert await tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    button = "[...document.querySelectorAll('main .head button')].at(-1)"
    await tab.run(f"{button}.focus()")
    await tab.press("Enter")
    await tab.until("document.querySelector('dialog')?.open")
    await tab.press("Escape")
    await tab.until("!document.querySelector('dialog')")
    assert await tab.run(f"document.activeElement === {button}")


async def test_what_is_focused_stays_while_the_page_is_renewed(tab: Tab, node: Node) -> None:
    await seen(tab, node, "channels")
    await tab.run("document.querySelectorAll('tbody a')[1].focus()")
    async with connect(url(node), "orders") as channel, connect(url(node), "0first") as new:
        await new.put(b"x")
        await channel.put(b"one more")
    row = "document.activeElement.closest('tr').innerText"
    before = await tab.run(row)
    await tab.until("document.querySelector('tbody').innerText.match(/orders\\s+pair\\s+6/)")
    assert (await tab.run(row)).split("\t")[0] == before.split("\t")[0]


async def test_a_screen_reader_is_told_what_charts_show(tab: Tab, node: Node) -> None:
    await seen(tab, node, "")
    await tab.until("/of a core [0-9.]+ %/.test(document.querySelector('main').innerText)")
    tree = await tab.call("Accessibility.getFullAXTree")
    charts = [_name(each) for each in tree["nodes"] if each["role"]["value"] in ("image", "img")]
    assert any(each.startswith("Messages: in ") for each in charts)


async def test_names_and_bodies_of_others_are_text(tab: Tab, node: Node) -> None:
    await seen(tab, node, "channel/orders")
    await says(tab, "<img src=x", "\\u{202e}gpj", "00 ff 1b")
    await tab.run("[...document.querySelectorAll('button.link')].at(-1).focus()")
    await tab.press("Enter")  # of 1 MiB: the beginning is shown
    await says(tab, "the first 256 KiB are shown")
    assert len(await tab.text("pre.body")) == 256 * 1024
    assert not await tab.run("'ran' in window")


def _name(node: dict[str, Any]) -> str:
    return str(node.get("name", {}).get("value", ""))
