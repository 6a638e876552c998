"""The node of a world: without sockets and threads, and with a sudden end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.context import ChannelInfo
from millpond.actors.messages import Durability
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.memory import MemoryStore
from millpond.node.channel_requests import OWN_NAME_CHARACTER
from millpond.node.client.settings import Dialer
from millpond.node.clock import Clock
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.node.testing.inline_threads import marked_as_node
from millpond.node.testing.inline_workers import InlineRuntime
from millpond.transports.io.interface import SessionFactory


class WorldNode(Node):
    """One run of a node. Its store works unless `is_held` says that the disk hangs."""

    def __init__(
        self,
        config: Config,
        *,
        rng: Random,
        entropy: Callable[[int], bytes],
        clock: Clock,
        dialer: Dialer,
        disk: Disk | None,
        is_held: Callable[[], bool],
    ) -> None:
        self.runtime: InlineRuntime | None = None
        self._is_held = is_held
        self._is_killed = False
        super().__init__(config, rng=rng, clock=clock, disk=disk, dialer=dialer, entropy=entropy)

    @property
    def factories(self) -> dict[str, SessionFactory]:
        """The session factories of its protocols."""
        return {
            "p2p": marked_as_node(partial(self.new_session, "p2p")),
            "s3p": marked_as_node(partial(self.new_session, "s3p")),
            "rustlog": marked_as_node(partial(self.new_session, "rustlog")),
        }

    def channels(self) -> Iterator[ChannelInfo]:
        """The channels in memory, but for the node's own."""
        for name in self.scheduler.cells:
            behaviour = self.scheduler.view(name)
            if isinstance(behaviour, Channel) and OWN_NAME_CHARACTER not in name:
                yield behaviour.info

    async def drain(self) -> None:
        """Drain; the store can be closed only after a hanging disk has resumed."""
        await super().drain()
        if self.runtime is not None:
            await self.runtime.resumed()

    def kill(self) -> None:
        """Stop all writing to the disk; the caller cancels the node next."""
        self._is_killed = True
        if self.runtime is not None:
            self.runtime.kill()

    def _rss_bytes(self) -> int:
        return 0  # the node has no process of its own, and a seed gives one result

    def _choose_store(self, disk: Disk) -> DurableStore | MemoryStore:
        if self.durability is Durability.MEMORY:
            return MemoryStore()
        self.runtime = InlineRuntime(self.clock.now, self._rng, self._is_held)
        folder = Path(self.config.data)
        return DurableStore(
            folder, disk, self.config.store_settings, self.runtime, self._durability_of
        )

    async def _close_store(self) -> None:
        self.peer_services.close()
        if not self._is_killed:
            store = self._store
            if isinstance(store, DurableStore) and self._lock is not None:
                self._streams.close()
                self._finish_store(store)
        elif self._lock is not None:
            self._lock.release()
            self._lock = None
