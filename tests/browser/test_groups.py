"""Groups on the chat page: two people in two windows (docs/guides/chat.md, Groups)."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

from tests.browser.chromium import Browser, Tab
from tests.browser.conftest import Person
from tests.browser.test_files import KEEP_BLOBS, attach
from tests.node.chat.groups.group_nodes import accept, create, until_members, until_texts

NAME = "<i>the pond"
SHEET = "document.getElementById('sheet-body')"
LAST = "[...document.querySelectorAll('.message')].at(-1)"


async def open_group(tab: Tab) -> None:
    listed = "[...document.querySelectorAll('#people-list button')]"
    wanted = f"{listed}.find((each) => each.innerText.includes('the pond'))"
    await tab.until(f"Boolean({wanted})")
    await tab.run(f"{wanted}.click()")
    await tab.until("document.getElementById('talk-name').innerText.includes('the pond')")


async def test_a_group_is_made_joined_talked_in_and_left(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    alice.knows(bob)
    bob.knows(alice)
    alice.learns_key_of(bob)
    bob.learns_key_of(alice)
    for each in (alice, bob):
        await homes.enter_async_context(each.at_home())
    await alice.enters(tab)
    await tab.click("#add")
    await tab.click("#new-group")
    await tab.type(NAME)
    await tab.click("#sheet .choices input")
    await tab.click("#sheet form .strong")
    await tab.until("document.getElementById('talk-name').innerText.includes('the pond')")
    await tab.until("document.getElementById('talk-presence').innerText === '1 member, 1 invited'")

    other = await chromium.tab()
    await bob.enters(other)
    await open_group(other)
    await other.until("document.getElementById('hindrance').innerText.includes('alice invites')")
    assert await other.run("document.getElementById('composer').inert")
    await other.click("#details")
    await other.click("#accept-group")
    await other.until("document.getElementById('talk-presence').innerText === '2 members'")

    await tab.until("document.getElementById('talk-presence').innerText === '2 members'")
    await tab.until("document.getElementById('timeline').innerText.includes('bob joined')")
    await tab.click("#draft")
    await tab.type("hello pond")
    await other.until("document.getElementById('talk-presence').innerText === 'alice: typing…'")
    assert not await tab.run("document.getElementById('attach').hidden")
    await tab.press("Enter")
    await other.until(f"{LAST}?.querySelector('.author')?.innerText === 'alice'")
    assert await other.run(f"{LAST}.querySelector('.text').innerText") == "hello pond"
    told = f"{LAST}?.querySelector('.fate')?.getAttribute('aria-label')"
    await tab.until(f"{told} === 'Delivered to 1 of 1, read by 1'")

    await tab.click("#details")
    await tab.until(f"{SHEET}.innerText.includes('bob, added')")
    await tab.click("#group-rename")
    await tab.type("the pond two")
    await tab.press("Enter")
    await tab.until("document.getElementById('sheet-title').innerText === 'the pond two'")
    await tab.click("#leave")
    await tab.until(f"{SHEET}.innerText.includes('last admin')")
    await tab.click('.member-list [aria-label="Remove bob"]')
    await tab.until(f"!{SHEET}.innerText.includes('bob')")
    await other.until("document.getElementById('hindrance').innerText.includes('no member')")
    assert await other.run("document.getElementById('composer').inert")
    await other.close()
    assert other.errors == []


async def test_a_file_of_a_group_is_attached_found_and_saved(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    for me, other_one in ((alice, bob), (bob, alice)):
        me.knows(other_one)
        me.learns_key_of(other_one)
    for each in (alice, bob):
        await homes.enter_async_context(each.at_home())
    group = await create(alice.running, "bob", name="the pond")
    await accept(bob.running, group)
    await until_members(2, group, alice.running, bob.running)
    await alice.enters(tab)
    await open_group(tab)
    other = await chromium.tab()
    await bob.enters(other)
    await open_group(other)

    data = os.urandom(300_000)
    await attach(tab, data, "fish.bin")
    await tab.until(
        "document.querySelector('.ours .file-state')?.innerText === 'received by 1 of 1'"
    )
    await other.until("document.querySelector('.theirs [data-file=save]') !== null")
    assert await other.text(".theirs .file-name") == "fish.bin"
    await other.run(KEEP_BLOBS)
    await other.run("document.querySelector('.theirs [data-file=save]').click()")
    await other.until("window.clicked.length === 1")
    assert await other.run("[window.clicked[0], window.blobs[0].size]") == ["fish.bin", len(data)]
    await until_texts(bob.running, group, ["file: fish.bin (300.0 kB)"])

    await other.click("#search")
    await other.until("document.activeElement.id === 'query'")
    await other.type("fish")
    await other.press("Enter")
    await other.until("document.querySelectorAll('.found-list li').length === 1")
    assert await other.text(".found-list .found-author") == "alice in the pond"
    await other.click(".found-list li button")
    await other.until("document.querySelector('.is-found .file-name')?.innerText === 'fish.bin'")
    await other.close()
    assert other.errors == []
