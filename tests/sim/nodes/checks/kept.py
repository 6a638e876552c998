"""Accepted messages are delivered, expire, or become dead letters: none is lost.

Those of a queue that expire are dead letters, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from millpond.actors.messages import Mode
from tests.sim.nodes import events as e
from tests.sim.nodes.history import ChannelHistory, Connection, History, Message

CANCEL = 5
SLACK_S = 0.002


def check(history: History) -> Iterator[str]:
    """P2P-30, PS-14."""
    for channel in history.channels.values():
        if channel.name.endswith("!dead"):
            continue
        if channel.plan is not None:
            yield from _check_lists(channel)
        if channel.mode is Mode.FANOUT:
            yield from _check_fanout(history, channel)
        else:
            yield from _check_shared(history, channel)


def _check_shared(history: History, channel: ChannelHistory) -> Iterator[str]:
    settled = _settled(channel)
    dead = set() if channel.dead is None else set(channel.dead.messages)
    for message in channel.messages.values():
        if not message.kept or message.data in dead or _may_be_gone(history, channel, message):
            continue
        if not settled.intersection(message.ids):
            kept = message.kept[0]
            yield channel.say(kept, f"accepted as {kept.id}, and lost: {message.data[:40]!r}")


def _check_fanout(history: History, channel: ChannelHistory) -> Iterator[str]:
    order = {id(event): at for at, event in enumerate(channel.events)}
    for identity in {
        connection.identity for connection in channel.connections.values() if connection.identity
    }:
        settled = _settled(channel, identity)
        for message in channel.messages.values():
            if not message.kept or _may_be_gone(history, channel, message):
                continue
            if _is_owed(channel, message, identity, order) and not settled.intersection(
                message.ids
            ):
                kept = message.kept[0]
                text = f"{kept.id} never came to a subscriber: {message.data[:40]!r}"
                yield channel.say(kept, text)
    for connection in channel.connections.values():
        if connection.receives and not connection.identity and connection.until >= history.end:
            yield from _check_anonymous(history, channel, connection, order)


def _check_anonymous(
    history: History, channel: ChannelHistory, connection: Connection, order: dict[int, int]
) -> Iterator[str]:
    """It is there until the end."""
    ready = next(event for event in channel.of(e.Ready) if event.conn == connection.conn)
    pushed = {push.id for push in channel.of(e.Push) if push.conn == connection.conn}
    for message in channel.messages.values():
        if not message.kept or _may_be_gone(history, channel, message):
            continue
        if order[id(message.puts[0])] > order[id(ready)] and not pushed.intersection(message.ids):
            kept = message.kept[0]
            yield channel.say(kept, f"{kept.id} was never pushed to {connection.who}")


def _is_owed(
    channel: ChannelHistory, message: Message, identity: bytes, order: dict[int, int]
) -> bool:
    """Was the identity surely subscribed when the message came, and is it still?"""
    put_at = order[id(message.puts[0])]
    subscribed: float | None = None
    for at, event in enumerate(channel.events):
        match event:
            case e.Ready(conn=conn) if at < put_at or subscribed is not None:
                connection = channel.connections[conn]
                if connection.identity == identity and connection.receives:
                    subscribed = event.at if subscribed is None else subscribed
            case e.Halt():
                if subscribed is not None and channel.soft_may_be_lost(subscribed, event):
                    subscribed = None
            case _:
                pass
    own = any(channel.connections[put.conn].identity == identity for put in message.puts)
    return subscribed is not None and not own


def _settled(channel: ChannelHistory, identity: bytes | None = None) -> set[int]:
    settled = set()
    for event in channel.events:
        match event:
            case e.Ack() | e.Nack(code=0x31):
                if identity is None or channel.connections[event.conn].identity == identity:
                    settled.add(event.id)
            case e.JobRequested(operation=operation) if operation == CANCEL:
                settled.add(event.body["id"])
            case _:
                pass
    return settled


def _may_be_gone(history: History, channel: ChannelHistory, message: Message) -> bool:
    if channel.mode is not Mode.QUEUE and channel.clock.high(history.end) >= message.expires_low:
        return True
    return channel.may_be_lost(message.kept[0].at)


def _check_lists(channel: ChannelHistory) -> Iterator[str]:
    """A list has everything that is surely there."""
    requested: dict[int, float] = {}
    alive: dict[int, float] = {}
    for event in channel.events:
        match event:
            case e.ListRequested(conn=conn, start=0, end=0):
                requested.setdefault(conn, event.at)
            case e.Kept(id=id):
                alive.setdefault(id, event.at)
            case e.Ack(id=id) | e.Nack(id=id, code=0x31):
                alive[id] = inf
            case e.Push(id=id, attempt=attempt) | e.Missed(id=id, attempt=attempt) if (
                attempt >= channel.attempts_max
            ):
                alive[id] = inf  # it may become a dead letter any moment
            case e.Trouble() | e.Halt():
                alive = dict.fromkeys(alive, inf)
            case e.Listed(conn=conn, ids=ids) if conn in requested:
                since = requested.pop(conn)
                for id, at in alive.items():
                    if at < since and id not in ids and _is_alive(channel, id, event.at):
                        yield channel.say(event, f"{id} is not listed, and should be there")
            case _:
                pass


def _is_alive(channel: ChannelHistory, id: int, at: float) -> bool:
    return channel.clock.high(at) + SLACK_S < channel.by_id[id].expires_low
