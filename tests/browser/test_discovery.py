"""Nodes on this network in the sheet that adds a peer."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from millpond.node.peers.address_book import Trust
from tests.browser.chromium import Tab
from tests.browser.conftest import Person
from tests.node.outbox.peer_nodes import until

HERE: dict[str, Any] = {"discover": True, "discover_interfaces": ("127.0.0.1",)}


@pytest.mark.together("mdns")  # else they find each other
async def test_a_found_node_is_shown_as_unverified_and_added_by_its_card(
    tab: Tab, homes: AsyncExitStack, tmp_path: Path
) -> None:
    near, far = Person(tmp_path, "near", **HERE), Person(tmp_path, "far", **HERE)
    for each in (near, far):
        await homes.enter_async_context(each.at_home())
    discovery = near.running.peer_services.discovery
    assert discovery is not None
    await until(lambda: len(discovery.found) == 1)
    await near.enters(tab)
    await tab.click("#add-first")
    await tab.until("document.querySelector('.nearby li') !== null")
    shown = await tab.text(".nearby")
    assert "On this network" in shown and f"Unverified, at {far.address}" in shown
    await tab.click(".nearby li button")
    await tab.until("document.getElementById('peer-card').value.startsWith('millpond:')")
    await tab.type("far")
    await tab.press("Enter")
    await tab.until("document.getElementById('talk-name').innerText === 'far'")
    peer = near.book.by_name("far")
    assert peer is not None and peer.public == far.public and peer.trust is Trust.ADDED
    assert [*far.book.peers] == []


async def test_without_discovery_nothing_is_shown(
    tab: Tab, homes: AsyncExitStack, alice: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await alice.enters(tab)
    await tab.click("#add-first")
    await tab.until("document.getElementById('peer-card') !== null")
    assert await tab.run("document.querySelector('.nearby').childElementCount") == 0
