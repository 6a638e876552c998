"""The same measurement as `millpond bench jobs`, of other job queues of Python.

    PEERS/bin/python tests/bench/jobs_peers.py PEER --server PID --address URL --jobs 5000

PEERS is an environment of its own with them (`tests.bench.jobs` says how to make it). Prints one
JSON object. All run their jobs in this process, as our worker does: puts of 16 producers, one
worker with 50 jobs at once whose handler does nothing, then the time from a put to the start of its
handler with an idle worker. `WARM` jobs are put before that, and run with the others. `cpu_us` is
the processor time of this process and of the server and all its children for a job that is put and
run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

PAYLOAD = {"to": "alice@example.org", "subject": "hello", "number": 1234567, "flags": [1, 2, 3]}
PRODUCERS = 16
WARM = 64
POLL_S = 0.01
IDLE_JOBS = 100
BULK = 1000
LIMIT_S = 240.0
TICKS = os.sysconf("SC_CLK_TCK")

starts: list[float] = []
"""When each job started."""


def run(_payload: Any) -> None:
    """The job."""
    starts.append(time.perf_counter())


async def nothing(_context: dict[str, Any], payload: Any) -> None:
    """The job of arq, which wants it by this name."""
    run(payload)


def tree(pid: int) -> list[int]:
    """A process and those below it."""
    found = [pid]
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += tree(int(child))
    return found


class Measure:
    """The figures of a run."""

    def __init__(self, server: int, jobs: int) -> None:
        self._server = server
        self._cpu = 0.0
        self.jobs = jobs
        self.all = WARM + jobs
        self.told: dict[str, float | None] = {"bulk_rate": None}

    def cpu(self) -> float:
        """Seconds of this process, and of the server."""
        seconds = time.process_time()
        for pid in tree(self._server) if self._server else ():
            # Of children that have ended as well.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:15])) / TICKS
        return seconds

    def begin(self) -> None:
        self._cpu = self.cpu()
        self._at = time.perf_counter()

    def put(self) -> None:
        self.told["put_rate"] = self.jobs / (time.perf_counter() - self._at)
        self._at = time.perf_counter()

    def ran(self) -> None:
        self.told["run_rate"] = self.all / (max(starts) - self._at)
        self.told["cpu_us"] = (self.cpu() - self._cpu) / self.jobs * 1e6
        self.told["missing"] = self.all - len(starts)

    def bulk(self, count: int, seconds: float) -> None:
        self.told["bulk_rate"] = count / seconds

    def waited(self, waits: list[float]) -> None:
        self.told["p10_ms"] = sorted(waits)[len(waits) // 10] * 1000
        self.told["p50_ms"] = sorted(waits)[len(waits) // 2] * 1000


async def produce(put: Callable[[], Awaitable[object]], jobs: int) -> None:
    """Put jobs from tasks, each of which waits for its receipt."""
    numbers = iter(range(jobs))

    async def one() -> None:
        for _ in numbers:
            await put()

    await asyncio.gather(*(one() for _ in range(PRODUCERS)))


def produce_in_threads(put: Callable[[], object], jobs: int) -> None:
    """The same for a client that blocks."""
    numbers = iter(range(jobs))
    lock = threading.Lock()

    def one() -> None:
        while True:
            with lock:
                if next(numbers, None) is None:
                    return
            put()

    threads = [threading.Thread(target=one) for _ in range(PRODUCERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def produce_one_by_one(put: Callable[[], object], jobs: int) -> None:
    """The same without threads."""
    for _ in range(jobs):
        put()


async def until(count: int) -> None:
    """Wait until so many jobs have started."""
    ends_at = time.monotonic() + LIMIT_S
    while len(starts) < count and time.monotonic() < ends_at:  # noqa: ASYNC110  of threads, too
        await asyncio.sleep(0.001)


async def idle(put: Callable[[], Awaitable[object]]) -> list[float]:
    """The times from a put to the start of its job, one job after the other."""
    waits = []
    for _ in range(IDLE_JOBS):
        count, at = len(starts), time.perf_counter()
        await put()
        await until(count + 1)
        waits.append(starts[-1] - at)
    return waits


async def measure_arq(measure: Measure, address: str, concurrency: int) -> None:
    import arq
    from arq.connections import RedisSettings

    pool = await arq.create_pool(RedisSettings.from_dsn(address))
    options: dict[str, Any] = {
        "redis_pool": pool,
        "max_jobs": concurrency,
        "poll_delay": POLL_S,
        "keep_result": 0,
        "handle_signals": False,
    }

    async def put() -> None:
        await pool.enqueue_job("nothing", PAYLOAD)

    await produce(put, WARM)
    measure.begin()
    await produce(put, measure.jobs)
    measure.put()
    await arq.Worker([nothing], burst=True, **options).main()
    measure.ran()
    worker = arq.Worker([nothing], **options)
    running = asyncio.create_task(worker.main())
    measure.waited(await idle(put))
    running.cancel()


async def measure_procrastinate(measure: Measure, address: str, concurrency: int) -> None:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=address))

    @app.task(name="nothing")
    async def job(payload: Any) -> None:
        run(payload)

    async def put() -> None:
        await job.defer_async(payload=PAYLOAD)

    options: dict[str, Any] = {
        "concurrency": concurrency,
        "install_signal_handlers": False,
        "delete_jobs": "successful",
    }
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await produce(put, WARM)
        measure.begin()
        await produce(put, measure.jobs)
        measure.put()
        await app.run_worker_async(wait=False, **options)
        measure.ran()
        running = asyncio.create_task(app.run_worker_async(wait=True, **options))
        measure.waited(await idle(put))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        at = time.perf_counter()
        for _ in range(0, measure.jobs, BULK):
            await job.batch_defer_async(*({"payload": PAYLOAD} for _ in range(BULK)))
        measure.bulk(-(-measure.jobs // BULK) * BULK, time.perf_counter() - at)


def measure_celery(measure: Measure, address: str, concurrency: int) -> None:
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    app = Celery("bench", broker=address)
    # A job stays with the broker until it is done, as with the others.
    app.conf.update(task_ignore_result=True, task_acks_late=True, worker_hijack_root_logger=False)

    @app.task(name="nothing")
    def job(payload: Any) -> None:
        run(payload)

    def put() -> None:
        job.delay(PAYLOAD)

    async def put_async() -> None:
        put()

    produce_in_threads(put, WARM)
    measure.begin()
    produce_in_threads(put, measure.jobs)
    measure.put()
    with start_worker(
        app, concurrency=concurrency, pool="threads", perform_ping_check=False, loglevel="CRITICAL"
    ):
        asyncio.run(until(measure.all))
        measure.ran()
        measure.waited(asyncio.run(idle(put_async)))
        print(json.dumps(measure.told), flush=True)
        os._exit(0)  # its threads take their time


def measure_huey(measure: Measure, address: str, concurrency: int) -> None:
    """Huey on Redis with a consumer of threads; on a file of SQLite in one thread without one, as
    its threads would only slow it down: a job is gone from the file before it is run."""
    from huey import RedisHuey, SqliteHuey

    is_redis = address.startswith("redis:")
    options: dict[str, Any] = {"url": address} if is_redis else {"filename": address, "fsync": True}
    queue = (RedisHuey if is_redis else SqliteHuey)("bench", results=False, **options)

    @queue.task()  # type: ignore[untyped-decorator]
    def nothing_at_all(payload: Any) -> None:
        run(payload)

    def put() -> None:
        nothing_at_all(PAYLOAD)

    async def put_async() -> None:
        put()

    fill = produce_in_threads if is_redis else produce_one_by_one
    fill(put, WARM)
    measure.begin()
    fill(put, measure.jobs)
    measure.put()
    if not is_redis:
        while (task := queue.dequeue()) is not None:
            queue.execute(task)
        measure.ran()
        return
    consumer = queue.create_consumer(workers=concurrency, worker_type="thread", periodic=False)
    consumer.start()
    asyncio.run(until(measure.all))
    measure.ran()
    measure.waited(asyncio.run(idle(put_async)))
    print(json.dumps(measure.told), flush=True)
    os._exit(0)


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("arq", "celery", "huey", "procrastinate"))
    parser.add_argument("--server", type=int, default=0, help="its process")
    parser.add_argument("--address", required=True)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=50)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    measure = Measure(args.server, args.jobs)
    match args.peer:
        case "arq":
            asyncio.run(measure_arq(measure, args.address, args.concurrency))
        case "procrastinate":
            asyncio.run(measure_procrastinate(measure, args.address, args.concurrency))
        case "celery":
            measure_celery(measure, args.address, args.concurrency)
        case "huey":
            measure_huey(measure, args.address, args.concurrency)
    print(json.dumps(measure.told))


if __name__ == "__main__":
    main()
