"""Bulk puts: many jobs in one call, stored all or none (docs/guides/jobs.md, "Many jobs")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from millpond.actors.errors import DataTooLarge
from millpond.node.client.channel import Channel
from millpond.node.jobs.payload import JobMessage, encode_jobs
from millpond.node.jobs.requests import Operation, ask

JOBS_MAX = 10_000
BYTES_MAX = 8 * 2**20
_JOB_BYTES = 5
"""Overhead of a job in a packet."""
_PACKET_BYTES = 256
"""Overhead of a packet, without that of its jobs."""


def encoded(payloads: Iterable[object], body: JobMessage) -> list[bytes]:
    """The bytes of the jobs. Raises ValueError for too many, TypeError as `encode_job`."""
    jobs = encode_jobs(payloads, body)
    size = sum(map(len, jobs))
    if len(jobs) > JOBS_MAX or size > BYTES_MAX:
        most = f"{JOBS_MAX} jobs and {BYTES_MAX} bytes"
        raise ValueError(f"{len(jobs)} jobs of {size} bytes: one call puts {most} at most")
    return jobs


async def send(channel: Channel, packet_max: int, jobs: list[bytes], **fields: Any) -> list[int]:
    """Send the parts, and give the ids of the jobs. `fields` are those of each part."""
    at = 0
    parts = [*_parts(jobs, packet_max - _PACKET_BYTES)]
    for part in parts[:-1]:
        await ask(channel, Operation.PUT_MANY, jobs=part, at=at, more=True, **fields)
        at += len(part)
    answer = await ask(channel, Operation.PUT_MANY, jobs=parts[-1], at=at, **fields)
    return [*chain.from_iterable(range(first, first + count) for first, count in answer["runs"])]


def _parts(jobs: Sequence[bytes], size_max: int) -> Iterator[Sequence[bytes]]:
    start = size = 0
    for at, job in enumerate(jobs):
        more = len(job) + _JOB_BYTES
        if more > size_max:
            raise DataTooLarge(f"the node takes packets of {size_max} bytes at most")
        if size + more > size_max:
            yield jobs[start:at]
            start, size = at, 0
        size += more
    yield jobs[start:]
