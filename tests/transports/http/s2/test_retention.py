"""The age of records by the API of S2 (S2X-60 to S2X-62)."""

from __future__ import annotations

import pytest

from tests.transports.http.s2.account import OWN, RECORD, Account, Hands, account

AGE_S = 100


async def shown(s2: Account) -> list[int]:
    got = await s2.ask("GET", "/streams/a/records?tail_offset=10&clamp=true&count=10")
    return [] if got.status == 416 else [each["seq_num"] for each in got.json()["records"]]


def policy(age_s: int) -> dict[str, object]:
    return {"retention_policy": {"age": age_s}}


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
@pytest.mark.parametrize(("first_s", "second_s"), [(AGE_S, 3 * AGE_S), (3 * AGE_S, AGE_S)])
async def test_s2x_61_another_age_is_that_of_later_records(
    method: str, first_s: int, second_s: int
) -> None:
    hands = Hands()
    async with account(clock=hands.clock()) as s2:
        assert (await s2.ask("PUT", "/streams/a", policy(first_s), basin=OWN)).status == 201
        assert (await s2.ask("POST", "/streams/a/records", RECORD)).status == 200
        assert (await s2.ask(method, "/streams/a", policy(second_s))).status == 200
        hands.at_s = first_s - 1
        assert await shown(s2) == [0]
        assert (await s2.ask("POST", "/streams/a/records", RECORD)).status == 200
        assert await shown(s2) == [0, 1]
        hands.at_s = first_s + 1
        assert await shown(s2) == [1]
        hands.at_s = first_s - 1 + second_s - 1
        assert await shown(s2) == [1]
        hands.at_s = first_s + second_s + 1
        assert await shown(s2) == []
