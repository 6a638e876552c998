"""Errors of the S3P and RustLog clients, besides those of `millpond.actors.errors`.

A request that a lost connection left unanswered fails with `NotDone` where it certainly had no
effect, and with `millpond.actors.errors.OutcomeUnknown` where it may have had one.
"""

from __future__ import annotations

from millpond.actors.errors import (
    BufferFull,
    Code,
    DataTooLarge,
    Malformed,
    MillpondError,
    OutcomeUnknown,
    RequestError,
    StorageFailed,
    StreamExists,
    Trimmed,
    UnknownStream,
)
from millpond.node.client.errors import ConnectionLost
from millpond.transports.errors import WireError


class NotDone(ConnectionLost):
    """The connection is gone, and the request had no effect: it may be made again."""


class NotSent(NotDone):
    """The request never left this program."""


class BadReply(MillpondError, WireError):
    """The server's reply does not fit the request."""


class LimitExceeded(RequestError):
    """the server's limits do not allow this (ERR_LIMITS); it closed the connection"""

    code = Code.NOT_ALLOWED


class RustlogRefused(RequestError):
    """the server refused the request; `status` and `details` are those of its answer"""

    code = Code.MALFORMED

    def __init__(self, status: int, text: str = "", details: dict[str, object] | None = None):
        super().__init__(text)
        self.status = status
        self.details = details or {}


class InvalidRequest(RustlogRefused, Malformed):
    """the server does not take the request as it is (400)"""

    code = Code.MALFORMED


class UnknownTopic(RustlogRefused, UnknownStream):
    """there is no topic of this name (404)"""

    code = Code.UNKNOWN_STREAM


class UnknownPartition(RustlogRefused, UnknownStream):
    """the topic has no such partition (405)"""

    code = Code.UNKNOWN_STREAM


class TopicExists(StreamExists):
    """there is a topic of this name"""


class RecordTooLarge(RustlogRefused, DataTooLarge):
    """the record is larger than the server takes (413)"""

    code = Code.DATA_TOO_LARGE


class OffsetOutOfRange(RustlogRefused, Trimmed):
    """the offset is below the first one kept (416); `start` is that one, `end` the next to come"""

    code = Code.TRIMMED

    @property
    def start(self) -> int | None:
        """The first offset that is kept; None where the server gave none."""
        return self._bound("start")

    @property
    def end(self) -> int | None:
        """The offset of the next record to come; None where the server gave none."""
        return self._bound("end")

    def _bound(self, name: str) -> int | None:
        valid = self.details.get("valid_range")
        bound = valid.get(name) if isinstance(valid, dict) else None
        return bound if type(bound) is int else None


class ServerFailed(RustlogRefused, OutcomeUnknown):
    """the server failed; the request may have been done or not (500)"""

    code = Code.OUTCOME_UNKNOWN


class StoreFailed(RustlogRefused, StorageFailed):
    """the server could not keep the records; nothing was stored (503)"""

    code = Code.STORAGE_FAILED


class NoSpace(RustlogRefused, BufferFull):
    """the server has no room for the records; nothing was stored (507)"""

    code = Code.BUFFER_FULL
