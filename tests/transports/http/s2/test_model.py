"""Validity of appends, metering, names (docs/reference/s2.md)."""

from __future__ import annotations

import pytest
from hypothesis import given

from millpond.actors.streams.messages import Headers, RecordColumns
from millpond.transports.http.s2.errors import CodedError, ErrorCode
from millpond.transports.http.s2.model import (
    METERED_MAX,
    RECORDS_MAX,
    AppendInput,
    check_append,
    check_basin,
    check_stream,
    check_token_id,
    metered,
    metered_span,
)
from tests.transports.http.s2.samples import metered_of, records_of, spans


@given(spans())
def test_records_are_metered_as_the_contract_has_it(span: RecordColumns) -> None:
    records = records_of(span)
    assert metered_span(span) == sum(map(metered_of, records))
    assert [metered(body, pairs) for _, _, pairs, body in records] == list(map(metered_of, records))


FENCE, TRIM = (b"", b"fence"), (b"", b"trim")
FULL = METERED_MAX - 8


@pytest.mark.parametrize(
    "given",
    [
        AppendInput([b""]),
        AppendInput([b""] * RECORDS_MAX),
        AppendInput([bytes(FULL)]),
        AppendInput([bytes(FULL - 8), b""]),
        AppendInput([bytes(FULL - 5)], [[(b"k", b"ab")]]),
        AppendInput([b""], [[FENCE]], None, None, b""),
        AppendInput(["é".encode() * 18], [[FENCE]], None, 0, b"t" * 36),
        AppendInput([bytes(8), b"x"], [[TRIM], [(b"k", b"")]]),
    ],
)
def test_appends_up_to_the_limits_are_valid(given: AppendInput) -> None:
    check_append(given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (AppendInput([]), "1 to 1000 records"),
        (AppendInput([b""] * 1001), "1 to 1000 records"),
        (AppendInput([bytes(FULL + 1)]), "1048577 metered"),
        (AppendInput([bytes(FULL - 7), b""]), "1048577 metered"),
        (AppendInput([bytes(FULL - 4)], [[(b"k", b"ab")]]), "1048577 metered"),
        (AppendInput([b"t" * 37], [[FENCE]]), "36"),
        (AppendInput([b"\xff"], [[FENCE]]), "UTF-8"),
        (AppendInput([bytes(7)], [[TRIM]]), "8 bytes"),
        (AppendInput([bytes(9)], [[TRIM]]), "8 bytes"),
        (AppendInput([b""], [[(b"", b"drop")]]), "unknown command"),
        (AppendInput([b"x", b""], [[], [(b"k", b"v"), (b"", b"")]]), "the only one"),
        (AppendInput([b""], [[FENCE, FENCE]]), "the only one"),
        (AppendInput([b""], None, None, None, b"t" * 37), "token"),
    ],
)
def test_appends_beyond_them_are_invalid(given: AppendInput, says: str) -> None:
    """All or nothing: one bad record refuses its batch."""
    with pytest.raises(CodedError, match=says) as caught:
        check_append(given)
    assert caught.value.status == 422


def test_the_size_is_judged_before_the_commands() -> None:
    pairs: list[Headers] = [[(b"", b"drop")]]
    with pytest.raises(CodedError, match="metered"):
        check_append(AppendInput([bytes(METERED_MAX)], pairs))


@pytest.mark.parametrize("name", ["abcdefgh", "12345678", "a" * 48, "a--b-c-9"])
def test_names_of_basins(name: str) -> None:
    check_basin(name, ErrorCode.BAD_PATH)


@pytest.mark.parametrize(
    "name", ["", "abcdefg", "a" * 49, "-bcdefgh", "abcdefg-", "Abcdefgh", "abc_efgh", "abcdefgh\n"]
)
def test_what_is_no_name_of_a_basin(name: str) -> None:
    with pytest.raises(CodedError) as caught:
        check_basin(name, ErrorCode.BAD_PATH)
    assert caught.value.code is ErrorCode.BAD_PATH


@pytest.mark.parametrize("name", ["a", "...", "a/b", "%2F", "?#", " ", "é" * 256, "records"])
def test_names_of_streams(name: str) -> None:
    check_stream(name.encode(), ErrorCode.BAD_PATH)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a\0", b"\xff", b"a" * 513])
def test_what_is_no_name_of_a_stream(name: bytes) -> None:
    with pytest.raises(CodedError) as caught:
        check_stream(name, ErrorCode.BAD_JSON)
    assert caught.value.code is ErrorCode.BAD_JSON


def test_ids_of_access_tokens() -> None:
    check_token_id("é" * 48, ErrorCode.BAD_PATH)
    for name in ("", ".", "..", "é" * 48 + "a", "a\0", "a\ud800"):
        with pytest.raises(CodedError):
            check_token_id(name, ErrorCode.BAD_PATH)
