"""The node: its parts (store, cells, services, listeners), made, started and drained in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, assert_never

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.context import ChannelContext, DeliveryCounters, QueueCounters
from millpond.actors.channels.dead_letters import DEAD_SUFFIX
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.ids import IdSource, last_id_at
from millpond.actors.messages import Attach, Batch, CellMessage, Durability, Port
from millpond.actors.runtime.cell import Behaviour, CellSnapshot
from millpond.actors.runtime.scheduler import Scheduler
from millpond.actors.runtime.supervisor import RestartPolicy, contain, supervise
from millpond.actors.store.catalog_recovery import PARTITIONS
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import Disk, OsDisk
from millpond.actors.store.interface import server_stats
from millpond.actors.store.memory import MemoryStore
from millpond.actors.store.partitions.cold_logs import COLD_FACT, cold_logs, cold_text
from millpond.actors.streams.names import CHANNELS, qualified_name_of, staged_part_of
from millpond.node import clock_file
from millpond.node.access.default_policy import KnownPeers
from millpond.node.access.operator import Operator, make_cookie, write_listeners
from millpond.node.access.policy import check_exposure, load_access, warn_unreachable_listeners
from millpond.node.access.revocation import watch_revocations
from millpond.node.activity import ActivitySampler
from millpond.node.backup.backup import NodeFacts
from millpond.node.backup.service import BackupService
from millpond.node.browser_policy import browser_policy
from millpond.node.channel_requests import ChannelRequests
from millpond.node.chat.history_cipher import HistoryCipher
from millpond.node.client.probe import PROBE
from millpond.node.clock import (
    BEHIND_S_MIN,
    Clock,
    ClockEvent,
    ClockLook,
    ClockStatus,
)
from millpond.node.config import (
    LISTENERS,
    OFF,
    Config,
    ConfigError,
    channel_rules,
    local_bytes_rules,
)
from millpond.node.connections import ConnectionRegistry, Services
from millpond.node.console.app import Console
from millpond.node.data_folder import (
    REPLICA_POSITION,
    FolderLock,
    LoopRuntime,
    StopTimedOut,
    finish_in_thread,
    has_no_secrets,
    was_used,
)
from millpond.node.environment import current_environment, installed_version, loop_time, rss_bytes
from millpond.node.events import EventLog
from millpond.node.jobs.payload import is_result_mailbox
from millpond.node.outbox.mailbox import is_prekeys, prekeys_settings, rule_name_of
from millpond.node.outbox.outbox import Outbox
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peer_services import PeerServices
from millpond.node.peers.data_key import DataKey, DataKeyError, open_or_begin
from millpond.node.peers.identity import peer_id
from millpond.node.replica.interface import (
    ReplicaReply,
    SnapshotReply,
    SnapshotRequest,
    SnapshotState,
)
from millpond.node.stream_cells import (
    StreamCells,
    first_wakes,
    is_reserved,
    stream_rules,
)
from millpond.node.tls.listeners import TlsListeners
from millpond.node.web.app import WebServices
from millpond.node.webhooks.services import SubscriptionServices
from millpond.transports.io.address import port_of
from millpond.transports.io.interface import Listener, Session
from millpond.transports.io.memory import Network
from millpond.transports.io.tcp import listen, parse_address
from millpond.transports.p2p.admission import Admission

if TYPE_CHECKING:
    from millpond.actors.store.recovery import Recovered
    from millpond.actors.store.redis.store import RedisStore
    from millpond.node import admin
    from millpond.node.client.settings import Dialer
    from millpond.node.http.app import HttpServices
    from millpond.node.replica.service import ReplicaService
    from millpond.node.replica.snapshots import SnapshotFacts
    from millpond.node.stream_listeners import StreamListeners
    from millpond.transports.http.app import Application
    from millpond.transports.p2p.framing import Framing

log = logging.getLogger(__name__)

RESYNC_S = 30.0
INSTANCES = 1024
"""Ids carry ten random bits of the node that gave them out."""


class Node:
    """A node. `async with Node(config) as node` runs it; leaving the block drains it.

    `rng`, `clock` and `entropy` (so many unpredictable bytes, for keys and nonces) are for tests:
    with the same ones and the same input a node does the same.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        rng: Random | None = None,
        clock: Clock | None = None,
        disk: Disk | None = None,
        dialer: Dialer | None = None,
        entropy: Callable[[int], bytes] | None = None,
    ) -> None:
        # Time, chance, configuration.
        self.config = config = config or Config()
        environment = current_environment()
        self.clock = clock or Clock(
            monotonic=loop_time(),
            wall=environment.wall,
            boot=environment.boot,
        )
        self.clock.confirm_s = config.clock_confirm_s
        self._rng = rng or environment.rng()
        entropy = entropy or environment.entropy
        self._clock_store = clock_file.ClockStore(Path(config.data), self.clock)
        self._entropy = entropy
        self._data_key: DataKey | None = None
        self._ids_before = self._ids_floor = 0.0
        self._started_at = self.clock.now()

        # Access.
        self._access = load_access(
            config.access_file,
            config.token_file,
            config.data,
            now=self.clock.latest,
            is_public=config.insecure_public,
        )

        # The store, in memory or in the data folder.
        self._channel_rules = channel_rules(config)
        self._stream_rules = stream_rules(config)
        self._local_bytes = local_bytes_rules(config)
        self._lock: FolderLock | None = None
        self._store = self._choose_store(disk or OsDisk())

        # Cells: channels and streams, and their scheduler.
        self._queues = QueueCounters(DeliveryCounters())
        self._channels = ChannelContext(
            ids=IdSource(self._rng.randrange(INSTANCES)),
            rng=self._rng,
            usage=self._store.usage,
            health=self._store.health,
            limits=config.node_limits,
            jump=self.clock.jump,
            now=self.clock.now,
            counters=self._queues.shared,
            queues=self._queues,
        )
        self.subscriptions = SubscriptionServices(
            config,
            self._submit_one,
            self._submit_later,
            self._access.stream_scope,
            entropy=entropy,
            rng=self._rng,
            version=installed_version,
            wall=self.clock.wall,
        )
        self._streams = StreamCells(
            self._stream_rules,
            self._store,
            self._submit_one,
            config.stream_shelf_bytes_max,
            config.basin.encode(),
            self.clock.now,
            config.state_limits,
            self.clock.jump,
            self.subscriptions,
            self._channels.created,
            self._channels.queue_table,
        )
        self.scheduler = Scheduler(
            self._store,
            self._spawn,
            self.clock.now,
            self._rng,
            config.scheduler_settings,
            self._streams.load,
        )

        # Connections, and the services that they call.
        self.registry = ConnectionRegistry(config, self.clock.now, f"{self._started_at:.6f}")
        self.services = Services(
            config,
            self.registry,
            self._access,
            self.scheduler,
            self._streams,
            self._store.durability,
            self._answer_admin,
            ChannelRequests(
                self.scheduler,
                self._store,
                self._channels.created,
                self._channels.queue_table,
                self._access.authorize,
                self._access.is_operator,
                self._subscription_ids,
                self._channels.ids,
                self.clock.now,
                self.registry.summaries,
            ).ask,
            now=self.clock.now,
            ticks_ns=self.clock.ticks_ns,
            rng=self._rng,
            entropy=entropy,
        )
        self._activity = ActivitySampler(
            self.clock.ticks_ns,
            lambda: self.registry.connections,
            self.services.http,
            lambda: self._streams.counters.appended,
        )
        self.tls = TlsListeners(
            config,
            self.clock.now,
            self.registry.counters,
            self.services.present_certificate,
            lambda: self.services.memory.handshake_failed(self.clock.now()),
        )

        # Messages between nodes, chat, and the web page.
        self.peer_services = PeerServices(
            config,
            self.scheduler,
            self._store,
            self.clock,
            self._rng,
            entropy,
            self._access.may_send,
        )
        self.peer_services.serve(self.services, dialer)
        self.browser_policy = browser_policy(config, self.tls.certificate_names)
        self.web = WebServices(config, self.browser_policy, self.clock.now, entropy)
        self.console = Console(config, self.clock.now, entropy)

        self.backups = BackupService(
            self._store if isinstance(self._store, DurableStore) else None,
            self._backup_facts,
            self.clock.now,
            lambda: None if self.replica is None else self.replica.cold_reader(),
        )

        self.replica = self._choose_replica()
        if self.replica is not None:
            self.services.replica_snapshot = self.replica.snapshot

        # Listeners; they open in `__aenter__`.
        self.listeners: dict[str, str] = {}
        """The addresses of the listeners, by name: `p2p`, `ws`, `s3p`, `rustlog`, `http`."""
        self._open: list[Listener] = []
        self._stream_listeners: StreamListeners | None = None
        self._http: HttpServices | None = None
        self._is_started = False
        self._tasks: TaskGroup | None = None

    @property
    def outbox(self) -> Outbox:
        """Sends and opens sealed messages; of a node that was started."""
        return self.peer_services.outbox

    @property
    def peer_requests(self) -> PeerRequests:
        """Answers packets 94; of a node that was started."""
        return self.peer_services.peer_requests

    @property
    def events(self) -> EventLog:
        """The last events of the node."""
        return self.registry.events

    @property
    def durability(self) -> Durability:
        """The durability of channels without a rule of their own."""
        return self.config.default_durability

    @property
    def store_url(self) -> str | None:
        """The Redis that keeps the store, without a password; None: none does."""
        found = server_stats(self._store)
        return None if found is None else found.url

    def _choose_store(self, disk: Disk) -> DurableStore | MemoryStore | RedisStore:
        if self.durability is Durability.MEMORY and not self.config.store:
            return MemoryStore()
        around = LoopRuntime(self.clock.now, self._rng)
        if self.config.store:
            from millpond.node.redis_store import make_redis_store

            return make_redis_store(self.config, around, self._durability_of)
        folder = Path(self.config.data)
        return DurableStore(folder, disk, self.config.store_settings, around, self._durability_of)

    def _choose_replica(self) -> ReplicaService | None:
        """The replica of the configuration; None: there is none. Raises ConfigError."""
        settings, store = self.config.replica_settings, self._store
        if settings is None and self.config.is_replicated:
            raise ConfigError("durability: replicated needs a replica (--replica URL)")
        if settings is None and self.config.replica_keys:
            raise ConfigError("replica_keys: there is no replica (--replica URL)")
        if settings is None and self.config.has_cold_streams:
            what = "stream_local_bytes_max, or local= of a stream rule"
            raise ConfigError(f"{what}: there is no replica (--replica URL)")
        if settings is None:
            return None
        if not isinstance(store, DurableStore):
            raise ConfigError("replica: only a node whose store is its data folder has one")
        from millpond.node.replica.errors import ReplicaError
        from millpond.node.replica.service import ReplicaService

        try:
            return ReplicaService(
                store,
                settings,
                facts=self._replica_facts,
                now=self.clock.now,
                wall=self.clock.wall,
                rng=self._rng,
                entropy=self._entropy,
                snapshots=self.backups.snapshots,
                local_bytes_max=self._local_bytes_of,
            )
        except ReplicaError as exc:
            raise ConfigError(f"replica: {exc}") from exc
        except DataKeyError as exc:
            raise ConfigError(f"replica_keys: {exc}") from exc

    def _local_bytes_of(self, cell: bytes) -> int:
        """The bytes of a log that stay in its file; 0: all."""
        name = qualified_name_of(cell)
        if name is None or staged_part_of(cell) is not None:
            return 0
        return self._local_bytes.settings(name)

    def _durability_of(self, cell: bytes) -> Durability:
        if cell == PROBE:
            return Durability.MEMORY  # commands that look at the node use it, whatever is damaged
        if cell == CHANNELS:
            # Behind a deletion in the journal: it syncs what a channel on the disk has removed.
            return max(Durability.DISK, self.durability)
        if is_reserved(cell):
            return self._stream_rules.durability(qualified_name_of(cell))
        # Dead letters are as durable as the messages that they were.
        return self._channel_rules.durability(rule_name_of(cell.removesuffix(DEAD_SUFFIX)))

    def _channel_settings(self, name: bytes) -> ChannelSettings:
        settings = self._channel_rules.settings(rule_name_of(name))
        if is_prekeys(name):
            settings = prekeys_settings(settings)
        if is_result_mailbox(name):  # a rule for `jobs/*` is for it too, but it has no jobs
            settings = msgspec.structs.replace(settings, dead_letter_expired=False)
        return settings

    def _open_store(self) -> None:
        """Lock the data folder, recover the store, and resume from the last run."""
        store = self._store
        if isinstance(store, MemoryStore):
            self._open_data_key()
            return
        folder = Path(self.config.data)
        lock = FolderLock(folder)
        began_ns = self.clock.ticks_ns()
        try:
            self._open_data_key()
            if self._data_key is not None:
                store.cipher = HistoryCipher(self._data_key)
            self._resume_clock(Path(self.config.data))
            if isinstance(store, DurableStore):
                found = self._recover(store)
            else:
                self._open_redis(store, folder, began_ns)
        except BaseException:
            lock.release()
            raise
        self._lock = lock
        if self.replica is not None:
            self.replica.open(found)
        try:
            if self.replica is None and isinstance(store, DurableStore):
                self._check_cold(store)
            self._resume(store)
        except BaseException:
            self._finish_store(store)
            raise
        if isinstance(store, DurableStore):
            self._tell_opened(store, found, began_ns)

    def _open_redis(self, store: RedisStore, folder: Path, began_ns: int) -> None:
        from millpond.node.redis_store import store_owner

        store.open(self.config.highest_durability, store_owner(folder, self._entropy))
        log.info(
            "store opened: redis=%s durability=%s messages=%d log_bytes=%d seconds=%.3f",
            store.url.shown,
            store.server.durability.name.lower(),
            store.usage.messages,
            store.usage.log_bytes,
            (self.clock.ticks_ns() - began_ns) / 1e9,
        )

    def _check_cold(self, store: DurableStore) -> None:
        """Look for records that are in a replica alone, if the folder ever had one. Raises
        ConfigError."""
        folder = Path(store.folder)
        if COLD_FACT not in store.facts and not (folder / REPLICA_POSITION).exists():
            return
        if text := cold_text(cold_logs(folder / PARTITIONS)):
            if not self.config.without_cold:
                raise ConfigError(
                    f"replica: {text} are in a replica alone, and the node has none: serve "
                    f"{self.config.data} with it (--replica URL), or with --without-cold, which "
                    "refuses reads of these records"
                )
            log.warning("reads of cold records are refused, as there is no replica: %s", text)

    def _recover(self, store: DurableStore) -> Recovered:
        suffix_after = None if self.replica is None else self.replica.suffix_after
        used = was_used(Path(self.config.data))
        return store.open(was_used=used, suffix_after=suffix_after)

    def _tell_opened(self, store: DurableStore, found: Recovered, began_ns: int) -> None:
        is_worth_telling = store.usage.messages or found.torn_bytes or found.damages
        log.log(
            logging.INFO if is_worth_telling else logging.DEBUG,
            "store opened: folder=%s messages=%d records=%d torn_bytes=%d damages=%d seconds=%.3f",
            self.config.data,
            store.usage.messages,
            found.records,
            found.torn_bytes,
            len(found.damages),
            (self.clock.ticks_ns() - began_ns) / 1e9,
        )

    def _open_data_key(self) -> None:
        """Read what keys and histories are encrypted with. Raises ConfigError, OSError."""
        data, file = self.config.data, self.config.passphrase_file
        if not data:  # nothing is stored
            return
        try:
            self._data_key = open_or_begin(Path(data), file, self._entropy, has_no_secrets)
        except DataKeyError as error:
            raise ConfigError(str(error)) from error

    def _resume(self, store: DurableStore | RedisStore) -> None:
        instance = store.facts.get("instance")
        if instance is None:
            instance = self._rng.randrange(INSTANCES)
            store.save_facts({"instance": instance})
        self._channels.ids.resume(instance, max(store.last_id, last_id_at(self._ids_floor)))
        self._clock_store.reserve_ids(self._channels.ids)
        uncorrected, kept = self._channels.uncorrected, [*store.stored_queues()]
        if self._clock_store.was_set_back:
            uncorrected.update(each.name for each in kept)
        now = self.clock.now()
        for name, deadline in first_wakes(kept, self._channel_settings, now, uncorrected):
            self.scheduler.adopt(name, deadline)
        for cell, after_s in self._streams.stored_cells():
            self.scheduler.adopt(cell, now + after_s)

    def _resume_clock(self, folder: Path) -> None:
        """Continue the trusted time of the last run."""
        last = clock_file.stored_reading(folder)
        is_confirmed = clock_file.take_confirmation(folder, self.clock.wall())
        if last is not None:
            self._ids_before = last.ids_until
            self._ids_floor = self.clock.ids_floor(last, is_confirmed=is_confirmed)
            look = self.clock.resume(last, is_confirmed=is_confirmed)
            is_set_back = look.event is ClockEvent.CONFIRMED and look.seconds < 0
            self._clock_store.was_set_back = last.was_set_back or is_set_back
            self._clock_looked(look, "at the start")
            self._started_at = self.clock.now()
            if (behind_s := self.clock.behind_s) >= BEHIND_S_MIN:
                log.warning("clock is behind the data folder: seconds=%.1f", behind_s)
            # The store is not open yet: what was reserved stays so. The first clock file comes
            # after the first store, which it proves.
            self._clock_store.store(max(last.ids_at, self._ids_floor), self._ids_before)

    async def _close_store(self) -> None:
        """Raises StopTimedOut."""
        self.peer_services.close()
        store = self._store
        if isinstance(store, MemoryStore) or self._lock is None:
            return
        self._streams.close()
        store.end()
        seconds = self.config.stop_timeout_s
        if not await finish_in_thread(partial(self._finish_store, store), seconds):
            raise StopTimedOut(Path(self.config.data), seconds)

    def _finish_store(self, store: DurableStore | RedisStore) -> None:
        """Close the store, and unlock its folder; in whatever thread."""
        self.backups.close()
        store.close()
        if self.replica is not None:
            self.replica.close()
        self._clock_store.was_set_back &= bool(self._channels.uncorrected)
        # Ids of earlier runs were given out before this moment.
        before = min(self._ids_before, self.clock.now())
        ids_at = self._channels.ids.time
        self._clock_store.store(ids_at, max(ids_at, before))
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _operator_cookie(self) -> bytes | None:
        """A new cookie of the operator; None: there is no data folder. Raises OSError."""
        if isinstance(self._store, MemoryStore):
            return None
        return make_cookie(Path(self.config.data), self._entropy)

    def _ports(self) -> set[int]:
        """The ports of the listeners."""
        return {port_of(address) for address in self.listeners.values()}

    async def __aenter__(self) -> Node:
        """Start. Raises OSError for an address that is taken, ConfigError for one not allowed."""
        self._open_store()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._tasks.start_soon(
                supervise,
                "scheduler",
                self.scheduler.run,
                RestartPolicy(),
                self._rng,
                self.clock.now,
            )
            self._tasks.start_soon(self._keep_time)
            if not isinstance(self._store, DurableStore | MemoryStore):
                from millpond.node.redis_store import end_when_lost

                self._tasks.start_soon(end_when_lost, self._store)
            self.backups.open(self._tasks)
            self._activity.open(self._tasks)
            if self.replica is not None:
                self.replica.start(self._tasks)
                if self.config.is_replicated:
                    await self.replica.settled()
            self.tls.open()
            listener = partial(self.listeners.get, "p2p")
            keyring = self.peer_services.open(
                self._tasks, listener, self.tls.own_key_hash, self._data_key
            )
            self.subscriptions.open(self._tasks, keyring.identity.seed)
            self._access.admit_peers(
                KnownPeers(
                    keyring.identity.public,
                    keyring.book,
                    self.config.relay,
                    self.config.peer_channels,
                    self.outbox.context.delivery_keys,
                    self.config.delivery_tokens_required,
                    self.outbox.context.own_delivery_keys,
                )
            )
            if self.peer_services.discovery is not None:
                self._access.admit_neighbours(self.peer_services.discovery.may_ask)
            cookie = self._operator_cookie()
            self._access.recognize_operator(Operator(cookie, self._ports))
            self.web.open(
                self._access, self.peer_requests, self.listeners, self.registry.reauthorize
            )
            self.console.open(
                self._access, self.peer_requests, self.listeners, self.registry.reauthorize
            )
            self._tasks.start_soon(self.tls.watch)
            self._tasks.start_soon(watch_revocations, keyring.book, self.registry, self.clock.now)
            await self._streams.open()
            for name in LISTENERS:
                address: str = getattr(self.config, name)
                if address != OFF:
                    await self._listen(name, address)
            if cookie is not None:
                write_listeners(Path(self.config.data), self.listeners)
            warn_unreachable_listeners(self._access, self.listeners)
            self.peer_services.start(self._tasks)
            self._is_started = True
            if self._http is not None:
                self._http.started()
        except BaseException:
            # Left without the exception: the caller gets it bare, not in a group.
            self._tasks.cancel_scope.cancel()
            try:
                await self._tasks.__aexit__(None, None, None)
            finally:
                await self._close_store()
            raise
        return self

    async def _keep_time(self) -> None:
        """Look at the wall clock twice a minute, and store trusted time."""
        folder = Path(self.config.data) if self._lock is not None else None
        is_ahead = is_corrected = False
        while True:
            await anyio.sleep(RESYNC_S)
            # Deadlines that were corrected since the last look may be on no disk yet.
            if is_corrected and self._store.health.is_writable:
                self._clock_store.was_set_back = False
            is_corrected = not self._channels.uncorrected
            self._clock_looked(self.clock.look(), "while running")
            if folder is not None and clock_file.take_confirmation(folder, self.clock.wall()):
                self._clock_looked(self.clock.confirm(), "by the operator")
            was_ahead, ahead_s = is_ahead, self._channels.ids.ahead_s(self.clock.now())
            is_ahead = ahead_s >= BEHIND_S_MIN
            if is_ahead and not was_ahead:
                log.warning("ids are ahead of the clock: seconds=%.1f", ahead_s)
            if folder is not None:
                reserve = partial(self._clock_store.reserve_ids, self._channels.ids)
                await anyio.to_thread.run_sync(reserve, abandon_on_cancel=True)

    def _clock_looked(self, look: ClockLook, when: str) -> None:
        """Do what follows from a look at the clock."""
        if look.moved_s:
            self._started_at += look.moved_s  # uptime is time that passed
            self.scheduler.clock_moved(look.moved_s)
        match look.event:
            case ClockEvent.NONE:
                pass
            case ClockEvent.FOLLOWED:
                log.warning("clock moved forward: seconds=%.1f", look.seconds)
            case ClockEvent.JUMPED:
                log.warning(
                    "clock jumped: seconds=%.1f %s; expiry is held for %.0f s",
                    look.seconds,
                    when,
                    self.clock.confirmed_in_s,
                )
            case ClockEvent.CONFIRMED:
                log.warning("clock confirmed: seconds=%.1f", look.seconds)
            case ClockEvent.WITHDRAWN:
                log.warning("clock jump withdrawn: seconds=%.1f", look.seconds)
                self.scheduler.clock_jump_withdrawn(self.clock.now())
            case _:
                assert_never(look.event)

    def clock_status(self) -> ClockStatus:
        """The clocks of the node."""
        clock, ids, now = self.clock, self._channels.ids, self.clock.now()
        return ClockStatus(
            jump_s=clock.jump.seconds,
            confirmed_in_s=clock.confirmed_in_s,
            behind_s=clock.behind_s,
            ids_ahead_s=ids.ahead_s(now),
            have_ids_ended=ids.has_ended(now),
        )

    def reload(self) -> None:
        """Load the files of TLS and access rules again."""
        self.tls.reload()
        self._access.reload()
        self.registry.reauthorize()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        if exc is None:
            try:
                await self.drain()
            except BaseException as stopped:  # cancelled, most likely: the tasks end all the same
                if not await self._stop(stopped):
                    raise
                return None
        return await self._stop(exc)

    async def _stop(self, exc: BaseException | None) -> bool | None:
        """End listeners and tasks at once. True: `exc` was their own cancellation."""
        assert self._tasks is not None
        with anyio.CancelScope(shield=True):
            for listener in self._open:
                await listener.aclose()
        self._tasks.cancel_scope.cancel()
        try:
            if exc is None or isinstance(exc, Exception):
                # Left without the exception: the caller gets it bare, not in a group.
                await self._tasks.__aexit__(None, None, None)
                return None
            return await self._tasks.__aexit__(type(exc), exc, exc.__traceback__)
        finally:
            await self._close_store()

    async def drain(self) -> None:
        """Stop as in PA-36: no new pushes, GOODBYE to all, at most the drain timeout for acks."""
        for listener in self._open:
            await listener.aclose()
        self._open.clear()
        self.scheduler.drain()
        with anyio.move_on_after(self.config.drain_timeout_s):
            await self.registry.drain()
        self.registry.close_all()
        if self.replica is not None:
            await self.replica.finish()

    def listen_in(self, network: Network, address: str) -> None:
        """Serve P2P on a simulated network as well."""
        self._open.append(network.listen(address, partial(self.new_session, "p2p"), self._tasks))

    async def _listen(self, name: str, address: str) -> None:
        assert self._tasks is not None
        try:
            host, port = parse_address(address)
        except ValueError as exc:
            raise ConfigError(f"{name}: {exc}") from exc
        is_guarded = self._access.guards(name) or self.tls.guards(name)
        check_exposure(name, host, is_guarded=is_guarded or self.config.insecure_public)
        if name == "http":
            from millpond.node.http.listener import listen as listen_for_http

            self._tasks.start_soon(contain, "transactions", self._finish_transactions)
            listener: Listener = await listen_for_http(
                self._tasks,
                host,
                port,
                self._http_application,
                self.config,
                self.services,
                self._close_http_requests,
                self.tls.acceptor(name),
                self._new_console_session,
            )
        else:
            session = partial(self.new_session, name)
            tls = self.tls.acceptor(name)
            guard = partial(contain, f"connection/{name}")
            listener = await listen(self._tasks, host, port, session, tls=tls, guard=guard)
        self._open.append(listener)
        self.listeners[name] = listener.address

    def _http_application(self) -> Application:
        """The application of the HTTP listener, made for its first connection."""
        from millpond.node.http.app import HttpServices  # this import takes its time

        self._http = HttpServices(
            self.config,
            self.services,
            self._sources,
            self._streams.counters,
            self.browser_policy,
            self.console.login,
        )
        if self._is_started:
            self._http.started()
        return self._http.application()

    def _close_http_requests(self) -> None:
        if self._http is not None:
            self._http.close_requests()

    async def _finish_transactions(self) -> None:
        """Publish what is left of batches that were begun before the start."""
        if self.services.stages.names(b"", b"", 1):
            from millpond.transports.http.transactions.app import finish_all

            await finish_all(self.services)

    def new_session(self, listener: str) -> Session:
        """The session of a connection that a listener just accepted."""
        number = self.registry.next_number()
        match listener:
            case "p2p":
                from millpond.transports.p2p.framing import LengthPrefixed

                return self._p2p_session(number, LengthPrefixed(self.config.packet_bytes_max))
            case "ws":
                return self._p2p_session(number, self.web.framing())
            case "s3p" | "rustlog":
                return self._open_stream_listeners().new_session(listener, number)
            case _:
                raise AssertionError(f"{listener} makes no sessions")

    def _p2p_session(self, number: int, framing: Framing, listener: str = "") -> Session:
        from millpond.transports.p2p.connection import P2PConnection  # it takes time to load

        return P2PConnection(number, self.services, framing, listener)

    def _new_console_session(self) -> Session:
        """The session of a WebSocket at the HTTP port."""
        from millpond.node.console.audit import AuditedFraming

        number, size = self.registry.next_number(), self.config.packet_bytes_max
        framing = AuditedFraming(size, self.browser_policy, number, self.events.record)
        return self._p2p_session(number, framing, "http")

    def _open_stream_listeners(self) -> StreamListeners:
        if self._stream_listeners is None:
            from millpond.node.stream_listeners import StreamListeners  # it takes time to load

            self._stream_listeners = StreamListeners(self.config, self.services)
        return self._stream_listeners

    def _spawn(self, name: bytes, snapshot: CellSnapshot, ports: dict[Port, Attach]) -> Behaviour:
        if isinstance(snapshot, LogSnapshot):
            return self._streams.spawn(name, snapshot)
        settings = self._channel_settings(name)
        mailbox = self.peer_services.spawn(name, snapshot, ports, settings, self._channels)
        return mailbox or Channel(name, snapshot, ports, settings, self._channels)

    def _submit_one(self, name: bytes, message: CellMessage) -> None:
        self.scheduler.submit(name, Batch(None, [message]), self.clock.now())

    def _submit_later(self, name: bytes, message: CellMessage) -> None:
        self.scheduler.submit_later(name, Batch(None, [message]), self.clock.now())

    def _subscription_ids(self) -> Container[bytes]:
        """The ids of the subscriptions."""
        return self.subscriptions.by_id()

    def _answer_admin(self, operation: int, body: bytes, client: Admission) -> bytes:
        from millpond.node import admin  # it takes time to load

        return admin.answer(operation, body, client, self._sources())

    def _sources(self) -> admin.StatusSources:
        from millpond.node import admin

        return admin.StatusSources(
            scheduler=self.scheduler,
            store=self._store,
            delivery=self._queues.total,
            wire=self.registry.counters,
            durability=self.durability,
            uptime_s=self.clock.now() - self._started_at,
            rss_bytes=self._rss_bytes(),
            connections=len(self.registry.connections),
            streams=len(self._streams.directory.streams),
            parts=self._streams.stages.count,
            now=self.clock.now(),
            protocol_stats=self.registry.protocol_stats,
            progress=self._streams.directory.progress,
            clock=self.clock_status(),
            message_requests=self.peer_services.message_request_count,
            one_time_prekeys=self.peer_services.one_time_prekey_count,
            discovered_nodes=self.peer_services.discovered_count,
            subscriptions=self.subscriptions.by_id,
            tokens=partial(self._streams.tokens.all, self.clock.now()),
            activity=self._activity,
            events=self.events,
            queues=self._queues.by_name,
            queue_stats=lambda: self._queues.stats,
            queue_table=self._channels.queue_table,
            peers=self.peer_services.peer_rows,
            directory=self._streams.directory,
            backup=self.backups.answer,
            replica=None if self.replica is None else self.replica.info,
            replica_snapshot=self._replica_snapshot,
            replica_page=self._replica_page,
            is_operator=self._access.is_operator,
            memory=self.services.memory,
            listeners=self.listeners,
            is_draining=self.services.is_draining,
        )

    def _backup_facts(self) -> NodeFacts:
        store, config = self._store, self.config
        damages = store.damages
        files = (
            *(config.access_file, config.token_file, config.passphrase_file),
            *(config.tls_cert, config.tls_key, config.tls_client_ca),
        )
        folder = Path(config.data).resolve()
        return NodeFacts(
            version=installed_version(),
            made_at=self.clock.wall(),
            identity=peer_id(self.peer_services.keyring.identity.public),
            messages=store.usage.messages,
            channels=sum(1 for name in self.scheduler.cells if not is_reserved(name)),
            streams=len(self._streams.directory.streams),
            damages=[f"{each.where}: {each.text}" for each in damages],
            outside=[
                each for each in files if each and not Path(each).resolve().is_relative_to(folder)
            ],
        )

    def _replica_snapshot(self, request: SnapshotRequest) -> SnapshotReply:
        if self.replica is None:
            text = "the node has no replica (millpond serve --replica URL)"
            return SnapshotReply(SnapshotState.FAILED, error=text)
        return self.replica.answer(request)

    def _replica_page(self) -> ReplicaReply:
        return ReplicaReply(None) if self.replica is None else self.replica.page

    def _replica_facts(self) -> SnapshotFacts:
        from millpond.node.replica.snapshots import SnapshotFacts

        return SnapshotFacts(
            made_at=self.clock.wall(),
            program=installed_version(),
            messages=self._store.usage.messages,
            streams=len(self._streams.directory.streams),
        )

    def _rss_bytes(self) -> int:
        return rss_bytes()
