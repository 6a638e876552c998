"""Read sessions as server-sent events (A.8).

`batch` has records, `ping` the tail, `error` an error; `[DONE]` without a name ends it well. The id
of a batch says how far it got, so that a browser that connects anew goes on there.
"""

from __future__ import annotations

import re

import msgspec

from millpond.actors.streams.messages import U64_MAX
from millpond.transports.http.s2.codecs.json import Format, encode_batch
from millpond.transports.http.s2.errors import S2Error, StreamPosition, bad_header
from millpond.transports.http.s2.model import RecordBatch

MEDIA_TYPE = b"text/event-stream"
DONE = b"data: [DONE]\n\n"

_ID = re.compile(r"(\d{1,20}),(\d{1,20}),(\d{1,20})", re.ASCII)
_encode = msgspec.json.Encoder().encode


class EventId(msgspec.Struct, frozen=True, gc=False):
    """The last record's sequence, and how many records and metered bytes came so far."""

    last: int
    count: int
    metered: int


def read_id(value: str) -> EventId:
    """The position in the header `last-event-id`. Raises CodedError (bad_header)."""
    found = _ID.fullmatch(value)
    numbers = [int(each) for each in found.groups()] if found else []
    if not numbers or max(numbers) > U64_MAX:
        raise bad_header(
            "last-event-id: expected a sequence, a count and a size, separated by commas"
        )
    return EventId(*numbers)


def encode_batch_event(batch: RecordBatch, encoding: Format, event_id: EventId) -> bytes:
    """Records."""
    return b"event: batch\nid: %d,%d,%d\ndata: %b\n\n" % (
        event_id.last,
        event_id.count,
        event_id.metered,
        encode_batch(batch, encoding),
    )


def encode_ping(now_ms: int, tail: StreamPosition) -> bytes:
    """A heartbeat: there is nothing behind `tail`."""
    return b"event: ping\ndata: %b\n\n" % _encode({"timestamp": now_ms, "tail": tail})


def encode_error(error: S2Error) -> bytes:
    """An error after the session began; it is the last event."""
    return b"event: error\ndata: %b\n\n" % error.body
