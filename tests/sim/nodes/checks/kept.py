"""Accepted messages are delivered, expire, or become dead letters: none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from millpond.actors.messages import Mode
from tests.sim.nodes import events as e
from tests.sim.nodes.history import Guest, History, Message, Story

CANCEL = 5
SLACK_S = 0.002


def check(history: History) -> Iterator[str]:
    """P2P-30, PS-14."""
    for story in history.stories.values():
        if story.name.endswith("!dead"):
            continue
        if story.plan is not None:
            yield from _check_lists(story)
        if story.mode is Mode.FANOUT:
            yield from _check_fanout(history, story)
        else:
            yield from _check_shared(history, story)


def _check_shared(history: History, story: Story) -> Iterator[str]:
    settled = _settled(story)
    dead = set() if story.dead is None else set(story.dead.messages)
    for message in story.messages.values():
        if not message.kept or message.data in dead or _may_be_gone(history, story, message):
            continue
        if not settled.intersection(message.ids):
            kept = message.kept[0]
            yield story.say(kept, f"accepted as {kept.id}, and lost: {message.data[:40]!r}")


def _check_fanout(history: History, story: Story) -> Iterator[str]:
    order = {id(event): at for at, event in enumerate(story.events)}
    for identity in {guest.identity for guest in story.guests.values() if guest.identity}:
        settled = _settled(story, identity)
        for message in story.messages.values():
            if not message.kept or _may_be_gone(history, story, message):
                continue
            if _is_owed(story, message, identity, order) and not settled.intersection(message.ids):
                kept = message.kept[0]
                text = f"{kept.id} never came to a subscriber: {message.data[:40]!r}"
                yield story.say(kept, text)
    for guest in story.guests.values():
        if guest.receives and not guest.identity and guest.until >= history.end:
            yield from _check_anonymous(history, story, guest, order)


def _check_anonymous(
    history: History, story: Story, guest: Guest, order: dict[int, int]
) -> Iterator[str]:
    """It is there until the end."""
    ready = next(event for event in story.of(e.Ready) if event.conn == guest.conn)
    pushed = {push.id for push in story.of(e.Push) if push.conn == guest.conn}
    for message in story.messages.values():
        if not message.kept or _may_be_gone(history, story, message):
            continue
        if order[id(message.puts[0])] > order[id(ready)] and not pushed.intersection(message.ids):
            kept = message.kept[0]
            yield story.say(kept, f"{kept.id} was never pushed to {guest.who}")


def _is_owed(story: Story, message: Message, identity: bytes, order: dict[int, int]) -> bool:
    """Was the identity surely subscribed when the message came, and is it still?"""
    put_at = order[id(message.puts[0])]
    subscribed: float | None = None
    for at, event in enumerate(story.events):
        match event:
            case e.Ready(conn=conn) if at < put_at or subscribed is not None:
                guest = story.guests[conn]
                if guest.identity == identity and guest.receives:
                    subscribed = event.at if subscribed is None else subscribed
            case e.Halt():
                if subscribed is not None and story.soft_may_be_lost(subscribed, event):
                    subscribed = None
            case _:
                pass
    own = any(story.guests[put.conn].identity == identity for put in message.puts)
    return subscribed is not None and not own


def _settled(story: Story, identity: bytes | None = None) -> set[int]:
    settled = set()
    for event in story.events:
        match event:
            case e.Ack() | e.Nack(code=0x31):
                if identity is None or story.guests[event.conn].identity == identity:
                    settled.add(event.id)
            case e.JobAsked(operation=operation) if operation == CANCEL:
                settled.add(event.body["id"])
            case _:
                pass
    return settled


def _may_be_gone(history: History, story: Story, message: Message) -> bool:
    if story.clock.high(history.end) >= message.expires_low:
        return True
    return story.may_be_lost(message.kept[0].at)


def _check_lists(story: Story) -> Iterator[str]:
    """A list has everything that is surely there."""
    asked: dict[int, float] = {}
    alive: dict[int, float] = {}
    for event in story.events:
        match event:
            case e.ListAsked(conn=conn, start=0, end=0):
                asked.setdefault(conn, event.at)
            case e.Kept(id=id):
                alive.setdefault(id, event.at)
            case e.Ack(id=id) | e.Nack(id=id, code=0x31):
                alive[id] = inf
            case e.Push(id=id, attempt=attempt) | e.Missed(id=id, attempt=attempt) if (
                attempt >= story.attempts_max
            ):
                alive[id] = inf  # it may become a dead letter any moment
            case e.Trouble() | e.Halt():
                alive = dict.fromkeys(alive, inf)
            case e.Listed(conn=conn, ids=ids) if conn in asked:
                since = asked.pop(conn)
                for id, at in alive.items():
                    if at < since and id not in ids and _is_alive(story, id, event.at):
                        yield story.say(event, f"{id} is not listed, and should be there")
            case _:
                pass


def _is_alive(story: Story, id: int, at: float) -> bool:
    return story.clock.high(at) + SLACK_S < story.by_id[id].expires_low
