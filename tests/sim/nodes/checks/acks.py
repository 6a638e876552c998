"""Acknowledged messages are not delivered again, and acknowledgements arrive."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.actors.messages import Mode
from tests.sim.nodes import client_events as ce
from tests.sim.nodes import events as e
from tests.sim.nodes.history import ChannelHistory, History


def check(history: History) -> Iterator[str]:
    """P2P-12, P2P-15."""
    for channel in history.channels.values():
        yield from _check_again(channel)
        if not channel.name.startswith("jobs/"):
            yield from _check_unasked(history, channel)
        if channel.plan is not None:
            yield from _check_acks_arrive(history, channel)


def _check_again(channel: ChannelHistory) -> Iterator[str]:
    """By the node, also after a restart, unless that came before the ack was on the disk.

    A list that was requested before the ack may come late, where the disk holds replies up. The
    acks of a subscriber without an identity are kept nowhere, so a fanout channel that is built
    anew because the disk failed pushes its messages again (docs/internals/storage.md); subscribers
    with an identity do not get them again.
    """
    acked: dict[tuple[object, int], float] = {}
    requested: dict[int, list[float]] = {}
    for event in channel.events:
        match event:
            case e.Ack(id=id, conn=conn) if (conn, event.at) not in channel.refused_reads:
                acked.setdefault((_reader(channel, conn), id), event.at)
            case e.Push(id=id, conn=conn):
                at = acked.get((_reader(channel, conn), id))
                if at is None or event.at == at:
                    continue
                is_nobody = channel.mode is Mode.FANOUT and not channel.connections[conn].identity
                if not (is_nobody and channel.has_trouble(at, event.at)):
                    yield channel.say(
                        event, f"{id} comes again, {event.at - at:.3f} s after its ack"
                    )
            case e.ListRequested(conn=conn):
                requested.setdefault(conn, []).append(event.at)
            case e.Listed(ids=ids, conn=conn):
                since = requested[conn].pop(0)
                for id in ids if channel.mode is not Mode.FANOUT else ():
                    at = acked.get((0, id))
                    if at is None or (since <= at and channel.has_trouble(at, event.at)):
                        continue
                    if event.at > at:
                        yield channel.say(
                            event, f"{id} is listed {event.at - at:.3f} s after its ack"
                        )
            case e.Halt():
                for key, at in list(acked.items()):
                    if channel.soft_may_be_lost(at, event):
                        del acked[key]
            case _:
                pass


def _check_unasked(history: History, channel: ChannelHistory) -> Iterator[str]:
    """Nothing is acknowledged but what the program is done with."""
    said = {
        (event.who, event.id)
        for event in history.client_events
        if isinstance(event, ce.Acked)
        and (event.node, event.channel) == (channel.node, channel.name)
    }
    for ack in channel.of(e.Ack):
        if (ack.who, ack.id) not in said:
            yield channel.say(ack, f"{ack.who} did not acknowledge {ack.id}")


def _reader(channel: ChannelHistory, conn: int) -> object:
    """The owner of an ack: in a fanout channel the subscriber, else the whole channel."""
    if channel.mode is not Mode.FANOUT:
        return 0
    return channel.connections[conn].identity or conn


def _check_acks_arrive(history: History, channel: ChannelHistory) -> Iterator[str]:
    """A connection that stays gets its acks through, and no message again that it has acked."""
    arrived = {(ack.who, ack.id) for ack in channel.of(e.Ack)}
    acked: set[tuple[str, int]] = set()
    for event in history.client_events:
        match event:
            case ce.Acked() if (event.node, event.channel) == (channel.node, channel.name):
                acked.add((event.who, event.id))
                if (event.who, event.id) not in arrived and _must_arrive(history, channel, event):
                    text = f"the ack of {event.id} by {event.who} never arrives"
                    yield f"{event.at:.3f} {channel.node}/{channel.name}: {text}"
            case ce.Got() if (event.node, event.channel) == (channel.node, channel.name):
                if (event.who, event.id) in acked and event.who in _staying(channel):
                    text = f"{event.who} is shown {event.id} again, which it acked"
                    yield f"{event.at:.3f} {channel.node}/{channel.name}: {text}"
            case _:
                pass


def _staying(channel: ChannelHistory) -> set[str]:
    """Consumers that are one `connect` from beginning to end."""
    assert channel.plan is not None
    return {
        each.who
        for each in channel.plan.consumers
        if not each.habits.dies and not each.habits.hangs_up
    }


def _must_arrive(history: History, channel: ChannelHistory, event: ce.Acked) -> bool:
    """Said on a connection that lasted, or, by who stays, while there was none. One that is stalled
    learns of the end of its connection only then."""
    stalls = (
        fault.lasts_s
        for fault in history.plan.faults
        if fault.kind == "stall" and fault.a == event.who
    )
    gone_s = history.late_s + max(stalls, default=0.0)
    own = [connection for connection in channel.connections.values() if connection.who == event.who]
    for connection in own:
        if connection.ready_at <= event.at < connection.until + gone_s:
            return connection.until >= history.end
    if event.who not in _staying(channel) or any(
        fault.kind == "partition" and fault.a == event.who for fault in history.plan.faults
    ):
        return False
    later = [connection for connection in own if connection.ready_at > event.at]
    return bool(later) and later[0].until - later[0].ready_at > history.late_s
