"""Metrics of queues and schedules: pauses, limits, and the jobs that schedules put."""

from __future__ import annotations

from datetime import timedelta

import pytest

from millpond.jobs import Job, Limits, Queue, Step, Task, Worker, chain
from tests.node.http.test_named_metrics import ANY_PORT, detailed, plain, url
from tests.node.http.test_named_metrics import http_services as http_services

pytestmark = pytest.mark.anyio


async def test_pauses_limits_and_schedules_are_seen() -> None:
    async with http_services(p2p=ANY_PORT) as (running, _, application):
        async with (
            Queue(url(running.node), "mail") as mail,
            Queue(url(running.node), "calls") as calls,
        ):
            await calls.pause()
            await mail.set_limits(Limits(key_concurrency=1))
            for _ in range(3):
                await mail.put(1, limit_key="a")
            async with mail._connector.join(
                b"jobs/mail", "worker", mode="queue", window=3
            ) as worker:
                await worker.receive()
                assert await detailed(application, "job_queue_paused") == {
                    "jobs/mail": 0,
                    "jobs/calls": 1,
                    "_other": 0,
                }
                limited = await detailed(application, "jobs_limited")
                assert (limited["jobs/mail"], limited["jobs/calls"]) == (2, 0)
            await mail.schedule("tidy", timedelta(hours=1))
            await mail.schedule("report", timedelta(hours=1))
            await mail.pause_schedule("tidy")
            found = await plain(application)
            assert (found["schedules"], found["schedules_paused"]) == (2, 1)
            assert found["schedule_wait_seconds"] == found["schedule_jobs_total"] == 0
            assert found["schedule_jobs_refused_total"] == 0
            assert found["schedule_moments_missed_total"] == 0


async def test_flows_and_results_are_counted() -> None:
    async def double(number: int, job: Job) -> int:
        job.progress(1)
        return 2 * number

    async with http_services(p2p=ANY_PORT) as (running, _, application):
        found = await plain(application)
        assert found["flows"] == found["flows_ended"] == found["job_records"] == 0
        async with Queue(url(running.node), "mail") as mail:
            flow = await mail.put_flow(chain(Step("double", 1), Step("double")))
            found = await plain(application)
            assert (found["flows"], found["flows_ended"]) == (1, 0)
            assert 0 < found["flow_bytes"] < 1000
            await mail.put(4, name="double", keep=60)
            work = Task(double, name="double")
            async with Worker(url(running.node), work, queues=["mail"]) as worker:
                await worker.run(burst=True)
            assert await mail.flow_result(flow, 10) == 4
            found = await plain(application)
            assert (found["flows"], found["flows_ended"]) == (0, 1)
            assert found["job_records"] >= 1 and found["job_record_bytes"] > 0
