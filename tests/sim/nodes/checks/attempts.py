"""Attempts of a queue's messages are counted as they were made, and end in a dead letter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millpond.actors.messages import Mode
from tests.sim.nodes import events as e
from tests.sim.nodes.history import REJECT, ChannelHistory, History

RETRY, DEAD_RETRY = 4, 6


@dataclass
class Tries:
    """`low` to `high`: the attempts that may have failed so far. `holder`: who has it now."""

    low: int = 0
    high: int = 0
    holder: int = 0
    attempt: int = 0
    changed_at: float = 0.0
    is_rejected: bool = False


def check(history: History) -> Iterator[str]:
    """PS-02, PS-14."""
    for channel in history.channels.values():
        if channel.mode is Mode.QUEUE and channel.plan is not None:
            yield from _check(channel)


def _check(channel: ChannelHistory) -> Iterator[str]:
    all_tries: dict[int, Tries] = {}
    for event in channel.events:
        match event:
            case e.Push(id=id, attempt=attempt) | e.Missed(id=id, attempt=attempt):
                tries = all_tries.setdefault(id, Tries())
                if tries.holder:  # its lease ended
                    _fail(tries, event.at)
                if not tries.low < attempt <= tries.high + 1:
                    text = f"{id} comes for the {attempt}. time, not {tries.low + 1}"
                    yield channel.say(event, text)
                if attempt > channel.attempts_max:
                    yield channel.say(event, f"{id} is tried {attempt} times")
                tries.holder, tries.attempt = event.conn, attempt
                tries.low = tries.high = attempt - 1
                if isinstance(event, e.Missed):  # it counts, as on a connection that is lost next
                    _fail(tries, event.at)
            case e.Nack(id=id, conn=conn, code=code):
                tries = all_tries.setdefault(id, Tries())
                if tries.holder == conn:
                    _fail(tries, event.at)
                    if (conn, event.at) in channel.refused_reads:
                        tries.low -= 1
                    tries.is_rejected |= code == REJECT
            case e.Ack(id=id, conn=conn) if (conn, event.at) in channel.refused_reads:
                tries = all_tries.setdefault(id, Tries())
                if tries.holder == conn:  # it comes again, and nothing failed
                    _fail(tries, event.at)
                    tries.low -= 1
            case e.Closed(conn=conn):
                for tries in all_tries.values():
                    if tries.holder == conn:
                        _fail(tries, event.at)
            case e.Halt():
                for tries in all_tries.values():
                    _forget(channel, tries, event)
            case _:
                pass
    yield from _check_dead(channel, all_tries)


def _fail(tries: Tries, at: float) -> None:
    tries.low = tries.high = tries.attempt
    tries.holder = 0
    tries.changed_at = at


def _forget(channel: ChannelHistory, tries: Tries, halt: e.Halt) -> None:
    """The possible numbers of attempts after a restart: the last count may be lost."""
    if channel.soft_may_be_lost(tries.changed_at, halt):
        tries.low = 0
    if tries.holder:
        tries.high = max(tries.high, tries.attempt)
        tries.holder = 0


def _check_dead(channel: ChannelHistory, all_tries: dict[int, Tries]) -> Iterator[str]:
    """A dead letter was rejected, has expired, or was tried as often as may be."""
    assert channel.dead is not None
    for data in channel.dead.messages:
        message = channel.messages.get(data)
        if message is None or channel.may_have_expired(data):
            continue
        tries = [all_tries[id] for id in message.ids if id in all_tries]
        if not any(each.is_rejected or each.attempt >= channel.attempts_max for each in tries):
            yield f"{channel.node}/{channel.name}: {data[:40]!r} became a dead letter too early"
