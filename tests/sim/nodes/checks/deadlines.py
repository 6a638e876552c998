"""Nothing is shown after its deadline."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.nodes import events as e
from tests.sim.nodes.history import ChannelHistory, History

SLACK_S = 0.001


def check(history: History) -> Iterator[str]:
    """P2P-14: not pushed, not listed, not given."""
    for channel in history.channels.values():
        if not channel.name.endswith("!dead"):
            yield from _check(channel)


def _check(channel: ChannelHistory) -> Iterator[str]:
    for event in channel.events:
        match event:
            case e.Push(id=id) | e.Shown(id=id):
                yield from _check_one(channel, event, id)
            case e.Listed(ids=ids):
                for id in ids:
                    yield from _check_one(channel, event, id)
            case _:
                pass


def _check_one(channel: ChannelHistory, event: e.Event, id: int) -> Iterator[str]:
    message = channel.by_id.get(id)
    if message is None or not message.puts:
        return
    # Answers wait for the disk as they were given; pushes of what expired meanwhile do not leave.
    at = event.at if isinstance(event, e.Push) else channel.meant_at(event.at)
    # A start in between may have set the node's time back.
    low = min(channel.clock.low(at), channel.clock.low(event.at))
    late_s = low - message.expires_high
    if late_s > SLACK_S:
        what = type(event).__name__.lower()
        yield channel.say(event, f"{what} of {id} {late_s:.3f} s after its deadline")
