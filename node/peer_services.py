"""The services of a node for its peers: keyring, presence, outbox, requests about peers, and
chat."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.messages import Attach, Port
from millpond.actors.runtime.cell import CellSnapshot
from millpond.actors.runtime.scheduler import Scheduler
from millpond.actors.runtime.supervisor import RestartPolicy, supervise
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.store.interface import Store
from millpond.node.chat.chat import Chat
from millpond.node.chat.local_stream import LocalStream
from millpond.node.client.connect import Dialer
from millpond.node.clock import Clock
from millpond.node.config import Config
from millpond.node.outbox.context import OutboxContext, OutboxSettings
from millpond.node.outbox.dialer import PeerDialer
from millpond.node.outbox.local_channels import LocalChannels
from millpond.node.outbox.mailbox import Mailbox, is_mailbox, mailbox_settings
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.presence import AttachCallback, DetachCallback, Presence
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.keyring import Keyring, open_keyring
from millpond.transports.p2p.handshake import Signer
from millpond.transports.p2p.interface import AskPeers

PACKET_OVERHEAD_BYTES = 64


class ConnectionServices(Protocol):
    """The services of connections, which call these services."""

    next_number: Callable[[], int]

    def watch_attachments(self, attach: AttachCallback, detach: DetachCallback) -> None: ...

    def open_to_peers(self, signer: Signer, peers: AskPeers) -> None: ...


class PeerServices:
    """The services of one node for its peers; all but `presence` exist after `open`."""

    keyring: Keyring
    outbox: Outbox
    peer_requests: PeerRequests
    chat: Chat

    def __init__(
        self,
        config: Config,
        scheduler: Scheduler,
        store: Store,
        clock: Clock,
        rng: Random,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.presence = Presence(clock.now)
        self._config = config
        self._scheduler = scheduler
        self._store = store
        self._clock = clock
        self._now = clock.now
        self._rng = rng
        self._entropy = entropy
        self._connections: ConnectionServices | None = None
        self._dialer: Dialer | None = None

    def serve(self, connections: ConnectionServices, dialer: Dialer | None) -> None:
        """Watch connections. `dialer` opens those of this node; None: sockets."""
        connections.watch_attachments(*self.presence.watch(self._scheduler))
        self._connections = connections
        self._dialer = dialer

    def open(self, tasks: TaskGroup) -> Keyring:
        """Read the data folder and make the services. Raises ConfigError and OSError.

        Requests are carried out in `tasks`. Messages are forwarded after `start`, so callbacks are
        registered before it.
        """
        assert self._connections is not None
        self.keyring = open_keyring(self._config, self._clock.wall, self._entropy)
        self.outbox = Outbox(self._outbox_context(self.keyring, self._connections))
        self.peer_requests = PeerRequests(self.outbox, tasks)
        self._connections.open_to_peers(self.keyring.identity, self.peer_requests.ask)
        for name in [name for name in self._scheduler.cells if is_mailbox(name)]:
            self.outbox.message_arrived(name)
        self.chat = Chat(self.outbox, self._local_stream)
        self.chat.register(self.peer_requests)
        return self.keyring

    def start(self, tasks: TaskGroup) -> None:
        """Run outbox and chat in `tasks`, from the next pass of the loop on."""
        for actor, run in (("outbox", self.outbox.run), ("chat", self.chat.run)):
            tasks.start_soon(supervise, actor, run, RestartPolicy(), self._rng, self._now)

    def _local_stream(self, stream: bytes) -> LocalStream:
        assert self._connections is not None
        return LocalStream(self._scheduler, self._now, self._connections.next_number(), stream)

    def spawn(
        self,
        name: bytes,
        snapshot: CellSnapshot,
        ports: dict[Port, Attach],
        settings: ChannelSettings,
        shared: ChannelContext,
    ) -> Channel | None:
        """The channel of a mailbox; None for every other cell."""
        if isinstance(snapshot, LogSnapshot) or not is_mailbox(name):
            return None
        settings = mailbox_settings(settings, self._config.peer_ttl_s)
        return Mailbox(name, snapshot, ports, settings, shared, self.outbox.message_arrived)

    def _outbox_context(self, keyring: Keyring, connections: ConnectionServices) -> OutboxContext:
        return OutboxContext(
            identity=keyring.identity,
            book=keyring.book,
            prekeys=keyring.prekeys,
            prekey_cache=keyring.prekey_cache,
            local=LocalChannels(self._scheduler, self._store, self._now, connections.next_number),
            presence=self.presence,
            dial=PeerDialer(
                keyring.identity,
                keyring.book,
                self.presence,
                self._now,
                self._rng,
                self._entropy,
                self._dialer,
            ),
            rng=self._rng,
            entropy=self._entropy,
            settings=outbox_settings(self._config),
            forwarders=anyio.CapacityLimiter(self._config.carriers_max),
            on_status=[],
            on_prekey=[],
        )


def outbox_settings(config: Config) -> OutboxSettings:
    """The settings of the outbox from the configuration."""
    return OutboxSettings(
        ttl_s=min(config.peer_ttl_s, config.ttl_max_s),
        message_bytes_max=config.packet_bytes_max - PACKET_OVERHEAD_BYTES,
        forwarders_max=config.carriers_max,
        fetchers_max=config.fetchers_max,
        via=config.via,
        addresses=config.addresses,
    )
