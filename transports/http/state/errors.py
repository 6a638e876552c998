"""Refusals as JSON `{"code", "message"}`, with the status that fits."""

from __future__ import annotations

from millpond.actors.errors import ERRORS, Code
from millpond.actors.messages import Failed, StreamFailed
from millpond.transports.http.response import Response, json_response

_STATUSES = {
    Code.ENCRYPTED: 403,
    Code.UNKNOWN_STREAM: 404,
    Code.NOT_FOUND: 404,
    Code.STREAM_EXISTS: 409,
    Code.FENCED: 409,
    Code.PART_OF_TOPIC: 409,
    Code.SEQUENCE_MISMATCH: 412,
    Code.DATA_TOO_LARGE: 413,
    Code.SLOW_DOWN: 503,
    Code.BUFFER_FULL: 503,
    Code.STORAGE_FAILED: 503,
    Code.QUARANTINED: 503,
    Code.IDS_EXHAUSTED: 503,
    Code.STATE_TOO_LARGE: 507,
}
_WORDS = {
    Code.BUFFER_FULL: "the stream or the node is full; retry later",
    Code.SLOW_DOWN: "the node is still reading the stream; retry later",
    Code.QUARANTINED: "the stream is quarantined after repeated failures",
}
RETRY_S = b"1"


class StateError(Exception):
    """A request that is refused. `status` is HTTP's."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code

    @property
    def response(self) -> Response:
        """The answer that says so."""
        headers = [(b"retry-after", RETRY_S)] if self.status == 503 else []
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return json_response(self.status, {"code": self.code, "message": str(self)}, headers)


def error_of(reply: StreamFailed | Failed) -> StateError:
    """The error for a refusal by a cell."""
    code = reply.code
    text = _WORDS.get(code) or str(ERRORS[code]())
    return StateError(_STATUSES.get(code, 500), code.name.lower(), text)
