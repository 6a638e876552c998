"""Descriptions of basins, streams and access tokens (docs/reference/s2.md)."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.http.s2.codecs.info import (
    BasinInfo,
    ListQuery,
    StreamInfo,
    encode_basin,
    encode_basins,
    encode_stream,
    encode_streams,
    nanoseconds_of,
    read_list_query,
    read_time,
    time_text,
)
from millpond.transports.http.s2.codecs.tokens import (
    AccessTokenInfo,
    NameSet,
    Operation,
    OperationGroups,
    ReadWrite,
    Scope,
    encode_issued,
    encode_token,
    encode_tokens,
    read_token,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode

TS = 1_700_000_000_123


def test_basins_and_streams() -> None:
    assert json.loads(encode_basin(BasinInfo("some-basin", TS))) == {
        "name": "some-basin",
        "location": None,
        "created_at": "2023-11-14T22:13:20.123Z",
        "deleted_at": None,
        "state": "active",
    }
    going = json.loads(encode_basin(BasinInfo("some-basin", TS, TS + 1, "here")))
    assert (going["state"], going["location"]) == ("deleting", "here")
    assert going["deleted_at"] == "2023-11-14T22:13:20.124Z"
    assert json.loads(encode_stream(StreamInfo("a/é", 0, None, "aegis-256"))) == {
        "name": "a/é",
        "created_at": "1970-01-01T00:00:00.000Z",
        "deleted_at": None,
        "cipher": "aegis-256",
    }


def test_pages() -> None:
    assert encode_basins([], has_more=False) == b'{"basins":[],"has_more":false}'
    page = json.loads(encode_streams([StreamInfo("s", 0)], has_more=True))
    assert ([each["name"] for each in page["streams"]], page["has_more"]) == (["s"], True)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], ListQuery()),
        ([("prefix", "a/"), ("start_after", "b")], ListQuery("a/", "b")),
        ([("limit", "7")], ListQuery(limit=7)),
        ([("limit", "0")], ListQuery()),
        ([("limit", "1001")], ListQuery()),
    ],
)
def test_a_limit_out_of_range_is_the_largest(
    pairs: list[tuple[str, str]], expected: ListQuery
) -> None:
    assert read_list_query(pairs) == expected


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(CodedError) as caught:
        read_list_query([("limit", "many")])
    assert caught.value.code is ErrorCode.BAD_QUERY


@given(st.integers(0, 253_402_300_799_999))
def test_times_come_back_and_clients_can_read_them(ms: int) -> None:
    text = time_text(ms)
    assert read_time(text, "t") == ms
    assert round(datetime.fromisoformat(text).timestamp() * 1000) == ms


@given(st.integers(0, 253_402_300_799_999), st.integers(0, 999_999))
def test_nanoseconds_come_back(ms: int, ns: int) -> None:
    text = time_text(ms, ns)
    assert (read_time(text, "t"), nanoseconds_of(text)) == (ms, ns)


def test_nanoseconds_are_shown_as_they_were_given() -> None:
    for text in ("2026-11-24T13:55:14.067548524Z", "2026-11-24T13:55:14.0675Z"):
        assert time_text(read_time(text, "t"), nanoseconds_of(text)) == text
    assert nanoseconds_of("2026-11-24T13:55:14Z") == nanoseconds_of("2026-11-24T13:55:14.5Z") == 0


def test_times_with_offsets() -> None:
    assert read_time("2023-11-14T23:13:20.123456+01:00", "t") == TS
    assert read_time("2023-11-14 22:13:20z", "t") == TS - 123
    assert time_text(read_time("9999-12-31T23:59:59-23:00", "t")).startswith("9999-12-31")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-13-14T22:13:20Z",
        "٢023-11-14T22:13:20Z",
    ],
)
def test_other_times_are_bad_json(text: str) -> None:
    with pytest.raises(CodedError, match="expires_at") as caught:
        read_time(text, "expires_at")
    assert caught.value.code is ErrorCode.BAD_JSON


TOKEN = {
    "id": "reader",
    "expires_at": "2023-11-14T22:13:20.123Z",
    "auto_prefix_streams": True,
    "scope": {
        "basins": {"exact": "some-basin"},
        "streams": {"prefix": "a/"},
        "access_tokens": None,
        "op_groups": {"stream": {"read": True}},
        "ops": ["check-tail"],
    },
}


def test_access_tokens_come_and_go() -> None:
    info = read_token(json.dumps(TOKEN).encode())
    assert info == AccessTokenInfo(
        "reader",
        Scope(
            NameSet(exact="some-basin"),
            NameSet(prefix="a/"),
            None,
            OperationGroups(stream=ReadWrite(read=True)),
            [Operation.CHECK_TAIL],
        ),
        TS,
        True,
    )
    assert encode_token(read_token(encode_token(info))) == encode_token(info)
    page = json.loads(encode_tokens([info], has_more=False))
    assert page["access_tokens"] == [json.loads(encode_token(info))]
    assert encode_issued("secret") == b'{"access_token":"secret"}'


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"id": ""}, ErrorCode.BAD_JSON),
        ({"id": "x" * 97}, ErrorCode.BAD_JSON),
        ({"scope": {"streams": {"prefix": ""}}}, ErrorCode.INVALID),
        ({"scope": {"op_groups": {"basin": {"read": False}}, "ops": []}}, ErrorCode.INVALID),
        ({"scope": {"ops": ["read"]}}, ErrorCode.INVALID),
        ({"scope": {"ops": ["read"], "streams": {"exact": "a"}}}, ErrorCode.INVALID),
        ({"scope": {"ops": ["fly"]}}, ErrorCode.BAD_JSON),
        ({"scope": {"ops": ["read"], "basins": {}}}, ErrorCode.BAD_JSON),
        ({"expires_at": "soon"}, ErrorCode.BAD_JSON),
    ],
)
def test_tokens_that_are_refused(change: dict[str, object], code: ErrorCode) -> None:
    """A.3: a scope that permits nothing, and names to prefix without a prefix, are errors."""
    with pytest.raises(CodedError) as caught:
        read_token(json.dumps({**TOKEN, **change}).encode())
    assert caught.value.code is code


def test_sets_of_names() -> None:
    assert NameSet(exact="a").has("a") and not NameSet(exact="a").has("ab")
    assert NameSet(prefix="a").has("ab") and not NameSet(prefix="a").has("b")
    assert NameSet(prefix="").has("anything") and not NameSet(exact="").has("")
