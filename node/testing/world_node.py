"""A node as it runs in a world: no sockets, no threads, and an end without goodbye."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from millpond.actors.messages import Durability
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.memory import MemoryStore
from millpond.node.client.connect import Dialer
from millpond.node.clock import Clock
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.node.testing.inline_threads import marked_as_node
from millpond.node.testing.inline_workers import InlineSurroundings
from millpond.transports.io.interface import SessionFactory


class WorldNode(Node):
    """One run of a node. What lanes do goes on while `is_held` does not say otherwise."""

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
        self.surroundings: InlineSurroundings | None = None
        self._is_held = is_held
        self._is_killed = False
        super().__init__(config, rng=rng, clock=clock, disk=disk, dialer=dialer, entropy=entropy)

    @property
    def factories(self) -> dict[str, SessionFactory]:
        """What a connection is answered with, by protocol."""
        return {
            "p2p": marked_as_node(partial(self.new_session, "p2p")),
            "s3p": marked_as_node(partial(self.new_session, "s3p")),
            "rustlog": marked_as_node(partial(self.new_session, "rustlog")),
        }

    async def drain(self) -> None:
        """As ever; the store can be closed only after a disk that hangs has answered."""
        await super().drain()
        if self.surroundings is not None:
            await self.surroundings.answered()

    def kill(self) -> None:
        """From here on nothing is written any more; whoever runs the node cancels it next."""
        self._is_killed = True
        if self.surroundings is not None:
            self.surroundings.cut()

    def _rss_bytes(self) -> int:
        return 0  # it has no process of its own, and the same seed answers the same

    def _choose_store(self, disk: Disk) -> DurableStore | MemoryStore:
        if self.durability is Durability.MEMORY:
            return MemoryStore()
        self.surroundings = InlineSurroundings(self.clock.now, self._rng, self._is_held)
        folder = Path(self.config.data)
        return DurableStore(folder, disk, self.config.store, self.surroundings, self._durability_of)

    def _close_store(self) -> None:
        if not self._is_killed:
            super()._close_store()
        elif self._lock is not None:
            self._lock.release()
            self._lock = None
