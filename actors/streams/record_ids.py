"""Ids and timestamps of records (S3P-27..31, S3A-10, 11, 15)."""

from __future__ import annotations

from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import DEFAULT_OPTIONS, U64_MAX, StreamOptions, Timestamping


def next_id(last: Position | None, ms: int | None, now_ms: int, count: int) -> Position | None:
    """The id of the first of `count` records, which have ids one after the other.

    `last` is the latest id of the stream, None if it never had one; `ms` is asked for by the
    client. None: there is no such id, neither for this nor, without `ms`, for any other record.
    """
    wanted = now_ms if ms is None else ms
    if last is None or wanted > last.ms:
        return Position(wanted, 0)
    is_full = last.seq + count > U64_MAX
    if ms is None:
        if not is_full:
            return Position(last.ms, last.seq + 1)
        return Position(last.ms + 1, 0) if last.ms < U64_MAX else None
    return None if ms < last.ms or is_full else Position(ms, last.seq + 1)


def next_timestamps(
    last: int, given: list[int | None] | None, now_ms: int, options: StreamOptions = DEFAULT_OPTIONS
) -> list[int] | int:
    """Timestamps that never fall: one for each record, or one for all (docs/reference/s2.md)."""
    arrival = now_ms if now_ms > last else last
    if given is None or options.timestamping is Timestamping.ARRIVAL:
        return arrival
    timestamps: list[int] = []
    is_capped = options.is_capped
    for each in given:
        wanted = now_ms if each is None or (is_capped and each > now_ms) else each
        last = max(last, wanted)
        timestamps.append(last)
    return timestamps[0] if timestamps[0] == timestamps[-1] else timestamps
