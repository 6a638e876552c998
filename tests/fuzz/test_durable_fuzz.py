"""Mutated bodies and headers of Durable Streams: JSON messages are those that another parser finds,
and nothing but typed errors comes out.

Rounds are seeded, so a failure names the input that caused it and repeats.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from millpond.transports.http.durable import protocol, request_headers
from millpond.transports.http.durable.errors import DurableError
from millpond.transports.http.durable.json_mode import NotJson, checked, is_message, messages_of
from millpond.transports.http.json_arrays import ArrayTooLong
from millpond.transports.http.request import BadPath, HttpLimits, Request, request_head
from tests.fuzz.mutation import mutated

pytestmark = pytest.mark.wire

NORMAL, FULL = 3_000, 300_000
ROUNDS = [pytest.param(NORMAL, id="normal"), pytest.param(FULL, id="full", marks=pytest.mark.full)]
EDGES = b'\0\x1f\x7f\x80\xc3\xed\xff{}[]",:0-+.eE\\udD8 \n\tNItfn'
MESSAGES_MAX = 6
VALUES = (
    b"1", b"-0.5e+7", b"1e400", b"123456789012345678901234567890", b'"a\\u00e9\\n"', b'"\\ud800"',
    b'"\\ud83d\\ude00"', '"\u00e9\U0001f600"'.encode(), b"true", b"null", b"[]", b"{}",
    b'{"type":"user","key":"1","value":{"name":"A"},"headers":{"operation":"insert"}}',
    b"[1,[2,3],[]]", b'{"a":1,"a":2}',
)  # fmt: skip


def body(rng: random.Random) -> bytes:
    """One value, or an array of values with spaces of all kinds."""
    if rng.random() < 0.3:
        return rng.choice(VALUES)
    space = rng.choice((b"", b" ", b"\r\n\t"))
    return (
        b"[" + space + (b"," + space).join(rng.choices(VALUES, k=rng.randint(0, 8))) + b"]" + space
    )


def refuse(constant: str) -> object:
    raise ValueError(constant)


def oracle(data: bytes) -> list[object] | None:
    """The messages by the standard library; None: it is not JSON."""
    try:
        value = json.loads(data.decode(), parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_messages_are_those_of_another_parser(rounds: int) -> None:
    """B.4: an array is its elements, another value is one message; bytes are kept as they came."""
    rng = random.Random(41)
    accepted = refused = long = 0
    for _ in range(rounds):
        data = mutated(rng, body(rng), EDGES)
        expected = oracle(data)
        try:
            found = messages_of(data, MESSAGES_MAX)
        except ArrayTooLong:
            long += 1
            assert expected is None or len(expected) > MESSAGES_MAX, data
            continue
        except NotJson as error:
            refused += 1
            assert expected is None and str(error), data
            continue
        accepted += 1
        assert expected is not None and len(found) <= MESSAGES_MAX, data
        assert [repr(json.loads(each)) for each in found] == [repr(each) for each in expected], data
        assert all(each in data and is_message(each) for each in found), data
        assert list(checked(found)) == found, data
    assert min(accepted, refused, long) > rounds // 50


@pytest.mark.parametrize("rounds", ROUNDS)
def test_records_of_other_apis_are_left_out_of_arrays(rounds: int) -> None:
    """A record is shown in JSON mode if it is one JSON value, whatever its neighbours are."""
    rng = random.Random(42)
    shown = 0
    for _ in range(rounds):
        bodies = [mutated(rng, rng.choice(VALUES), EDGES) for _ in range(rng.randint(1, 4))]
        found = checked(bodies)
        assert list(found) == [each for each in bodies if is_message(each)], bodies
        assert json.loads(b"[%b]" % b",".join(found)) is not None
        shown += len(found)
    assert shown > rounds // 2


Reader = Callable[[Request], object]
HEADERS: dict[str, tuple[Reader, list[tuple[bytes, list[bytes]]]]] = {
    "lifetime": (
        request_headers.lifetime,
        [
            (protocol.TTL, [b"3600", b"0"]),
            (protocol.EXPIRES_AT, [b"2030-01-31T12:00:00.5+01:00", b"2030-02-28t23:59:59Z"]),
        ],
    ),
    "producer": (
        request_headers.producer,
        [
            (protocol.PRODUCER_ID, [b"p-1"]),
            (protocol.PRODUCER_EPOCH, [b"0", b"9007199254740991"]),
            (protocol.PRODUCER_SEQ, [b"0", b"17"]),
        ],
    ),
    "fork": (
        request_headers.fork,
        [
            (protocol.FORKED_FROM, [b"/streams/a"]),
            (protocol.FORK_OFFSET, [b"0000000000000003_0000000000000000"]),
            (protocol.FORK_SUB_OFFSET, [b"2"]),
        ],
    ),
    "sequence": (request_headers.stream_seq, [(protocol.SEQ, [b"2026-01-01"])]),
}
QUERY = (b"offset=0000000000000003_0000000000000000", b"offset=-1&live=sse&cursor=1", b"offset=now")


def request(headers: list[tuple[bytes, bytes]], query: bytes = b"") -> Request:
    def never() -> object:
        raise AssertionError("nothing is read")

    scope = {"method": "GET", "headers": headers, "query_string": query}
    return Request(scope, never, HttpLimits(), request_head(scope, ()))  # type: ignore[arg-type]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("target", HEADERS)
def test_headers_are_read_or_refused(target: str, rounds: int) -> None:
    """B.2, B.5: a refusal is a 400 with a text."""
    rng = random.Random(43)
    read, names = HEADERS[target]
    refused = 0
    for _ in range(rounds):
        given = [
            (name, mutated(rng, rng.choice(values), EDGES))
            for name, values in names
            if rng.random() < 0.8
        ]
        try:
            read(request(given))
        except DurableError as error:
            refused += 1
            assert error.status == 400, given
    assert (refused > rounds // 50) is (target != "sequence")


@pytest.mark.parametrize("rounds", ROUNDS)
def test_queries_are_read_or_refused(rounds: int) -> None:
    """DSO-01 to DSO-08: an offset is read as a sequence, or refused with 400."""
    rng = random.Random(44)
    refused = 0
    for _ in range(rounds):
        query = mutated(rng, rng.choice(QUERY), b"=&%+-_09now")
        try:
            found = request_headers.read_query(request([], query).query)
        except BadPath:
            continue  # a broken escape is refused for every API, before its query is read
        except DurableError as error:
            refused += 1
            assert error.status == 400, query
        else:
            assert found.start is None or found.start == "now" or 0 <= int(found.start) < 10**16
    assert rounds // 50 < refused < rounds
