"""Long conversations, and those that somebody made to do harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from millpond.node.peers.address_book import Peer, Trust
from tests.browser.chromium import Tab
from tests.browser.conftest import Person

MESSAGES = 10_000
ROWS_MAX = 300
START_MS = 1_700_000_000_000
SCROLLER = "document.getElementById('scroller')"
ROWS = "document.querySelectorAll('#timeline > li').length"
FIRST_IN_SIGHT = f"""(() => {{
    const edge = {SCROLLER}.getBoundingClientRect().top;
    const row = [...document.querySelectorAll('.message')].find(
        (each) => each.getBoundingClientRect().top >= edge
    );
    return [row.querySelector('.text').textContent, row.getBoundingClientRect().top];
}})()"""


def record(kind: str, place: int, text: str, **fields: object) -> bytes:
    found: dict[str, object] = {"v": 1, "kind": kind, "at": START_MS + place * 60_000}
    if text:
        found["text"] = text
    if kind in ("in", "out"):
        found |= {"uuid": f"{place:032x}", "n": place + 1, "line": "00000000"}
    return json.dumps({**found, **fields}).encode()


def records(count: int) -> Iterator[bytes]:
    for place in range(count):
        yield record("in" if place % 3 else "out", place, f"message {place}")


async def opened(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person, bodies: list[bytes]
) -> None:
    """Alice's page, with all of this said already, and read."""
    node = await homes.enter_async_context(alice.at_home())
    ledger = alice.history_with(bob.public)
    await ledger.create(2**28)
    for start in range(0, len(bodies), 1000):
        await ledger.append(bodies[start : start + 1000])
    await ledger.commit(b"read", len(bodies))
    node.peer_services.keyring.book.add(Peer("bob", bob.public, Trust.ADDED, (), (), 0.0))
    await alice.enters(tab)
    await tab.until("document.querySelector('.preview:not(.is-empty)') !== null")
    await tab.click("#people-list button")
    await tab.until("document.querySelectorAll('.message').length > 0")


async def test_ten_thousand_messages_stay_fluid(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await opened(tab, homes, alice, bob, list(records(MESSAGES)))
    last = "document.querySelector('.message:last-child .text').textContent"
    assert await tab.run(last) == f"message {MESSAGES - 1}"
    await tab.run(
        f"""(async () => {{
            window.seen = {{ rows: 0, ms: [] }};
            for (let i = 0; i < 200; i += 1) {{
                const began = performance.now();
                {SCROLLER}.scrollTop -= 1500;
                {SCROLLER}.dispatchEvent(new Event('scroll'));
                seen.ms.push(performance.now() - began);
                seen.rows = Math.max(seen.rows, {ROWS});
                await new Promise((resolve) => setTimeout(resolve, 5));
            }}
        }})()"""
    )
    seen = await tab.run("window.seen")
    assert seen["rows"] <= ROWS_MAX
    # Of a page that lays out all of the history, each step takes long; of ours, those that wait
    # for a busy machine.
    assert median(seen["ms"]) < 100
    reached = int((await tab.run(FIRST_IN_SIGHT))[0].split()[1])
    assert reached < MESSAGES - 500
    assert await tab.run(ROWS) <= ROWS_MAX
    await tab.click("#to-end")
    await tab.until(f"{last} === 'message {MESSAGES - 1}'")
    assert await tab.run(ROWS) <= ROWS_MAX


async def test_what_is_read_stays_where_it_is_while_older_ones_come(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await opened(tab, homes, alice, bob, list(records(1000)))
    for _ in range(8):
        await tab.run(f"{SCROLLER}.scrollTop = 300")
        before: Any = await tab.run(FIRST_IN_SIGHT)
        key = json.dumps(before[0])
        rows = "[...document.querySelectorAll('.message')]"
        same = f"{rows}.find((each) => each.querySelector('.text').textContent === {key})"
        await tab.until(f"{SCROLLER}.scrollTop > 1000")
        moved = await tab.run(f"{same}.getBoundingClientRect().top") - before[1]
        assert abs(moved) < 2


async def test_all_of_a_history_is_shown_once_and_in_order(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    await opened(tab, homes, alice, bob, list(records(700)))
    seen = await tab.run(
        f"""(async () => {{
            const seen = [];
            for (let i = 0; i < 600 && seen[0] !== 0; i += 1) {{
                const shown = [...document.querySelectorAll('.message .text')].map((each) =>
                    Number(each.textContent.split(' ')[1]));
                seen.unshift(...shown.filter((each) => !seen.length || each < seen[0]));
                {SCROLLER}.scrollTop -= 600;
                await new Promise((resolve) => setTimeout(resolve, 10));
            }}
            return seen;
        }})()"""
    )
    assert seen == list(range(700))


HOSTILE = [
    "<img src=x onerror=\"document.title='broken'\">",
    "<script>document.title='broken'</script>",
    "javascript:alert(1)",
    "\u202egnp.exe then left to right",
    "a" * 4000,
    "\u0000\u0007\ufeff odd",
    "\U0001f469\u200d\U0001f467 \ufdfd \u05e9\u05dc\u05d5\u05dd",
]


async def test_what_peers_write_is_text_and_nothing_else(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    bodies = [record("in", place, text) for place, text in enumerate(HOSTILE)]
    await opened(tab, homes, alice, bob, bodies)
    texts = "[...document.querySelectorAll('.message .text')].map((each) => each.textContent)"
    assert await tab.run(texts) == HOSTILE
    assert await tab.run("document.querySelectorAll('.text *').length") == 0
    assert await tab.run("document.title") == "Millpond"
    assert await tab.run(f"{SCROLLER}.scrollWidth <= {SCROLLER}.clientWidth")


async def test_links_lead_out_of_the_page_without_telling_where_from(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    text = "see https://example.org/a?b=c#d, or (http://example.org)."
    await opened(tab, homes, alice, bob, [record("in", 0, text)])
    links = "[...document.querySelectorAll('.text a')].map((a) => [a.href, a.target, a.rel])"
    out = ["_blank", "noopener noreferrer"]
    assert await tab.run(links) == [
        ["https://example.org/a?b=c#d", *out],
        ["http://example.org/", *out],
    ]
    assert await tab.run("document.querySelector('.message .text').textContent") == text


async def test_records_that_nobody_understands_are_passed_over(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    odd = [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"v":2,"kind":"in"}', b'{"v":1}', b"[" * 9000]
    bodies = [record("in", 0, "first"), *(each or b" " for each in odd)]
    bodies += [record("note", 1, "1 message did not arrive"), record("in", 2, "last")]
    await opened(tab, homes, alice, bob, bodies)
    await tab.until("document.querySelectorAll('.message').length === 2")
    assert await tab.text(".note") == "1 message did not arrive"


async def test_fates_are_shown_as_far_as_they_got(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    """In whatever order they were kept; what was said to be lost and is there is there."""
    told = {
        0: ["sent", "kept"],
        1: ["read", "delivered"],
        2: ["expired", "delivered"],
        3: ["refused"],
    }
    bodies = [record("out", place, f"{place}", state="waiting") for place in told]
    for place, states in told.items():
        bodies += [record("state", 9, "", uuid=f"{place:032x}", state=state) for state in states]
    await opened(tab, homes, alice, bob, bodies)
    fates = "[...document.querySelectorAll('.fate')].map((each) => each.ariaLabel)"
    assert await tab.run(fates) == ["Sent", "Read", "Delivered", "Refused"]


async def test_a_history_of_changes_alone_is_read_back_as_far_as_somebody_wants(
    tab: Tab, homes: AsyncExitStack, alice: Person, bob: Person
) -> None:
    change = {"action": "react", "about": "0" * 32}
    bodies = [record("in", 0, "the first")]
    bodies += [record("in", place, "ok", **change) for place in range(1, 12_000)]
    bodies.append(record("in", 12_000, "the last"))
    await opened(tab, homes, alice, bob, bodies)
    older = "document.getElementById('load-older')"
    texts = "[...document.querySelectorAll('.message .text')].map((each) => each.textContent)"
    assert await tab.run(texts) == ["the last"]
    await tab.until(f"!{older}.hidden")
    for _ in range(2):
        await tab.click("#load-older")
        await tab.until("document.getElementById('loading').hidden")
    await tab.until(f"{texts}.length === 2")
    assert await tab.run(texts) == ["the first", "the last"]
    assert await tab.run(f"{older}.hidden")
    assert tab.errors == []
