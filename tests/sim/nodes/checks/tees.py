"""The messages of a channel that feeds a stream are in the stream once, in order."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.actors.messages import Durability
from tests.sim.nodes import client_events as ce
from tests.sim.nodes.history import ChannelHistory, History

WAITS_S = 30.0
"""For so long a channel holds what was acked for a stream whose node has trouble with its disk."""


def check(history: History) -> Iterator[str]:
    """docs/internals/streams.md, "Channels that feed a stream"."""
    for channel in history.channels.values():
        if channel.plan is None or channel.plan.rule.tee is None:
            continue
        durability = {each.name: each.durability for each in history.plan.streams}
        stream = channel.plan.rule.tee
        if channel.durability is durability[stream] is Durability.DISK:
            yield from _check(channel, _bodies(history, stream))


def _bodies(history: History, stream: str) -> list[bytes]:
    """All that is in it in the end."""
    read = [
        each
        for each in history.client_events
        if isinstance(each, ce.Read) and each.is_all and each.stream == stream
    ]
    return [body for _, _, body in read[-1].records]


def _check(channel: ChannelHistory, bodies: list[bytes]) -> Iterator[str]:
    own = [body for body in bodies if body in channel.messages]
    for body in dict.fromkeys(own):
        if own.count(body) > 1:
            yield _say(channel, f"{body[:30]!r} is there {own.count(body)} times")
    last = 0
    for body in own:
        ids = channel.messages[body].ids
        if ids and max(ids) < last:
            yield _say(channel, f"{body[:30]!r} is behind what was kept after it")
        last = max(last, *ids, 0)
    if any(over - began > WAITS_S for began, over in channel.troubles):
        return
    there = set(own)
    for message in channel.messages.values():
        if message.kept and message.data not in there:
            yield _say(channel, f"{message.data[:30]!r} was kept and is not there")


def _say(channel: ChannelHistory, text: str) -> str:
    assert channel.plan is not None
    return f"{channel.node}/{channel.name} feeds {channel.plan.rule.tee}: {text}"
