"""Bulk puts of a connection: the parts of each, until the last one makes a request of them.

Nothing of a bulk put is stored before its last part is here. The parts are lost with the
connection; a part whose predecessors are not here is refused with NOT_FOUND, and the client begins
again with the same key.
"""

from __future__ import annotations

from millpond.actors.errors import BufferFull, NotFound
from millpond.actors.jobs.messages import PutJobs
from millpond.transports.p2p.bodies import read_body
from millpond.transports.p2p.jobs.bodies import PutManyBody

JOBS_MAX = 10_000
BYTES_MAX = 8 * 2**20
"""The data of one bulk put."""
OPEN_MAX = 2
"""A connection has the parts of so many bulk puts; one more takes the place of the oldest."""


class BulkPuts:
    """The bulk puts that are not complete, by their keys."""

    __slots__ = ("_parts", "held_bytes")

    def __init__(self) -> None:
        self._parts: dict[int, list[bytes]] = {}
        self.held_bytes = 0

    def take(self, number: int, body: bytes) -> PutJobs | None:
        """The request, once all parts are here. Raises Malformed, BufferFull for too much, and
        NotFound."""
        part = read_body(body, PutManyBody)
        jobs = self._release(part.key)
        if len(jobs) != part.at:
            if part.at:
                raise NotFound(f"a part at {part.at}, and {len(jobs)} jobs came before")
            jobs = []  # it begins again
        jobs += part.jobs
        size = sum(map(len, jobs))
        if len(jobs) > JOBS_MAX or size > BYTES_MAX:
            raise BufferFull(f"a bulk put has {JOBS_MAX} jobs and {BYTES_MAX} bytes at most")
        if not part.more:
            return PutJobs(number, part.key, part.ttl, tuple(jobs), part.due / 1000)
        while len(self._parts) >= OPEN_MAX:
            self._release(next(iter(self._parts)))
        self._parts[part.key] = jobs
        self.held_bytes += size
        return None

    def _release(self, key: int) -> list[bytes]:
        jobs = self._parts.pop(key, [])
        self.held_bytes -= sum(map(len, jobs))
        return jobs
