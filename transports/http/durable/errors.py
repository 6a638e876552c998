"""Why a request is refused, as a status, a JSON body and headers (http.md B.8)."""

from __future__ import annotations

from collections.abc import Sequence

from millpond.actors.errors import Code
from millpond.actors.messages import Failed
from millpond.actors.streams.durable.messages import Declined, Why
from millpond.actors.streams.messages import StreamFailed
from millpond.transports.http.durable import protocol as w
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.response import Response, json_response

Pairs = Sequence[tuple[bytes, bytes]]


class Refusal(Exception):
    """The answer to a request that nothing was done of."""

    def __init__(self, status: int, code: str, text: str, headers: Pairs = ()) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.headers = headers

    def response(self, headers: Pairs) -> Response:
        """With headers of the request's own."""
        content = {"code": self.code, "message": str(self)}
        return json_response(self.status, content, (*self.headers, *headers))


def bad(text: str) -> Refusal:
    """400: the request cannot be read."""
    return Refusal(400, "bad_request", text)


def missing() -> Refusal:
    """404: there is no such stream."""
    return Refusal(404, "stream_not_found", "there is no such stream")


def gone() -> Refusal:
    """410: the stream was deleted, and forks of it are there."""
    return Refusal(410, "stream_deleted", "the stream is deleted; its forks are there")


def trimmed() -> Refusal:
    """410: what is asked for is not kept any more."""
    return Refusal(410, "offset_gone", "what is at this offset is not kept any more")


def declined(answer: Declined, received: int = 0) -> Refusal:
    """What a stream declines. `received`: the sequence that a producer gave."""
    tail = (w.NEXT_OFFSET, offset_of(answer.tail))
    match answer.why:
        case Why.MISSING | Why.SOURCE_MISSING:
            return missing()
        case Why.BURIED:
            return gone()
        case Why.CLOSED:
            headers = ((w.CLOSED, w.TRUE), tail)
            return Refusal(409, "stream_closed", "the stream is closed", headers)
        case Why.OTHER_TYPE:
            return Refusal(409, "content_type_mismatch", "the stream has another content type")
        case Why.OUT_OF_ORDER:
            text = "Stream-Seq is not above the last one"
            return Refusal(409, "sequence_conflict", text, (tail,))
        case Why.STALE_EPOCH:
            epoch = ((w.PRODUCER_EPOCH, b"%d" % answer.epoch),)
            return Refusal(403, "stale_epoch", "the producer has a later epoch", epoch)
        case Why.EPOCH_BEGINS_AT_ZERO:
            return bad("a new epoch of a producer begins at sequence 0")
        case Why.GAP:
            headers = (
                (w.PRODUCER_EXPECTED, b"%d" % answer.expected),
                (w.PRODUCER_RECEIVED, b"%d" % received),
            )
            return Refusal(409, "sequence_gap", "appends of the producer are missing", headers)
        case Why.CONFLICT:
            return Refusal(
                409, "stream_exists", "there is a stream of this name, and not like this"
            )
        case Why.SOURCE_BURIED:
            return Refusal(409, "stream_deleted", "the source is deleted")
        case Why.BEYOND:
            return bad("the source has no such offset")


def failure(answer: StreamFailed | Failed) -> Refusal:
    """What a stream, or the way to it, refuses."""
    if isinstance(answer, StreamFailed) and answer.is_buried:
        return gone()
    match answer.code:
        case Code.UNKNOWN_STREAM | Code.NOT_FOUND:
            return missing()
        case Code.TRIMMED:
            return trimmed()
        case Code.NOT_ALLOWED | Code.PART_OF_TOPIC:
            return Refusal(403, "permission_denied", "not allowed")
        case Code.BUFFER_FULL:
            return Refusal(507, "full", "the stream or the node is full; nothing was stored")
        case Code.DATA_TOO_LARGE:
            return Refusal(413, "too_large", "larger than is taken")
        case Code.SLOW_DOWN:
            return Refusal(429, "rate_limited", "too many requests")
        case Code.STORAGE_FAILED:
            return Refusal(503, "storage", "the store could not keep it; nothing was stored")
        case Code.OUTCOME_UNKNOWN:
            return Refusal(500, "outcome_unknown", "it may or may not have been done")
        case Code.QUARANTINED | Code.IDS_EXHAUSTED | Code.NON_MONOTONIC_ID:
            return Refusal(503, "unavailable", "the stream takes nothing for now")
        case _:
            return bad(f"the node answered {answer.code.name.lower()}")
