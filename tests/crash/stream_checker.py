"""The judge of what a run did to streams: pure, a history in and a verdict out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tests.crash.events import Label, Started
from tests.crash.stream_events import StreamEvent
from tests.crash.stream_history import FAULTS, StreamHistory

EXAMPLES_MAX = 5
"""So many of each fault are told one by one."""


class StreamVerdict(msgspec.Struct, frozen=True):
    """The figures of a run: those of `FAULTS` must be 0, the others say how much was tried.

    attempted    different batches
    acked        of these, acknowledged, or found by the writer that may repeat
    unknown      of these, those whose connection ended before an answer at least once
    recovered    of these, known to be kept in the end
    kept_unseen  of these, those that the node had kept all the same
    refused      batches of which the client said that they were not done
    delivered    records that readers got
    done         trims that were acknowledged
    looks        how often a stream was read from beginning to end
    lost         acknowledged or seen, trimmed by nobody, and not there
    duplicated   at two places, or two batches at one
    reordered    ids or sequences that do not ascend: as read, as sent on one connection, or not
                 above all that was known when the batch was sent, also after a restart
    torn         batches of which a part is there
    revived      seen again although trimmed
    damaged      records that are not what was sent
    invented     records that nobody sent, or of which the client said that they were not kept
    unanswered   never known to be kept, although their writer repeats them
    """

    attempted: int
    acked: int
    unknown: int
    recovered: int
    kept_unseen: int
    refused: int
    delivered: int
    done: int
    looks: int
    lost: int
    duplicated: int
    reordered: int
    torn: int
    revived: int
    damaged: int
    invented: int
    unanswered: int
    examples: tuple[str, ...] = ()

    @property
    def faults(self) -> dict[str, int]:
        """What should not be, by name; empty when all is well."""
        counts = {name: getattr(self, name) for name in FAULTS}
        return {name: count for name, count in counts.items() if count}


def check_streams(history: Iterable[Started | StreamEvent]) -> StreamVerdict:
    """Judge a whole run."""
    books: dict[str, StreamHistory] = {}
    for clock, event in enumerate(history):
        if isinstance(event, Started):
            for book in books.values():
                book.restarted(clock)
        else:
            books.setdefault(event.stream, StreamHistory(event.stream)).take(event, clock)
    return _verdict(list(books.values()))


def _verdict(books: list[StreamHistory]) -> StreamVerdict:
    faults: dict[str, list[str]] = {name: [] for name in FAULTS}
    for book in books:
        book.conclude()
        for name, found in book.faults.items():
            faults[name] += found.values()
    unknown: set[Label] = set().union(*(book.unknown for book in books))
    acked: set[Label] = set().union(*(book.acked for book in books))
    told = [text for texts in faults.values() for text in texts[:EXAMPLES_MAX]]
    return StreamVerdict(
        attempted=sum(len(book.tries) for book in books),
        acked=len(acked),
        unknown=len(unknown),
        recovered=len(unknown & acked),
        kept_unseen=sum(len(book.kept_unseen) for book in books),
        refused=sum(book.dropped for book in books),
        delivered=sum(book.delivered for book in books),
        done=sum(book.trims_done for book in books),
        looks=sum(book.looks_done for book in books),
        examples=tuple(told),
        **{name: len(texts) for name, texts in faults.items()},
    )
