"""PUTs with one idempotency key are one message, and clients report the node's answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tests.sim.nodes import notes as n
from tests.sim.nodes.history import History, Message, Story


def check(history: History) -> Iterator[str]:
    """P2P-10: a retry is harmless; a receipt and a push are of what was put."""
    for story in history.stories.values():
        for message in story.messages.values():
            yield from _check_message(story, message)
    yield from _check_clients(history)


def _check_message(story: Story, message: Message) -> Iterator[str]:
    first = {id: story.first_seen[id] for id in message.ids}
    times = sorted((at, id) for id, at in first.items())
    for (before, one), (after, other) in pairwise(times):
        if not story.may_be_lost(before, after) and not story.name.endswith("!dead"):
            text = f"{message.data[:40]!r} is {one} since {before:.3f}, and {other}"
            yield f"{after:.3f} {story.node}/{story.name}: {text}"
    if not message.puts and not story.name.endswith("!dead"):
        yield f"{story.node}/{story.name}: nobody put {message.data[:40]!r}"


def _check_clients(history: History) -> Iterator[str]:
    for note in history.notes:
        match note:
            case n.Receipt():
                story = history.stories[note.node, note.channel]
                if note.id not in story.messages[note.data].ids:
                    yield f"{note.at:.3f} {note.who}: {note.id} is the receipt of another message"
            case n.Got():
                story = history.stories[note.node, note.channel]
                if note.id not in story.messages[note.data].ids:
                    yield f"{note.at:.3f} {note.who}: {note.id} has not the data that was put"
                if not _is_fresh(story, note, history):
                    yield f"{note.at:.3f} {note.who}: {note.id} is of a connection that is gone"
            case _:
                pass


def _is_fresh(story: Story, note: n.Got, history: History) -> bool:
    """Was it pushed on a connection that stands, or stood a moment ago? Bytes that stall are under
    way for as long as that lasts, whatever the node does meanwhile."""
    stalls = [
        each
        for each in history.plan.faults
        if each.kind == "stall" and each.a == note.who and each.at <= note.at
    ]
    gone_s = history.late_s + max((each.lasts_s for each in stalls), default=0.0)
    return any(
        push.at <= note.at <= story.guests[push.conn].until + gone_s
        for push in story.pushes.get(note.id, ())
        if push.who == note.who
    )
