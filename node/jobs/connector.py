"""The connector of a queue or a worker: opens channels with the same options each time."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import TypedDict

from millpond.node.client.channel import Channel, ModeName, RoleName
from millpond.node.client.connect import Dialer, connect
from millpond.node.client.events import Event
from millpond.node.environment import current_environment
from millpond.transports.p2p.handshake import Signer


class ConnectionOptions(TypedDict, total=False):
    """Options of `millpond.connect` that queues and workers take."""

    token: str | bytes | None
    identity: Signer | None
    peer: bytes | None
    on_peer: Callable[[bytes], None] | None
    tls: ssl.SSLContext | None
    allow_plain: bool
    wait_s: float
    dialer: Dialer | None
    rng: Random | None
    now: Callable[[], float] | None
    entropy: Callable[[int], bytes] | None


class Connector:
    """A node's address and the credentials for it."""

    def __init__(self, url: str, options: ConnectionOptions) -> None:
        self._url = url
        self._options: ConnectionOptions = {**options}

    @property
    def rng(self) -> Random:
        """The source of chance, of the running loop where none was given."""
        rng = self._options.get("rng")
        if rng is None:
            rng = self._options["rng"] = current_environment().rng()
        return rng

    def entropy(self, count: int) -> bytes:
        """A number of unpredictable bytes."""
        return (self._options.get("entropy") or current_environment().entropy)(count)

    @property
    def has_identity(self) -> bool:
        """Whether the node knows this client by an identity, beyond a token."""
        return self._options.get("identity") is not None

    def now(self) -> Callable[[], float]:
        """The clock of the running loop, which moves within a pass of the loop as well."""
        return self._options.get("now") or current_environment().monotonic

    def join(
        self,
        channel: bytes,
        role: RoleName,
        *,
        mode: ModeName | None = None,
        window: int | None = None,
        begins: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> AbstractAsyncContextManager[Channel]:
        """The channel, for a block."""
        options: ConnectionOptions = {**self._options, "rng": self.rng}
        return connect(
            self._url,
            channel,
            role=role,
            mode=mode,
            window=window,
            begins=begins,
            on_event=on_event,
            **options,
        )
