"""Several tabs of the page agree about what is read, and one of them notifies; and typing
(docs/guides/chat.md)."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from tests.browser.chromium import Browser, Tab
from tests.browser.conftest import Person
from tests.browser.test_conversations import sees, talks_with, writes
from tests.node.chat.chat_client import say

pytestmark = pytest.mark.usefixtures("friends")

# A browser that was asked, and remembers what it has shown.
ALLOWED = """(() => {
    window.shown = [];
    window.Notification = class extends EventTarget {
        static permission = 'granted';
        static requestPermission = async () => 'granted';
        constructor(title, options) {
            super();
            window.shown.push(Object.assign(this, { title, ...options }));
        }
        close() {}
    };
})()"""
AWAY = "document.hasFocus = () => false"
SHOWN = "window.shown.map((each) => `${each.title}: ${each.body}`)"


async def test_a_message_that_is_read_in_one_tab_is_read_in_all(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    other = await chromium.tab(beside=tab)
    await alice.enters(tab)
    await alice.enters(other)
    await say(bob.running, "alice", "hello")
    for each in (tab, other):
        await each.until("document.title === '(1) Millpond'")
    await talks_with(tab, bob)
    await tab.until("document.title === 'Millpond'")
    await other.until("document.title === 'Millpond'", 2.5)
    assert other.errors == []


async def test_one_tab_notifies_of_what_nobody_looks_at(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    other = await chromium.tab(beside=tab)
    await say(bob.running, "alice", "from before")
    for each in (tab, other):
        await alice.enters(each)
        await each.run(f"{ALLOWED}, {AWAY}")
    await tab.until("document.title === '(1) Millpond'")
    await say(bob.running, "alice", "unheard, as it is off")
    await tab.until("document.title === '(2) Millpond'")
    await tab.click("#ourselves")
    await tab.click("#notify")
    await tab.until("localStorage.getItem('millpond-notify') === 'yes'")
    await tab.press("Escape")
    for each in (tab, other):  # as if nobody had looked for long
        await each.run("Date.now = ((now) => () => now() + 60_000)(Date.now)")
    await say(bob.running, "alice", "<b>are you there?</b>")
    for each in (tab, other):
        await each.until("document.title === '(3) Millpond'")
    shown = [*await tab.run(SHOWN), *await other.run(SHOWN)]
    assert shown == ["bob: 3 unread: <b>are you there?</b>"]
    notifier = tab if await tab.run("window.shown.length") else other
    await notifier.run("window.shown[0].dispatchEvent(new Event('click'))")
    await notifier.until(sees("from before", "unheard, as it is off", "<b>are you there?</b>"))
    assert other.errors == []


async def test_typing_is_seen_while_it_lasts(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    other = await chromium.tab()
    await alice.enters(tab)
    await bob.enters(other)
    await talks_with(tab, bob)
    await talks_with(other, alice)
    await writes(tab, "hello")  # its receipt tells what the other node understands
    await other.until(sees("hello"))
    await tab.until("document.querySelector('.fate')?.getAttribute('aria-label') === 'Read'")
    await tab.type("I am wri")
    await other.until("document.getElementById('talk-presence').innerText === 'Typing…'")
    await tab.type("ting")
    await tab.press("Enter")
    await other.until("document.getElementById('talk-presence').innerText === 'Online'")
    assert other.errors == []


async def test_nobody_is_known_to_write_while_the_own_node_is_away(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    other = await chromium.tab()
    async with AsyncExitStack() as home_of_bob:
        await home_of_bob.enter_async_context(bob.at_home())
        await alice.enters(tab)
        await bob.enters(other)
        await talks_with(tab, bob)
        await talks_with(other, alice)
        await writes(tab, "hello")
        await other.until(sees("hello"))
        await tab.until("document.querySelector('.fate')?.getAttribute('aria-label') === 'Read'")
        await tab.type("I am wri")
        await other.until("document.getElementById('talk-presence').innerText === 'Typing…'")
    offline = "Not known while you are offline"
    await other.until(f"document.getElementById('talk-presence').innerText === '{offline}'")


async def test_a_tab_whose_session_has_ended_notifies_no_more(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    held = "navigator.locks.query().then(({ held }) => held.length)"
    await alice.enters(tab)
    await tab.until("document.title === 'Millpond'")
    assert await tab.run(held) == 1
    alice.running.web.login.revoke_all()
    await tab.until("document.body.dataset.view === 'login'")
    await tab.until(f"(async () => (await {held}) === 0)()")
