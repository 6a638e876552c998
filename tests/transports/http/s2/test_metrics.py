"""Metrics: what the node can tell, and nothing that it does not know (A.2)."""

from __future__ import annotations

from typing import Any

import pytest

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

STARTED_S = int(BEGAN_AT)


async def _values(s2: Account, path: str, **more: Any) -> list[dict[str, Any]]:
    got = await s2.ask("GET", f"/metrics{path}", **more)
    assert got.status == 200, got.body
    return [value for each in got.json()["values"] for value in each.values()]


def _sum(name: str, unit: str, amount: int) -> dict[str, object]:
    values = [[STARTED_S, amount]]
    return {"name": name, "unit": unit, "interval": None, "values": values}


async def test_a_2_sums_since_the_start_of_one_basin() -> None:
    """One operation for each append, read and session; bytes as they are metered."""
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a")
        await s2.fill("a", basin=OWN)
        hands.at_s = 100.0
        await s2.ask("POST", "/streams/a/records", RECORD, basin=OTHER)
        await s2.ask("GET", "/streams/a/records?seq_num=0&count=1", basin=OTHER)
        path = "/streams/a/records?seq_num=0"
        headers = ((b"accept", b"text/event-stream"),)
        got = await s2.ask("GET", path + "&count=2", basin=OTHER, headers=headers)
        assert b"event: batch" in got.body
        assert await _values(s2, f"/{OTHER}?set=append-ops") == [_sum("append", "operations", 2)]
        assert await _values(s2, f"/{OTHER}?set=read-ops") == [_sum("read", "operations", 2)]
        assert await _values(s2, f"/{OTHER}?set=append-throughput") == [_sum("append", "bytes", 18)]
        assert await _values(s2, f"/{OTHER}?set=read-throughput") == [_sum("read", "bytes", 27)]
        assert await _values(s2, f"/{OWN}?set=append-ops") == [_sum("append", "operations", 1)]
        await s2.ask("GET", "/streams", basin=OTHER)
        assert await _values(s2, f"/{OTHER}?set=basin-ops") == [
            _sum("create-stream", "operations", 1),
            _sum("list-streams", "operations", 1),
        ]


async def test_a_2_a_session_that_appends_counts_what_it_was_acked() -> None:
    from millpond.transports.http.s2.codecs import s2s as frames
    from millpond.transports.http.s2.s2_pb2 import AppendInput

    body = AppendInput(records=[{"body": b"xyz"}, {"body": b"z"}]).SerializeToString()
    async with account(clock=Hands().clock()) as s2:
        await s2.fill("a")
        from tests.transports.http.client import Client

        headers = [(b"s2-basin", OTHER.encode()), (b"content-type", b"s2s/proto")]
        wire = frames.encode([body]) * 3
        client = Client(s2.application)
        got = await client.request("POST", "/v1/streams/a/records", headers, wire)
        assert got.status == 200
        # One record of 9 metered bytes was there; three appends of 20 follow.
        found = await _values(s2, f"/{OTHER}?set=append-throughput")
        assert found == [_sum("append", "bytes", 69)]
        assert await _values(s2, f"/{OTHER}?set=append-ops") == [_sum("append", "operations", 2)]


async def test_a_2_storage_is_what_there_is_now() -> None:
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a", "b/c")
        hands.at_s = 50.0
        sizes = []
        for path in ("/a", "/b%2Fc", ""):
            (found,) = await _values(s2, f"/{OTHER}{path}?set=storage")
            assert (found["name"], found["unit"]) == ("storage", "bytes")
            ((when, size),) = found["values"]
            assert when == STARTED_S + 50
            sizes.append(size)
        assert sizes[0] == sizes[1] > 0
        assert sizes[2] == 2 * sizes[0]
        (found,) = await _values(s2, f"/{OWN}?set=storage")
        assert found["values"] == [[STARTED_S + 50, 0]]


async def test_a_2_the_account() -> None:
    async with account(clock=Hands().clock()) as s2:
        assert await _values(s2, "?set=active-basins") == [{"name": "active-basins", "values": []}]
        await s2.fill("a")
        await s2.ask("PUT", "/basins/empty-basin")
        (found,) = await _values(s2, "?set=active-basins")
        assert found["values"] == [OTHER]
        await s2.ask("GET", "/basins")
        assert await _values(s2, "/?set=account-ops") == [
            _sum("account-metrics", "operations", 3),
            _sum("create-basin", "operations", 2),
            _sum("list-basins", "operations", 1),
        ]


@pytest.mark.parametrize(
    ("query", "is_told"),
    [
        ("", True),
        (f"&start={STARTED_S}&end={STARTED_S + 100}&interval=hour", True),
        (f"&end={STARTED_S + 99}", True),
        (f"&start={STARTED_S + 3600}&end={STARTED_S + 7200}", False),
        (f"&start=0&end={STARTED_S - 3600}&interval=day", False),
    ],
)
async def test_a_2_a_period_of_which_nothing_is_known_has_no_points(
    query: str, is_told: bool
) -> None:
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a")
        hands.at_s = 100.0
        for path in (f"/{OTHER}?set=storage", f"/{OTHER}?set=append-ops", "?set=account-ops"):
            assert all(bool(each["values"]) is is_told for each in await _values(s2, path + query))


async def test_a_2_a_past_period_has_the_sum_since_the_start_but_not_the_value_of_now() -> None:
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        await s2.fill("a")
        hands.at_s = 7200.0
        query = f"&start={STARTED_S}&end={STARTED_S + 3600}"
        (storage,) = await _values(s2, f"/{OTHER}?set=storage{query}")
        assert storage["values"] == []
        (appends,) = await _values(s2, f"/{OTHER}?set=append-ops{query}")
        assert appends["values"] == [[STARTED_S, 1]]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("", (400, "bad_query")),
        ("?set=storage", (422, "invalid")),
        ("?set=estimated-billable-usage", (422, "invalid")),
        ("?set=account-ops&start=x", (400, "bad_query")),
        ("?set=account-ops&start=-1", (400, "bad_query")),
        ("?set=account-ops&start=2&end=1", (422, "invalid")),
        ("?set=account-ops&interval=year", (400, "bad_query")),
        ("?set=account-ops&set=account-ops", (400, "bad_query")),
        (f"/{OTHER}?set=active-basins", (422, "invalid")),
        ("/no-such-basin?set=storage", (404, "basin_not_found")),
        (f"/{OTHER}/b?set=storage", (404, "stream_not_found")),
        (f"/{OTHER}/a?set=append-ops", (422, "invalid")),
        ("/no-such-basin/a?set=storage", (404, "basin_not_found")),
        ("/B/a?set=storage", (422, "invalid")),
    ],
)
async def test_a_2_what_is_not_known_is_refused(path: str, wanted: tuple[int, str]) -> None:
    async with account() as s2:
        await s2.fill("a")
        assert code_of(await s2.ask("GET", f"/metrics{path}")) == wanted
