"""Messages are handed out in the order in which they were put, but for those that come again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from millpond.actors.messages import Durability, Mode
from tests.sim.nodes import events as e
from tests.sim.nodes import notes as n
from tests.sim.nodes.history import History, Story


def check(history: History) -> Iterator[str]:
    """PA-18, P2P-15: by id on each connection; ids by the order of the puts."""
    for story in history.stories.values():
        yield from _check_pushes(story)
        yield from _check_ids(story)
    yield from _check_producers(history)


def _check_pushes(story: Story) -> Iterator[str]:
    """In a queue all connections together take the place of one. What a consumer put itself waits
    for another one, and may be passed."""
    top: dict[int, int] = {}
    at_once: dict[int, tuple[float, int]] = {}
    seen: dict[object, set[int]] = {}
    consumers = () if story.plan is None else story.plan.consumers
    talkers = {each.who for each in consumers if each.habits.puts}
    late = {put.data for put in story.of(e.Put) if put.due or put.who in talkers}
    for event in story.events:
        match event:
            case e.Boot():
                top.clear()
            case e.Push(conn=conn, id=id) if event.data not in late:
                guest = story.guests[conn]
                line = 0 if story.mode is Mode.QUEUE else conn
                if story.mode is Mode.FANOUT and not guest.identity:
                    reader: object = conn
                else:
                    reader = guest.identity if story.mode is Mode.FANOUT else 0
                known = seen.setdefault(reader, set())
                # What goes to several connections at one moment goes to one after the other.
                at, before = at_once.get(line, (-1.0, 0))
                if at != event.at or line:
                    before = top.get(line, 0)
                    at_once[line] = event.at, before
                if id < before and id not in known and event.attempt < 2:
                    yield story.say(event, f"{id} is pushed after {before}")
                known.add(id)
                top[line] = max(top.get(line, 0), id)
            case _:
                pass


def _check_ids(story: Story) -> Iterator[str]:
    puts: dict[int, list[e.Put]] = {}
    told: dict[int, int] = {}
    tops: dict[int, tuple[int, int]] = {}
    last = 0
    for event in story.events:
        match event:
            case e.Put():
                puts.setdefault(event.conn, []).append(event)
            case e.Kept(conn=conn, key=key, id=id):
                if id in told:
                    continue
                told[id] = key
                place = next(
                    at for at, put in reversed(list(enumerate(puts[conn]))) if put.key == key
                )
                before, top = tops.get(conn, (-1, 0))
                if place > before and id < top:
                    yield story.say(event, f"{id} was put after {top}")
                if place > before:
                    tops[conn] = place, id
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
        (story.node, story.name)
        for story in history.stories.values()
        if story.durability is Durability.MEMORY and not story.clock.is_steady
    }
    for note in history.notes:
        match note:
            case n.Putting():
                placed.setdefault((note.who, note.data), len(placed))
            case n.Receipt() if note.who not in refused and (
                (note.node, note.channel) not in unkept
            ):
                places = ids.setdefault(note.who, {})
                places.setdefault(placed[note.who, note.data], note.id)
            case _:
                pass
    for who, receipts in ids.items():
        for (_, before), (_, after) in pairwise(sorted(receipts.items())):
            if after < before:
                yield f"{who}: {after} was put after {before}"
