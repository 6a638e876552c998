"""Acknowledged messages are not delivered again, and acknowledgements arrive."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.actors.messages import Mode
from tests.sim.nodes import events as e
from tests.sim.nodes import notes as n
from tests.sim.nodes.history import History, Story


def check(history: History) -> Iterator[str]:
    """P2P-12, P2P-15."""
    for story in history.stories.values():
        yield from _check_again(story)
        if not story.name.startswith("jobs/"):
            yield from _check_unasked(history, story)
        if story.plan is not None:
            yield from _check_arrival(history, story)


def _check_again(story: Story) -> Iterator[str]:
    """By the node, also after a restart, unless that came before the ack was on the disk.

    A list that was asked for before the ack may be told late, where the disk holds answers up. What
    a subscriber without an identity acked is kept nowhere, so a fanout channel that is built anew
    because the disk failed pushes it again (docs/internals/storage.md); who is known is not pushed
    it.
    """
    acked: dict[tuple[object, int], float] = {}
    asked: dict[int, list[float]] = {}
    for event in story.events:
        match event:
            case e.Ack(id=id, conn=conn) if (conn, event.at) not in story.refused_reads:
                acked.setdefault((_reader(story, conn), id), event.at)
            case e.Push(id=id, conn=conn):
                at = acked.get((_reader(story, conn), id))
                if at is None or event.at == at:
                    continue
                is_nobody = story.mode is Mode.FANOUT and not story.guests[conn].identity
                if not (is_nobody and story.has_trouble(at, event.at)):
                    yield story.say(event, f"{id} comes again, {event.at - at:.3f} s after its ack")
            case e.ListAsked(conn=conn):
                asked.setdefault(conn, []).append(event.at)
            case e.Listed(ids=ids, conn=conn):
                since = asked[conn].pop(0)
                for id in ids if story.mode is not Mode.FANOUT else ():
                    at = acked.get((0, id))
                    if at is None or (since <= at and story.has_trouble(at, event.at)):
                        continue
                    if event.at > at:
                        yield story.say(
                            event, f"{id} is listed {event.at - at:.3f} s after its ack"
                        )
            case e.Halt():
                for key, at in list(acked.items()):
                    if story.soft_may_be_lost(at, event):
                        del acked[key]
            case _:
                pass


def _check_unasked(history: History, story: Story) -> Iterator[str]:
    """Nothing is acknowledged but what the program is done with."""
    said = {
        (note.who, note.id)
        for note in history.notes
        if isinstance(note, n.Acked) and (note.node, note.channel) == (story.node, story.name)
    }
    for ack in story.of(e.Ack):
        if (ack.who, ack.id) not in said:
            yield story.say(ack, f"{ack.who} did not acknowledge {ack.id}")


def _reader(story: Story, conn: int) -> object:
    """The owner of an ack: in a fanout channel the subscriber, else the whole channel."""
    if story.mode is not Mode.FANOUT:
        return 0
    return story.guests[conn].identity or conn


def _check_arrival(history: History, story: Story) -> Iterator[str]:
    """A connection that stays gets its acks through, and no message again that it has acked."""
    arrived = {(ack.who, ack.id) for ack in story.of(e.Ack)}
    acked: set[tuple[str, int]] = set()
    for note in history.notes:
        match note:
            case n.Acked() if (note.node, note.channel) == (story.node, story.name):
                acked.add((note.who, note.id))
                if (note.who, note.id) not in arrived and _must_arrive(history, story, note):
                    text = f"the ack of {note.id} by {note.who} never arrives"
                    yield f"{note.at:.3f} {story.node}/{story.name}: {text}"
            case n.Got() if (note.node, note.channel) == (story.node, story.name):
                if (note.who, note.id) in acked and note.who in _loyal(story):
                    text = f"{note.who} is shown {note.id} again, which it acked"
                    yield f"{note.at:.3f} {story.node}/{story.name}: {text}"
            case _:
                pass


def _loyal(story: Story) -> set[str]:
    """Consumers that are one `connect` from beginning to end."""
    assert story.plan is not None
    return {
        each.who
        for each in story.plan.consumers
        if not each.habits.dies and not each.habits.hangs_up
    }


def _must_arrive(history: History, story: Story, note: n.Acked) -> bool:
    """Said on a connection that lasted, or, by who stays, while there was none."""
    own = [guest for guest in story.guests.values() if guest.who == note.who]
    for guest in own:
        if guest.ready_at <= note.at < guest.until + history.late_s:
            return guest.until >= history.end
    if note.who not in _loyal(story) or any(
        fault.kind == "partition" and fault.a == note.who for fault in history.plan.faults
    ):
        return False
    later = [guest for guest in own if guest.ready_at > note.at]
    return bool(later) and later[0].until - later[0].ready_at > history.late_s
