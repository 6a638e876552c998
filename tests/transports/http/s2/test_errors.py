"""Error responses of S2 (docs/reference/s2.md)."""

from __future__ import annotations

import json

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Get, StreamFailed
from millpond.actors.positions import Position
from millpond.transports.http.s2.errors import (
    CodedError,
    ErrorCode,
    RangeNotSatisfiable,
    StreamPosition,
    coded_error,
    error_of,
)


def failed(code: Code) -> StreamFailed:
    return StreamFailed(1, code, 3, 42, Position(0, 0), b"tok\xff")


def test_conditions_that_fail_say_what_the_stream_has_and_no_code() -> None:
    fenced, moved = error_of(failed(Code.FENCED)), error_of(failed(Code.SEQUENCE_MISMATCH))
    assert (fenced.status, json.loads(fenced.body)) == (
        412,
        {"fencing_token_mismatch": "tok\ufffd"},
    )
    assert (moved.status, moved.body) == (412, b'{"seq_num_mismatch":42}')


def test_what_cannot_be_read_comes_with_the_tail() -> None:
    error = RangeNotSatisfiable(StreamPosition(5, 6))
    assert (error.status, error.body) == (416, b'{"tail":{"seq_num":5,"timestamp":6}}')
    assert error.headers == [(b"content-type", b"application/json")]


@pytest.mark.parametrize(
    ("code", "word", "status"),
    [
        (Code.UNKNOWN_STREAM, "stream_not_found", 404),
        (Code.STREAM_EXISTS, "resource_already_exists", 409),
        (Code.NOT_ALLOWED, "permission_denied", 403),
        (Code.BUFFER_FULL, "quota_exhausted", 403),
        (Code.SLOW_DOWN, "rate_limited", 429),
        (Code.MALFORMED, "invalid", 422),
        (Code.STORAGE_FAILED, "storage", 500),
        (Code.OUTCOME_UNKNOWN, "other", 500),
        (Code.QUARANTINED, "unavailable", 503),
    ],
)
def test_refusals_of_cells_by_their_codes(code: Code, word: str, status: int) -> None:
    for error in (error_of(failed(code)), error_of(Failed(Get(1), code))):
        assert error.status == status
        assert json.loads(error.body)["code"] == word


@pytest.mark.parametrize("code", Code)
def test_every_code_has_an_error_with_a_body(code: Code) -> None:
    """A.2: with an empty body a client's read session would end as if complete."""
    said = json.loads(coded_error(code).body)
    assert said["code"] and said["message"]
    assert error_of(failed(code)).status >= 400


def test_a_delay_is_told_in_milliseconds() -> None:
    error = error_of(Failed(Get(1), Code.SLOW_DOWN, 250))
    assert (b"retry-after-ms", b"250") in error.headers


def test_what_a_client_sent_may_be_in_the_words() -> None:
    """Queries are decoded with what is no UTF-8 in them escaped."""
    said = json.loads(CodedError(ErrorCode.BAD_QUERY, 'a\udcff"\n').body)
    assert said == {"code": "bad_query", "message": 'a?"\n'}


def test_codes_and_statuses_are_those_of_the_contract() -> None:
    by_status: dict[int, set[str]] = {}
    for code in ErrorCode:
        by_status.setdefault(code.status, set()).add(code.wire_code)
    assert by_status[404] == {"basin_not_found", "stream_not_found", "access_token_not_found"}
    assert by_status[503] == {"unavailable", "server_draining"}
    assert by_status[403] == {"permission_denied", "quota_exhausted"}
    assert by_status[409] >= {"transaction_conflict", "too_many_writers"}, "of our own sessions"
    assert len(ErrorCode) == 29
