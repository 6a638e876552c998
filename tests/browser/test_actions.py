"""Replies, edits, deletions and reactions in the page (docs/guides/chat.md)."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from tests.browser.chromium import Browser, Tab
from tests.browser.conftest import Person
from tests.browser.test_conversations import WORDS, sees, talks_with, writes

pytestmark = pytest.mark.usefixtures("friends")


async def both_talk(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> Tab:
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    other = await chromium.tab()
    await alice.enters(tab)
    await bob.enters(other)
    await talks_with(tab, bob)
    await talks_with(other, alice)
    return other


async def act(tab: Tab, action: str, place: int = -1) -> None:
    """Open the menu of a message, and choose."""
    await tab.until(
        "document.querySelectorAll('.message').length === document.querySelectorAll('.more').length"
    )
    await tab.run(f"[...document.querySelectorAll('.more')].at({place}).click()")
    await tab.until("document.activeElement.closest('.actions') !== null")
    await tab.run(f"document.querySelector('.actions [data-act={action}]').click()")


async def test_a_message_is_answered_edited_and_deleted(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    other = await both_talk(chromium, tab, homes, alice, bob)
    await writes(tab, "helo bob")
    await other.until(sees("helo bob"))
    await act(other, "reply")
    assert await other.text("#answering-text") == "Reply to: helo bob"
    await writes(other, "helo?")
    await tab.until(sees("helo bob", "helo?"))
    assert "helo bob" in await tab.text(".theirs .quote")
    assert await other.run("document.getElementById('answering').hidden")

    await tab.press("ArrowUp")  # in an empty draft: the last own message
    assert await tab.run("document.getElementById('draft').value") == "helo bob"
    await tab.run("document.getElementById('draft').value = ''")
    await writes(tab, "hello bob")
    await other.until(sees("hello bob", "helo?"))
    assert "hello bob" in await other.text(".ours .quote")
    assert "edited" in await other.text(".theirs .meta")

    await act(tab, "delete", 0)
    await other.until(sees("Message deleted", "helo?"))
    await tab.until(sees("Message deleted", "helo?"))
    assert await other.text(".ours .quote span:last-child") == "Message deleted"
    await other.reload()
    await other.until(sees("Message deleted", "helo?"))
    assert other.errors == []


async def test_a_reaction_is_seen_and_taken_back(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    other = await both_talk(chromium, tab, homes, alice, bob)
    await writes(tab, "good news")
    await other.until(sees("good news"))
    await act(other, "react")
    await tab.until("document.querySelector('.reaction')?.innerText === '👍'")
    await other.until("document.querySelector('.reaction') !== null")
    await act(other, "unreact")
    await tab.until("document.querySelector('.reaction') === null")
    assert await tab.run(WORDS) == ["good news"]
    assert other.errors == []


async def test_an_answer_and_a_menu_are_left_with_escape(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await both_talk(chromium, tab, homes, alice, bob)
    await writes(tab, "mine")
    await tab.until(sees("mine"))
    await tab.type("half a thought")
    await act(tab, "edit")
    assert await tab.run("document.getElementById('draft').value") == "mine"
    await tab.press("Escape")
    assert await tab.run("document.getElementById('draft').value") == "half a thought"
    await tab.until("document.querySelector('.more') !== null")
    await tab.run("document.querySelector('.more').click()")
    await tab.press("Escape")
    await tab.until("document.querySelector('.actions') === null")
    assert await tab.run("document.body.dataset.view") == "talk"


async def test_an_open_menu_stays_where_it_is_while_the_message_changes(
    chromium: Browser, tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    """The row is built anew when the other side has read the message."""
    await homes.enter_async_context(alice.at_home())
    await homes.enter_async_context(bob.at_home())
    other = await chromium.tab()
    await alice.enters(tab)
    await bob.enters(other)
    await talks_with(tab, bob)
    await writes(tab, "mine")
    await tab.until("document.querySelector('.fate')?.getAttribute('aria-label') === 'Delivered'")
    await tab.run("document.querySelector('.more').click()")
    await tab.run("document.querySelector('.actions [data-act=edit]').focus()")
    await talks_with(other, alice)
    await tab.until("document.querySelector('.fate').getAttribute('aria-label') === 'Read'")
    assert await tab.run("document.activeElement.dataset.act") == "edit"


async def test_a_change_of_an_older_page_is_seen_when_that_is_loaded(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    """The records of the change are read before those of the message."""
    from millpond.node.chat.records import Kind, Record, State, encode_record

    await homes.enter_async_context(alice.at_home())
    log = alice.history_with(bob.public)
    await log.create(2**26)
    records = [
        Record(1, Kind.IN, 1000 + n, f"{n:032x}", f"text {n}", None, n, "bbbbbbbb", 1000 + n)
        for n in range(1, 700)
    ]
    own = Record(1, Kind.OUT, 5000, "f" * 32, "x", State.READ, 1, "aaaaaaaa")
    change = {"action": "edit", "about": f"{1:032x}"}
    records += [
        own,
        Record(1, Kind.IN, 6000, "e" * 32, "new", None, 700, "bbbbbbbb", 6000, **change),  # type: ignore[arg-type]
    ]
    await log.append([encode_record(each) for each in records])
    await alice.enters(tab)
    await talks_with(tab, bob)
    await tab.until(f"{WORDS}.length > 30")
    assert "new" not in await tab.run(WORDS)
    for _ in range(40):
        await tab.run("document.getElementById('scroller').scrollTop = 0")
        if "new" in await tab.run(WORDS):
            break
        await tab.until("document.getElementById('loading').hidden")
    else:
        raise AssertionError(await tab.run(f"{WORDS}.slice(0, 3)"))
    assert "text 1" not in await tab.run(WORDS)


async def test_what_has_the_uuid_of_an_own_message_or_of_an_invite_changes_neither(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    """A peer chooses the uuids of its messages, and what they are about."""
    from millpond.node.chat.records import Kind, Record, State, encode_record

    await homes.enter_async_context(alice.at_home())
    log = alice.history_with(bob.public)
    await log.create(2**26)
    invite, own = "1" * 32, "2" * 32

    def came(n: int, uuid: str, text: str, action: str = "", about: str = "") -> Record:
        at = 1000 + n
        told = {"action": action, "about": about}
        return Record(1, Kind.IN, at, uuid, text, None, n, "bbbbbbbb", at, **told)  # type: ignore[arg-type]

    records = [
        Record(1, Kind.INVITE, 1000, invite, state=State.READ, secret="0" * 32),
        Record(1, Kind.OUT, 1000, own, "mine", State.WAITING, 1, "aaaaaaaa"),
        came(1, own, "not mine"),
        came(2, "3" * 32, "ok", "react", invite),
        came(3, "4" * 32, "not yours", "edit", own),
        came(4, "5" * 32, "x" * 65, "react", own),
    ]
    await log.append([encode_record(each) for each in records])
    await alice.enters(tab)
    await talks_with(tab, bob)
    await tab.until(sees("mine", "not yours", "x" * 65))
    assert await tab.text(".ours .text") == "mine"
    assert tab.errors == []


async def test_a_late_change_does_not_undo_a_later_one(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    from millpond.node.chat.records import Kind, Record, encode_record

    await homes.enter_async_context(alice.at_home())
    log = alice.history_with(bob.public)
    await log.create(2**26)

    def came(n: int, text: str, action: str = "") -> Record:
        told = {"action": action, "about": f"{1:032x}" if action else "", "late": True}
        return Record(1, Kind.IN, 1000, f"{n:032x}", text, None, n, "bbbbbbbb", 1000, **told)  # type: ignore[arg-type]

    records = [
        came(1, "helo"),
        came(4, "hello", "edit"),
        came(3, "hell", "edit"),
        came(6, "👍", "react"),
        came(5, "👎", "react"),
    ]
    await log.append([encode_record(each) for each in records])
    await alice.enters(tab)
    await talks_with(tab, bob)
    await tab.until(sees("hello"))
    assert await tab.text(".reaction") == "👍"
    assert tab.errors == []
