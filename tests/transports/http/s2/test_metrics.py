"""Metrics: usage by minute, hour and day, the bytes of now, and the checks of queries (S2X-30 to
S2X-34)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.http.s2 import usage as usages
from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.s2_pb2 import AppendInput
from millpond.transports.http.s2.usage import S2Usage
from tests.transports.http.client import Client
from tests.transports.http.s2.account import (
    BEGAN_AT,
    OTHER,
    OWN,
    RECORD,
    Account,
    Hands,
    account,
    code_of,
)

BEGAN_S = int(BEGAN_AT)
MINUTE_AT, HOUR_AT, DAY_AT = (BEGAN_S - BEGAN_S % each for each in (60, 3600, 86_400))
PERIOD = f"&start={BEGAN_S - 3600}&end={BEGAN_S + 300}"


async def _values(s2: Account, path: str, period: str = PERIOD) -> list[dict[str, Any]]:
    got = await s2.ask("GET", f"/metrics{path}{period}")
    assert got.status == 200, got.body
    return [value for each in got.json()["values"] for value in each.values()]


def _sum(name: str, unit: str, interval: str, *values: tuple[int, int]) -> dict[str, object]:
    points = [list(each) for each in values]
    return {"name": name, "unit": unit, "interval": interval, "values": points}


async def test_s2x_32_one_append_and_one_read_are_seen_at_once() -> None:
    """In the interval that is not over; one operation for each append, read and session."""
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a")
        await s2.fill("a", basin=OWN)
        await s2.ask("GET", "/streams/a/records?seq_num=0&count=1", basin=OTHER)
        events = ((b"accept", b"text/event-stream"),)
        path = "/streams/a/records?seq_num=0&count=1"
        for _ in range(2):
            got = await s2.ask("GET", path, basin=OTHER, headers=events)
            assert b"event: batch" in got.body
        hands.at_s = 60.0
        await s2.ask("POST", "/streams/a/records", RECORD, basin=OTHER)
        now = MINUTE_AT + 60
        assert await _values(s2, f"/{OTHER}?set=append-ops") == [
            _sum("express", "operations", "minute", (MINUTE_AT, 1), (now, 1))
        ]
        assert await _values(s2, f"/{OTHER}?set=append-ops&interval=hour") == [
            _sum("express", "operations", "hour", (HOUR_AT, 2))
        ]
        assert await _values(s2, f"/{OTHER}?set=append-throughput&interval=day") == [
            _sum("express", "bytes", "day", (DAY_AT, 18))
        ]
        assert await _values(s2, f"/{OTHER}?set=read-ops") == [
            _sum("unary", "operations", "minute", (MINUTE_AT, 1)),
            _sum("streaming", "operations", "minute", (MINUTE_AT, 2)),
        ]
        assert await _values(s2, f"/{OTHER}?set=read-throughput") == [
            _sum("read", "bytes", "minute", (MINUTE_AT, 27))
        ]
        assert await _values(s2, f"/{OWN}?set=append-ops&interval=hour") == [
            _sum("express", "operations", "hour", (HOUR_AT, 1))
        ]
        await s2.ask("GET", "/streams", basin=OTHER)
        assert await _values(s2, f"/{OTHER}?set=basin-ops") == [
            _sum("create-stream", "operations", "hour", (HOUR_AT, 1)),
            _sum("list-streams", "operations", "hour", (HOUR_AT, 1)),
        ]


async def test_s2x_32_a_session_counts_what_it_was_acked() -> None:
    """Under the storage class of its stream, whatever that of the basin is."""
    body = AppendInput(records=[{"body": b"xyz"}, {"body": b"z"}]).SerializeToString()
    async with account(clock=Hands().clock()) as s2:
        await s2.fill("a")
        await _set_class(s2, "standard")
        assert (await s2.ask("POST", "/streams", {"stream": "b"}, basin=OTHER)).status == 201
        headers = [(b"s2-basin", OTHER.encode()), (b"content-type", b"s2s/proto")]
        wire = frames.encode([body]) * 3
        client = Client(s2.application)
        for name in ("a", "b", "b"):
            got = await client.request("POST", f"/v1/streams/{name}/records", headers, wire)
            assert got.status == 200
        # One record of 9 metered bytes was there; sessions of three appends of 20 follow.
        path = f"/{OTHER}?set=append-throughput&interval=hour"
        assert await _values(s2, path) == [
            _sum("express", "bytes", "hour", (HOUR_AT, 9 + 60)),
            _sum("standard", "bytes", "hour", (HOUR_AT, 120)),
        ]
        assert await _values(s2, f"/{OTHER}?set=append-ops") == [
            _sum("express", "operations", "minute", (MINUTE_AT, 2)),
            _sum("standard", "operations", "minute", (MINUTE_AT, 2)),
        ]


async def _set_class(s2: Account, name: str, path: str = f"/basins/{OTHER}") -> None:
    config: dict[str, Any] = {"storage_class": name}
    body = {"default_stream_config": config} if path.startswith("/basins") else config
    assert (await s2.ask("PATCH", path, body, basin=OTHER)).status == 200


@pytest.mark.parametrize("is_direct", [True, False])
async def test_an_append_counts_for_the_storage_class_of_its_stream(is_direct: bool) -> None:
    """The class that it has then. A refused append counts for that of the basin."""
    plain = (b"content-type", b"application/json")
    whole = (plain,) if is_direct else (plain, (b"s2-encryption-key", b"unused"))
    async with account(clock=Hands().clock()) as s2:
        await s2.fill("a", "b")

        async def append(name: str, body: Any = RECORD) -> int:
            path = f"/streams/{name}/records"
            return (await s2.ask("POST", path, body, basin=OTHER, headers=whole)).status

        await _set_class(s2, "standard", "/streams/b")
        assert [await append(name) for name in "aabbb"] == [200] * 5
        assert [await append("b", {**RECORD, "match_seq_num": 9}) for _ in range(2)] == [412] * 2
        await _set_class(s2, "express", "/streams/b")
        assert await append("b") == 200
        assert await _values(s2, f"/{OTHER}?set=append-ops&interval=hour") == [
            _sum("express", "operations", "hour", (HOUR_AT, 2 + 2 + 2 + 1)),
            _sum("standard", "operations", "hour", (HOUR_AT, 3)),
        ]
        assert await _values(s2, f"/{OTHER}?set=append-throughput") == [
            _sum("express", "bytes", "minute", (MINUTE_AT, 9 * 5)),
            _sum("standard", "bytes", "minute", (MINUTE_AT, 9 * 3)),
        ]


async def test_s2x_34_storage_is_what_there_is_now() -> None:
    """An hour a point for a basin, a minute for a stream."""
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a", "b/c")
        hands.at_s = 50.0
        now = BEGAN_S + 50
        sizes = []
        for path, at in (("/a", now - now % 60), ("/b%2Fc", now - now % 60), ("", HOUR_AT)):
            (found,) = await _values(s2, f"/{OTHER}{path}?set=storage")
            assert (found["name"], found["unit"]) == ("storage", "bytes")
            ((when, size),) = found["values"]
            assert when == at
            sizes.append(size)
        assert sizes[0] == sizes[1] > 0
        assert sizes[2] == 2 * sizes[0]
        (found,) = await _values(s2, f"/{OWN}?set=storage")
        assert found["values"] == [[HOUR_AT, 0]]


async def test_s2x_32_34_the_account() -> None:
    async with account(clock=Hands().clock()) as s2:
        label = {"name": "active-basins", "values": []}
        assert await _values(s2, "?set=active-basins&interval=minute") == [label]
        await s2.fill("a")
        await s2.ask("PUT", "/basins/empty-basin")
        assert await _values(s2, "?set=active-basins") == [{**label, "values": [OTHER]}]
        await s2.ask("GET", "/basins")
        assert await _values(s2, "/?set=account-ops") == [
            _sum("account-metrics", "operations", "hour", (HOUR_AT, 3)),
            _sum("create-basin", "operations", "hour", (HOUR_AT, 2)),
            _sum("list-basins", "operations", "hour", (HOUR_AT, 1)),
        ]


@pytest.mark.parametrize("interval", ["", "&interval=hour", "&interval=day"])
async def test_s2x_33_a_node_bills_nothing(interval: str) -> None:
    async with account(clock=Hands().clock()) as s2:
        word = interval.partition("=")[2] or "hour"
        path = f"?set=estimated-billable-usage{interval}"
        assert await _values(s2, path) == [_sum("total", "usd", word)]


async def test_s2x_31_a_period_without_anything_has_no_points() -> None:
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a")
        hands.at_s = 7200.0
        for period, has_points in (
            ("&start=0&end=3600", False),
            (f"&start={BEGAN_S}&end={BEGAN_S}", True),
            (f"&start={BEGAN_S + 60}&end={BEGAN_S + 7200}", False),
            (f"&start={BEGAN_S - 3600}&end={MINUTE_AT - 1}", False),
        ):
            appends = await _values(s2, f"/{OTHER}?set=append-ops", period)
            assert bool(appends) is has_points
        storage = await _values(s2, f"/{OTHER}?set=storage", "&start=0&end=3600")
        assert storage == [{"name": "storage", "unit": "bytes", "values": []}]
        (label,) = await _values(s2, "?set=active-basins", "&start=0&end=3600")
        assert label["values"] == []


NOW = BEGAN_S
DAY_S = 86_400


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("", (400, "bad_query")),
        (f"?set=storage&start=0&end={NOW}", (400, "bad_query")),
        (f"?set=&start=0&end={NOW}", (400, "bad_query")),
        ("?set=account-ops&start=x&end=1", (400, "bad_query")),
        ("?set=account-ops&start=-1&end=1", (400, "bad_query")),
        (f"?set=account-ops&start=0&end={2**32}", (400, "bad_query")),
        ("?set=account-ops&start=0&end=1&interval=year", (400, "bad_query")),
        ("?set=active-basins&start=0&end=1&interval=year", (400, "bad_query")),
        ("?set=account-ops&set=account-ops&start=0&end=1", (400, "bad_query")),
        (f"/{OTHER}?set=active-basins&start=0&end=1", (400, "bad_query")),
        (f"/{OTHER}/a?set=append-ops&start=0&end=1", (400, "bad_query")),
        ("?set=active-basins", (422, "invalid")),
        ("?set=account-ops&start=0", (422, "invalid")),
        ("?set=account-ops&end=1", (422, "invalid")),
        ("?set=account-ops&start=2&end=1", (422, "invalid")),
        (f"?set=account-ops&start={NOW}&end={NOW + 600}", (422, "invalid")),
        (f"?set=account-ops&start={NOW - 40 * DAY_S}&end={NOW}", (422, "invalid")),
        ("?set=estimated-billable-usage&start=0&end=1&interval=minute", (422, "invalid")),
        (f"/{OTHER}?set=storage&start=0&end=1&interval=minute", (422, "invalid")),
        (f"/{OTHER}/a?set=storage&start=0&end=1&interval=hour", (422, "invalid")),
        ("/no-such-basin?set=storage&start=0&end=1", (404, "basin_not_found")),
        (f"/{OTHER}/b?set=storage&start=0&end=1", (404, "stream_not_found")),
        ("/no-such-basin/a?set=storage&start=0&end=1", (404, "basin_not_found")),
        ("/B/a?set=storage&start=0&end=1", (400, "bad_path")),
    ],
)
async def test_s2x_30_queries_that_are_refused(path: str, wanted: tuple[int, str]) -> None:
    async with account(clock=Hands().clock()) as s2:
        await s2.fill("a")
        assert code_of(await s2.ask("GET", f"/metrics{path}")) == wanted


@pytest.mark.parametrize("days", [7, 30])
async def test_s2x_30_a_month_is_not_too_long(days: int) -> None:
    async with account(clock=Hands().clock()) as s2:
        period = f"&start={NOW - days * DAY_S}&end={NOW}"
        assert await _values(s2, "?set=account-ops", period)


@given(
    st.lists(
        st.tuples(st.integers(0, 400_000), st.sampled_from([b"one", b"two", b"gone"])), max_size=40
    ),
    st.sampled_from([60, 3600, 86_400]),
)
def test_s2x_31_points_are_the_sums_of_their_intervals(
    counted: list[tuple[int, bytes]], interval_s: int
) -> None:
    """Hours and days of everything, minutes of the last day; nothing of basins that are unknown."""
    now = [0.0]
    usage = S2Usage(lambda: now[0], lambda name: name != b"gone")
    for at, basin in sorted(counted):
        now[0] = float(at)
        usage.count(Operation.APPEND, basin)
    last = max((at for at, _ in counted), default=0)
    oldest = last - last % 60 - usages.MINUTES_S if interval_s == 60 else 0
    for basin in (b"one", b"two", b"gone"):
        wanted = Counter(
            at - at % interval_s
            for at, name in counted
            if name == basin != b"gone" and at >= oldest
        )
        found = [
            (begin, each.operations[Operation.APPEND])
            for begin, each in usage.intervals(basin, interval_s)
        ]
        assert found == sorted(wanted.items())


def test_usage_that_is_kept_is_bounded() -> None:
    now = [0.0]
    usage = S2Usage(lambda: now[0], lambda name: True)
    for minute in range(60):
        now[0] = 60.0 * minute
        for basin in range(1000):
            usage.count(Operation.READ, b"%d" % basin)
    assert sum(map(len, usage._minutes.values())) <= usages.ENTRIES_MAX + 1000
    assert next(each for _, each in usage.intervals(b"7", 3600)).operations[Operation.READ] == 60
