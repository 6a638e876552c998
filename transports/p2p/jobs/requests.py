"""Jobs on a P2P connection: packets 0x96 in, requests to its channel, 0x97 out.

Sans-I/O: the connection gives packets and replies, and gets back packets and requests.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond.actors.errors import Code, Malformed, NotAllowed, RequestError
from millpond.actors.jobs.messages import PutFlow
from millpond.actors.messages import Failed, JobReply, JobRequest, Rights
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.jobs.bodies import (
    RIGHTS,
    JobOperation,
    KeptManyBody,
    answer_body,
    request_of,
)
from millpond.transports.p2p.jobs.bulk_puts import BulkPuts
from millpond.transports.p2p.nacks import encode_refusal

QUEUE_PREFIX = b"jobs/"
REQUESTS_MAX = 1024
READS_MAX = 16
"""The number of lists and SHOWs among them, whose answers may be large."""

PAGES = frozenset({JobOperation.LIST, JobOperation.LIST_SCHEDULES, JobOperation.LIST_WORKERS})
READS = PAGES | {JobOperation.SHOW, JobOperation.TAKE, JobOperation.RESULT, JobOperation.SHOW_FLOW}
PAGE_BYTES_MAX = 256 * 1024


class JobRequests:
    """The requests about jobs of one connection. `rights` are those in its channel, `rights_in`
    gives those in others, in which steps of flows are put."""

    __slots__ = (
        "_bulk",
        "_channel",
        "_held_bytes",
        "_in_flight",
        "_part_bytes",
        "_reads",
        "_rights",
        "_rights_in",
    )

    def __init__(
        self,
        rights: Rights,
        packet_bytes_max: int,
        channel: bytes = b"",
        rights_in: Callable[[bytes], Rights | None] = lambda name: None,
    ) -> None:
        self._rights = rights
        self._channel = channel
        self._rights_in = rights_in
        self._part_bytes = packet_bytes_max - p.OPERATION_BYTES
        self._in_flight: dict[int, tuple[JobOperation, int]] = {}
        """Operations, and the sizes of their bodies, by the numbers of their requests."""
        self._reads = 0
        self._bulk = BulkPuts()
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes of requests that are not answered, and of parts of bulk puts."""
        return self._held_bytes + self._bulk.held_bytes

    @property
    def is_idle(self) -> bool:
        """Every request is answered."""
        return not self._in_flight

    def take(self, packet: p.Jobs) -> JobRequest | bytes:
        """The request for the channel, or the packet that refuses it."""
        number = packet.request_id
        if number in self._in_flight:
            return _refusal(number, Code.MALFORMED)
        try:
            return self._take(packet)
        except RequestError as error:
            return _refusal(number, error.code)

    def answered(self, reply: JobReply | Failed) -> bytes | None:
        """The packet that answers a request; None for one that is over."""
        answered = reply.request if isinstance(reply, Failed) else reply
        if not isinstance(answered, JobRequest | JobReply):
            raise AssertionError(f"{reply} answers no request about jobs")
        found = self._in_flight.pop(answered.number, None)
        if found is None:
            return None
        operation, size = found
        self._held_bytes -= size
        self._reads -= operation in READS
        if isinstance(reply, Failed):
            return _refusal(answered.number, reply.code, reply.delay_ms)
        body = answer_body(reply)
        if len(body) > self._part_bytes:
            return _refusal(answered.number, Code.TOO_LARGE_FOR_PEER)
        return p.encode(p.JobsReply(answered.number, operation, body))

    def _checked(self, flow: PutFlow) -> PutFlow:
        """The flow with the names of all channels. Raises NotAllowed where the client may not put
        into one, and Malformed for one that is no queue's."""
        steps = [
            step if step.channel else msgspec.structs.replace(step, channel=self._channel)
            for step in flow.steps
        ]
        for name in {step.channel for step in steps} - {self._channel}:
            if not name.startswith(QUEUE_PREFIX) or b"!" in name:
                raise Malformed(f"no queue: {name!r}")
            if Rights.PUT not in (self._rights_in(name) or Rights(0)):
                raise NotAllowed(f"no right to put into {name!r}")
        return msgspec.structs.replace(flow, steps=tuple(steps))

    def _take(self, packet: p.Jobs) -> JobRequest | bytes:
        number = packet.request_id
        try:
            operation = JobOperation(packet.operation)
        except ValueError:
            raise Malformed(f"unknown operation {packet.operation}") from None
        if RIGHTS[operation] not in self._rights:
            return _refusal(number, Code.NOT_ALLOWED)
        is_read = operation in READS
        if len(self._in_flight) >= REQUESTS_MAX or (is_read and self._reads >= READS_MAX):
            return _refusal(number, Code.BUFFER_FULL)
        is_page = operation in PAGES
        most = min(self._part_bytes, PAGE_BYTES_MAX) if is_page else self._part_bytes
        size = len(packet.body)
        if operation is JobOperation.PUT_MANY:
            bulk = self._bulk.take(number, packet.body)
            if bulk is None:
                body = msgspec.msgpack.encode(KeptManyBody([], 0))
                return p.encode(p.JobsReply(number, operation, body))
            request: JobRequest = bulk
            size = sum(map(len, bulk.jobs))
        else:
            request = request_of(number, operation, packet.body, most)
            if isinstance(request, PutFlow):
                request = self._checked(request)
        self._in_flight[number] = operation, size
        self._held_bytes += size
        self._reads += is_read
        return request


def _refusal(number: int, code: Code, delay_ms: int | None = None) -> bytes:
    return encode_refusal(p.JOBS, code, number.to_bytes(4, "big"), delay_ms)
