"""Two people talk through their pages: what one writes the other reads, whatever happens."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from millpond.node.peers.address_book import Trust
from millpond.node.peers.safety_number import safety_number
from millpond.node.peers.verification_code import verification_code
from millpond.node.qr_code import qr_path
from tests.browser.chromium import Browser, Tab
from tests.browser.conftest import Person

WORDS = "[...document.querySelectorAll('.message .text')].map((each) => each.textContent)"
FATES = "[...document.querySelectorAll('.fate')].map((each) => each.getAttribute('aria-label'))"

pytestmark = pytest.mark.usefixtures("friends")


async def talks_with(tab: Tab, person: Person) -> None:
    """Open the conversation, with the mouse."""
    name = person.name
    await tab.until(
        f"[...document.querySelectorAll('.entry-name')].some(e => e.innerText === '{name}')"
    )
    await tab.click("#people-list button")
    await tab.until(f"document.getElementById('talk-name').innerText === '{name}'")
    await tab.until("document.activeElement.id === 'draft'")


async def writes(tab: Tab, *lines: str) -> None:
    for line in lines:
        await tab.type(line)
        await tab.press("Enter")


def sees(*lines: str) -> str:
    return f"JSON.stringify({WORDS}) === JSON.stringify({list(lines)!r})"


def fates(*words: str) -> str:
    return f"JSON.stringify({FATES}) === JSON.stringify({list(words)!r})"


async def test_what_one_writes_the_other_reads(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    other = await chromium.tab()
    await alice.enters(tab)
    await bob.enters(other)
    await talks_with(tab, bob)
    await writes(tab, "hello bob", "are you there?")
    await tab.until(fates("Delivered", "Delivered"))
    await other.until("document.title === '(2) Millpond'")
    assert "are you there?" in await other.text("#people-list")
    await talks_with(other, alice)
    await other.until(sees("hello bob", "are you there?"))
    await tab.until(fates("Read", "Read"))
    await other.until("document.title === 'Millpond'")
    await writes(other, "I am")
    await tab.until(sees("hello bob", "are you there?", "I am"))
    assert await tab.text("#news") == "bob: I am"
    await other.until(fates("Read"))
    await tab.until("document.getElementById('talk-presence').innerText === 'Online'")
    assert other.errors == []


# Questions wait in the page, as on a slow network, until `release()`.
HOLD = """(() => {
    const send = WebSocket.prototype.send, held = [];
    WebSocket.prototype.send = function (data) { held.push(() => send.call(this, data)); };
    window.release = () => { WebSocket.prototype.send = send; held.forEach((each) => each()); };
})()"""


async def test_what_is_written_before_the_history_is_there_is_sent(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    await alice.enters(tab)
    await tab.run(HOLD)
    await talks_with(tab, bob)
    await writes(tab, "hello bob", "are you there?")
    assert await tab.run("document.getElementById('draft').value") == ""
    await tab.run("release()")
    await tab.until(sees("hello bob", "are you there?"))
    await tab.until(fates("Delivered", "Delivered"))
    assert tab.errors == []


async def test_a_click_holds_while_news_come_in(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    other = await chromium.tab()
    await alice.enters(tab)
    await bob.enters(other)
    await talks_with(other, alice)
    place = await tab.place_of("#people-list button")
    await tab.mouse("mousePressed", place)
    await writes(other, "news")
    await tab.until("document.querySelector('.preview').innerText === 'news'")
    await tab.mouse("mouseReleased", place)
    await tab.until(sees("news"))


async def test_what_is_written_while_the_other_is_away_arrives_later(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    alice.learns_key_of(bob)
    await homes.enter_async_context(alice.at_home())
    await alice.enters(tab)
    await talks_with(tab, bob)
    await writes(tab, "for later")
    await tab.until(fates("Kept"))
    assert (await tab.text("#talk-presence")).startswith("Away")
    await homes.enter_async_context(bob.at_home())
    await tab.until(fates("Delivered"))


async def test_a_lost_node_is_told_of_and_nothing_is_lost_or_doubled(
    tab: Tab, alice: Person, bob: Person
) -> None:
    alice.learns_key_of(bob)
    async with alice.at_home():
        await alice.enters(tab)
        await talks_with(tab, bob)
        await writes(tab, "before")
        await tab.until(fates("Kept"))
    await tab.until("!document.getElementById('banner').hidden")
    await writes(tab, "in between")
    await tab.until(fates("Kept", "Sending"))
    tab.errors.clear()  # a browser complains of every attempt
    async with alice.at_home():
        await tab.click("#try-now")
        await tab.until(fates("Kept", "Kept"))
        await tab.until("document.getElementById('banner').hidden")
        assert await tab.run(WORDS) == ["before", "in between"]
        await tab.open(alice.page)
        await talks_with(tab, bob)
        await tab.until(sees("before", "in between"))
    await tab.open("about:blank")
    tab.errors.clear()


async def test_a_reload_comes_back_to_the_conversation(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    alice.learns_key_of(bob)
    await homes.enter_async_context(alice.at_home())
    await alice.enters(tab)
    await talks_with(tab, bob)
    await writes(tab, "still here")
    await tab.until(fates("Kept"))
    await tab.reload()
    await tab.until(sees("still here"))
    await tab.until("document.getElementById('talk-name').innerText === 'bob'")


async def test_what_a_node_refuses_can_be_sent_again_or_taken_back(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    node = await homes.enter_async_context(alice.at_home())
    await alice.enters(tab)
    await talks_with(tab, bob)
    book = node.peer_services.keyring.book
    peer = book.by_name("bob")
    assert peer is not None
    book.remove("bob")
    await writes(tab, "to nobody")
    await tab.until(fates("Not accepted"))
    assert "does not know this peer" in await tab.text(".failure")
    book.add(peer)
    await tab.click("[data-retry]")
    await tab.until(fates("Waiting"))
    book.remove("bob")
    await writes(tab, "to nobody again")
    await tab.until(fates("Waiting", "Not accepted"))
    await tab.click("[data-drop]")
    await tab.until(sees("to nobody"))
    assert await tab.run("document.getElementById('draft').value") == "to nobody again"
    await tab.run("document.getElementById('draft').value = ''")


async def test_with_the_keyboard_alone(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    alice.learns_key_of(bob)
    await homes.enter_async_context(alice.at_home())
    await alice.enters(tab)
    await tab.press("ArrowDown", alt=True)
    await tab.until("document.activeElement.id === 'draft'")
    await tab.type("two")
    await tab.press("Enter", shift=True)
    await tab.type("lines")
    await tab.press("Enter")
    await tab.until(sees("two\nlines"))
    await tab.press("Enter")
    await tab.press("Escape")
    await tab.until("document.activeElement.closest('#people-list') !== null")
    assert await tab.run(WORDS) == ["two\nlines"]


async def test_a_peer_is_added_by_card(
    tab: Tab,
    chromium: Browser,
    homes: AsyncExitStack,
    alice: Person,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    carol = Person(tmp_path_factory.mktemp("carol"), "carol")
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(carol.at_home())
    other = await chromium.tab()
    await carol.enters(other)
    await other.click("#ourselves")
    card = await other.until("document.querySelector('.card')?.value")
    await alice.enters(tab)
    await tab.click("#add")
    await tab.type("carol")
    await tab.run("document.getElementById('peer-card').focus()")
    await tab.type("millpond:nonsense")
    await tab.click("#sheet .strong")
    await tab.until("document.querySelector('.problem').innerText !== ''")
    await tab.run("document.getElementById('peer-card').select()")
    await tab.type(card)
    await tab.click("#sheet .strong")
    await tab.until("document.getElementById('talk-name').innerText === 'carol'")
    await tab.click("#details")
    number = safety_number(alice.public, carol.public)
    assert (await tab.text(".words ol")).split() == number.split()
    assert alice.book.is_contact(carol.public)


# A browser that reads QR codes, as those of telephones do.
READS = """(() => {
    navigator.mediaDevices.getUserMedia = async () => {
        if (!window.scanned) throw new DOMException('denied', 'NotAllowedError');
        const canvas = document.createElement('canvas');
        const drawing = canvas.getContext('2d');
        setInterval(() => drawing.fillRect(0, 0, 9, 9), 40);
        return (window.stream = canvas.captureStream());
    };
    window.BarcodeDetector = class {
        static getSupportedFormats = async () => ['qr_code'];
        detect = async () => [{ rawValue: window.scanned }];
    };
})()"""


def trust_in(person: Person, peer: Person) -> Trust | None:
    found = person.book.by_public(peer.public)
    return None if found is None else found.trust


async def test_the_code_of_the_peer_is_scanned_or_pasted(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await homes.enter_async_context(alice.at_home())
    await alice.enters(tab)
    await talks_with(tab, bob)
    await tab.run(READS)
    await tab.click("#details")
    own = verification_code(alice.public, bob.public)
    shown = await tab.until("document.querySelector('.code-text code')?.textContent")
    assert shown == own
    size = qr_path(own)[0]
    assert await tab.run("document.querySelector('.qr').getAttribute('viewBox')") == (
        f"0 0 {size} {size}"
    )
    await tab.until("!document.getElementById('scan').hidden")
    problem = "document.querySelector('#sheet .problem').innerText"
    for scanned, says in (("", "camera"), (own, "this node shows"), ("123", "60 digits")):
        await tab.run(f"window.scanned = {scanned!r}; document.getElementById('scan').click()")
        await tab.until(f"{problem}.includes({says!r})")
    assert trust_in(alice, bob) is Trust.ADDED
    code = verification_code(bob.public, alice.public)
    await tab.run(f"window.scanned = {code!r}; document.getElementById('scan').click()")
    await tab.until("document.querySelector('#sheet .trust').innerText.includes('Verified')")
    assert await tab.run("window.stream.getTracks().every((each) => each.readyState === 'ended')")
    assert trust_in(alice, bob) is Trust.VERIFIED
