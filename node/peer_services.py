"""The services of a node for its peers: keyring, presence, outbox, requests about peers, and
chat."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec
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
from millpond.node.chat.files import ChatFiles, FileSettings
from millpond.node.chat.invites import Invites
from millpond.node.chat.local_stream import LocalStream
from millpond.node.chat.message_requests import MessageRequests
from millpond.node.client.url import pinned
from millpond.node.clock import Clock
from millpond.node.config import Config
from millpond.node.outbox.context import OutboxContext, OutboxSettings, Unfinished
from millpond.node.outbox.delivery_keys import DeliveryKeys, OwnDeliveryKeys
from millpond.node.outbox.dialer import PeerDialer
from millpond.node.outbox.file_requests import FileRequests
from millpond.node.outbox.file_store import FileStore
from millpond.node.outbox.given_prekeys import GivenPrekeys
from millpond.node.outbox.local_channels import LocalChannels
from millpond.node.outbox.mailbox import Mailbox, is_mailbox, mailbox_settings
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.own_addresses import OwnAddresses
from millpond.node.outbox.presence import AttachCallback, DetachCallback, Presence
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.data_key import DataKey
from millpond.node.peers.keyring import Keyring, open_keyring
from millpond.node.peers.one_time_prekeys import TakenPrekeys
from millpond.node.peers.peer_store import PeerStore
from millpond.transports.p2p.handshake import Signer
from millpond.transports.p2p.interface import AskPeers
from millpond.transports.server.interface import ConnectionCounters

if TYPE_CHECKING:
    from millpond.node.admin import PeerRow
    from millpond.node.client.settings import Dialer
    from millpond.node.discovery.discovery import Discovery

log = logging.getLogger(__name__)

PACKET_OVERHEAD_BYTES = 64


class ConnectionServices(Protocol):
    """The services of connections, which call these services."""

    next_number: Callable[[], int]
    counters: ConnectionCounters

    def watch_attachments(self, attach: AttachCallback, detach: DetachCallback) -> None: ...

    def open_to_peers(self, signer: Signer, peers: AskPeers) -> None: ...


class PeerServices:
    """The services of one node for its peers; all but `presence` exist after `open`."""

    keyring: Keyring
    outbox: Outbox
    peer_requests: PeerRequests
    chat: Chat
    files: ChatFiles
    relayed_files: FileStore | None
    message_requests: MessageRequests

    def __init__(
        self,
        config: Config,
        scheduler: Scheduler,
        store: Store,
        clock: Clock,
        rng: Random,
        entropy: Callable[[int], bytes],
        may_send: Callable[[bytes, bytes], bool],
    ) -> None:
        """`may_send`: True if a peer (its public key) may send messages to a channel."""
        self._may_send = may_send
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
        self._keyring: Keyring | None = None
        self.discovery: Discovery | None = None

    def serve(self, connections: ConnectionServices, dialer: Dialer | None) -> None:
        """Watch connections. `dialer` opens those of this node; None: sockets."""
        connections.watch_attachments(*self.presence.watch(self._scheduler))
        self._connections = connections
        self._dialer = dialer

    def open(
        self,
        tasks: TaskGroup,
        listener: Callable[[], str | None],
        key_hash: bytes | None = None,
        data_key: DataKey | None = None,
    ) -> Keyring:
        """Read the data folder and make the services. Raises ConfigError and OSError.

        `listener` gives the address of the P2P listener. `key_hash`: SHA-256 of the key in the
        node's own certificate, if its listeners show that. `data_key`: that of the folder, if it
        has one.

        Requests are carried out in `tasks`. Messages are forwarded after `start`, so callbacks are
        registered before it.
        """
        assert self._connections is not None
        self.keyring = self._keyring = open_keyring(
            self._config, self._clock.wall, self._entropy, data_key
        )
        if self._config.allow_plain_peers:
            log.warning("peers on other machines may connect without tls: allow_plain_peers")
        self._listener = listener
        context = self._outbox_context(self.keyring, self._connections, key_hash)
        self._invites = Invites(context)
        self.message_requests = MessageRequests(
            context, self._invites, is_on=self._config.message_requests
        )
        self.outbox = Outbox(context, self.message_requests)
        self.peer_requests = PeerRequests(self.outbox, tasks)
        self._connections.open_to_peers(self.keyring.identity, self.peer_requests.ask)
        for name in [name for name in self._scheduler.cells if is_mailbox(name)]:
            self.outbox.message_arrived(name)
        self.files = ChatFiles(
            context,
            self.keyring.store,
            self._local_stream,
            FileSettings(
                self._config.chat_file_bytes_max,
                self._config.chat_files_bytes_max,
                self._config.chat_files_age_s,
            ),
        )
        self.relayed_files = (
            FileStore(
                "relay",
                self.keyring.store,
                self._local_stream,
                self._now,
                self._config.relay_files_bytes_max,
            )
            if self._config.relay
            else None
        )
        self.chat = Chat(
            self.outbox,
            self._local_stream,
            self.message_requests,
            self._invites,
            self.files,
            tells_typing=self._config.chat_typing,
        )
        self.chat.register(self.peer_requests)
        if self._config.discover:
            from millpond.node.discovery.discovery import Discovery  # few nodes need it

            assert isinstance(context.dial, PeerDialer)
            self.discovery = Discovery(self._config, context, context.dial, listener)
            self.discovery.register(self.peer_requests)
        FileRequests(context, self.chat.file_operations, self.relayed_files).register(
            self.peer_requests
        )
        return self.keyring

    @property
    def message_request_count(self) -> int:
        """The number of unknown senders whose messages wait to be accepted or refused."""
        return 0 if self._keyring is None else len(self.message_requests)

    @property
    def discovered_count(self) -> int:
        """The number of nodes that are found on the local network."""
        return 0 if self.discovery is None else len(self.discovery.found)

    @property
    def one_time_prekey_count(self) -> int:
        """The number of one-time prekeys that this node and its relays can hand out."""
        return 0 if self._keyring is None else self._keyring.one_time.waiting

    def peer_rows(self) -> list[PeerRow]:
        """The contacts of this node; none before `open`."""
        if self._keyring is None:
            return []
        from millpond.node.admin import PeerRow

        outbox = self.outbox
        return [
            PeerRow(
                each.name,
                outbox.presence.last_seen(each.public).is_online,
                outbox.queued(each.public),
                outbox.unconfirmed(each.public),
            )
            for each in self._keyring.book.peers
            if each.is_contact
        ]

    def close(self) -> None:
        """Close the files that are open; nothing else is called afterwards."""
        if self._keyring is not None:
            self._keyring.store.close()
            self._keyring = None

    def start(self, tasks: TaskGroup) -> None:
        """Run outbox and chat in `tasks`, from the next pass of the loop on."""
        for actor, run in (("outbox", self.outbox.run), ("chat", self.chat.run)):
            tasks.start_soon(supervise, actor, run, RestartPolicy(), self._rng, self._now)
        if self.discovery is not None:
            run = self.discovery.run
            tasks.start_soon(supervise, "discovery", run, RestartPolicy(), self._rng, self._now)
        if self.relayed_files is not None:
            run = self.relayed_files.run
            tasks.start_soon(supervise, "files", run, RestartPolicy(), self._rng, self._now)

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
        context = self.outbox.context
        return Mailbox(
            name,
            snapshot,
            ports,
            settings,
            shared,
            self.outbox.message_arrived,
            context.local.own_source,
            context.book.is_accepted,
        )

    def _outbox_context(
        self, keyring: Keyring, connections: ConnectionServices, key_hash: bytes | None
    ) -> OutboxContext:
        return OutboxContext(
            identity=keyring.identity,
            book=keyring.book,
            prekeys=keyring.prekeys,
            prekey_cache=keyring.prekey_cache,
            store=keyring.store,
            one_time=keyring.one_time,
            taken_prekeys=TakenPrekeys(),
            given_prekeys=GivenPrekeys(
                keyring.store, keyring.book, keyring.identity.public, self._now
            ),
            local_key=keyring.local_key,
            delivery_tokens=keyring.delivery_tokens,
            delivery_keys=(
                DeliveryKeys(keyring.store, keyring.book, self._now) if self._config.relay else None
            ),
            own_delivery_keys=OwnDeliveryKeys(
                keyring.identity.public, self._now, self._takes_strangers
            ),
            own_addresses=OwnAddresses(self._config.addresses, key_hash, self._listener),
            may_send=self._may_send,
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
                allow_plain=self._config.allow_plain_peers,
            ),
            rng=self._rng,
            entropy=self._entropy,
            settings=msgspec.structs.replace(
                outbox_settings(self._config, key_hash), successions=keyring.successions
            ),
            latest=self._clock.latest,
            forwarders=anyio.CapacityLimiter(self._config.carriers_max),
            on_status=[],
            on_prekey=[],
            unfinished=self._unfinished(keyring.store),
            refusals=connections.counters.reasons,
        )

    def _takes_strangers(self) -> bool:
        """True if messages of senders that the node does not know are of use."""
        return self._config.message_requests or bool(self._invites.open)

    def _unfinished(self, store: PeerStore) -> dict[int, Unfinished]:
        """The messages whose delivery was interrupted by the end of the last run."""
        text = "SELECT mailbox_id, sender, line, counter FROM unfinished WHERE until >= ?"
        rows = store.query(text, (int(self._now()),))
        return {row[0]: Unfinished(*row[1:]) for row in rows}


def outbox_settings(config: Config, key_hash: bytes | None = None) -> OutboxSettings:
    """The settings of the outbox from the configuration. `key_hash`: of the own certificate."""
    return OutboxSettings(
        ttl_s=min(config.peer_ttl_s, config.ttl_max_s),
        message_bytes_max=config.packet_bytes_max - PACKET_OVERHEAD_BYTES,
        forwarders_max=config.carriers_max,
        fetchers_max=config.fetchers_max,
        via=config.via,
        addresses=tuple(pinned(url, key_hash) for url in config.addresses),
        is_local=not (config.is_reachable("p2p") or config.is_reachable("ws")),
    )
