"""The connector of a queue or a worker: opens channels with the same options each time."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from random import Random
from typing import TypedDict

from millpond.node.client.channel import Channel, ModeName, RoleName
from millpond.node.client.connect import connect
from millpond.node.client.events import Event
from millpond.node.client.settings import DEFAULT_SETTINGS, ConnectSettings, simulated
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
    settings: ConnectSettings


class Connector:
    """A node's address and the credentials for it."""

    def __init__(self, url: str, options: ConnectionOptions) -> None:
        self._url = url
        self._options: ConnectionOptions = {**options}
        self._settings = simulated(options.get("settings", DEFAULT_SETTINGS))

    @property
    def rng(self) -> Random:
        """The source of chance, of the running loop where none was given."""
        rng = self._settings.rng
        if rng is None:
            rng = current_environment().rng()
            self._settings = replace(self._settings, rng=rng)
        return rng

    def entropy(self, count: int) -> bytes:
        """A number of unpredictable bytes."""
        return (self._settings.entropy or current_environment().entropy)(count)

    @property
    def has_identity(self) -> bool:
        """Whether the node knows this client by an identity, beyond a token."""
        return self._options.get("identity") is not None

    def now(self) -> Callable[[], float]:
        """The clock of the running loop, which moves within a pass of the loop as well."""
        return self._settings.now or current_environment().monotonic

    def join(
        self,
        channel: bytes,
        role: RoleName,
        *,
        mode: ModeName | None = None,
        window: int | None = None,
        begins: bool = False,
        name: str = "",
        on_event: Callable[[Event], None] | None = None,
    ) -> AbstractAsyncContextManager[Channel]:
        """The channel, for a block; lists call the connection `name`."""
        settings = replace(self._settings, rng=self.rng, begins=begins)
        if name:
            settings = replace(settings, name=name)
        options: ConnectionOptions = {**self._options, "settings": settings}
        return connect(
            self._url,
            channel,
            role=role,
            mode=mode,
            window=window,
            on_event=on_event,
            **options,
        )
