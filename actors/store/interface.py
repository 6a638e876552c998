"""The interface of the store: partitions of messages or records, by name.

A cell never reads the store while it works. It is built from the result of `load`, and from then on
every change it makes to itself goes to the store as a value; its replies are released when the
store says that the changes are as durable as the cell's mode promises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

import msgspec

from millpond.actors.messages import Durability, Mode
from millpond.actors.positions import Seek as Seek
from millpond.actors.store.changes import Change, Chunk, ColdChunk, LogSnapshot, Snapshot
from millpond.actors.store.repair.quarantine import Damage

log = logging.getLogger(__name__)

T = TypeVar("T")


class Usage(msgspec.Struct):
    """The usage of all partitions of a node. `messages`, `bytes` and `keys` are of queues; `keys`
    counts keys whose message is removed. `log_bytes` is the size of all logs, about."""

    messages: int = 0
    bytes: int = 0
    keys: int = 0
    log_bytes: int = 0


class Health(msgspec.Struct):
    """Whether changes can be stored now. `reason` says why not; `failures` counts since the
    start."""

    is_writable: bool = True
    reason: str = ""
    failures: int = 0


class ServerStats(msgspec.Struct, frozen=True):
    """The server that keeps the store (Redis), and what the node has of it. `durability` is the
    highest that it promises, and `reason` why no higher one; `waiting_bytes` are on their way."""

    url: str
    durability: str
    reason: str
    partitions: int
    waiting_bytes: int
    health: Health
    damages: int = 0
    damaged: list[str] = []
    """The first of them, with their keys."""


def server_stats(store: Store) -> ServerStats | None:
    """The server that keeps the store; None: the data folder or memory does."""
    found: ServerStats | None = getattr(store, "server_stats", None)
    return found


class PartitionUsage(msgspec.Struct, frozen=True):
    """The usage of one partition, counted without loading it. `keys` counts the keys of stored and
    of removed messages."""

    messages: int = 0
    bytes: int = 0
    keys: int = 0
    mode: Mode | None = None


class Fault(Enum):
    """The reason why the store did not do something. Values, not exceptions: they cross threads."""

    NOT_STORED = auto()
    """The changes are not stored, now or after a restart."""
    DAMAGED = auto()
    """The disk returns other data than was written; the partition is not served."""
    UNREADABLE = auto()
    """The disk could not be read just now."""
    NOT_REPLICATED = auto()
    """The partition has something that the replica has not, which is away; it is not served."""
    COLD = auto()
    """Chunks that are in the replica alone could not be read there; the partition is served."""


def for_each(do: Callable[[T], object], items: Iterable[T]) -> None:
    """Do it for every item, in order, also if it raises for some.

    Its error is raised behind the last item; of several, the earlier is the later's context.
    """
    rest = iter(items)
    is_done = False
    try:
        for item in rest:
            do(item)
        is_done = True
    finally:
        if not is_done:
            _go_on(do, rest)


def _go_on(do: Callable[[T], object], rest: Iterator[T]) -> None:
    # The stack calls what is on it whatever is raised meanwhile, however often that is.
    with ExitStack() as stack:

        def go_on() -> None:
            stack.callback(go_on)
            for item in rest:
                do(item)
            stack.pop_all()

        go_on()


class Deferred(msgspec.Struct, Generic[T], eq=False):
    """Something that the store finishes later, in the loop's thread."""

    is_done: bool = False
    _value: T | None = None
    _waiting: list[Callable[[T], None]] | None = None

    def when_done(self, done: Callable[[T], None]) -> None:
        """Call `done` with the result: in order of asking, at once if it is there already."""
        if self.is_done:
            done(self._value)  # type: ignore[arg-type]  # it is a T once it is done
        elif self._waiting is None:
            self._waiting = [done]
        else:
            self._waiting.append(done)

    def finish(self, value: T) -> None:
        """Give the result to all callers that wait, also if some of them raise."""
        self.is_done = True
        self._value = value
        waiting, self._waiting = self._waiting, None
        if waiting is not None and len(waiting) == 1:  # as a commit that one cell waits for
            waiting[0](value)
        elif waiting is not None:
            for_each(lambda done: done(value), waiting)


Commit = Deferred[Fault | None]
"""Changes on their way to the disk. None: they are as durable as promised."""


def refused() -> Commit:
    """The commit of changes that are not taken."""
    commit: Commit = Deferred()
    commit.finish(Fault.NOT_STORED)
    return commit


class StoredQueue(msgspec.Struct, frozen=True):
    """A partition that a restart found; nothing of it expires before `deadline`."""

    name: bytes
    deadline: float


class ChunkCipher(Protocol):
    """Encrypts the chunks of some logs before they are stored, and decrypts what is read."""

    def covers(self, name: bytes) -> bool:
        """True: the chunks of this log are stored encrypted."""

    def encrypted(self, name: bytes, chunk: Chunk) -> Chunk:
        """The chunk with encrypted data; one without data stays as it is."""

    def decrypted(self, name: bytes, chunk: Chunk) -> Chunk | None:
        """The chunk as it was; None: it was not encrypted so, for this log and these sequences."""


def encrypted_changes(
    cipher: ChunkCipher, name: bytes, changes: Sequence[Change]
) -> Sequence[Change]:
    """The changes, with all chunks encrypted."""
    return [cipher.encrypted(name, each) if isinstance(each, Chunk) else each for each in changes]


def decrypted_chunks(
    cipher: ChunkCipher, name: bytes, result: list[Chunk] | Fault
) -> list[Chunk] | Fault:
    """The chunks as they were written. A chunk that was not encrypted with the key is damage."""
    if isinstance(result, Fault):
        return result
    chunks: list[Chunk] = []
    for each in result:
        chunk = each if isinstance(each, ColdChunk) else cipher.decrypted(name, each)
        if chunk is None:
            log.error("chunk not decrypted: name=%r sequence=%d", name, each.first)
            return Fault.DAMAGED
        chunks.append(chunk)
    return chunks


class ColdReader(Protocol):
    """Reads chunks whose data is in the replica alone, in the loop's thread."""

    def fetch(
        self, name: bytes, chunks: Sequence[Chunk], done: Callable[[list[Chunk] | Fault], None]
    ) -> None:
        """Call `done` with these chunks of a log and the data of the cold ones: with all, or with
        those before the first one that cannot be read now, or with Fault.COLD. `done` may be called
        at once, and is called within a limited time."""


class JournalFollower(Protocol):
    """Something that gets a copy of the journal as it is written, in the loop's thread."""

    @property
    def is_behind(self) -> bool:
        """True: callers are told of commits only after `DurableStore.release_commits`."""

    @property
    def replicated_lsn(self) -> int:
        """Everything up to this lsn outlives the node's machine."""

    @property
    def is_refusing(self) -> bool:
        """True: what has to be replicated is refused, because it cannot be for now."""

    def hurry(self) -> None:
        """A caller waits until everything that was taken is replicated, or refused."""

    def take(self, records: Sequence[bytes], last_lsn: int, *, is_awaited: bool) -> None:
        """The encoded records of a group that is stored, in order; the last one is `last_lsn`. They
        may not be synced yet, if nobody was promised that. `is_awaited`: callers wait until they
        are replicated."""


class Store(Protocol):
    """All partitions of a node, by name."""

    usage: Usage
    health: Health
    damages: list[Damage]
    """Everything that is known to be damaged, of this and former runs: the one list."""

    def durability(self, name: bytes) -> Durability:
        """The durability that an acknowledgement of `name` promises."""

    def load(self, name: bytes) -> Snapshot | Deferred[Snapshot | Fault]:
        """The stored content of the queue `name`; an unknown name gives an empty snapshot."""

    def partition_usage(self, name: bytes) -> PartitionUsage:
        """The usage of `name`, at the cost of a look-up."""

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:
        """Apply `changes` in order. None: no caller needs to wait for them."""

    def stored_queues(self) -> Iterator[StoredQueue]:
        """The queues that hold something."""


class LogStore(Protocol):
    """The side of the store that serves logs; their changes go through `Store.write`."""

    def logs(self) -> Iterator[bytes]:
        """The logs that a restart found and that hold something."""

    def log_snapshot(self, name: bytes) -> LogSnapshot | Deferred[LogSnapshot | Fault]:
        """The bounds and metadata of the log `name`, with the writes on their way to the disk; an
        unknown name gives an empty snapshot."""

    def read(self, name: bytes, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        """Chunks in order, also those on their way to the disk: what is told of them has to wait
        behind their commit."""
