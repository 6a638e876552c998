"""For eyes of all kinds, fingers, and those who listen."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest

from millpond.node.peers.address_book import Peer, Trust
from tests.browser.chromium import Tab
from tests.browser.conftest import Person
from tests.browser.test_histories import record

CONTRAST_MIN = 4.5
TOUCH_PX = 36
PHONE = (360, 740)

CONTRASTS = """(() => {
    const numbers = (color) => {
        const canvas = new OffscreenCanvas(1, 1).getContext('2d');
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (rgb) => rgb.slice(0, 3)
        .map((each) => each / 255)
        .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
        .reduce((sum, each, i) => sum + each * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const color = numbers(getComputedStyle(each).backgroundColor);
            if (color[3] === 255) return color;
        }
        return [255, 255, 255, 255];
    };
    const found = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        const { width, height } = element.getBoundingClientRect();
        const isSeen = element.checkVisibility() && width > 1 && height > 1;
        const isText = texts.currentNode.data.trim() && !element.closest('.unseen, .skip');
        if (!isSeen || !isText) continue;
        const [one, other] = [numbers(getComputedStyle(element).color), ground(element)].map(light);
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        found.push([ratio, element.className || element.tagName, texts.currentNode.data]);
    }
    return found;
})()"""


@pytest.fixture
async def talk(tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person) -> Tab:
    """A conversation with one of everything."""
    node = await homes.enter_async_context(alice.at_home())
    ledger = alice.history_with(bob.public)
    await ledger.create(2**20)
    states = ["waiting", "kept", "sent", "delivered", "read", "expired", "refused"]
    bodies = [record("out", place, f"mine {place}", state="waiting") for place in range(7)]
    bodies += [
        record("state", 7, "", uuid=f"{place:032x}", state=state)
        for place, state in enumerate(states)
    ]
    bodies += [record("note", 8, "1 message did not arrive"), record("in", 9, "theirs")]
    await ledger.append(bodies)
    node.peer_services.keyring.book.add(Peer("bob", bob.public, Trust.ADDED, (), (), 0.0))
    node.peer_services.keyring.book.add(Peer("zoe", bytes(31) + b"\x01", Trust.PINNED, (), (), 0.0))
    await alice.enters(tab)
    await tab.until("document.querySelector('.badge') !== null")
    await tab.click("#people-list button")
    await tab.until("document.querySelectorAll('.message').length === 8")
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_can_be_read(talk: Tab, scheme: str) -> None:
    await talk.prefer(prefers_color_scheme=scheme)
    for opener in (None, "#details", "#ourselves", "#add"):
        if opener is not None:
            await talk.click(opener)
            await talk.until("document.getElementById('sheet').open")
            await talk.until(
                "document.getAnimations().every((each) => each.playState === 'finished')"
            )
        found = await talk.run(CONTRASTS)
        assert len(found) > 10
        assert [each for each in found if each[0] < CONTRAST_MIN] == []
        await talk.run("document.getElementById('sheet').close()")


async def test_nothing_sticks_out(talk: Tab) -> None:
    for width in (320, 360, 768, 1024, 1600):
        await talk.resize(width, 700)
        for view in ("talk", "list"):
            await talk.run(f"document.body.dataset.view = '{view}'")
            assert await talk.run("document.documentElement.scrollWidth") <= width
            outside = f"""[...document.querySelectorAll('button, .bubble, textarea')]
                .filter((each) => each.checkVisibility() && each.clientWidth > 1)
                .map((each) => [each.id || each.className, each.getBoundingClientRect()])
                .filter(([, {{ left, right }}]) => left < -1 || right > {width} + 1)"""
            assert await talk.run(outside) == []


async def test_a_phone_shows_one_thing_at_a_time(talk: Tab) -> None:
    await talk.resize(*PHONE, phone=True)
    in_sight = "['.people', '.talk'].filter((each) => document.querySelector(each).clientWidth > 0)"
    assert await talk.run(in_sight) == [".talk"]
    await talk.click("#back")
    await talk.until(f"({in_sight})[0] === '.people'")
    assert await talk.run("location.hash") == ""
    await talk.click("#people-list button")
    await talk.until(f"({in_sight})[0] === '.talk'")
    await talk.run("history.back()")
    await talk.until(f"({in_sight})[0] === '.people'")
    small = f"""[...document.querySelectorAll('button')]
        .filter((each) => each.clientWidth > 0 && each.clientHeight < {TOUCH_PX})
        .map((each) => each.id || each.className)"""
    assert await talk.run(small) == []


async def test_what_is_not_in_sight_is_not_read(talk: Tab, alice: Person, bob: Person) -> None:
    """The list covers the conversation on a phone, and another tab may cover both."""
    await talk.resize(*PHONE, phone=True)
    await talk.click("#back")
    await talk.until("document.querySelector('.people').clientWidth > 0")
    await talk.until("document.title === 'Millpond'")
    ledger = alice.history_with(bob.public)
    await ledger.append([record("in", 20, "unseen")])
    await talk.until("document.body.textContent.includes('unseen')")
    groups = (await ledger.describe()).info.groups
    assert groups[b"read"] < (await ledger.describe()).info.tail


async def test_whoever_listens_is_told_all(talk: Tab) -> None:
    """Every control has a name, every message says whose it is and what became of it."""
    tree = await talk.call("Accessibility.getFullAXTree")
    nodes = [each for each in tree["nodes"] if not each.get("ignored")]

    def names(role: str) -> list[str]:
        return [_name(each) for each in nodes if each["role"]["value"] == role]

    for role in ("button", "textbox", "link"):
        assert "" not in names(role)
    assert {"Send", "Details of this peer", "You, and your card", "Add a peer"} <= set(
        names("button")
    )
    assert "Message" in names("textbox")
    assert "Conversations" in names("navigation")
    assert "Messages with bob" in names("region")
    fates = {"Kept", "Sent", "Delivered", "Read", "Expired", "Refused"}
    assert fates <= set(names("image"))
    told = await talk.run(
        "[...document.querySelectorAll('.bubble')].map((each) => each.textContent)"
    )
    assert told[0].startswith("You: mine 0") and told[-1].startswith("bob: theirs")
    assert await talk.run("document.getElementById('news').getAttribute('aria-live')") == "polite"


async def test_whoever_wants_no_motion_sees_none(talk: Tab) -> None:
    await talk.prefer(prefers_reduced_motion="reduce")
    await talk.click("#details")
    assert await talk.run("document.getAnimations().filter((a) => a.animationName).length") == 0


async def test_focus_is_seen_and_comes_back(talk: Tab) -> None:
    await talk.run("document.getElementById('details').focus()")
    await talk.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert await talk.run(outline) != "none"
    await talk.run("document.getElementById('details').focus()")
    await talk.press("Enter")
    await talk.until("document.getElementById('sheet').open")
    await talk.press("Escape")
    await talk.until("!document.getElementById('sheet').open")
    assert await talk.run("document.activeElement.id") == "details"


async def test_nothing_is_sent_to_a_peer_that_was_not_added(talk: Tab) -> None:
    await talk.click("#people-list li:nth-child(2) button")
    await talk.until("document.getElementById('talk-name').innerText === 'zoe'")
    assert "not added" in await talk.text("#hindrance")
    assert await talk.run("document.getElementById('composer').inert")


def _name(node: dict[str, Any]) -> str:
    return str(node.get("name", {}).get("value", ""))
