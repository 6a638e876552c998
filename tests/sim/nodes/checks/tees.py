"""The messages of a channel that feeds a stream are in the stream once, in order."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.actors.messages import Durability
from tests.sim.nodes import notes as n
from tests.sim.nodes.history import History, Story

WAITS_S = 30.0
"""For so long a channel holds what was acked for a stream whose node has trouble with its disk."""


def check(history: History) -> Iterator[str]:
    """docs/internals/streams.md, "Channels that feed a stream"."""
    for story in history.stories.values():
        if story.plan is None or story.plan.rule.tee is None:
            continue
        durability = {each.name: each.durability for each in history.plan.streams}
        stream = story.plan.rule.tee
        if story.durability is durability[stream] is Durability.DISK:
            yield from _check(story, _bodies(history, stream))


def _bodies(history: History, stream: str) -> list[bytes]:
    """All that is in it in the end."""
    read = [
        each
        for each in history.notes
        if isinstance(each, n.Read) and each.is_all and each.stream == stream
    ]
    return [body for _, _, body in read[-1].records]


def _check(story: Story, bodies: list[bytes]) -> Iterator[str]:
    own = [body for body in bodies if body in story.messages]
    for body in dict.fromkeys(own):
        if own.count(body) > 1:
            yield _say(story, f"{body[:30]!r} is there {own.count(body)} times")
    last = 0
    for body in own:
        ids = story.messages[body].ids
        if ids and max(ids) < last:
            yield _say(story, f"{body[:30]!r} is behind what was kept after it")
        last = max(last, *ids, 0)
    if any(over - began > WAITS_S for began, over in story.troubles):
        return
    there = set(own)
    for message in story.messages.values():
        if message.kept and message.data not in there:
            yield _say(story, f"{message.data[:30]!r} was kept and is not there")


def _say(story: Story, text: str) -> str:
    assert story.plan is not None
    return f"{story.node}/{story.name} feeds {story.plan.rule.tee}: {text}"
