"""Invites on the chat page: one link, given in one window and accepted in another."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from millpond.node.peers.address_book import Trust
from tests.browser.chromium import Browser, Tab
from tests.browser.conftest import Person

MADE = "document.querySelector('#invite-made textarea')"


async def test_one_link_makes_a_conversation(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    for each in (alice, bob):
        await homes.enter_async_context(each.at_home())
    await alice.enters(tab)
    await tab.click("#invite-first")
    await tab.type("bob")
    await tab.press("Enter")
    await tab.until(f"{MADE}?.value.startsWith('millpond:')")
    link = await tab.run(f"{MADE}.value")
    assert "Only this machine" in await tab.text("#sheet")
    label = "document.querySelector('svg.qr').getAttribute('aria-label')"
    assert await tab.run(label) == "QR code of the link for bob"
    assert await tab.run("document.querySelector('svg.qr path').getBBox().width > 40")
    other = await chromium.tab()
    await bob.enters(other)
    await other.click("#add-first")
    await other.type("alice")
    await other.click("#peer-card")
    await other.type(link)
    await other.click("#sheet form .strong")
    await other.until("document.getElementById('talk-name').innerText === 'alice'")
    await other.until("document.querySelector('.note')?.innerText.includes('Both sides')")
    await tab.press("Escape")
    await tab.until("document.querySelector('#people-list')?.innerText.includes('bob')")
    await other.close()
    assert other.errors == []


async def test_an_invite_is_cancelled_and_a_wrong_one_is_explained(
    tab: Tab, homes: AsyncExitStack, alice: Person, tmp_path: Path
) -> None:
    await homes.enter_async_context(alice.at_home())
    await alice.enters(tab)
    await tab.click("#invite")
    await tab.type("<b>bob</b>")
    await tab.press("Enter")
    await tab.until("document.querySelector('.problem').innerText.includes('printable')")
    await tab.run("document.getElementById('invite-name').value = 'bob'")
    await tab.click("#sheet form .strong")
    await tab.until("document.querySelector('.invite-list li')?.dataset.name === 'bob'")
    link = await tab.run(f"{MADE}.value")
    await tab.click(".invite-list button")
    await tab.until("!document.querySelector('.invite-list li')")
    assert alice.running.peer_services._invites.open == []
    await tab.press("Escape")
    await tab.click("#add")
    await tab.type("alice")
    await tab.click("#peer-card")
    await tab.type(link)
    await tab.click("#sheet form .strong")
    await tab.until("document.querySelector('.problem').innerText.includes('this node')")


async def test_a_peer_is_verified_and_blocked_on_the_page(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    alice.knows(bob)
    await homes.enter_async_context(alice.at_home())
    await alice.enters(tab)
    await tab.click("#people-list button")
    await tab.until("document.getElementById('talk-trust').innerText === 'Not verified'")
    await tab.click("#details")
    await tab.until("document.querySelectorAll('.words li').length === 12")
    await tab.click("#number")
    await tab.type("1" * 60)
    await tab.press("Enter")
    await tab.until("document.querySelector('.problem').innerText.includes('DIFFER')")
    number = await tab.run(
        "[...document.querySelectorAll('.words li')].map((e) => e.innerText).join(' ')"
    )
    await tab.run("document.getElementById('number').value = ''")
    await tab.click("#number")
    await tab.type(number)
    await tab.press("Enter")
    await tab.until("document.querySelector('.trust.is-verified') !== null")
    await tab.until("document.getElementById('talk-trust').innerText === 'Verified'")
    await tab.click("#block")
    await tab.until("document.getElementById('block').innerText.includes('press again')")
    await tab.click("#block")
    await tab.until("document.querySelector('#people-list button') === null")
    assert [each.trust for each in alice.book.peers] == [Trust.BLOCKED]
