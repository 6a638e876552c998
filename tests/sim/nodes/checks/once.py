"""PUTs with one idempotency key are one message, and clients report the node's answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.sim.nodes import client_events as ce
from tests.sim.nodes.history import ChannelHistory, History, Message


def check(history: History) -> Iterator[str]:
    """P2P-10: a retry is harmless; a receipt and a push are of what was put."""
    by_node = {(each.node, f"jobs/{each.name}") for each in history.plan.flows}
    for place, channel in history.channels.items():
        if place not in by_node:
            for message in channel.messages.values():
                yield from _check_message(channel, message)
    yield from _check_clients(history)


def _check_message(channel: ChannelHistory, message: Message) -> Iterator[str]:
    first = {id: channel.first_seen[id] for id in message.ids}
    times = sorted((at, id) for id, at in first.items())
    for (before, one), (after, other) in pairwise(times):
        if not channel.may_be_lost(before, after) and not channel.name.endswith("!dead"):
            text = f"{message.data[:40]!r} is {one} since {before:.3f}, and {other}"
            yield f"{after:.3f} {channel.node}/{channel.name}: {text}"
    if not message.puts and not channel.name.endswith("!dead"):
        yield f"{channel.node}/{channel.name}: nobody put {message.data[:40]!r}"


def _check_clients(history: History) -> Iterator[str]:
    for event in history.client_events:
        match event:
            case ce.Receipt():
                channel = history.channels[event.node, event.channel]
                if event.id not in channel.messages[event.data].ids:
                    yield f"{event.at:.3f} {event.who}: {event.id} is another message's receipt"
            case ce.Got():
                channel = history.channels[event.node, event.channel]
                if event.id not in channel.messages[event.data].ids:
                    yield f"{event.at:.3f} {event.who}: {event.id} has not the data that was put"
                if not _is_fresh(channel, event, history):
                    text = f"{event.id} is of a connection that is gone"
                    yield f"{event.at:.3f} {event.who}: {text}"
            case _:
                pass


def _is_fresh(channel: ChannelHistory, event: ce.Got, history: History) -> bool:
    """Was it pushed on a connection that stands, or stood a moment ago? Bytes that stall are under
    way for as long as that lasts, whatever the node does meanwhile."""
    stalls = [
        each
        for each in history.plan.faults
        if each.kind == "stall" and each.a == event.who and each.at <= event.at
    ]
    gone_s = history.late_s + max((each.lasts_s for each in stalls), default=0.0)
    return any(
        push.at <= event.at <= channel.connections[push.conn].until + gone_s
        for push in channel.pushes.get(event.id, ())
        if push.who == event.who
    )
