"""Metrics and locations by the published client, against a node (A.2)."""

from __future__ import annotations

import time
from typing import Any

import pytest
from s2_sdk import (
    AccountMetricSet,
    Accumulation,
    AppendInput,
    BasinMetricSet,
    Gauge,
    Label,
    MetricUnit,
    Record,
    S2ServerError,
    SeqNum,
    StreamMetricSet,
    TimeseriesInterval,
)

from tests.node.http.s2.conftest import BASIN


async def test_a_2_what_the_node_tells_of_itself(s2: Any, basin: Any, stream: Any) -> None:
    began = int(time.time())
    for _ in range(3):
        await stream.append(AppendInput([Record(body=b"x" * 92)]))
    await stream.read(start=SeqNum(0))
    period = {"start": began - 60, "end": began + 60, "interval": TimeseriesInterval.MINUTE}

    async def basin_set(which: BasinMetricSet, **more: Any) -> Any:
        (found,) = await s2.basin_metrics(BASIN, set=which, **{**period, **more})
        return found

    storage = await basin_set(BasinMetricSet.STORAGE, interval=TimeseriesInterval.HOUR)
    assert isinstance(storage, Gauge)
    assert storage.unit is MetricUnit.BYTES
    ((when, size),) = storage.values
    assert when % 3600 == 0 and when <= began + 60
    assert size >= 276
    (of_stream,) = await s2.stream_metrics(BASIN, "orders", set=StreamMetricSet.STORAGE, **period)
    assert of_stream.values[0][1] == size
    for which, unit, amount in (
        (BasinMetricSet.APPEND_OPS, MetricUnit.OPERATIONS, 3),
        (BasinMetricSet.READ_OPS, MetricUnit.OPERATIONS, 1),
        (BasinMetricSet.APPEND_THROUGHPUT, MetricUnit.BYTES, 300),
        (BasinMetricSet.READ_THROUGHPUT, MetricUnit.BYTES, 300),
    ):
        found = await basin_set(which)
        assert isinstance(found, Accumulation)
        assert (found.unit, found.interval) == (unit, TimeseriesInterval.MINUTE)
        assert sum(value for _, value in found.values) == amount
        assert all(when % 60 == 0 for when, _ in found.values)
    times = {"start": began - 3600, "end": began + 60}
    (active,) = await s2.account_metrics(set=AccountMetricSet.ACTIVE_BASINS, **times)
    assert active == Label(name="active-basins", values=[BASIN])
    operations = await s2.account_metrics(set=AccountMetricSet.ACCOUNT_OPS, **times)
    assert "create-basin" in {each.name for each in operations}
    assert {each.interval for each in operations} == {TimeseriesInterval.HOUR}
    (billed,) = await s2.account_metrics(set=AccountMetricSet.ESTIMATED_BILLABLE_USAGE, **times)
    assert (billed.name, billed.unit, list(billed.values)) == ("total", MetricUnit.USD, [])
    with pytest.raises(S2ServerError) as caught:
        await s2.account_metrics(set=AccountMetricSet.ACTIVE_BASINS)
    assert (caught.value.status_code, caught.value.code) == (422, "invalid")


async def test_a_2_the_location(s2: Any) -> None:
    (only,) = await s2.list_locations()
    assert (only.name, only.is_private) == ("default", False)
    assert only.storage_classes == ["express", "standard"]
    assert await s2.get_default_location() == only
    assert await s2.set_default_location("default") == only
    with pytest.raises(S2ServerError) as caught:
        await s2.set_default_location("aws:us-east-1")
    assert (caught.value.status_code, caught.value.code) == (422, "invalid")
