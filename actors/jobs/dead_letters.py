"""Dead letters of jobs: requests that a channel passes on to its dead-letter channel, and answers.

The number of the client's request goes with them, so that the client hears of it whichever channel
fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, assert_never

import msgspec

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.dead_letters import DEAD_SUFFIX
from millpond.actors.channels.idempotency import IdempotencyKeys
from millpond.actors.errors import Code
from millpond.actors.jobs.listing import (
    DATA_SHOWN,
    dead_letter_row,
    first_page,
    merge_pages,
    with_all_data,
)
from millpond.actors.jobs.messages import (
    DeadLettersDone,
    GetJob,
    JobCounts,
    JobFound,
    JobPage,
    JobRow,
    ListJobs,
)
from millpond.actors.messages import Batch, Failed, JobReply, JobRequest, Port
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import StoredMessage

COUNT_MAX = 1000
BYTES_MAX = 4 * 2**20
"""Dead letters that one request puts back or deletes at most; one at least."""


class ListDeadLetters(JobRequest, frozen=True, gc=False):
    """Complete a page that the channel has begun."""

    request: ListJobs
    rows: tuple[JobRow, ...]
    more: bool


class GetDeadLetter(JobRequest, frozen=True, gc=False):
    """Find what the channel has no job of."""

    request: GetJob


class CountDeadLetters(JobRequest, frozen=True, gc=False):
    """Add the dead letters to the counts."""

    counts: JobCounts


class TakeDeadLetters(JobRequest, frozen=True, gc=False):
    """Give these dead letters to the channel that they came from; None: all."""

    ids: tuple[int, ...] | None


class DeleteDeadLetters(JobRequest, frozen=True, gc=False):
    """Delete these dead letters; None: all."""

    ids: tuple[int, ...] | None


class RequeueDeadLetters(JobRequest, frozen=True, gc=False):
    """Store these in the channel again, each with the id of the dead letter as its key.
    `flow_keys` are the unique keys of those that are jobs of flows."""

    rows: tuple[StoredMessage, ...]
    more: bool
    flow_keys: dict[int, bytes]


DeadLetterRequest = (
    ListDeadLetters | GetDeadLetter | CountDeadLetters | TakeDeadLetters | DeleteDeadLetters
)


class DeadLetterChannel(Protocol):
    """A dead-letter channel. The keys of its messages are the ids that they had before."""

    name: bytes
    buffer: Buffer
    keys: IdempotencyKeys

    def remove(self, message_id: int, effects: Effects) -> None:
        """Delete a message."""

    def attributes_of(self, message_id: int) -> tuple[float, bytes]:
        """The time at which a message is due, and its unique key."""


def answer_dead_letter_request(
    request: DeadLetterRequest,
    channel: DeadLetterChannel,
    port: Port,
    now: float,
    effects: Effects,
) -> JobReply | Failed | None:
    """The reply; None: the channel where the dead letters came from replies."""
    number = request.number
    match request:
        case ListDeadLetters(request=listing):
            rows = channel.buffer.after(listing.after, now)
            found = (
                dead_letter_row(row, channel.attributes_of(row.id)[1], DATA_SHOWN) for row in rows
            )
            own = first_page(found, listing.limit, listing.bytes_max)
            begun = (request.rows, request.more)
            return JobPage(number, *merge_pages(begun, own, listing.limit, listing.bytes_max))
        case GetDeadLetter(request=wanted):
            row = _find(channel, wanted.id, now)
            if row is None:
                return Failed(request, Code.NOT_FOUND)
            found_row = dead_letter_row(row, channel.attributes_of(row.id)[1], len(row.data))
            return JobFound(number, with_all_data(found_row, wanted.bytes_max))
        case CountDeadLetters(counts=c):
            return msgspec.structs.replace(c, dead=len(channel.buffer.rows))
        case TakeDeadLetters(ids=ids):
            taken, more = _select(channel, ids, now)
            if not taken:
                return DeadLettersDone(number, 0, more=False)
            keys = {row.id: channel.attributes_of(row.id)[1] for row in taken}
            of_flows = {each: key for each, key in keys.items() if key}
            requeue = RequeueDeadLetters(number, tuple(taken), more, of_flows)
            origin = channel.name.removesuffix(DEAD_SUFFIX)
            effects.forwards += ((origin, Batch(port, [requeue])),)
            return None
        case DeleteDeadLetters(ids=ids):
            deleted, more = _select(channel, ids, now)
            for row in deleted:
                channel.remove(row.id, effects)
            return DeadLettersDone(number, len(deleted), more)
        case _:
            assert_never(request)


def _find(channel: DeadLetterChannel, message_id: int, now: float) -> StoredMessage | None:
    """The dead letter of this id, or the one that had it as a message."""
    row = channel.buffer.get(message_id, now)
    if row is None:
        former = channel.keys.rows.get(message_id)
        if isinstance(former, StoredMessage):
            row = channel.buffer.get(former.id, now)
    return row


def _select(
    channel: DeadLetterChannel, ids: tuple[int, ...] | None, now: float
) -> tuple[list[StoredMessage], bool]:
    """Dead letters of these ids or all, as many as one request moves, and whether there are
    more."""
    rows: Iterable[StoredMessage | None] = channel.buffer.after(0, now)
    if ids is not None:
        rows = (_find(channel, message_id, now) for message_id in ids)
    found: dict[int, StoredMessage] = {}
    size = 0
    for row in rows:
        if row is None or row.id in found:
            continue
        size += len(row.data)
        if len(found) == COUNT_MAX or (found and size > BYTES_MAX):
            return list(found.values()), True
        found[row.id] = row
    return list(found.values()), False
