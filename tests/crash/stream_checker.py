"""The checker of streams: a pure function of the history of a run to its counts and faults."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tests.crash.events import Label, Started
from tests.crash.stream_events import StreamEvent
from tests.crash.stream_history import FAULTS, StreamHistory

EXAMPLES_MAX = 5
"""So many of each fault are told one by one."""


class StreamCheckResult(msgspec.Struct, frozen=True):
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
        """The violations by name; empty when all is well."""
        counts = {name: getattr(self, name) for name in FAULTS}
        return {name: count for name, count in counts.items() if count}


def check_streams(history: Iterable[Started | StreamEvent]) -> StreamCheckResult:
    """Check a whole run."""
    histories: dict[str, StreamHistory] = {}
    for clock, event in enumerate(history):
        if isinstance(event, Started):
            for stream_history in histories.values():
                stream_history.restarted(clock)
        else:
            histories.setdefault(event.stream, StreamHistory(event.stream)).take(event, clock)
    return _result(list(histories.values()))


def _result(histories: list[StreamHistory]) -> StreamCheckResult:
    faults: dict[str, list[str]] = {name: [] for name in FAULTS}
    for history in histories:
        history.conclude()
        for name, found in history.faults.items():
            faults[name] += found.values()
    unknown: set[Label] = set().union(*(history.unknown for history in histories))
    acked: set[Label] = set().union(*(history.acked for history in histories))
    told = [text for texts in faults.values() for text in texts[:EXAMPLES_MAX]]
    return StreamCheckResult(
        attempted=sum(len(history.tries) for history in histories),
        acked=len(acked),
        unknown=len(unknown),
        recovered=len(unknown & acked),
        kept_unseen=sum(len(history.kept_unseen) for history in histories),
        refused=sum(history.dropped for history in histories),
        delivered=sum(history.delivered for history in histories),
        done=sum(history.trims_done for history in histories),
        looks=sum(history.looks_done for history in histories),
        examples=tuple(told),
        **{name: len(texts) for name, texts in faults.items()},
    )
