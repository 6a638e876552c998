"""A network in memory: named addresses, delay, cut segments, partitions, resets, stalled readers.

Sessions see the same wires as on sockets. Time is the running library's, so trio's MockClock makes
delays virtual. Where a direction is cut depends on `rng` and on nothing else; how tasks interleave
is up to the library, and trio shuffles them.
"""

from __future__ import annotations

import errno
import math
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream, TaskGroup

from millpond.transports.io.anyio_wire import HIGH_WATER_BYTES, Guard, drive, unguarded
from millpond.transports.io.interface import Listener, Session, SessionFactory

WINDOW_BYTES = 2**16


class Network:
    """Carries connections between names; `latency_s` and `split` may change at any time.

    With `split`, what is written arrives cut at random bytes. `window_bytes` is what one direction
    of a connection holds before its writer must wait. `guard` runs each end of a connection.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        latency_s: float = 0.0,
        split: bool = False,
        window_bytes: int = WINDOW_BYTES,
        high_water_bytes: int = HIGH_WATER_BYTES,
        guard: Guard = unguarded,
    ) -> None:
        self.latency_s = latency_s
        self.split = split
        self.window_bytes = window_bytes
        self._high_water_bytes = high_water_bytes
        self._rng = rng
        self._guard = guard
        self._listeners: dict[str, _MemoryListener] = {}
        self._pipes: dict[_Pipe, None] = {}  # in the order they were made
        self._partitions: set[frozenset[str]] = set()
        self._stalled: set[str] = set()

    def listen(
        self, address: str, factory: SessionFactory, tasks: TaskGroup | None = None
    ) -> Listener:
        """Accept connections to `address`; they run in `tasks`, or in those of `connect`.

        Raises OSError when the address is taken.
        """
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{address} is taken")
        listener = _MemoryListener(address, factory, tasks, self._listeners)
        self._listeners[address] = listener
        return listener

    async def connect(
        self, tasks: TaskGroup, address: str, session: Session, *, source: str = "client"
    ) -> None:
        """Connect `session`, as `source`, to `address`; returns once its `opened` was called.

        Raises ConnectionRefusedError when nothing listens there, OSError across a partition.
        """
        await anyio.sleep(self.latency_s)
        if frozenset((source, address)) in self._partitions:
            raise OSError(errno.EHOSTUNREACH, f"{address} cannot be reached from {source}")
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {address}")
        there, back = _Pipe(self, source, address), _Pipe(self, address, source)
        self._pipes |= {there: None, back: None}
        near, far = _End(self, reads=back, writes=there), _End(self, reads=there, writes=back)

        async def accept() -> None:
            await self._drive(far, listener.factory(), peer=source)

        (listener.tasks or tasks).start_soon(accept)
        await tasks.start(self._drive, near, session, address)

    def partition(self, a: str, b: str) -> None:
        """Hold everything between two names, as a network that loses every packet does."""
        self._partitions.add(frozenset((a, b)))

    def heal(self, a: str, b: str) -> None:
        """End the partition: what was held goes on."""
        self._partitions.discard(frozenset((a, b)))
        self._wake_all()

    def reset(self, address: str) -> None:
        """Break every connection from or to `address`, at both ends."""
        for pipe in self._pipes_of(address):
            pipe.break_off()

    def stall(self, address: str) -> None:
        """Let `address` read nothing from here on: its peers' windows fill up."""
        self._stalled.add(address)

    def unstall(self, address: str) -> None:
        """Let it read again."""
        self._stalled.discard(address)
        self._wake_all()

    def next_due(self) -> float:
        """The time when the next bytes in flight arrive, by the library's clock; inf: none are."""
        now = anyio.current_time()
        dues = (pipe.due for pipe in self._pipes if self.passes(pipe))
        return min((due for due in dues if due > now), default=math.inf)

    def new_lengths(self) -> Callable[[], int]:
        """Lengths between cuts, for one direction of one connection."""
        rng = random.Random(self._rng.getrandbits(64))
        return lambda: rng.randint(1, 1 << rng.randint(0, 12))

    def passes(self, pipe: _Pipe) -> bool:
        """Whether the reader of `pipe` gets anything now."""
        held = frozenset((pipe.source, pipe.target)) in self._partitions
        return not held and pipe.target not in self._stalled

    def forget(self, pipe: _Pipe) -> None:
        """Take one direction of a connection that is gone."""
        self._pipes.pop(pipe, None)

    async def _drive(self, end: _End, session: Session, peer: str, **start: Any) -> None:
        await drive(
            end,
            session,
            peer=peer,
            high_water_bytes=self._high_water_bytes,
            guard=self._guard,
            **start,
        )

    def _pipes_of(self, address: str) -> list[_Pipe]:
        return [pipe for pipe in self._pipes if address in (pipe.source, pipe.target)]

    def _wake_all(self) -> None:
        for pipe in list(self._pipes):
            pipe.wake()


class _MemoryListener:
    def __init__(
        self,
        address: str,
        factory: SessionFactory,
        tasks: TaskGroup | None,
        listeners: dict[str, _MemoryListener],
    ) -> None:
        self.address = address
        self.factory = factory
        self.tasks = tasks
        self._listeners = listeners

    async def aclose(self) -> None:
        if self._listeners.get(self.address) is self:
            del self._listeners[self.address]


class _Pipe:
    """One direction of a connection, with a window like a kernel's buffers. b"" is its end."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self._network = network
        self._next_length = network.new_lengths()
        self._until_cut_bytes = self._next_length()
        self._segments: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._broken = False
        self._changed = anyio.Event()

    @property
    def due(self) -> float:
        """The time when its first bytes arrive; inf: there are none."""
        return self._segments[0][0] if self._segments else math.inf

    @property
    def unread(self) -> bool:
        return self._held_bytes > 0

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def break_off(self) -> None:
        """Lose the bytes in flight; both ends notice it."""
        self._broken = True
        self._segments.clear()
        self.wake()

    def end(self) -> None:
        if not self._broken:
            self._append(b"")

    async def send(self, data: bytes) -> None:
        while data:
            if self._broken:
                raise anyio.BrokenResourceError
            free = self._network.window_bytes - self._held_bytes
            if free > 0:
                self._append(data[:free])
                data = data[free:]
            else:
                await self._changed.wait()

    async def receive(self, max_bytes: int) -> bytes:
        while True:
            if self._broken:
                raise anyio.BrokenResourceError
            wait_s = self._wait_s()
            if wait_s <= 0:
                return self._take(max_bytes)
            with anyio.move_on_after(wait_s):
                await self._changed.wait()

    def _append(self, data: bytes) -> None:
        due = anyio.current_time() + self._network.latency_s
        self._segments.append((due, data))
        self._held_bytes += len(data)
        self.wake()

    def _wait_s(self) -> float:
        if not self._segments or not self._network.passes(self):
            return math.inf
        return self._segments[0][0] - anyio.current_time()

    def _take(self, max_bytes: int) -> bytes:
        due, data = self._segments[0]
        if not data:
            raise anyio.EndOfStream
        cut = min(max_bytes, self._until_cut_bytes) if self._network.split else max_bytes
        if cut < len(data):
            self._segments[0] = (due, data[cut:])
        else:
            self._segments.popleft()
        taken = data[:cut]
        self._held_bytes -= len(taken)
        self._until_cut_bytes -= len(taken)
        if self._until_cut_bytes <= 0:
            self._until_cut_bytes = self._next_length()
        self.wake()
        return taken


class _End(ByteStream):
    """One end of a connection: reads one pipe, writes the other."""

    def __init__(self, network: Network, *, reads: _Pipe, writes: _Pipe) -> None:
        self._network = network
        self._reads = reads
        self._writes = writes
        self._eof_sent = self._closed = False

    async def receive(self, max_bytes: int = 2**16) -> bytes:
        await anyio.lowlevel.checkpoint()
        return await self._reads.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        await self._writes.send(item)

    async def send_eof(self) -> None:
        if not self._eof_sent:
            self._eof_sent = True
            self._writes.end()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        # A socket closed with unread input resets the connection: so does this one.
        if self._reads.unread:
            self._writes.break_off()
        else:
            await self.send_eof()
        self._reads.break_off()
        self._network.forget(self._reads)
