"""Errors of S2 (contract A.9).

S2Error                     a status and a JSON body
 +-- CodedError             one of the codes: `{"code", "message"}`
 |    +-- NoSuchMethod       405, with the methods of the path
 |    +-- NotDeclared        415: the body has another content type
 |    +-- BadFrame          s2s: the bytes of a session cannot be parsed any further
 +-- FencingTokenMismatch   412, with the token of the stream
 +-- SeqNumMismatch         412, with the next sequence
 +-- RangeNotSatisfiable    416, with the tail: there is nothing to read at the start
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, StreamFailed
from millpond.transports.http.response import Response

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


class ErrorCode(Enum):
    """The codes of A.9, each with its HTTP status."""

    BAD_JSON = "bad_json", 400
    BAD_QUERY = "bad_query", 400
    BAD_PATH = "bad_path", 400
    BAD_HEADER = "bad_header", 400
    BAD_PROTO = "bad_proto", 400
    BAD_FRAME = "bad_frame", 400
    DECRYPTION_FAILED = "decryption_failed", 400
    AUTHN = "authn", 401
    PERMISSION_DENIED = "permission_denied", 403
    QUOTA_EXHAUSTED = "quota_exhausted", 403
    BASIN_NOT_FOUND = "basin_not_found", 404
    STREAM_NOT_FOUND = "stream_not_found", 404
    ACCESS_TOKEN_NOT_FOUND = "access_token_not_found", 404
    REQUEST_TIMEOUT = "request_timeout", 408
    RESOURCE_ALREADY_EXISTS = "resource_already_exists", 409
    BASIN_DELETION_PENDING = "basin_deletion_pending", 409
    STREAM_DELETION_PENDING = "stream_deletion_pending", 409
    TRANSACTION_CONFLICT = "transaction_conflict", 409
    TOO_MANY_WRITERS = "too_many_writers", 409
    INVALID = "invalid", 422
    RATE_LIMITED = "rate_limited", 429
    CLIENT_HANGUP = "client_hangup", 499
    OTHER = "other", 500
    STORAGE = "storage", 500
    NOT_IMPLEMENTED = "not_implemented", 501
    HOT_SERVER = "hot_server", 502
    UNAVAILABLE = "unavailable", 503
    SERVER_DRAINING = "server_draining", 503
    UPSTREAM_TIMEOUT = "upstream_timeout", 504

    @property
    def wire_code(self) -> str:
        """The code on the wire."""
        return self.value[0]

    @property
    def status(self) -> int:
        """The HTTP status that goes with it."""
        return self.value[1]


class StreamPosition(msgspec.Struct, frozen=True, gc=False):
    """A place in a stream, in JSON as S2 has it. `timestamp` is in milliseconds."""

    seq_num: int
    timestamp: int


class S2Error(Exception):
    """A refused request: a status, and `content` as the JSON body, which is never empty."""

    def __init__(self, status: int, text: str, content: object) -> None:
        super().__init__(text)
        self.status = status
        self.content = content
        self.headers: Headers = [(b"content-type", b"application/json")]

    @property
    def body(self) -> bytes:
        """The JSON body of the response."""
        return _encode(self.content)

    @property
    def response(self) -> Response:
        """The response that tells the client."""
        return Response(self.status, self.headers, self.body)


class CodedError(S2Error):
    """An error with a code. `delay_ms`: the retry delay, where a retry may help."""

    def __init__(self, code: ErrorCode, text: str, delay_ms: int | None = None) -> None:
        # The text may contain raw bytes of a query.
        shown = text.encode("utf-8", "replace").decode()
        super().__init__(code.status, text, {"code": code.wire_code, "message": shown})
        self.code = code
        self.delay_ms = delay_ms
        if delay_ms is not None:
            self.headers.append((b"retry-after-ms", b"%d" % delay_ms))


class NoSuchMethod(CodedError):
    """405: the path has other methods."""

    def __init__(self, method: str, methods: Sequence[str]) -> None:
        super().__init__(ErrorCode.BAD_PATH, f"this path does not support {method[:20]}")
        self.status = 405
        self.headers.append((b"allow", ", ".join(sorted(methods)).encode()))


class NotDeclared(CodedError):
    """415: the content type of the body is not what this path accepts; for paths that are not of
    S2. A web page may send some types to any address without being asked."""

    def __init__(self, expected: str) -> None:
        super().__init__(ErrorCode.BAD_HEADER, f"content-type: expected {expected}")
        self.status = 415


class FencingTokenMismatch(S2Error):
    """The stream has the fencing token `token`; other APIs may set tokens that are not UTF-8."""

    def __init__(self, token: bytes) -> None:
        text = "the stream has another fencing token"
        super().__init__(412, text, {"fencing_token_mismatch": token.decode("utf-8", "replace")})


class SeqNumMismatch(S2Error):
    """The next record of the stream gets the sequence `tail`."""

    def __init__(self, tail: int) -> None:
        super().__init__(412, f"the next sequence number is {tail}", {"seq_num_mismatch": tail})


class RangeNotSatisfiable(S2Error):
    """No record at the start of the read, which may not wait for one (A.5 2 and 3)."""

    def __init__(self, tail: StreamPosition) -> None:
        super().__init__(416, f"the tail is at {tail.seq_num}", {"tail": tail})


def invalid(text: str) -> CodedError:
    """422: it can be read, and means nothing that is possible."""
    return CodedError(ErrorCode.INVALID, text)


def bad_json(text: str) -> CodedError:
    """400: the body is not the JSON it has to be."""
    return CodedError(ErrorCode.BAD_JSON, text)


def bad_header(text: str) -> CodedError:
    """400: a header cannot be read, or is missing."""
    return CodedError(ErrorCode.BAD_HEADER, text)


def error_of(reply: Failed | StreamFailed) -> S2Error:
    """The error that a cell's refusal is in S2."""
    if isinstance(reply, Failed):
        return coded_error(reply.code, reply.delay_ms)
    match reply.code:
        case Code.FENCED:
            return FencingTokenMismatch(reply.fencing_token)
        case Code.SEQUENCE_MISMATCH:
            return SeqNumMismatch(reply.tail)
        case code:
            return coded_error(code)


def coded_error(code: Code, delay_ms: int | None = None) -> CodedError:
    """The coded error for a code alone, where nothing else is known of the stream.

    No codes that only channels and jobs have can come of a stream: they are faults of the node.
    """
    word, text = _meaning(code)
    return CodedError(word, text, delay_ms)


def _meaning(code: Code) -> tuple[ErrorCode, str]:
    match code:
        case Code.UNKNOWN_STREAM | Code.NOT_FOUND:
            return ErrorCode.STREAM_NOT_FOUND, "the stream does not exist"
        case Code.STREAM_EXISTS:
            return ErrorCode.RESOURCE_ALREADY_EXISTS, "the stream exists already"
        case Code.NOT_ALLOWED | Code.WRONG_ROLE:
            return ErrorCode.PERMISSION_DENIED, "the access token does not permit this"
        case Code.ENCRYPTED:
            return ErrorCode.PERMISSION_DENIED, "the stream is encrypted"
        case Code.PART_OF_TOPIC:
            return ErrorCode.PERMISSION_DENIED, "the stream is a partition of a topic"
        case Code.BUFFER_FULL:
            return ErrorCode.QUOTA_EXHAUSTED, "the stream or the node is full"
        case Code.SLOW_DOWN:
            return ErrorCode.RATE_LIMITED, "too many requests"
        case Code.IDS_EXHAUSTED | Code.QUARANTINED:
            return ErrorCode.UNAVAILABLE, "the stream accepts no requests now; nothing was done"
        case Code.STORAGE_FAILED:
            return ErrorCode.STORAGE, "the store cannot read or write this; nothing is acknowledged"
        case Code.OUTCOME_UNKNOWN:
            return ErrorCode.OTHER, "the request may or may not have been carried out"
        case Code.NOT_NEGOTIATED:
            return ErrorCode.NOT_IMPLEMENTED, "the node does not do this"
        case Code.DATA_TOO_LARGE | Code.TOO_LARGE_FOR_PEER | Code.EMPTY_DATA:
            return ErrorCode.INVALID, "a record is empty or too large"
        case Code.MALFORMED | Code.NON_MONOTONIC_ID | Code.BAD_RANGE | Code.TRIMMED:
            return ErrorCode.INVALID, "the request cannot be satisfied"
        case Code.CLOSED:
            return ErrorCode.INVALID, "the stream is closed"
        case Code.FENCED | Code.SEQUENCE_MISMATCH:
            return ErrorCode.INVALID, "a condition does not hold"
        case (
            Code.TTL_REFUSED
            | Code.KEY_REUSED
            | Code.LEASE_LOST
            | Code.GROUPS_FULL
            | Code.UNKNOWN_PEER
            | Code.NO_PREKEY
            | Code.NOT_A_QUEUE
            | Code.STATE_TOO_LARGE
            | Code.CHANNEL_EXISTS
            | Code.UNKNOWN_CHANNEL
            | Code.NO_LISTENER
        ):
            return ErrorCode.OTHER, f"the node failed: {code.name.lower()}"
        case _:
            assert_never(code)
