"""Nothing is shown after its deadline."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.nodes import events as e
from tests.sim.nodes.history import History, Story

SLACK_S = 0.001


def check(history: History) -> Iterator[str]:
    """P2P-14: not pushed, not listed, not given."""
    for story in history.stories.values():
        if not story.name.endswith("!dead"):
            yield from _check(story)


def _check(story: Story) -> Iterator[str]:
    for event in story.events:
        match event:
            case e.Push(id=id) | e.Shown(id=id):
                yield from _check_one(story, event, id)
            case e.Listed(ids=ids):
                for id in ids:
                    yield from _check_one(story, event, id)
            case _:
                pass


def _check_one(story: Story, event: e.Event, id: int) -> Iterator[str]:
    message = story.by_id.get(id)
    if message is None or not message.puts:
        return
    # Answers wait for the disk as they were given; pushes of what expired meanwhile do not leave.
    at = event.at if isinstance(event, e.Push) else story.meant_at(event.at)
    late_s = story.clock.low(at) - message.expires_high
    if late_s > SLACK_S:
        what = type(event).__name__.lower()
        yield story.say(event, f"{what} of {id} {late_s:.3f} s after its deadline")
