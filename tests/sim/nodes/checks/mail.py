"""Letters between nodes arrive, once, in the order in which they were sent.

A node whose disk does not take a letter asks for that one again later (docs/internals/peers.md),
and what comes behind it meanwhile is read before it. So a letter may be late where its reader's
disk was in trouble while it was on its way; any other may not.

Nor is it once where the sender's disk refused it before and the node crashed then: it may have been
written all the same (docs/internals/storage.md), and who sends it again sends another letter.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.nodes import events as e
from tests.sim.nodes import notes as n
from tests.sim.nodes.history import History, troubles_of


def check(history: History) -> Iterator[str]:
    """docs/internals/peers.md."""
    sent = [each for each in history.notes if isinstance(each, n.LetterSent)]
    read = [each for each in history.notes if isinstance(each, n.LetterRead)]
    bodies = [each.data for each in read]
    for letter in sent:
        if letter.data not in bodies:
            yield f"{letter.at:.3f} {letter.who}: {letter.data!r} never arrives"
    disturbed = {each.node for each in history.seen if isinstance(each, e.Trouble)}
    disturbed |= {
        each.node for each in history.seen if isinstance(each, e.Halt) and each.how != "stop"
    }
    for letter in sent:
        readers = {each.who for each in read if each.data == letter.data}
        is_sure = not readers & disturbed and not _may_be_two(history, letter)
        if bodies.count(letter.data) > 1 and is_sure:
            yield f"{letter.data!r} is read {bodies.count(letter.data)} times"
    yield from _check_order(history, sent, read)


def _may_be_two(history: History, letter: n.LetterSent) -> bool:
    """Did the sender's disk fail, and the node crash, before the letter was kept?"""
    troubled = False
    for event in history.seen:
        if event.at > letter.at:
            break
        match event:
            case e.Trouble(node=name) if name == letter.who:
                troubled = True
            case e.Halt(node=name, how=how) if name == letter.who and troubled and how != "stop":
                return True
            case _:
                pass
    return False


def _check_order(
    history: History, sent: list[n.LetterSent], read: list[n.LetterRead]
) -> Iterator[str]:
    first: dict[bytes, tuple[int, float]] = {}
    for place, each in enumerate(read):
        first.setdefault(each.data, (place, each.at))
    troubles = {
        name: troubles_of(each for each in history.seen if getattr(each, "node", "") == name)
        for name in history.plan.nodes
    }
    before: dict[tuple[str, str, bytes], list[n.LetterSent]] = {}
    for letter in sent:
        if letter.data not in first:
            continue
        line = before.setdefault((letter.who, letter.target, letter.data.split(b"/")[1]), [])
        for late in line:
            place, at = first[late.data]
            held_up = any(
                began <= at and late.at <= over for began, over in troubles[letter.target]
            )
            if place > first[letter.data][0] and not held_up:
                yield f"{late.data!r} is read after {letter.data!r}, which was sent later"
        line.append(letter)
