"""Calls of many tasks on a client's shared connection, bounded in number and in bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import anyio

from millpond.node.client.flow_limit import FlowLimit
from millpond.node.client.requests.errors import NotDone, NotSent
from millpond.node.client.requests.pipeline import PendingCall
from millpond.node.client.requests.reconnecting import ReconnectingConnection

BYTES_MAX = 8 * 2**20

R = TypeVar("R")
T = TypeVar("T")


class RequestLimiter(Generic[R]):
    """Asks and waits. A cancelled call's reply is still its own; it shifts no other's."""

    def __init__(self, trunk: ReconnectingConnection[R], calls_max: int, answer_s: float) -> None:
        self.trunk = trunk
        self._room = FlowLimit(calls_max, BYTES_MAX)
        self._answer_s = answer_s

    async def ask(self, request: bytes, read: Callable[[R], T], *, has_effect: bool) -> T:
        """The reply's value. What was not sent goes with the next connection.

        Raises what `read` raises; NotDone or OutcomeUnknown when no reply comes.
        """
        room, size = self._room, len(request)
        while True:
            if not room.take_nowait(size):
                await room.take(size)
            is_asked = False
            try:
                line = await self.trunk.live()
                is_asked = True
            finally:
                if not is_asked:
                    room.give(size)
            call = PendingCall(read, has_effect, partial(room.give, size))
            line.ask(call, request)
            try:
                return await call.answer
            except NotSent:
                continue

    async def ask_aside(self, request: bytes, read: Callable[[R], T], wait_s: float) -> T:
        """Ask what may take `wait_s` and has no effect, on a connection of its own."""
        async with self.trunk.aside() as line:
            call = PendingCall(read, False, _nothing)
            line.ask(call, request)
            with anyio.move_on_after(wait_s + self._answer_s):
                return await call.answer
        raise NotDone("the server does not answer")


def _nothing() -> None:
    """Nothing is bounded by this call."""
