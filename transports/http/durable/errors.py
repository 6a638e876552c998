"""Errors of Durable Streams: a status, a JSON body and headers
(docs/reference/durable-streams.md)."""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, StreamFailed
from millpond.actors.streams.durable.messages import DurableRefused, RefusalReason
from millpond.transports.http.durable import protocol
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.response import Pairs, Response, json_response


class DurableError(Exception):
    """A refused request, of which nothing was carried out: its status, code and headers."""

    def __init__(self, status: int, code: str, text: str, headers: Pairs = ()) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.headers = headers

    def response(self, headers: Pairs) -> Response:
        """The response, with the common headers of the request."""
        content = {"code": self.code, "message": str(self)}
        return json_response(self.status, content, (*self.headers, *headers))


def bad_request(text: str) -> DurableError:
    """400: the request cannot be read."""
    return DurableError(400, "bad_request", text)


def too_many_messages(messages_max: int) -> DurableError:
    """413: the body has more JSON messages than one append may have."""
    text = f"at most {messages_max} messages in one append"
    return DurableError(413, "too_many_messages", text)


def stream_not_found() -> DurableError:
    """404: the stream does not exist."""
    return DurableError(404, "stream_not_found", "the stream does not exist")


def stream_deleted() -> DurableError:
    """410: the stream was deleted, and is kept as the source of its forks."""
    return DurableError(410, "stream_deleted", "the stream is deleted; forks of it remain")


def offset_gone() -> DurableError:
    """410: the records at this offset are not kept any more."""
    return DurableError(410, "offset_gone", "the records at this offset are not kept any more")


def refusal_error(reply: DurableRefused, received: int = 0) -> DurableError:
    """The error for a refusal by a stream. `received`: the sequence that the producer gave."""
    tail = (protocol.NEXT_OFFSET, offset_of(reply.tail))
    match reply.reason:
        case RefusalReason.MISSING | RefusalReason.SOURCE_MISSING:
            return stream_not_found()
        case RefusalReason.DELETED:
            return stream_deleted()
        case RefusalReason.CLOSED:
            headers = ((protocol.CLOSED, protocol.TRUE), tail)
            return DurableError(409, "stream_closed", "the stream is closed", headers)
        case RefusalReason.CONTENT_TYPE_MISMATCH:
            return DurableError(409, "content_type_mismatch", "the stream has another content type")
        case RefusalReason.OUT_OF_ORDER:
            text = "Stream-Seq is not above the last one"
            return DurableError(409, "sequence_conflict", text, (tail,))
        case RefusalReason.STALE_EPOCH:
            epoch = ((protocol.PRODUCER_EPOCH, b"%d" % reply.epoch),)
            return DurableError(403, "stale_epoch", "the producer has a later epoch", epoch)
        case RefusalReason.EPOCH_BEGINS_AT_ZERO:
            return bad_request("a new epoch of a producer begins at sequence 0")
        case RefusalReason.GAP:
            headers = (
                (protocol.PRODUCER_EXPECTED, b"%d" % reply.expected),
                (protocol.PRODUCER_RECEIVED, b"%d" % received),
            )
            return DurableError(
                409, "sequence_gap", "earlier appends of the producer are missing", headers
            )
        case RefusalReason.CONFLICT:
            return DurableError(
                409, "stream_exists", "the stream exists with another configuration"
            )
        case RefusalReason.SOURCE_DELETED:
            return DurableError(409, "stream_deleted", "the source is deleted")
        case RefusalReason.BEYOND_SOURCE:
            return bad_request("the source has no such offset")


def error_of(reply: StreamFailed | Failed) -> DurableError:
    """The error for a failure of a stream, or on the way to it."""
    if isinstance(reply, StreamFailed) and reply.is_tombstone:
        return stream_deleted()
    match reply.code:
        case Code.UNKNOWN_STREAM | Code.NOT_FOUND:
            return stream_not_found()
        case Code.TRIMMED:
            return offset_gone()
        case Code.NOT_ALLOWED | Code.PART_OF_TOPIC:
            return DurableError(403, "permission_denied", "permission denied")
        case Code.ENCRYPTED:
            return DurableError(403, "encrypted", "only the S2 API serves an encrypted stream")
        case Code.BUFFER_FULL:
            return DurableError(507, "full", "the stream or the node is full; nothing was stored")
        case Code.DATA_TOO_LARGE:
            return DurableError(413, "too_large", "the body or a record is too large")
        case Code.SLOW_DOWN:
            return DurableError(429, "rate_limited", "too many requests")
        case Code.STORAGE_FAILED:
            return DurableError(
                503, "storage", "the store cannot read or write this; nothing is acknowledged"
            )
        case Code.OUTCOME_UNKNOWN:
            return DurableError(
                500, "outcome_unknown", "the request may or may not have been carried out"
            )
        case Code.QUARANTINED | Code.IDS_EXHAUSTED | Code.NON_MONOTONIC_ID:
            return DurableError(503, "unavailable", "the stream accepts no appends now")
        case _:
            return bad_request(f"the node failed: {reply.code.name.lower()}")
