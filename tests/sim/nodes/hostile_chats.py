"""The chat in worlds with a hostile relay: texts of two persons, and message requests."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import msgspec

from millpond.actors.errors import RequestError, UnknownStream
from millpond.node.chat import message_requests
from millpond.node.chat.records import Kind, Record, State, conversation_stream, decode_record
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.identity import peer_id
from millpond.node.testing.inline_threads import running_as_node
from millpond.testing import NotRunning, SimNode

ASKED_S = 30.0
AGAIN_S = 1.0
ANSWERS = ("accept", "accept", "refuse", "block", "nothing")
FAILED = (NotRunning, RequestError, OSError, sqlite3.Error)
"""A node that is killed does not finish what was asked."""
ARRIVED = (State.DELIVERED, State.READ)


@dataclass
class SentText:
    """A text that a node has accepted, or may have (`is_sure` is False)."""

    source: str
    target: str
    uuid: str
    deadline: float
    is_sure: bool = False


@dataclass
class Chats:
    """The texts of a world, and the strangers that each person has accepted, with their texts."""

    counts: Counter[str]
    sent: dict[str, SentText] = field(default_factory=dict)
    accepted: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """By person and peer id."""
    unsure: set[tuple[str, str]] = field(default_factory=set)
    """Those that a killed node may have accepted."""
    is_over: bool = False
    """No request is answered any more: an accepted text is shown after a while."""


async def ask(person: SimNode, operation: PeerOperation, **fields: Any) -> dict[str, Any]:
    """A request as the terminal makes it. Raises NotRunning, TimeoutError and the node's errors."""
    handler = person.node.peer_requests._handlers[operation]
    with running_as_node(), anyio.fail_after(ASKED_S):
        return msgspec.msgpack.decode(await handler(msgspec.msgpack.encode(fields)))


async def say(person: SimNode, other: SimNode, text: str, now: float, chats: Chats) -> None:
    """Say something, and repeat it under its uuid if the node fails, a few times."""
    uuid = Random(text).randbytes(16)
    ttl_s = person.config.peer_ttl_s
    sent = chats.sent[text] = SentText(person.name, other.name, uuid.hex(), now + ttl_s)
    for _ in range(3):
        try:
            await ask(person, PeerOperation.CHAT_SEND, peer=other.name, text=text, uuid=uuid)
        except (*FAILED, TimeoutError) as error:
            chats.counts[f"not said: {type(error).__name__}"] += 1
            await anyio.sleep(AGAIN_S)
        else:
            sent.is_sure = True
            return


async def operate(person: SimNode, rng: Random, chats: Chats) -> None:
    """Answer message requests now and then."""
    for number in range(1_000_000):
        await anyio.sleep(rng.uniform(5.0, 120.0))
        if chats.is_over:
            return
        try:
            listed = await ask(person, PeerOperation.CHAT_REQUESTS)
        except (*FAILED, TimeoutError):
            continue
        found = listed["requests"]
        assert len(found) <= message_requests.SENDERS_MAX
        for place, request in enumerate(found):
            assert len(request["texts"]) <= message_requests.MESSAGES_MAX
            deed = rng.choice(ANSWERS)
            chats.counts[f"request: {deed}"] += 1
            if deed != "nothing":
                await _answer(person, request, deed, f"stranger {number}-{place}", chats)


async def _answer(
    person: SimNode, request: dict[str, Any], deed: str, name: str, chats: Chats
) -> None:
    place = person.name, request["id"]
    is_accepted = deed == "accept"
    if is_accepted:
        chats.unsure.add(place)
    try:
        if is_accepted:
            answer = await ask(person, PeerOperation.CHAT_ACCEPT, id=request["id"], name=name)
            assert answer["error"] is None, answer
        else:
            is_block = deed == "block"
            await ask(person, PeerOperation.CHAT_REFUSE, id=request["id"], block=is_block)
    except (*FAILED, TimeoutError):
        chats.counts["request: not answered"] += 1
        return
    if is_accepted:
        chats.accepted.setdefault(place, set()).update(each["text"] for each in request["texts"])


async def has_waiting(person: SimNode, other: SimNode) -> bool:
    """True while texts wait for a key."""
    try:
        answer = await ask(person, PeerOperation.CHATS, peer=other.name)
    except (*FAILED, TimeoutError):
        return True
    return bool(answer["chats"][0]["waiting"])


async def history(person: SimNode, public: bytes) -> list[Record]:
    """The records of a conversation."""
    stream = person.node.peer_services._local_stream(conversation_stream(public))
    try:
        tail = (await stream.describe()).info.tail
    except UnknownStream:
        return []
    return [decode_record(body) async for _, body in stream.read(0, tail)]


async def problems(
    persons: list[SimNode], strangers: list[bytes], chats: Chats, now: float
) -> list[str]:
    """The faults of the conversations in the end."""
    found: list[str] = []
    for person, other in (persons, reversed(persons)):
        records = await history(person, other.public)
        own = await history(other, person.public)
        found += _of_pair(records, own, person.name, other.name, chats, now)
        for public in strangers:
            records = await history(person, public)
            found += _of_stranger(records, public, person, chats)
    return found


def _of_pair(
    records: list[Record], own: list[Record], reader: str, writer: str, chats: Chats, now: float
) -> Iterator[str]:
    shown = Counter(each.text for each in records if each.kind is Kind.IN)
    states = {each.uuid: each.state for each in own if each.kind in (Kind.OUT, Kind.STATE)}
    chats.counts["shown"] += sum(shown.values())
    for text, count in shown.items():
        if count > 1:
            yield f"{text!r} is shown {count} times to {reader}"
        if text not in chats.sent or chats.sent[text].source != writer:
            yield f"{text!r} was not said by {writer}"
    yield from _of_order(records, reader)
    for text, sent in chats.sent.items():
        if sent.source != writer or not sent.is_sure:
            continue
        state = states.get(sent.uuid)
        chats.counts[f"said: {state}"] += 1
        if state in ARRIVED and not shown[text]:
            yield f"{text!r} is {state} and not shown to {reader}"
        if not shown[text] and sent.deadline > now:
            yield f"{text!r} is {state}, and not shown to {reader} in the end"


def _of_order(records: list[Record], reader: str) -> Iterator[str]:
    last: dict[str, int] = {}
    for each in records:
        if each.kind is Kind.IN and not each.late:
            if each.n <= last.get(each.line, 0):
                yield f"{each.text!r} is shown out of order to {reader}"
            last[each.line] = each.n


def _of_stranger(
    records: list[Record], public: bytes, person: SimNode, chats: Chats
) -> Iterator[str]:
    place = person.name, peer_id(public)
    shown = Counter(each.text for each in records if each.kind is Kind.IN)
    if shown and place not in chats.unsure:
        yield f"{person.name} is shown {list(shown)} of a stranger"
    chats.counts["shown of strangers"] += sum(shown.values())
    for text, count in shown.items():
        if count > 1:
            yield f"{text!r} of a stranger is shown {count} times to {person.name}"
    for text in chats.accepted.get(place, ()):
        if not shown[text]:
            yield f"{text!r} of an accepted stranger is not shown to {person.name}"
    if place not in chats.unsure:
        outbox = person.node.outbox
        if outbox.queued(public) or outbox.unconfirmed(public):
            yield f"{person.name} has written to a stranger"
        if public in outbox.context.store.states:
            yield f"{person.name} has a state for a stranger"
