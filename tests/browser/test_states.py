"""The page of shared states: two windows, one board, whoever writes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from millpond.node.client.streams.connect import connect_streams
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from tests.browser.chromium import Browser, Tab
from tests.ports import free_port

QUIET = {"ws": OFF, "s3p": OFF, "rustlog": OFF, "p2p": "127.0.0.1:0"}
LIVE = "document.body.dataset.status === 'live'"


@pytest.fixture
async def node(homes: AsyncExitStack) -> Node:
    config = Config(http=f"127.0.0.1:{free_port()}", drain_timeout_s=0.5, **QUIET)
    return await homes.enter_async_context(Node(config))


@pytest.fixture
async def windows(
    chromium: Browser, homes: AsyncExitStack, node: Node
) -> AsyncIterator[tuple[Tab, Tab]]:
    """Two windows with memories of their own, on the same board."""
    tabs = (await chromium.tab(), await chromium.tab())
    for tab in tabs:
        await tab.open(f"http://{node.listeners['http']}/millpond/state/")
        await tab.until(LIVE)
    yield tabs
    for tab in tabs:
        await tab.close()
        assert tab.errors == []


async def notes(tab: Tab) -> list[str]:
    script = "[...document.querySelectorAll('.note textarea')].map((each) => each.value)"
    return list(await tab.run(script))


async def test_two_windows_share_notes(windows: tuple[Tab, Tab]) -> None:
    one, other = windows
    await one.click("#add")
    await other.until("document.querySelectorAll('.note').length === 1")
    await other.click(".note textarea")
    await other.type("Mow the lawn")
    await one.until("document.querySelector('.note textarea').value === 'Mow the lawn'")
    place = "[style.left, style.top].map(parseFloat)"
    place = f"(({{ style }}) => {place})(document.querySelector('.note'))"
    left, top = await one.run(place)
    await one.run("document.querySelector('.grip').focus()")
    for step in (2, 4, 6):
        await one.press("ArrowDown")
        await one.until(f"{place}[1] === {top + step}")
    for tab in windows:
        await tab.until(f"{place}[1] === {top + 6}")
        assert (await tab.run(place))[0] == left
    assert await notes(other) == await notes(one) == ["Mow the lawn"]
    await other.click(".gone")
    await one.until("!document.querySelector('.note') && !document.getElementById('empty').hidden")


async def test_a_note_is_dragged_in_both(windows: tuple[Tab, Tab]) -> None:
    one, other = windows
    await one.click("#add")
    await other.until("document.querySelectorAll('.note').length === 1")
    box = await one.run("document.querySelector('.grip').getBoundingClientRect().toJSON()")
    x, y = box["left"] + 20, box["top"] + 8
    steps = (("mousePressed", 0), ("mouseMoved", 15), ("mouseMoved", 30), ("mouseReleased", 30))
    for kind, far in steps:
        place = {"x": x + far, "y": y + far, "button": "left", "buttons": 1, "clickCount": 1}
        await one.call("Input.dispatchMouseEvent", type=kind, **place)
    await one.until(
        "document.querySelector('.note').getBoundingClientRect().left"
        f" > {json.dumps(box['left'] + 20)}"
    )
    left = await one.run("Math.round(parseFloat(document.querySelector('.note').style.left))")
    await other.until(
        f"Math.abs(parseFloat(document.querySelector('.note').style.left) - {left}) < 1"
    )


async def test_what_another_protocol_appends_is_shown(windows: tuple[Tab, Tab], node: Node) -> None:
    text = "<img src=x onerror=alert(1)>"
    event = {
        "type": "note",
        "key": "n1",
        "value": {"text": text, "x": 10, "y": 10},
        "headers": {"operation": "insert"},
    }
    async with connect_streams(f"tcp://{node.listeners['p2p']}") as streams:
        board = streams.stream("board")
        await board.append([json.dumps(event).encode(), b"no event"])
        for tab in windows:
            await tab.until("!!document.querySelector('.note')")
            assert await notes(tab) == [text]
            assert "n1" in await tab.text("#rows")
        await board.append(b'{"headers":{"control":"reset"}}')
        for tab in windows:
            await tab.until("!document.querySelector('.note')")


async def test_a_window_that_comes_later_and_one_that_was_away_have_the_same(
    windows: tuple[Tab, Tab], chromium: Browser, node: Node
) -> None:
    one, other = windows
    for _ in range(3):
        await one.click("#add")
    late = await chromium.tab()
    await late.open(f"http://{node.listeners['http']}/millpond/state/")
    await late.until("document.querySelectorAll('.note').length === 3")
    await late.close()
    await other.reload()
    await other.until("document.querySelectorAll('.note').length === 3")
    await other.click("#clear")
    await one.until("!document.querySelector('.note')")
