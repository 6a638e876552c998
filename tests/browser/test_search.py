"""The search of the page, and the way to a message of any age (docs/guides/chat.md)."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from millpond.node.chat.records import Kind, Record, encode_record
from tests.browser.chromium import Tab
from tests.browser.conftest import Person

pytestmark = pytest.mark.usefixtures("friends")

HOSTILE = "<img src=x onerror=alert(1)> needle"


async def test_a_message_is_found_and_shown_among_its_neighbours(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    log = alice.history_with(bob.public)
    await log.create(2**26)
    said = {50: HOSTILE, 3000: "another needle"}
    records = [
        Record(
            1, Kind.IN, 1000 * n, f"{n:032x}", said.get(n, f"text {n}"), None, n, "b" * 8, 1000 * n
        )
        for n in range(1, 5000)
    ]
    await log.append([encode_record(each) for each in records])
    await alice.enters(tab)
    await tab.click("#search")
    await tab.until("document.activeElement.id === 'query'")
    await tab.type("nothing like it")
    await tab.press("Enter")
    await tab.until("document.getElementById('sheet').innerText.includes('No message has')")
    await tab.run("document.getElementById('query').value = ''")
    await tab.type("need")
    await tab.press("Enter")
    await tab.until("document.querySelectorAll('.found-list li').length === 2")
    assert await tab.text(".found-list li:last-child .found-text") == HOSTILE
    await tab.click(".found-list li:last-child button")
    await tab.until("document.querySelector('.is-found .text')?.textContent.includes('needle')")
    shown = await tab.run("[...document.querySelectorAll('.text')].map((each) => each.textContent)")
    assert {"text 49", "text 51"} < set(shown)
    box = "document.querySelector('.is-found').getBoundingClientRect()"
    assert await tab.run(f"{box}.top > 0 && {box}.bottom < innerHeight")
