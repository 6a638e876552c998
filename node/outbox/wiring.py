"""Builds a node's post, and joins it to the rest of the node."""

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

LETTER_MARGIN_BYTES = 64


class Doors(Protocol):
    """The node's side of its connections."""

    attach: AttachCallback
    detach: DetachCallback
    signer: Signer | None
    peers: AskPeers

    def next_number(self) -> int: ...


class OutboxServices:
    """One per node. `outbox`, `desk` and `chat` are there once it is open."""

    house: Keyring
    outbox: Outbox
    desk: PeerRequests
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
        self._doors: Doors | None = None
        self._dialer: Dialer | None = None

    def serve(self, doors: Doors, dialer: Dialer | None) -> None:
        """Hear of connections as they come and go. `dialer` opens ours; None: sockets."""
        doors.attach, doors.detach = self.presence.watch(self._scheduler)
        self._doors = doors
        self._dialer = dialer

    def open(self, tasks: TaskGroup) -> Keyring:
        """Read the data folder; requests are carried out in `tasks`. Raises ConfigError, OSError.

        The post does not work yet: whoever wants to hear of things says so before `start`.
        """
        assert self._doors is not None
        self.house = open_keyring(self._config, self._clock.wall, self._entropy)
        self.outbox = Outbox(self._office(self.house, self._doors))
        self.desk = PeerRequests(self.outbox, tasks)
        self._doors.signer = self.house.identity
        self._doors.peers = self.desk.ask
        for name in [name for name in self._scheduler.cells if is_mailbox(name)]:
            self.outbox.notice(name)
        self.chat = Chat(self.outbox, self._ledger)
        self.chat.register(self.desk)
        return self.house

    def start(self, tasks: TaskGroup) -> None:
        """Have post and chat work in `tasks`, from the next turn of the loop on."""
        for actor, run in (("post", self.outbox.run), ("chat", self.chat.run)):
            tasks.start_soon(supervise, actor, run, RestartPolicy(), self._rng, self._now)

    def _ledger(self, stream: bytes) -> LocalStream:
        assert self._doors is not None
        return LocalStream(self._scheduler, self._now, self._doors.next_number(), stream)

    def spawn(
        self,
        name: bytes,
        kept: CellSnapshot,
        guests: dict[Port, Attach],
        settings: ChannelSettings,
        shared: ChannelContext,
    ) -> Channel | None:
        """The behaviour of a mailbox; None for every other cell."""
        if isinstance(kept, LogSnapshot) or not is_mailbox(name):
            return None
        settings = mailbox_settings(settings, self._config.peer_ttl_s)
        return Mailbox(name, kept, guests, settings, shared, self.outbox.notice)

    def _office(self, house: Keyring, doors: Doors) -> OutboxContext:
        chance = (self._rng, self._entropy)
        near = (house.identity, house.book, self.presence, self._now, *chance, self._dialer)
        return OutboxContext(
            identity=house.identity,
            book=house.book,
            prekeys=house.prekeys,
            known=house.known,
            local=LocalChannels(self._scheduler, self._store, self._now, doors.next_number),
            presence=self.presence,
            reach=PeerDialer(*near),
            rng=self._rng,
            entropy=self._entropy,
            settings=settings_of(self._config),
            carriers=anyio.CapacityLimiter(self._config.carriers_max),
            on_report=[],
            on_prekey=[],
        )


def settings_of(config: Config) -> OutboxSettings:
    """How the configuration has the post work."""
    return OutboxSettings(
        ttl_s=min(config.peer_ttl_s, config.ttl_max_s),
        letter_bytes_max=config.packet_bytes_max - LETTER_MARGIN_BYTES,
        carriers_max=config.carriers_max,
        fetchers_max=config.fetchers_max,
        via=config.via,
        addresses=config.addresses,
    )
