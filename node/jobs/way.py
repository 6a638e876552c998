"""How a queue and a worker reach their node: what `connect` is told again for each connection."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from random import Random
from typing import TypedDict

import anyio

from node.channel import Channel
from node.client import Dialer, ModeName, RoleName, connect
from node.events import Event
from transports.host import Signer


class WayOptions(TypedDict, total=False):
    """As in `node.connect`."""

    token: str | bytes | None
    identity: Signer | None
    peer: bytes | None
    on_peer: Callable[[bytes], None] | None
    tls: ssl.SSLContext | None
    wait_s: float
    dialer: Dialer | None
    rng: Random | None
    now: Callable[[], float] | None


@contextmanager
def single_errors() -> Generator[None]:
    """What was raised in a group of tasks comes out as it is, if there was only one."""
    try:
        yield
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
        raise error from error.__cause__


class Way:
    """A node's address and the credentials for it."""

    def __init__(self, url: str, options: WayOptions) -> None:
        self.rng = options.get("rng") or Random()
        self._url = url
        self._options: WayOptions = {**options, "rng": self.rng}

    def now(self) -> Callable[[], float]:
        """The clock of the running library, as it is now also within a turn of the loop."""
        if (now := self._options.get("now")) is not None:
            return now
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return anyio.current_time
        return time.monotonic

    def join(
        self,
        channel: bytes,
        role: RoleName,
        *,
        mode: ModeName | None = None,
        window: int | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> AbstractAsyncContextManager[Channel]:
        """The channel, for a block."""
        return connect(
            self._url,
            channel,
            role=role,
            mode=mode,
            window=window,
            on_event=on_event,
            **self._options,
        )
