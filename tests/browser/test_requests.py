"""Message requests on the chat page."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from pathlib import Path

from millpond.node.chat.payloads import Text, encode_payload
from millpond.node.chat.records import conversation_stream
from millpond.node.peers.address_book import Trust
from tests.browser.chromium import Tab
from tests.browser.conftest import Person
from tests.node.outbox.peer_nodes import PeerNode, leave

SHOWN = "!document.getElementById('requests').hidden"
HIDDEN = "document.getElementById('requests').hidden"


async def write_to(alice: Person, stranger: PeerNode, said: str) -> None:
    clear = encode_payload(Text("5f3a9c01", 1, int(time.time() * 1000), said))
    letter = stranger.letter_to(alice, clear, conversation_stream(stranger.public))
    await leave(alice.running, alice.public, letter)


async def test_a_request_is_answered_on_the_page(
    tab: Tab, homes: AsyncExitStack, tmp_path: Path
) -> None:
    alice = Person(tmp_path, "alice", message_requests=True)
    carol, spammer = (PeerNode(tmp_path, name) for name in ("carol", "spammer"))
    await homes.enter_async_context(alice.at_home())
    await write_to(alice, spammer, "<b>buy</b>")
    await write_to(alice, carol, "hello alice")
    await alice.enters(tab)
    await tab.until(SHOWN)
    await tab.until("document.getElementById('requests').innerText.startsWith('2 ')")
    await tab.click("#requests")
    await tab.until("document.querySelectorAll('.request').length === 2")
    assert "<b>buy</b>" in await tab.text(f".request[data-id='{spammer.identity.id}']")
    await tab.click(f".request[data-id='{spammer.identity.id}'] button:last-child")
    await tab.until("document.querySelectorAll('.request').length === 1")
    await tab.until("document.getElementById('sheet').open")
    await tab.click(".request input")
    await tab.type("carol")
    await tab.press("Enter")
    await tab.until(HIDDEN)
    await tab.until("document.getElementById('talk-name').innerText === 'carol'")
    await tab.until("document.querySelector('.message .text')?.textContent === 'hello alice'")
    found = {each.public: each.trust for each in alice.book.peers}
    assert found == {spammer.public: Trust.BLOCKED, carol.public: Trust.ADDED}
