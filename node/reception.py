"""The node's side of every connection: who may come in, how many, and where they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from time import perf_counter_ns

import anyio

from actors.messages import Durability, Rights
from actors.scheduler import Scheduler
from node.access import Access, is_remote
from node.config import Config
from node.stream_room import StreamRoom
from node.stream_settings import rustlog_settings, s3p_settings
from transports.connection import Connection
from transports.framing import Framing
from transports.gathering import Gathering
from transports.greeting import Admission
from transports.host import Visitor, WireCounters
from transports.rustlog_connection import RustlogConnection
from transports.rustlog_metrics import Reclaimed, RustlogMetrics
from transports.s3p_connection import S3pConnection
from transports.stream_host import Topics


class Reception:
    """Implements `transports.host.Host` and `transports.stream_host.StreamHost`: the scheduler's
    calls, and limits of connections."""

    def __init__(
        self,
        config: Config,
        access: Access,
        scheduler: Scheduler,
        now: Callable[[], float],
        durability: Callable[[bytes], Durability],
        admin: Callable[[int, bytes, Admission], bytes],
        streams: StreamRoom,
    ) -> None:
        self.settings = config.connection
        self.counters = WireCounters()
        self.durability = durability
        self.now = now
        self.submit = scheduler.submit
        self.gathering = Gathering(scheduler.submit, now)
        self.attach = scheduler.attach
        self.detach = scheduler.detach
        self.on_capacity = scheduler.on_capacity
        self.arm = scheduler.timers.arm
        self.disarm = scheduler.timers.disarm
        self.admin = admin
        self.directory = streams.directory
        self.topics: Topics = streams.directory
        trimmed = streams.counters
        self.rustlog_metrics = RustlogMetrics(
            perf_counter_ns, lambda: Reclaimed(trimmed.trims, trimmed.trimmed_bytes)
        )
        self.is_draining = False
        self.connections: set[Visitor] = set()
        self._config = config
        self._s3p = s3p_settings(config)
        self._rustlog = rustlog_settings(config)
        self._access = access
        self._numbers = count(1)
        self._by_address: Counter[str] = Counter()
        self._before_ready: set[Visitor] = set()
        self._emptied: anyio.Event | None = None

    def connection(self, framing: Framing) -> Connection:
        """A session for a connection that was just accepted."""
        return Connection(next(self._numbers), self, framing)

    def s3p_connection(self) -> S3pConnection:
        """The same, of S3P."""
        return S3pConnection(next(self._numbers), self, self._s3p)

    def rustlog_connection(self) -> RustlogConnection:
        """The same, of RustLog."""
        return RustlogConnection(next(self._numbers), self, self._rustlog)

    def admits(self, address: str) -> bool:
        return not self._access.is_controlled

    def authorize(self, token: bytes | None, channel: bytes, address: str) -> Rights | None:
        return self._access.authorize(token, channel, address)

    def entered(self, visitor: Visitor) -> bool:
        config, address = self._config, visitor.address
        is_full = (
            self.is_draining
            or len(self.connections) >= config.connections_max
            or len(self._before_ready) >= config.connections_before_ready_max
            or (
                is_remote(address)
                and self._by_address[address] >= config.connections_per_address_max
            )
        )
        self.connections.add(visitor)
        self._before_ready.add(visitor)
        self._by_address[address] += 1
        return not is_full

    def greeted(self, visitor: Visitor) -> None:
        self._before_ready.discard(visitor)

    def left(self, visitor: Visitor) -> None:
        if visitor not in self.connections:
            return
        self.connections.discard(visitor)
        self._before_ready.discard(visitor)
        self._by_address[visitor.address] -= 1
        if self._by_address[visitor.address] <= 0:
            del self._by_address[visitor.address]
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    async def drain(self) -> None:
        """Turn newcomers away, say goodbye to all, and wait until they have gone."""
        self.is_draining = True
        self._emptied = anyio.Event()
        for connection in list(self.connections):
            connection.say_goodbye()
        if self.connections:
            await self._emptied.wait()

    def close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()
