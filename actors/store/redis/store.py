"""The store of a node in Redis: `actors/store/interface.py`, by one thread and one connection.

The way of a change: `write` numbers it and gives it to the thread, which sends all that waits in
one go and reports the answers in order. A write is one call of a script (`layout.py`), so it is
there whole or not at all, and done once however often it is sent. It says which write of its
partition comes before it: after one that Redis refused, none of those that were built upon it is
done, and the cell is built anew, as after a failure of a disk. The name of a new partition is in
the set of all names before its first write is sent.

While the slot of a partition is moved to another server of a cluster, its writes and reads wait,
and all others go on. After `moving_s` they are refused, as nothing of them is done.

When Redis is away, the thread keeps writes until it is back, because their outcome is known only
then. New ones that a client waits for are refused, and reads fail. After `away_s`, when Redis was
started anew, or when a write is missing there, the node ends (StoreLost): nobody knows whether what
it has told is still stored.

One process owns a prefix: `owner` is renewed, and each write has the `epoch` of its owner, so an
owner that was paused for long does no harm. A connection and its keys are the whole state: the
index has counts and bounds, and no content.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import msgspec

from millpond.actors.messages import Durability, Mode
from millpond.actors.store.changes import (
    Change,
    Chunk,
    KeyRetained,
    LogSnapshot,
    MessageRemoved,
    ModeSet,
    PartitionKind,
    Snapshot,
    StoredMessage,
    is_unawaited,
    kind_of,
)
from millpond.actors.store.index import count_usage
from millpond.actors.store.interface import (
    ChunkCipher,
    Commit,
    Deferred,
    Fault,
    Health,
    PartitionUsage,
    Seek,
    ServerStats,
    StoredQueue,
    Usage,
    decrypted_chunks,
    encrypted_changes,
    refused,
)
from millpond.actors.store.journal.change_codec import BadChange
from millpond.actors.store.redis.commands import Command, PackedCommand
from millpond.actors.store.redis.connection import RedisConnection, RedisUrl
from millpond.actors.store.redis.errors import (
    RedisAway,
    RedisConfigError,
    RedisMoving,
    RedisRefused,
    StoreLost,
)
from millpond.actors.store.redis.layout import (
    APPLIED,
    CLAIM_SCRIPT,
    DROPPED,
    EPOCH_SCRIPT,
    FENCED,
    FORGET_SCRIPT,
    FREEING_WRITE_SCRIPT,
    META,
    NEW,
    OUT_OF_ORDER,
    RELEASE_SCRIPT,
    RENEW_SCRIPT,
    WRITE_SCRIPT,
    LogBounds,
    PartitionKeys,
    write_argument,
)
from millpond.actors.store.redis.reads import load_log, load_queue, read_log
from millpond.actors.store.repair.quarantine import Damage, log_damage
from millpond.actors.store.settings import StoreEnvironment
from millpond.actors.store.workers import StoreWorker, WorkerTask

log = logging.getLogger(__name__)

BATCH_BYTES = 4 * 2**20
BATCH_WRITES = 1000
PENDING_BYTES_MAX = 64 * 2**20
"""Above it, writes that a client waits for are refused: Redis is behind."""
LAZY_S = 0.005
"""Writes that no client waits for go with one that a client waits for, or alone after this time."""
CLAIM_BATCH = 1000
FORMAT = 1
"""The version of the keys and values; a store of a later one is not opened."""
CLOSE_S = 10.0
DAMAGES_SHOWN = 10
TEXT_MAX = 200
CLOSE_TRIES = 10
FOREVER = 2.0**53


class RedisSettings(msgspec.Struct, frozen=True):
    """Times in seconds: the ownership of the prefix lasts `lease_s` without a renewal; a server
    that is away is asked again every `retry_s`; after `away_s` the node ends. Writes and reads of a
    partition whose slot is being moved are tried again every `moving_retry_s`, up to `moving_s`."""

    lease_s: float = 15.0
    retry_s: float = 0.5
    away_s: float = 60.0
    moving_s: float = 10.0
    moving_retry_s: float = 0.1


class Entry:
    """A partition by name: its counts and bounds with the writes on their way.

    `chain` is the lsn of the write that the next one follows (0: it follows none of this run; NEW:
    of none at all), `applied` that of the last one that Redis has. Redis refused a write, so those
    after it up to `broken_until` are not there either.
    """

    __slots__ = (
        "applied",
        "bounds",
        "broken_until",
        "bytes",
        "chain",
        "deadline",
        "fault",
        "in_flight",
        "is_empty",
        "keys",
        "kind",
        "last_id",
        "messages",
        "mode",
        "name",
        "paths",
        "refusal",
    )

    def __init__(
        self, name: bytes, kind: PartitionKind, paths: PartitionKeys, chain: int = 0
    ) -> None:
        self.name = name
        self.kind = kind
        self.paths = paths
        self.messages = 0
        self.bytes = 0
        self.keys = 0
        self.mode: Mode | None = None
        self.deadline = FOREVER
        self.last_id = 0
        self.bounds = LogBounds()
        self.fault: Fault | None = None
        self.in_flight = 0
        self.chain = self.applied = chain
        self.broken_until = 0
        self.is_empty = False
        """The last write that was answered left nothing."""
        self.refusal: RedisRefused | None = None
        """The reason why its name is not stored, and nothing of it; of the thread."""

    def meta(self) -> list[str]:
        """The fields of the meta, besides those that the script sets."""
        counts = [
            *("messages", str(self.messages), "bytes", str(self.bytes), "keys", str(self.keys)),
        ]
        if self.kind is PartitionKind.LOG:
            return counts + self.bounds.fields()
        mode = "" if self.mode is None else str(self.mode.value)
        ends = ["deadline", repr(self.deadline), "last_id", str(self.last_id)]
        return [*counts, "mode", mode, *ends]

    def read_meta(self, meta: Mapping[bytes, bytes]) -> None:
        """Continue from what an earlier run left."""
        self.messages, self.bytes = int(meta[b"messages"]), int(meta[b"bytes"])
        self.keys = int(meta[b"keys"])
        if self.kind is PartitionKind.LOG:
            self.bounds = LogBounds.of(meta)
            return
        mode = meta.get(b"mode", b"")
        self.mode = Mode(int(mode)) if mode else None
        self.deadline = float(meta.get(b"deadline", FOREVER))
        self.last_id = int(meta.get(b"last_id", 0))

    def expect(self, changes: Sequence[Change]) -> None:
        """Keep the bounds that these changes lead to."""
        if self.kind is PartitionKind.LOG:
            self.bounds = self.bounds.applied(changes)
            return
        for change in changes:
            match change:
                case StoredMessage():
                    self.last_id = max(self.last_id, change.id)
                    self.deadline = min(self.deadline, change.expires_at, change.until)
                case MessageRemoved(left=left) if left is not None:
                    self.deadline = min(self.deadline, left.until)
                case KeyRetained(left=left):
                    self.deadline = min(self.deadline, left.until)
                case ModeSet(mode=mode):
                    self.mode = mode
                case _:
                    until = getattr(change, "expires_at", getattr(change, "until", FOREVER))
                    self.deadline = min(self.deadline, until)

    def usage(self) -> PartitionUsage:
        return PartitionUsage(self.messages, self.bytes, self.messages + self.keys, self.mode)

    @property
    def state(self) -> State:
        """Its counts and bounds, with the writes on their way."""
        return State(self.messages, self.bytes, self.keys, self.mode, self.bounds)


class State(NamedTuple):
    """The counts and bounds of a partition at some time."""

    messages: int
    bytes: int
    keys: int
    mode: Mode | None
    bounds: LogBounds


_NOTHING = State(0, 0, 0, None, LogBounds())


def is_of_wrong_type(error: RedisRefused | RedisMoving) -> bool:
    """True: a key is of another type than the store makes it."""
    return str(error).startswith("WRONGTYPE")


def answered(result: Any) -> Deferred[Any]:
    """A deferred answer that is there."""
    answer: Deferred[Any] = Deferred()
    answer.finish(result)
    return answer


class Write(NamedTuple):
    """A write on its way. `before` is the state of its partition before it."""

    entry: Entry
    lsn: int
    changes: Sequence[Change]
    command: PackedCommand
    size: int
    commit: Commit | None
    before: State


class Read(NamedTuple):
    """Something to be read of a partition, and what gets it, or a Fault."""

    name: bytes
    read: Callable[[RedisConnection], Any]
    done: Callable[[Any], None]


class Naming(NamedTuple):
    """A new partition, whose name has to be stored before its first write."""

    entry: Entry


class Forgetting(NamedTuple):
    """Commands that remove a partition without content; what fails of them, a later start does."""

    name: bytes
    commands: Sequence[Command]


Item = Write | Read | Naming | Forgetting


def _held_by(item: Item) -> bytes | None:
    """The partition whose moved slot an item waits for."""
    match item:
        case Write(entry=entry):
            return entry.name
        case Read(name=name):
            return name
        case _:
            return None


class Outcome(NamedTuple):
    """The items that are done, with their answers; `error` is why others are not."""

    answers: list[tuple[Item, Any]]
    error: str = ""
    lost: StoreLost | None = None


class RedisStore:
    """All partitions of a node in Redis. Call `open` before anything else.

    `durability` gives what is promised by name; no more than `facts.durability` of the server.
    `on_lost` is called once, in the loop's thread, when the node has to end.
    """

    def __init__(
        self,
        url: RedisUrl,
        connect: Callable[[RedisUrl], RedisConnection],
        environment: StoreEnvironment,
        durability: Callable[[bytes], Durability],
        settings: RedisSettings | None = None,
    ) -> None:
        self.url = url
        self._connect = connect
        self.environment = environment
        self._durability = durability
        self._settings = RedisSettings() if settings is None else settings
        self.cipher: ChunkCipher | None = None
        self.usage = Usage()
        self.health = Health()
        self.damages: list[Damage] = []
        self.facts: dict[str, int] = {}
        self.last_id = 0
        self.on_lost: Callable[[StoreLost], None] = _ignore
        self._entries: dict[bytes, Entry] = {}
        self._lsn = 0
        self._pending_bytes = 0
        self._is_stalled = False
        """Redis is away, as far as the loop's thread knows."""
        self._away_since = 0.0
        self.lost: StoreLost | None = None
        """The reason why the node has to end."""
        self._is_ended = False
        # Of the thread:
        self._unsent: deque[Item] = deque()
        """Items that wait for Redis, or for its answer, in order."""
        self._moving: dict[bytes, float] = {}
        """The partitions whose slot is being moved, with the time when that was found."""
        self._held: deque[Item] = deque()
        """Items of these partitions, in order."""
        self._held_at = 0.0
        self._unsure: set[int] = set()
        """The writes that may have been done, because their answers were lost."""
        self._away = ""
        """The error for which Redis is held to be away; empty: it is there."""
        self._tried_at = self._renewed_at = 0.0
        self._is_over = False
        """Nothing more is sent: the store is lost."""

    # Start and end.

    def open(self, asked: Durability, owner: str) -> None:
        """Own the prefix, and find what a former run left. `asked` is the highest durability that
        the configuration promises. `owner` is the same in each run of a node, in no other node.
        Raises RedisConfigError, RedisAway, StoreLost."""
        self._owner = owner
        self.connection = connection = self._connect(self.url)
        try:
            self.server, self._connects = connection.facts(), connection.connects
            if asked > self.server.durability:
                least = self.server.durability.name.lower()
                raise RedisConfigError(
                    f"{self.url.shown} promises durability {least} ({self.server.reason}), and"
                    f" {asked.name.lower()} is asked of it: choose --durability {least}, or change"
                    " the settings of the server"
                )
            self._load_scripts()
            self._check_format()
            self._own()
            self._claim_all()
            found = connection.scan(f"{self.url.prefix}:facts")
            self.facts = {name.decode(): int(value) for name, value in found.items()}
        except (RedisRefused, ValueError) as error:
            connection.close()
            raise RedisConfigError(self._foreign(error)) from error
        except BaseException:
            connection.close()
            raise
        self._worker: StoreWorker[Item] = self.environment.worker(
            "redis",
            WorkerTask(self._run, self._done, self._crashed, idle_s=self._idle_s, lazy_s=LAZY_S),
        )

    def _load_scripts(self) -> None:
        script = self.connection.script
        self._write, self._free = script(WRITE_SCRIPT), script(FREEING_WRITE_SCRIPT)
        self._claim, self._forget = script(CLAIM_SCRIPT), script(FORGET_SCRIPT)
        self._renew, self._release = script(RENEW_SCRIPT), script(RELEASE_SCRIPT)
        self._next_epoch = script(EPOCH_SCRIPT)

    def _foreign(self, error: object) -> str:
        return (
            f"a key of {self.url.shown} is not of a node ({error}): another program may use this"
            " prefix; choose one by ?prefix="
        )

    def _check_format(self) -> None:
        """Raises RedisConfigError for keys of a later version, RedisAway, RedisRefused."""
        key = f"{self.url.prefix}:format"
        (found,) = self.connection.run([("GET", key)])
        if found is None:
            written, found = self.connection.run([("SET", key, FORMAT, "NX"), ("GET", key)])
            if found is None and isinstance(written, RedisRefused):
                return  # it is full; the next start writes it
        if isinstance(found, RedisMoving):
            raise RedisAway(str(found))
        if isinstance(found, RedisRefused):
            raise found
        if int(found) > FORMAT:
            raise RedisConfigError(
                f"{self.url.shown} has format {int(found)}, which a later version wrote; this one"
                f" knows {FORMAT}: use that version, or another prefix"
            )

    def _own(self) -> None:
        """Become the owner of the prefix. Raises StoreLost, RedisAway, RedisRefused."""
        if not self._renewed():
            (owner,) = self.connection.run([("GET", f"{self.url.prefix}:owner")])
            other = owner.decode(errors="replace").partition(" ")[2] if owner else "another process"
            raise StoreLost(
                f"{self.url.shown} belongs to a node that runs ({other}); when that was killed, it"
                f" is free {self._settings.lease_s:g} s later"
            )
        command = ("EVALSHA", self._next_epoch, 1, f"{self.url.prefix}:epoch")
        (epoch,) = self.connection.run([command])
        if isinstance(epoch, RedisRefused):
            raise epoch
        if isinstance(epoch, RedisMoving):
            raise RedisAway(str(epoch))
        self._epoch = str(epoch)

    def _renewed(self) -> bool:
        lease_ms = str(round(self._settings.lease_s * 1000))
        key = f"{self.url.prefix}:owner"
        (reply,) = self.connection.run([("EVALSHA", self._renew, 1, key, self._owner, lease_ms)])
        if isinstance(reply, RedisRefused) and is_of_wrong_type(reply):
            raise reply
        if isinstance(reply, RedisRefused | RedisMoving):
            raise RedisAway(str(reply))
        self._renewed_at = self.environment.now()
        return bool(reply == 1)

    def _claim_all(self) -> None:
        names = [*self.connection.members(f"{self.url.prefix}:partitions")]
        for at in range(0, len(names), CLAIM_BATCH):
            some = names[at : at + CLAIM_BATCH]
            paths = [PartitionKeys(self.url.prefix, name) for name in some]
            found = self.connection.run(
                [("EVALSHA", self._claim, 1, each[META], self._epoch) for each in paths]
            )
            for name, path, reply in zip(some, paths, found, strict=True):
                self._adopt(name, path, reply)

    def _adopt(self, name: bytes, paths: PartitionKeys, reply: Any) -> None:
        if isinstance(reply, RedisRefused) and is_of_wrong_type(reply):
            self._adopt_damaged(Entry(name, PartitionKind.QUEUE, paths), "meta", reply)
            return
        if isinstance(reply, RedisRefused | RedisMoving):
            raise RedisAway(str(reply))
        if reply == FENCED:
            raise StoreLost("another process has taken the prefix")
        if not reply:
            # An owner stored the name and ended, or is paused and will write. Its write is refused,
            # because the partition has an epoch now.
            return
        meta = dict(zip(reply[::2], reply[1::2], strict=True))
        if b"kind" not in meta:  # the same, and there was another owner since
            self.connection.run(self._forget_commands(name, paths, 0))
            return
        entry = Entry(name, PartitionKind.QUEUE, paths)
        try:
            entry.kind = PartitionKind[meta[b"kind"].decode().upper()]
            entry.read_meta(meta)
        except (KeyError, ValueError) as error:
            self._adopt_damaged(entry, "meta", f"{type(error).__name__}: {error}")
            return
        self._entries[name] = entry
        self.last_id = max(self.last_id, entry.last_id)
        if entry.kind is PartitionKind.LOG:
            self.usage.log_bytes += entry.bytes
        else:
            self.usage.messages += entry.messages
            self.usage.bytes += entry.bytes
            self.usage.keys += entry.keys

    def _adopt_damaged(self, entry: Entry, part: str, error: object) -> None:
        """A partition of which too little is known: it has no content, and is not served."""
        self._entries[entry.name] = Entry(entry.name, entry.kind, entry.paths)
        self._add_damage(Damage(entry.paths[META], f"{part}: {error}", entry.name))

    def _add_damage(self, damage: Damage) -> None:
        """The partition is not served, and `damages` and the log tell of it. A start finds again
        what is damaged still."""
        entry = None if damage.name is None else self._entries.get(damage.name)
        if entry is None or entry.fault is not None:
            return
        entry.fault = Fault.DAMAGED
        self.damages.append(damage)
        log_damage(damage)

    def save_facts(self, facts: dict[str, int]) -> None:
        """Store facts of the node, such as its instance; only right after `open`. Raises RedisAway,
        RedisRefused."""
        key = f"{self.url.prefix}:facts"
        replies = self.connection.run([("HSET", key, *each) for each in facts.items()])
        for reply in replies:
            if isinstance(reply, RedisMoving):
                raise RedisAway(str(reply))
            if isinstance(reply, RedisRefused):
                raise reply
        self.facts.update(facts)

    def end(self) -> None:
        """Take nothing more. `close` follows, and may be in another thread."""
        if not self._is_ended:
            self._is_ended = True
            self._worker.end()

    def close(self) -> None:
        """Everything written is in Redis when this returns, if Redis is there within 10 s."""
        self.end()
        self._worker.close()
        self._finish()
        try:
            if self._away:
                raise RedisAway(self._away)
            key = f"{self.url.prefix}:owner"
            self.connection.run([("EVALSHA", self._release, 1, key, self._owner)])
        except RedisAway as error:
            log.warning("store not released: error=%s", error)
        self.connection.close()

    def _finish(self) -> None:
        """Do what is not done yet; the thread has ended."""
        began = self.environment.now()
        for _ in range(CLOSE_TRIES):
            is_done = not (self._unsent or self._held)
            if is_done or self._is_over or self.environment.now() - began > CLOSE_S:
                break
            if self._run([]).error or self._held:
                time.sleep(self._settings.retry_s)
        if left := len(self._unsent) + len(self._held):
            log.warning("store closed with writes that are not stored: items=%d", left)

    @property
    def server_stats(self) -> ServerStats:
        """The server, for people."""
        return ServerStats(
            self.url.shown,
            self.server.durability.name.lower(),
            self.server.reason,
            len(self._entries),
            self._pending_bytes,
            self.health,
            len(self.damages),
            [f"{each.where}: {each.text}"[:TEXT_MAX] for each in self.damages[:DAMAGES_SHOWN]],
        )

    # The interface.

    def durability(self, name: bytes) -> Durability:
        return min(self._durability(name), self.server.durability)

    def partition_usage(self, name: bytes) -> PartitionUsage:
        entry = self._entries.get(name)
        return PartitionUsage() if entry is None else entry.usage()

    def stored_queues(self) -> Iterator[StoredQueue]:
        for entry in self._entries.values():
            if entry.kind is PartitionKind.QUEUE and entry.fault is None:
                yield StoredQueue(entry.name, entry.deadline)

    def logs(self) -> Iterator[bytes]:
        for entry in self._entries.values():
            if entry.kind is PartitionKind.LOG:
                yield entry.name

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:
        is_awaited = not all(map(is_unawaited, changes))
        if is_awaited and (self._is_stalled or self._pending_bytes > PENDING_BYTES_MAX):
            return refused()
        if self.cipher is not None and self.cipher.covers(name):
            changes = encrypted_changes(self.cipher, name, changes)
        entry = self._entries.get(name)
        if entry is not None and entry.fault is not None:
            return refused() if is_awaited else None
        if entry is None:
            paths = PartitionKeys(self.url.prefix, name)
            entry = self._entries[name] = Entry(name, kind_of(changes[0]), paths, NEW)
            self._worker.submit(Naming(entry))
        before = entry.state
        count_usage(entry, changes, self.usage, 1)
        entry.expect(changes)
        self._lsn += 1
        command, size = self._command(entry, changes, is_awaited=is_awaited)
        commit: Commit | None = Deferred() if is_awaited else None
        entry.chain = self._lsn
        entry.in_flight += 1
        self._pending_bytes += size
        item = Write(entry, self._lsn, changes, command, size, commit, before)
        self._worker.submit(item, lazy=not is_awaited)
        return commit

    def _command(
        self, entry: Entry, changes: Sequence[Change], *, is_awaited: bool
    ) -> tuple[PackedCommand, int]:
        script = self._write if is_awaited else self._free
        is_new = entry.bounds.is_new
        order = (self._epoch, self._lsn, entry.chain)
        argument = write_argument(*order, entry.kind, entry.meta(), changes, is_new=is_new)
        return entry.paths.write(script, argument), len(argument)

    def load(self, name: bytes) -> Snapshot | Deferred[Snapshot | Fault]:
        entry = self._entries.get(name)
        if entry is None:
            return Snapshot()
        if entry.fault is not None:
            return answered(entry.fault)
        return self._read(name, lambda connection: load_queue(connection, entry.paths, entry.mode))

    def log_snapshot(self, name: bytes) -> LogSnapshot | Deferred[LogSnapshot | Fault]:
        entry = self._entries.get(name)
        if entry is None:
            return LogSnapshot()
        if entry.fault is not None:
            return answered(entry.fault)
        bounds, size = entry.bounds, entry.bytes
        return self._read(name, lambda connection: load_log(connection, entry.paths, bounds, size))

    def log_tail(self, name: bytes) -> int | None:
        """The tail of the log `name`; None: there is nothing of it, or more is on its way."""
        entry = self._entries.get(name)
        return None if entry is None or entry.in_flight else entry.bounds.tail

    def read(self, name: bytes, seek: Seek) -> list[Chunk] | Deferred[list[Chunk] | Fault]:
        if name not in self._entries:
            return []
        answer: Deferred[list[Chunk] | Fault] = Deferred()
        # A stream reads before the batch that it works on is written: the read goes behind it.
        self.environment.soon(partial(self._begin_read, name, seek, answer))
        return answer

    def _begin_read(self, name: bytes, seek: Seek, answer: Deferred[list[Chunk] | Fault]) -> None:
        entry, cipher = self._entries.get(name), self.cipher
        if entry is None:  # deleted meanwhile
            answer.finish([])
            return
        if entry.fault is not None:
            answer.finish(entry.fault)
            return
        trim_point = entry.bounds.trim_point

        def read(connection: RedisConnection) -> list[Chunk] | Fault:
            chunks = read_log(connection, entry.paths, seek, trim_point)
            if cipher is None or not cipher.covers(name):
                return chunks
            return decrypted_chunks(cipher, name, chunks)

        self._submit_read(name, read, answer)

    def _read(self, name: bytes, read: Callable[[RedisConnection], Any]) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred()
        self._submit_read(name, read, answer)
        return answer

    def _submit_read(
        self, name: bytes, read: Callable[[RedisConnection], Any], answer: Deferred[Any]
    ) -> None:
        if self._is_stalled:
            answer.finish(Fault.UNREADABLE)
        else:
            self._worker.submit(Read(name, read, answer.finish))

    # In the thread.

    def _idle_s(self) -> float | None:
        if self._held:
            return self._settings.moving_retry_s
        return self._settings.retry_s if self._away else self._settings.lease_s / 3

    def _run(self, items: list[Item]) -> Outcome:
        """Work on items in order, writes that follow one another in one go. After an error all that
        is not done waits until Redis is asked again."""
        answers: list[tuple[Item, Any]] = []
        now = self.environment.now()
        if self._moving:
            answers += self._retried(now)
        self._unsent += items
        if self._held:
            self._hold_others()
        if self._is_over:
            return Outcome(answers)
        if self._away and items and now - self._tried_at < self._settings.retry_s:
            return Outcome(answers + self._failed_reads(), self._away)
        try:
            self._renew_if_due()
            self._away = ""
            while self._unsent:
                self._work(answers)
        except RedisAway as error:
            self._away, self._tried_at = str(error) or type(error).__name__, now
            return Outcome(answers + self._failed_reads(), self._away)
        except RedisRefused as error:  # of a key of the node, not of a partition
            self._is_over = True
            return Outcome(answers, str(error), StoreLost(self._foreign(error)))
        except StoreLost as error:
            self._is_over = True
            return Outcome(answers, str(error), error)
        return Outcome(answers)

    def _failed_reads(self) -> list[tuple[Item, Any]]:
        reads = [each for each in (*self._held, *self._unsent) if isinstance(each, Read)]
        if reads:
            self._unsent = deque(each for each in self._unsent if not isinstance(each, Read))
            self._held = deque(each for each in self._held if not isinstance(each, Read))
        return [(each, Fault.UNREADABLE) for each in reads]

    def _retried(self, now: float) -> list[tuple[Item, Any]]:
        """Try held items again, if it is time, before those that came later. Gives the answers of
        those that have waited for too long: none of them is done."""
        if self._held and now - self._held_at < self._settings.moving_retry_s:
            return []
        limit = now - self._settings.moving_s
        awaited = {
            _held_by(each)
            for each in self._held
            if isinstance(each, Read) or (isinstance(each, Write) and each.commit is not None)
        }
        late = {name for name, since in self._moving.items() if since < limit and name in awaited}
        if self._unsure:
            late -= {_held_by(each) for each in self._held if self._is_unsure(each)}
        answers: list[tuple[Item, Any]] = []
        if late:
            error = RedisMoving(f"the slot of its keys is moved for {self._settings.moving_s:g} s")
            answers = [(each, error) for each in self._held if _held_by(each) in late]
            for name in late:
                del self._moving[name]
        self._unsent.extendleft(each for each in reversed(self._held) if _held_by(each) not in late)
        self._held.clear()
        return answers

    def _hold_others(self) -> None:
        """Items of partitions that have held ones wait behind these."""
        names = {_held_by(each) for each in self._held}
        self._held += [each for each in self._unsent if _held_by(each) in names]
        self._unsent = deque(each for each in self._unsent if _held_by(each) not in names)

    def _require_same_servers(self) -> None:
        """Raises StoreLost, RedisAway."""
        server = self.connection.facts()
        # Another server of a cluster got slots from those that are still there.
        if not self.server.runs <= server.runs:
            raise StoreLost("Redis was started anew, or another server took its place")
        if server.durability < self.server.durability:
            raise StoreLost(f"Redis promises less than at the start: {server.reason}")
        self.server = server
        self._connects = self.connection.connects

    def _renew_if_due(self) -> None:
        if self._away:
            self._require_same_servers()
        is_due = self.environment.now() - self._renewed_at >= self._settings.lease_s / 3
        if (is_due or self._away) and not self._renewed():
            raise StoreLost(f"another process owns {self.url.shown}")

    def _work(self, answers: list[tuple[Item, Any]]) -> None:
        """Do the first items that wait, as many as go together."""
        unsent = self._unsent
        first = unsent[0]
        if isinstance(first, Read):
            found = self._read_one(first)
            unsent.popleft()
            if isinstance(found, RedisMoving):
                self._hold([first], found)
            else:
                self._moving.pop(first.name, None)
                answers.append((first, found))
            return
        batch = self._batch()
        self._name([each.entry for each in batch if isinstance(each, Naming)])
        sent = [self._commands(item) for item in batch]
        commands = [command for some in sent for command in some]
        try:
            replies = iter(self.connection.run(commands) if commands else ())
        except RedisAway:
            self._unsure.update(each.lsn for each in batch if isinstance(each, Write))
            raise
        held: list[Item] = []
        names: set[bytes] = set()
        reason: RedisMoving | None = None
        for item, some in zip(batch, sent, strict=True):
            found = [next(replies) for _ in some]
            refusal = None if isinstance(item, Read | Forgetting) else item.entry.refusal
            reply = found[-1] if found else refusal
            if self._is_unsure(item) and found and isinstance(reply, RedisRefused):
                if not is_of_wrong_type(reply):  # it takes no writes now, and may have done this
                    raise RedisAway(str(reply))
            unsent.popleft()
            if isinstance(item, Write):
                name = item.entry.name
                if isinstance(reply, RedisMoving):
                    reason = reply
                    names.add(name)
                # One that follows a held one may be out of order, or find that the slot is there.
                if name in names:
                    held.append(item)
                    continue
                self._unsure.discard(item.lsn)
                if self._moving:
                    self._moving.pop(name, None)
            answers.append((item, reply))
        if reason is not None:
            self._hold(held, reason)

    def _hold(self, items: Sequence[Item], reason: RedisMoving) -> None:
        """Keep items whose partition is being moved, and those behind them."""
        self._held_at = self.environment.now()
        self._held += items
        for name in {_held_by(each) for each in items}:
            if name is not None and name not in self._moving:
                self._moving[name] = self._held_at
                log.warning("partition waits: name=%r reason=%s", name, reason)
        limit = self._held_at - self._settings.away_s
        if any(self._is_unsure(each) and self._moving[each.entry.name] < limit for each in items):
            raise StoreLost(f"it is not known whether a write is stored, and {reason}")
        self._hold_others()

    def _is_unsure(self, item: Item) -> TypeGuard[Write]:
        """It is a write that may have been done, as its answer was lost."""
        return isinstance(item, Write) and item.lsn in self._unsure

    def _batch(self) -> list[Item]:
        """The first items that are no reads, and may go in one pipeline after all names of theirs
        are stored."""
        batch: list[Item] = []
        forgotten: set[bytes] = set()
        size = 0
        for item in self._unsent:
            if isinstance(item, Read) or size > BATCH_BYTES or len(batch) >= BATCH_WRITES:
                break
            match item:
                case Write():
                    size += item.size
                case Forgetting(name=name):
                    forgotten.add(name)
                case Naming(entry=entry):
                    if entry.name in forgotten:
                        break
            batch.append(item)
        return batch

    def _name(self, entries: Sequence[Entry]) -> None:
        """Store the names of new partitions. Raises StoreLost.

        The epoch is read after that: a later owner, who has raised it before, may not have seen the
        names, and one who raises it after this finds them, and refuses late writes of theirs."""
        if not entries:
            return
        prefix = self.url.prefix
        names = [each.name for each in entries]
        # Not in one go: in a cluster they are on two servers, which know no order.
        (stored,) = self.connection.run([("SADD", f"{prefix}:partitions", *names)])
        (epoch,) = self.connection.run([("GET", f"{prefix}:epoch")])
        if isinstance(epoch, RedisRefused | RedisMoving) or isinstance(stored, RedisMoving):
            raise RedisAway(f"{epoch} {stored}")
        if epoch is None or epoch.decode() != self._epoch:
            raise StoreLost(f"another process owns {self.url.shown}, or its keys were removed")
        for each in entries:
            each.refusal = stored if isinstance(stored, RedisRefused) else None

    def _commands(self, item: Item) -> Sequence[Command]:
        match item:
            case Write() if item.entry.refusal is None:
                return (self._resent(item.command) if item.lsn in self._unsure else item.command,)
            case Forgetting(commands=commands):
                return commands
            case _:
                return ()

    def _resent(self, command: PackedCommand) -> PackedCommand:
        """A write that may have been done, by the script that a server that is full by now calls:
        the other one would be refused before it tells that the write is there."""
        data = command.data.replace(self._write.encode(), self._free.encode(), 1)
        return command._replace(data=data)

    def _read_one(self, item: Read) -> Any:
        """The answer of a read, a Fault, a Damage, or a RedisMoving. Raises RedisAway,
        StoreLost."""
        found: Any
        try:
            found = item.read(self.connection)
        except RedisMoving as error:
            return error
        except BadChange as error:
            found = Damage(self._stem(item.name), f"a value is not understood: {error}", item.name)
        except RedisRefused as error:
            if is_of_wrong_type(error):
                found = Damage(self._stem(item.name), str(error), item.name)
            else:
                log.error("read refused by Redis: name=%r error=%s", item.name, error)
                found = Fault.UNREADABLE
        if self.connection.connects != self._connects:
            # Over a new connection it may be the content of a server that has lost some.
            self._require_same_servers()
        return found

    def _stem(self, name: bytes) -> str:
        return PartitionKeys(self.url.prefix, name)[META].removesuffix("meta") + "*"

    # In the loop's thread.

    def _done(self, items: list[Item], outcome: Outcome) -> None:
        for item, reply in outcome.answers:
            match item:
                case Write():
                    self._answered(item, reply)
                case Read() if isinstance(reply, Damage):
                    self._add_damage(reply)
                    item.done(Fault.DAMAGED)
                case Read():
                    item.done(Fault.UNREADABLE if isinstance(reply, RedisMoving) else reply)
                case Naming(entry=entry):
                    if reply is not None and self._entries.get(entry.name) is entry:
                        del self._entries[entry.name]  # the next write names it again
                case Forgetting():
                    pass
        if self.lost is not None:
            return
        if outcome.lost is not None:
            self._lose(outcome.lost)
        elif outcome.error:
            self._stall(outcome.error)
        elif self._is_stalled:
            self._go_on()

    def _answered(self, item: Write, reply: Any) -> None:
        entry = item.entry
        entry.in_flight -= 1
        self._pending_bytes -= item.size
        if reply in (APPLIED, DROPPED):
            entry.applied = item.lsn
            entry.is_empty = reply == DROPPED
            if item.commit is not None:
                item.commit.finish(None)
        elif reply == FENCED:
            self._lose(StoreLost(f"another process owns {self.url.shown}"))
            return
        elif reply == OUT_OF_ORDER and item.lsn > entry.broken_until:
            self._lose(StoreLost(f"writes of {entry.name!r} are missing in {self.url.shown}"))
            return
        else:
            self._not_applied(item, reply)
        is_gone = entry.is_empty or entry.applied == NEW
        if is_gone and not entry.in_flight and self._entries.get(entry.name) is entry:
            self._forget_entry(entry)

    def _not_applied(self, item: Write, reply: Any) -> None:
        """A write that is not there, as those that were built upon it will not be."""
        entry = item.entry
        if isinstance(reply, RedisRefused | RedisMoving):
            self.health.failures += 1
            log.error("write refused by Redis: name=%r error=%s", entry.name, reply)
            if is_of_wrong_type(reply):  # some of the write may be done, so it is not served
                self._add_damage(Damage(self._stem(entry.name), str(reply), entry.name))
        if item.lsn > entry.broken_until:
            entry.broken_until, entry.chain = entry.chain, entry.applied
            self._set_state(entry, item.before)
        if item.commit is not None:
            item.commit.finish(Fault.NOT_STORED)

    def _set_state(self, entry: Entry, state: State) -> None:
        """Take the writes of a partition back that are on their way."""
        usage = self.usage
        if entry.kind is PartitionKind.LOG:
            usage.log_bytes += state.bytes - entry.bytes
        else:
            usage.messages += state.messages - entry.messages
            usage.bytes += state.bytes - entry.bytes
            usage.keys += state.keys - entry.keys
        entry.messages, entry.bytes, entry.keys, entry.mode, entry.bounds = state

    def _forget_entry(self, entry: Entry) -> None:
        del self._entries[entry.name]
        self._set_state(entry, _NOTHING)
        commands = self._forget_commands(entry.name, entry.paths, max(entry.applied, 0))
        self._worker.submit(Forgetting(entry.name, commands))

    def _forget_commands(self, name: bytes, paths: PartitionKeys, lsn: int) -> Sequence[Command]:
        """Remove the meta, if this is the last write, and the name of a partition."""
        return (
            ("EVALSHA", self._forget, 1, paths[META], self._epoch, str(lsn)),
            ("SREM", f"{self.url.prefix}:partitions", name),
        )

    def _stall(self, error: str) -> None:
        """Redis is away."""
        now = self.environment.now()
        if not self._is_stalled:
            self._is_stalled, self._away_since = True, now
            self.health.is_writable = False
            self.health.failures += 1
            log.error("Redis is away: error=%s", error)
            self.health.reason = f"Redis is away: {error}"
        if now - self._away_since > self._settings.away_s:
            self._lose(StoreLost(f"Redis is away for {self._settings.away_s:g} s: {error}"))

    def _go_on(self) -> None:
        log.warning("Redis is back: seconds=%.1f", self.environment.now() - self._away_since)
        self._is_stalled = False
        self.health.is_writable, self.health.reason = True, ""

    def _crashed(self, items: list[Item], exc: Exception) -> None:
        """A bug: nothing is known of what was in hand."""
        self._lose(StoreLost(f"the thread of the store failed: {exc!r}"))

    def _lose(self, error: StoreLost) -> None:
        """The node has to end. Writes that wait are never answered: their outcome is not known."""
        if self.lost is None:
            self.lost = error
            self._is_over = self._is_stalled = True
            self.health.is_writable, self.health.reason = False, str(error)
            self.on_lost(error)


def _ignore(error: StoreLost) -> None:
    log.error("store lost: error=%s", error)
