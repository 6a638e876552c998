"""A channel of jobs in a harness, and requests of its connections."""

from __future__ import annotations

from itertools import count
from typing import Any

from millpond.actors.jobs import messages as m
from millpond.actors.messages import Failed, JobReply, JobRequest, Msg, Role
from tests.actors.channels.harness import ChannelHarness, Peer, queue

_numbers = count(1)


def job_harness(**delivery: Any) -> ChannelHarness:
    return ChannelHarness(queue(**{"ack_timeout_s": 30.0, **delivery}))


def asked(peer: Peer, request: type[JobRequest], *fields: Any, **named: Any) -> Any:
    """The one answer to a request; pushes stay for `pushed`."""
    number = next(_numbers)
    replies = peer.request(request(number, *fields, **named))
    if not replies:  # it went on to the dead letters, and comes back in another turn
        peer.harness.run_due()
        replies = peer.request()
    (reply,) = replies
    if isinstance(reply, Failed):
        assert isinstance(reply.request, JobRequest) and reply.request.number == number
        return reply.code
    assert isinstance(reply, JobReply) and reply.number == number, reply
    return reply


def put(peer: Peer, data: bytes = b"job", *, ttl: int = 3600, **more: Any) -> Any:
    """`due_in` seconds from now; an id, or why not."""
    due_in = more.pop("due_in", None)
    if due_in is not None:
        more["due"] = peer.harness.now + due_in
    key = more.pop("key", None)
    if key is None:
        peer._key += 1
        key = peer._key
    return asked(peer, m.PutJob, key, ttl, data, **more)


def rows(
    peer: Peer, state: m.JobState | None = None, after: int = 0, limit: int = 500, size: int = 2**18
) -> m.JobPage:
    page = asked(peer, m.ListJobs, state, after, limit, size)
    assert isinstance(page, m.JobPage)
    return page


def states(peer: Peer) -> dict[int, str]:
    return {row.id: row.state.value for row in rows(peer).rows}


def show(peer: Peer, message_id: int, size: int = 2**20) -> m.JobRow:
    shown = asked(peer, m.GetJob, message_id, size)
    assert isinstance(shown, m.JobFound), shown
    return shown.row


def counts(peer: Peer) -> m.JobCounts:
    found = asked(peer, m.CountJobs)
    assert isinstance(found, m.JobCounts)
    return found


def dead_ids(peer: Peer) -> list[int]:
    return [row.id for row in rows(peer, m.JobState.DEAD).rows]


def worker(harness: ChannelHarness, **join: Any) -> Peer:
    return harness.join(role=Role.WORKER, **join)


def taken(peer: Peer) -> Msg:
    """The one job that the worker holds now."""
    (message,) = peer.pushed()
    return message


def make_dead_letter(
    harness: ChannelHarness, peer: Peer, data: bytes = b"job", reason: str = "no way"
) -> int:
    """A job that a worker of its own rejects; gives the id that it had."""
    message_id: int = put(peer, data).id
    hand = worker(harness, window=1)
    assert taken(hand).id == message_id
    assert isinstance(asked(hand, m.RejectJob, message_id, reason), m.JobDone)
    hand.leave()
    return message_id
