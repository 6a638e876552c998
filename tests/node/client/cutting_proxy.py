"""A relay in front of a server that cuts connections at byte counts drawn from a seed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

from millpond.transports.io.address import parse_address

CUTS_MAX = 3
GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class CuttingProxy:
    """Relays until at most `bytes_max` bytes passed in one direction, for CUTS_MAX connections:
    whoever dials again waits longer each time."""

    def __init__(self, target: str, rng: Random, bytes_max: int) -> None:
        self.address = ""
        self.cuts = 0
        self._target = parse_address(target)
        self._rng = rng
        self._bytes_max = bytes_max

    async def relay(self, client: SocketStream) -> None:
        async with client, await anyio.connect_tcp(*self._target) as server:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, client, server, tasks.cancel_scope)
                tasks.start_soon(self._pump, server, client, tasks.cancel_scope)

    async def _pump(self, source: ByteStream, sink: ByteStream, scope: anyio.CancelScope) -> None:
        left = self._rng.randrange(1, self._bytes_max)
        try:
            while True:
                data = await source.receive()
                if self.cuts < CUTS_MAX:
                    data, left = data[:left], left - len(data)
                await sink.send(data)
                if left <= 0:
                    self.cuts += 1
                    break
        except GONE:
            pass
        scope.cancel()


@asynccontextmanager
async def cutting_proxy(target: str, rng: Random, bytes_max: int) -> AsyncIterator[CuttingProxy]:
    """A proxy that listens until the block ends."""
    proxy = CuttingProxy(target, rng, bytes_max)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        async with anyio.create_task_group() as tasks:
            proxy.address = f"127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            tasks.start_soon(listener.serve, proxy.relay)
            yield proxy
            tasks.cancel_scope.cancel()
