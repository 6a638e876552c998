"""The streams of a node: their shared parts, the cells that serve them, and their settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeAlias

import anyio
import msgspec

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.clock_jump import ClockJump
from millpond.actors.jobs.schedule_counters import ScheduleCounters
from millpond.actors.messages import CellMessage, Durability, Mode
from millpond.actors.queue_settings import QueueTable
from millpond.actors.runtime.cell import Loading
from millpond.actors.state.checkpoint_store import CheckpointStore
from millpond.actors.state.messages import StateLimits
from millpond.actors.state.stats import StateUsage
from millpond.actors.store.changes import LogSnapshot
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Deferred, Fault, StoredQueue
from millpond.actors.store.memory import MemoryStore
from millpond.actors.streams.catalogs.access_tokens import AccessTokenCatalog, AccessTokens
from millpond.actors.streams.catalogs.basins import BasinCatalog, BasinDirectories
from millpond.actors.streams.catalogs.catalog import CatalogCell
from millpond.actors.streams.catalogs.channels import ChannelCatalog
from millpond.actors.streams.catalogs.topics import TopicCatalog
from millpond.actors.streams.directory import Directory, StagingDirectory
from millpond.actors.streams.names import (
    BASINS,
    CHANNELS,
    FLOWS,
    RESERVED,
    SCHEDULES,
    TOKENS,
    TOPICS,
    basin_stream_of,
    qualified_name_of,
    results_channel_of,
    staged_part_of,
    state_of,
    stream_cell,
    stream_of,
    subscription_of,
)
from millpond.actors.streams.record_cache import RecordCache
from millpond.actors.streams.settings import StreamContext, StreamCounters, StreamLimits
from millpond.actors.streams.stream import Stream
from millpond.actors.streams.subscription_index import NO_SUBSCRIPTIONS
from millpond.node.config import Config
from millpond.node.config_rules import RuleTable, StreamRule
from millpond.node.webhooks.services import SubscriptionServices

if TYPE_CHECKING:
    from millpond.actors.jobs.flows import Flows
    from millpond.actors.jobs.results import JobResults
    from millpond.actors.jobs.schedules import Schedules
    from millpond.actors.state.cell import StateCell
    from millpond.actors.store.redis.store import RedisStore
    from millpond.actors.subscriptions.subscription import Subscription

log = logging.getLogger(__name__)

ADOPT_AFTER_S = 10.0
ADOPT_EVERY_S = 0.02
"""Streams that nobody uses are woken one after the other, to trim records that are too old."""
WAKE_EVERY_S = 0.002
"""Channels with something to do at the start are woken one after the other."""


ReservedBehaviour: TypeAlias = (
    "Stream | CatalogCell | StateCell | Subscription | Schedules | Flows | JobResults"
)


class StreamCells:
    """The cells whose names are reserved: streams, states, catalogs and schedules."""

    def __init__(
        self,
        rules: RuleTable[StreamLimits],
        store: DurableStore | MemoryStore | RedisStore,
        post: Callable[[bytes, CellMessage], None],
        cache_bytes_max: int,
        basin: bytes,
        now: Callable[[], float],
        states: StateLimits,
        jump: ClockJump,
        subscriptions: SubscriptionServices,
        channels: dict[bytes, Mode],
        queues: QueueTable,
    ) -> None:
        """`channels` has the modes of those that were created, and `queues` the settings of queues,
        as the catalog says."""
        self.directory = Directory()
        self.directory.tail_of = store.log_tail
        self.stages = StagingDirectory()
        self.basins = BasinDirectories(basin, self.directory, int(now() * 1000))
        self.tokens = AccessTokens()
        self._channels = channels
        self._queues = queues
        self.counters = StreamCounters()
        self.states = StateUsage()
        self.schedule_counters = ScheduleCounters()
        self._post = post
        self._state_limits = states
        self.checkpoints = _checkpoints(store, states, self.directory)
        self._store = store
        self._rules = rules
        self._groups_max = rules.settings(b"").node_groups_max
        self._context = StreamContext(
            store,
            post,
            self.directory,
            store.usage,
            store.health,
            self.counters,
            RecordCache(cache_bytes_max),
            jump=jump,
            subscriptions=subscriptions.index,
        )
        self.subscriptions = subscriptions

    def spawn(self, cell: bytes, snapshot: LogSnapshot) -> ReservedBehaviour:
        """The behaviour of a reserved cell."""
        if cell == TOPICS:
            return CatalogCell(TopicCatalog(snapshot, self.directory, self._groups_max))
        if cell == BASINS:
            return CatalogCell(BasinCatalog(snapshot, self.basins))
        if cell == TOKENS:
            return CatalogCell(AccessTokenCatalog(snapshot, self.tokens))
        if cell == CHANNELS:
            return CatalogCell(ChannelCatalog(snapshot, self._channels, self._queues))
        # Cells that many nodes never have: their modules take time to load.
        if cell == SCHEDULES:
            from millpond.actors.jobs.schedules import Schedules
            from millpond.node.jobs.payload import encode_scheduled

            return Schedules(snapshot, encode_scheduled, self.schedule_counters)
        if cell == FLOWS:
            from millpond.actors.jobs.flows import Flows
            from millpond.node.jobs.payload import encode_flow_job

            return Flows(snapshot, encode_flow_job)
        channel = results_channel_of(cell)
        if channel is not None:
            from millpond.actors.jobs.results import JobResults

            return JobResults(channel, snapshot)
        subscription = subscription_of(cell)
        if subscription is not None:
            return self.subscriptions.spawn(subscription, snapshot, self.directory)
        state = state_of(cell)
        if state is not None:
            from millpond.actors.state.cell import StateCell, StateContext

            is_stored = self._is_stored_clear(stream_cell(state))
            context = StateContext(self._post, self._state_limits, self.states)
            return StateCell(state, context, self.checkpoints if is_stored else None)
        name, shared = stream_of(cell), self._context
        if staged_part_of(cell) is not None:
            name, shared = cell, self._unfollowed(self.stages)
            if not snapshot.metadata:
                snapshot = LogSnapshot()  # new: its rows count from 0, also after a loss of names
        elif name is None:
            basin, name = basin_stream_of(cell) or (b"", b"")
            shared = self._unfollowed(self.basins.other_streams(basin))
        is_durable = self._store.durability(cell) is not Durability.MEMORY
        settings = self._rules.settings(qualified_name_of(cell))
        limits = msgspec.structs.replace(settings, is_durable=is_durable)
        return Stream(name, snapshot, limits, shared)

    def _unfollowed(self, directory: Directory) -> StreamContext:
        """The context of streams that no subscription follows."""
        return msgspec.structs.replace(
            self._context, directory=directory, subscriptions=NO_SUBSCRIPTIONS
        )

    def _is_stored_clear(self, cell: bytes) -> bool:
        """True: what is computed from a log may be stored in clear text."""
        cipher = None if isinstance(self._store, MemoryStore) else self._store.cipher
        is_durable = self._store.durability(cell) is not Durability.MEMORY
        return is_durable and (cipher is None or not cipher.covers(cell))

    def age_s(self, label: bytes) -> int:
        """The maximal age of records in a stream without settings of its own; 0: no limit."""
        return self._rules.settings(label).age_s

    def load(self, cell: bytes) -> Loading:
        """The stored state that a cell is built from."""
        if state_of(cell) is not None:
            return LogSnapshot()  # a state cell stores nothing
        return self._store.log_snapshot(cell) if is_reserved(cell) else self._store.load(cell)

    def stored_cells(self) -> Iterator[tuple[bytes, float]]:
        """The cells of streams that a restart found, and after how many seconds to wake each."""
        after_s = ADOPT_AFTER_S
        damages = self._store.damages
        self.directory.is_incomplete = any(damage.is_all for damage in damages)
        if self.checkpoints is not None and not self.directory.is_incomplete:
            # Those of damaged streams are good until a repair removes records.
            cells = (*self._store.logs(), *(each.name for each in damages if each.name is not None))
            streams = (stream_of(cell) for cell in cells)
            self.checkpoints.keep_only(name for name in streams if name is not None)
        for cell in self._store.logs():
            if cell in (TOPICS, BASINS, TOKENS, CHANNELS, SCHEDULES, FLOWS):
                yield cell, 0.0  # a deletion may be unfinished, or a moment have come
            elif subscription_of(cell) is not None:
                self.subscriptions.index.cells.add(cell)
                yield cell, 0.0  # records may have come that it was not told of
            elif results_channel_of(cell) is not None:
                yield cell, after_s  # its records may be over
                after_s += ADOPT_EVERY_S
            elif self._register(cell):
                yield cell, after_s
                after_s += ADOPT_EVERY_S
        for damage in damages:
            if damage.name is not None:
                self._register(damage.name)  # nothing else may be left of it; lists have it

    def _register(self, cell: bytes) -> bool:
        """Enter the cell of a stream in its directory; False: the cell is no stream's."""
        name, other = stream_of(cell), basin_stream_of(cell)
        if name is not None:
            self.directory.sync_stream(name, is_created=True)
        elif other is not None:
            self.basins.other_streams(other[0]).sync_stream(other[1], is_created=True)
        elif staged_part_of(cell) is not None:
            self.stages.sync_stream(cell, is_created=True)
        else:
            return False
        return True

    def close(self) -> None:
        """Write unfinished checkpoints."""
        if self.checkpoints is not None:
            self.checkpoints.close()

    async def open(self) -> None:
        """Load the catalogs of topics, basins, tokens and channels, before the first request."""
        topics = await self._snapshot(TOPICS)
        if topics is not None:
            TopicCatalog(topics, self.directory, self._groups_max)
        basins = await self._snapshot(BASINS)
        if basins is not None:
            BasinCatalog(basins, self.basins)
        tokens = await self._snapshot(TOKENS)
        if tokens is not None:
            AccessTokenCatalog(tokens, self.tokens)
        channels = await self._snapshot(CHANNELS)
        if channels is not None:
            ChannelCatalog(channels, self._channels, self._queues)

    async def _snapshot(self, cell: bytes) -> LogSnapshot | None:
        snapshot = self._store.log_snapshot(cell)
        found = await _finished(snapshot) if isinstance(snapshot, Deferred) else snapshot
        if isinstance(found, Fault):
            log.error("catalog not loaded: cell=%r fault=%s", cell, found.name)
            return None
        return found


def _checkpoints(
    store: DurableStore | MemoryStore | RedisStore, limits: StateLimits, directory: Directory
) -> CheckpointStore | None:
    if not isinstance(store, DurableStore) or not limits.disk_bytes_max:
        return None
    checkpoints = CheckpointStore(
        store.folder,
        store.disk,
        store.environment,
        limits.disk_bytes_max,
        directory.streams.__contains__,
    )
    directory.on_deleted = checkpoints.forget
    return checkpoints


def first_wakes(
    kept: Iterable[StoredQueue],
    settings_of: Callable[[bytes], ChannelSettings],
    now: float,
    uncorrected: AbstractSet[bytes] = frozenset(),
) -> Iterator[tuple[bytes, float]]:
    """The times at which to wake each channel that a restart found. Those that feed a stream come
    one after the other: it may lack what they hold; so do those with deadlines to correct."""
    wake_at = now
    for each in kept:
        if each.name in uncorrected or settings_of(each.name).tee:
            yield each.name, min(each.deadline, wake_at)
            wake_at += WAKE_EVERY_S
        else:
            yield each.name, each.deadline


def is_reserved(cell: bytes) -> bool:
    """True: the cell is no channel."""
    return cell.startswith(RESERVED)


async def _finished(pending: Deferred[LogSnapshot | Fault]) -> LogSnapshot | Fault:
    results: list[LogSnapshot | Fault] = []
    done = anyio.Event()

    def finish(result: LogSnapshot | Fault) -> None:
        results.append(result)
        done.set()

    pending.when_done(finish)
    await done.wait()
    return results[0]


def stream_rules(config: Config) -> RuleTable[StreamLimits]:
    """The limits of each stream by its name."""
    rules = [(rule, _limits(config, rule)) for rule in config.streams]
    return RuleTable(rules, _limits(config, StreamRule("*")), config.default_durability)


def _limits(config: Config, rule: StreamRule) -> StreamLimits:
    return StreamLimits(
        age_s=rule.age or config.stream_age_s,
        keep_bytes=rule.bytes or 0,
        bytes_max=config.stream_bytes_max,
        node_bytes_max=config.node_stream_bytes_max,
        groups_max=config.stream_groups_max,
        node_groups_max=config.node_groups_max,
        trim_grace_s=config.s2_trim_grace_s,
    )
