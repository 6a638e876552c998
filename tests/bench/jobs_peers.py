"""The same measurement as `millpond bench jobs`, of arq on Redis and of huey on SQLite.

    PEERS/bin/python tests/bench/jobs_peers.py arq --redis PORT --jobs 5000 --concurrency 10
    PEERS/bin/python tests/bench/jobs_peers.py huey --file PATH [--fsync] --jobs 5000

PEERS is an environment of its own with arq and huey (`tests.bench.jobs` says how to make it).
Prints one JSON object. Both run their jobs in this process, as our worker does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from typing import Any

PAYLOAD = {"to": "alice@example.org", "subject": "hello", "number": 1234567, "flags": [1, 2, 3]}
PRODUCERS = 16
POLL_S = 0.01

ran: list[Any] = []


async def nothing(_context: dict[str, Any], payload: Any) -> None:
    """The job of arq, which wants it by this name."""
    ran.append(payload)


async def arq_rates(port: int, jobs: int, concurrency: int) -> tuple[float, float]:
    """Puts and runs a second."""
    import arq
    from arq.connections import RedisSettings

    pool = await arq.create_pool(RedisSettings(port=port))
    numbers = iter(range(jobs))

    async def produce() -> None:
        for _ in numbers:
            await pool.enqueue_job("nothing", PAYLOAD)

    at = time.perf_counter()
    await asyncio.gather(*(produce() for _ in range(PRODUCERS)))
    put_s = time.perf_counter() - at
    worker = arq.Worker(
        [nothing],
        redis_pool=pool,
        burst=True,
        max_jobs=concurrency,
        poll_delay=POLL_S,
        keep_result=0,
        handle_signals=False,
    )
    at = time.perf_counter()
    await worker.main()
    run_s = time.perf_counter() - at
    await worker.close()
    return jobs / put_s, jobs / run_s


def huey_rates(file: str, fsync: bool, jobs: int) -> tuple[float, float]:
    """Puts and runs a second, without the consumer's threads, which would only slow it down."""
    from huey import SqliteHuey

    queue = SqliteHuey("bench", filename=file, fsync=fsync, results=False)

    @queue.task()  # type: ignore[untyped-decorator]
    def nothing_at_all(payload: Any) -> None:
        ran.append(payload)

    at = time.perf_counter()
    for _ in range(jobs):
        nothing_at_all(PAYLOAD)
    put_s = time.perf_counter() - at
    at = time.perf_counter()
    while (task := queue.dequeue()) is not None:
        queue.execute(task)
    return jobs / put_s, jobs / (time.perf_counter() - at)


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("arq", "huey"))
    parser.add_argument("--redis", type=int)
    parser.add_argument("--file", default="")
    parser.add_argument("--fsync", action="store_true")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--concurrency", type=int, default=10)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.peer == "arq":
        put_rate, run_rate = asyncio.run(arq_rates(args.redis, args.jobs, args.concurrency))
    else:
        put_rate, run_rate = huey_rates(args.file, args.fsync, args.jobs)
    missing = args.jobs - len(ran)
    told = {"put_rate": put_rate, "run_rate": run_rate, "missing": missing}
    print(json.dumps({"peer": args.peer, "jobs": args.jobs} | told))


if __name__ == "__main__":
    main()
