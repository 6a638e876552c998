"""Ids and timestamps of records (S3P-27..31, S3A-10, 11, 15)."""

from __future__ import annotations

from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import DEFAULT_OPTIONS, U64_MAX, StreamOptions, Timestamping


def next_id(last: Position | None, ms: int | None, now_ms: int, count: int) -> Position | None:
    """The id of the first of `count` records, which have ids one after the other.

    `last` is the latest id of the stream, None if it never had one; `ms` is asked for by the
    client. None: there is no such id, neither for this nor, without `ms`, for any other record.
    """
    if ms is None:
        return _free_id(last, now_ms, count)
    if last is None or ms > last.ms:
        return Position(ms, 0)
    if ms < last.ms or last.seq + count > U64_MAX:
        return None
    return Position(ms, last.seq + 1)


def _free_id(last: Position | None, now_ms: int, count: int) -> Position | None:
    if last is None or now_ms > last.ms:
        return Position(now_ms, 0)
    if last.seq + count <= U64_MAX:
        return Position(last.ms, last.seq + 1)
    return Position(last.ms + 1, 0) if last.ms < U64_MAX else None


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
