"""Envelopes between nodes arrive once, in the order in which they were sent.

A node whose disk does not take an envelope asks for it again later (docs/internals/peers.md), and
what comes behind it meanwhile is read before it. So an envelope may be late where its reader's disk
failed while it was on its way; any other may not.

Nor is it read once where the sender's disk refused it before and the node crashed then: it may have
been written all the same (docs/internals/storage.md), and sending again makes another envelope.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.nodes import client_events as ce
from tests.sim.nodes import events as e
from tests.sim.nodes.history import History, troubles_of


def check(history: History) -> Iterator[str]:
    """docs/internals/peers.md."""
    sent = [each for each in history.client_events if isinstance(each, ce.MailSent)]
    read = [each for each in history.client_events if isinstance(each, ce.MailRead)]
    bodies = [each.data for each in read]
    for envelope in sent:
        if envelope.data not in bodies:
            yield f"{envelope.at:.3f} {envelope.who}: {envelope.data!r} never arrives"
    disturbed = {each.node for each in history.seen if isinstance(each, e.Trouble)}
    disturbed |= {
        each.node for each in history.seen if isinstance(each, e.Halt) and each.how != "stop"
    }
    for envelope in sent:
        readers = {each.who for each in read if each.data == envelope.data}
        is_sure = not readers & disturbed and not _may_be_two(history, envelope)
        if bodies.count(envelope.data) > 1 and is_sure:
            yield f"{envelope.data!r} is read {bodies.count(envelope.data)} times"
    yield from _check_order(history, sent, read)


def _may_be_two(history: History, envelope: ce.MailSent) -> bool:
    """Did the sender's disk fail, and the node crash, before the envelope was kept?"""
    troubled = False
    for event in history.seen:
        if event.at > envelope.at:
            break
        match event:
            case e.Trouble(node=name) if name == envelope.who:
                troubled = True
            case e.Halt(node=name, how=how) if name == envelope.who and troubled and how != "stop":
                return True
            case _:
                pass
    return False


def _check_order(
    history: History, sent: list[ce.MailSent], read: list[ce.MailRead]
) -> Iterator[str]:
    first: dict[bytes, tuple[int, float]] = {}
    for index, each in enumerate(read):
        first.setdefault(each.data, (index, each.at))
    troubles = {
        name: troubles_of(each for each in history.seen if getattr(each, "node", "") == name)
        for name in history.plan.nodes
    }
    before: dict[tuple[str, str, bytes], list[ce.MailSent]] = {}
    for envelope in sent:
        if envelope.data not in first:
            continue
        scope = before.setdefault((envelope.who, envelope.target, envelope.data.split(b"/")[1]), [])
        for late in scope:
            index, at = first[late.data]
            held_up = any(
                began <= at and late.at <= over for began, over in troubles[envelope.target]
            )
            if index > first[envelope.data][0] and not held_up:
                yield f"{late.data!r} is read after {envelope.data!r}, which was sent later"
        scope.append(envelope)
