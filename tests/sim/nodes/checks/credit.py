"""No connection is pushed more than it granted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.sim.nodes import events as e
from tests.sim.nodes.checks.leases import SLACK_S, shortest_s
from tests.sim.nodes.history import ChannelHistory, History


@dataclass
class Account:
    """`held`: until when each message surely counts, in the node's time."""

    window: int
    since: float
    held: dict[int, float] = field(default_factory=dict)


def check(history: History) -> Iterator[str]:
    """P2P-26, docs/reference/wire-protocol.md Delivery: at most `window` are unacked."""
    for channel in history.channels.values():
        if not channel.name.startswith("jobs/"):
            yield from _check(channel)


def _check(channel: ChannelHistory) -> Iterator[str]:
    accounts: dict[int, Account] = {}
    released: dict[int, float] = {}
    clock = channel.clock
    for event in channel.events:
        match event:
            case e.Ready(conn=conn, window=window):
                accounts[conn] = Account(window, event.at)
            case e.Credit(conn=conn, count=count):
                accounts[conn].window += count
            case e.Push(conn=conn, id=id):
                account = accounts[conn]
                now = clock.high(event.at) + SLACK_S
                held = {each: until for each, until in account.held.items() if until > now}
                account.held = held
                until = clock.low(channel.meant_at(event.at)) + shortest_s(channel, event.attempt)
                message = channel.by_id.get(id)
                expires = until if message is None else message.expires_low
                if released.get(id) != event.at:  # what one moment brought has no order
                    held[id] = min(until, expires)
                if len(held) > account.window and not channel.has_trouble(account.since, event.at):
                    text = f"{event.who} has {len(held)} messages, and granted {account.window}"
                    yield channel.say(event, text)
            case e.Touched(conn=conn, id=id, ms=ms):
                held, message = accounts[conn].held, channel.by_id.get(id)
                if id in held and message is not None:
                    held[id] = min(clock.low(event.at) + ms / 1000, message.expires_low)
            case e.Ack(id=id) | e.Nack(id=id):
                # It may leave for all, or only for this one: then others have credit that they
                # did not grant, which is not checked here.
                _release(accounts, id)
                released[id] = event.at
            case e.JobRequested():
                _release(accounts, event.body.get("id", 0))
            case _:
                pass


def _release(accounts: dict[int, Account], id: int) -> None:
    for account in accounts.values():
        account.held.pop(id, None)
