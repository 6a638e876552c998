"""Messages are handed out in the order in which they were put, but for those that come again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from millpond.actors.messages import Durability, Mode
from millpond.node.jobs.payload import decode_job
from tests.sim.nodes import client_events as ce
from tests.sim.nodes import events as e
from tests.sim.nodes.history import ChannelHistory, History


def check(history: History) -> Iterator[str]:
    """PA-18, P2P-15: by id on each connection; ids by the order of the puts."""
    ranked = {(each.node, f"jobs/{each.name}") for each in history.plan.jobs if each.is_operated}
    for place, channel in history.channels.items():
        yield from (_check_ranked if place in ranked else _check_pushes)(channel)
        yield from _check_ids(channel)
    yield from _check_producers(history)


def _check_pushes(channel: ChannelHistory) -> Iterator[str]:
    """In a queue all connections together take the place of one. Messages that a consumer put
    itself wait for another one, and may be passed."""
    top: dict[int, int] = {}
    at_once: dict[int, tuple[float, int]] = {}
    seen: dict[object, set[int]] = {}
    consumers = () if channel.plan is None else channel.plan.consumers
    putters = {each.who for each in consumers if each.habits.puts}
    late = {put.data for put in channel.of(e.Put) if put.due or put.who in putters}
    for event in channel.events:
        match event:
            case e.Boot():
                top.clear()
            case e.Push(conn=conn, id=id) if event.data not in late:
                connection = channel.connections[conn]
                scope = 0 if channel.mode is Mode.QUEUE else conn
                if channel.mode is Mode.FANOUT and not connection.identity:
                    reader: object = conn
                else:
                    reader = connection.identity if channel.mode is Mode.FANOUT else 0
                known = seen.setdefault(reader, set())
                # Messages to several connections at one moment go to one after the other.
                at, before = at_once.get(scope, (-1.0, 0))
                if at != event.at or scope:
                    before = top.get(scope, 0)
                    at_once[scope] = event.at, before
                if id < before and id not in known and event.attempt < 2:
                    yield channel.say(event, f"{id} is pushed after {before}")
                known.add(id)
                top[scope] = max(top.get(scope, 0), id)
            case _:
                pass


def _check_ranked(channel: ChannelHistory) -> Iterator[str]:
    """Jobs with priorities and limit keys: an older job is not behind one of the same or a lower
    priority, however fast they age, unless the limit of its key holds it back."""
    top: dict[tuple[int, bytes], int] = {}
    moment: list[tuple[tuple[int, bytes], int]] = []
    at, known = -1.0, set[int]()
    late = {put.data for put in channel.of(e.Put) if put.due}
    for event in channel.events:
        match event:
            case e.Boot():
                top.clear()
                moment.clear()
            case e.Push(id=id) if event.data not in late:
                if event.at != at:
                    for rank, before in moment:
                        top[rank] = max(top.get(rank, 0), before)
                    at = event.at
                    moment.clear()
                job = decode_job(event.data)
                behind = [
                    before
                    for (priority, key), before in top.items()
                    if priority <= job.priority and job.limit_key in (b"", key)
                ]
                before = max(behind, default=0)
                if id < before and id not in known and event.attempt < 2:
                    yield channel.say(event, f"{id} is pushed after {before}")
                known.add(id)
                moment.append(((job.priority, job.limit_key), id))
            case _:
                pass


def _check_ids(channel: ChannelHistory) -> Iterator[str]:
    puts: dict[int, list[e.Put]] = {}
    told: dict[int, int] = {}
    tops: dict[int, tuple[int, int]] = {}
    last = 0
    for event in channel.events:
        match event:
            case e.Put():
                puts.setdefault(event.conn, []).append(event)
            case e.Kept(conn=conn, key=key, id=id):
                if id in told:
                    continue
                told[id] = key
                index = next(
                    at for at, put in reversed(list(enumerate(puts[conn]))) if put.key == key
                )
                before, top = tops.get(conn, (-1, 0))
                if index > before and id < top:
                    yield channel.say(event, f"{id} was put after {top}")
                if index > before:
                    tops[conn] = index, id
                last = max(last, id)
            case _:
                pass


def _check_producers(history: History) -> Iterator[str]:
    """Also over several connections, unless something was refused. Ids that were kept nowhere are
    not known after a restart (docs/internals/storage.md): with a clock that was set back they go
    back. The first receipt counts: what is put again after a loss is a new message."""
    refused = {each.who for each in history.seen if isinstance(each, e.Refused)}
    placed: dict[tuple[str, bytes], int] = {}
    ids: dict[str, dict[int, int]] = {}
    unkept = {
        (channel.node, channel.name)
        for channel in history.channels.values()
        if channel.durability is not Durability.DISK and not channel.clock.is_steady
    }
    for event in history.client_events:
        match event:
            case ce.Putting():
                placed.setdefault((event.who, event.data), len(placed))
            case ce.Receipt() if event.who not in refused and (
                (event.node, event.channel) not in unkept
            ):
                indexes = ids.setdefault(event.who, {})
                indexes.setdefault(placed[event.who, event.data], event.id)
            case _:
                pass
    for who, receipts in ids.items():
        for (_, before), (_, after) in pairwise(sorted(receipts.items())):
            if after < before:
                yield f"{who}: {after} was put after {before}"
