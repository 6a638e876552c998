"""Cold streams: the older chunks of large streams are in the replica alone.

The steps of a move, of which a crash may come between any two:

1. The oldest chunks of a stream that are in its file, beyond the newest `local` bytes, are read.
2. They are uploaded as one object, under a name that nothing had before. A crash leaves an object
   that no file needs; the next removal of old objects finds it.
3. One transaction of the file puts references in the place of their data. Rows that were trimmed or
   are others by now stay as they are. Before the transaction the data is in the file, after it in
   the object: nothing is noted elsewhere, so nothing has to agree with it.

The positions, times and ids of cold chunks stay in the file, so a seek asks the file alone, and
trims, retention by size and counts are those of any stream. Retention by age reads a chunk, for the
time of its arrival. Journal, standbys and restorations are not concerned: a standby has the chunks
that came by the journal in its own file.

A snapshot names the objects that its files need. An object goes once no kept snapshot names it, and
it is older than the newest one.

Reads go through a cache of objects in memory. An object is fetched once for all who wait for it,
checked by its hash, and given up after `FETCH_S`: a read gets what is before it, or a fault. An
object that cannot be read is not asked for again for a moment, and concerns no other read.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.store.changes import Chunk, ColdChunk, ColdReference
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Fault
from millpond.actors.store.partitions.files import OldestLocal
from millpond.actors.store.partitions.log_tables import LocalBytes
from millpond.node.replica.cold_objects import (
    CHUNKS_MAX,
    OBJECT_BYTES,
    ColdObject,
    decode_cold_object,
    encode_cold_object,
)
from millpond.node.replica.errors import (
    BadReplica,
    NoObject,
    ObjectExists,
    ObjectStoreAway,
    ReplicaError,
)
from millpond.node.replica.interface import ColdInfo
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import cold_name
from millpond.node.replica.shipping import Shipper, ShippingState

log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[int, int]
Done = Callable[[list[Chunk] | Fault], None]

LOOK_S = 5.0
"""Streams are looked at so often for what may be moved."""
FETCH_S = 10.0
"""A read waits so long for an object."""
UPLOAD_S = 60.0
AWAY_S, DAMAGED_S = 1.0, 10.0
"""An object that could not be had, or was damaged, is asked for again after so long."""
THREADS_MAX = 4
HANGING_MAX = 8
"""Requests that were given up and still hang in their threads; with more, none is made."""
LOGS_A_TURN = 1000
RESTS = 50
"""A look at a stream reads a line of each of its chunks. It is looked at again after so many times
as long as that took."""
UNLIMITED = 2**63
"""More bytes than a log has: none is moved."""
FAILURES_KEPT = 1000
DAMAGES_KEPT = 100


class ColdStats(msgspec.Struct):
    """The counts of `ColdInfo`."""

    bytes: int = 0
    objects: int = 0
    moved_bytes: int = 0
    fetches: int = 0
    fetched_bytes: int = 0
    hits: int = 0
    misses: int = 0
    errors: int = 0
    cache_bytes: int = 0
    error: str = ""


class _Read(NamedTuple):
    """A read that waits for an object: chunks of a log, of which the cold ones are all there."""

    name: bytes
    chunks: Sequence[Chunk]
    done: Done


class _Cached:
    """An object in the cache. `reads` counts those that used it; `is_followed`: the one behind it
    was asked for."""

    __slots__ = ("found", "is_followed", "reads")

    def __init__(self, found: ColdObject) -> None:
        self.found = found
        self.reads = 0
        self.is_followed = False


class ColdStreams:
    """Moves chunks of streams to the replica, and reads them there. `limit` gives the bytes of a
    log that stay in its file (0: all). Implements `store.interface.ColdReader`."""

    def __init__(
        self,
        store: DurableStore,
        objects: ObjectStore,
        shipper: Shipper,
        *,
        limit: Callable[[bytes], int],
        cache_bytes_max: int,
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._objects = objects
        self._shipper = shipper
        self._limit = limit
        self._cache_bytes_max = cache_bytes_max
        self._now = now
        self._wall = wall
        self.stats = ColdStats()
        self.damages: dict[str, str] = {}
        """Objects that were not what was written, or not there, by name, and what was found."""
        self._bytes: dict[bytes, int] = {}
        self._rests: dict[bytes, float] = {}
        """The times before which streams are not looked at."""
        self._epoch = self._next = 0
        self._under_way: Key | None = None
        """The object of a move that has not come to its end."""
        self._cache: OrderedDict[Key, _Cached] = OrderedDict()
        self._waiting: dict[Key, list[_Read]] = {}
        """Reads by the object that is being fetched for them; none for one that is read ahead."""
        self._failed: dict[Key, float] = {}
        self.hanging = 0
        """Requests that were given up and have not returned."""
        self._lock = Lock()
        """Of `hanging`, which threads change as well."""
        self._threads = anyio.CapacityLimiter(THREADS_MAX)
        self._upload_thread = anyio.CapacityLimiter(1)
        self._asked: deque[Key] = deque()
        """The objects to be fetched next: they are asked for outside of any task."""
        self._wake: anyio.Event | None = None
        self._is_closed = False

    @property
    def info(self) -> ColdInfo:
        """Cold streams now."""
        return ColdInfo(**msgspec.structs.asdict(self.stats), damaged=tuple(self.damages))

    @property
    def unsettled(self) -> Key:
        """The object from which on some may be needed that no file needs yet."""
        claim = self._shipper.claim
        if self._under_way is not None:
            return self._under_way
        if claim is not None and claim.epoch > self._epoch:
            return claim.epoch, 0
        return self._epoch, self._next

    async def run(self) -> None:
        """Fetch and move, until it is cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._load_always, tasks)
                await self._move_always()
        finally:
            self.close()

    def close(self) -> None:
        """Nothing is fetched any more: reads that wait end."""
        self._is_closed = True
        waiting, self._waiting = self._waiting, {}
        for reads in waiting.values():
            for read in reads:
                self._finish(read, None)

    # Reads.

    def fetch(self, name: bytes, chunks: Sequence[Chunk], done: Done) -> None:
        """The chunks up to the end of the first object: a read waits for one alone."""
        key: Key | None = None
        taken: list[Chunk] = []
        for chunk in chunks:
            if isinstance(chunk, ColdChunk):
                key = key or chunk.reference.object
                if key != chunk.reference.object:
                    break
            taken.append(chunk)
        read = _Read(name, taken, done)
        cached = None if key is None else self._cache.get(key)
        if key is None or cached is not None:
            self.stats.hits += 1
            self._finish(read, cached)
            return
        self.stats.misses += 1
        if not self._ask(key, read):
            self._finish(read, None)

    def _ask(self, key: Key, read: _Read | None) -> bool:
        """Have an object fetched, for this read or ahead of any. False: not now."""
        if key in self._waiting:
            if read is not None:
                self._waiting[key].append(read)
            return True
        if self._is_closed or self.hanging >= HANGING_MAX:
            return False
        if self._failed.get(key, 0.0) > self._now():
            return False
        self._waiting[key] = [] if read is None else [read]
        self._asked.append(key)
        if self._wake is not None:
            self._wake.set()
        return True

    def _finish(self, read: _Read, cached: _Cached | None) -> None:
        """Give a read its chunks, up to the first one that is not there. None: its object is
        not."""
        found: list[Chunk] = []
        for chunk in read.chunks:
            if isinstance(chunk, ColdChunk):
                if cached is None:
                    break
                reference = chunk.reference
                data = cached.found.data(read.name, chunk, reference)
                if data is None:
                    text = f"it does not have chunk {chunk.first} of {read.name!r}"
                    self._damaged(cold_name(*reference.object), text)
                    break
                chunk = _with_data(chunk, data)
            found.append(chunk)
        if cached is not None:
            header = cached.found.header
            cached.reads += 1
            self._cache.move_to_end((header.epoch, header.number), last=True)
        read.done(found or Fault.COLD)
        if cached is not None and found:
            self._read_ahead(read.name, cached, found[-1].end)

    def _read_ahead(self, name: bytes, cached: _Cached, end: int) -> None:
        """Fetch the next object of a stream that is read in order: behind the middle of one that
        was read before, or at its end."""
        header = cached.found.header
        if 2 * cached.found.weight > self._cache_bytes_max:
            return  # it would take the place of this one
        middle = (header.chunks[0].first + header.end) // 2
        if cached.is_followed or (end < header.end and (cached.reads < 2 or end < middle)):
            return

        def ask(found: ColdReference | Fault | None) -> None:
            if isinstance(found, ColdReference) and found.object not in self._cache:
                self._ask(found.object, None)

        cached.is_followed = True
        self._store.next_cold(name, header.end, ask)

    async def _load_always(self, tasks: TaskGroup) -> None:
        while True:
            self._wake = anyio.Event()
            while self._asked:
                tasks.start_soon(self._load, self._asked.popleft())
            await self._wake.wait()

    async def _load(self, key: Key) -> None:
        name = cold_name(*key)
        try:
            with anyio.fail_after(FETCH_S):
                found = await self._in_thread(partial(self._get, name), self._threads)
        except TimeoutError:
            self._not_loaded(key, f"{name}: no answer within {FETCH_S:.0f} s", AWAY_S)
        except (BadReplica, NoObject) as exc:
            self._damaged(name, str(exc))
            self._not_loaded(key, str(exc), DAMAGED_S)
        except (ReplicaError, OSError) as exc:
            self._not_loaded(key, str(exc), AWAY_S)
        else:
            self.stats.fetches += 1
            self.stats.fetched_bytes += found.header.size
            self.stats.error = ""
            self._failed.pop(key, None)
            self.damages.pop(name, None)
            self._keep(key, found)
        for read in self._waiting.pop(key, ()):
            self._finish(read, self._cache.get(key))

    def _get(self, name: str) -> ColdObject:
        return decode_cold_object(self._objects.get(name), name)

    def _not_loaded(self, key: Key, error: str, retry_s: float) -> None:
        if not self.stats.error:
            log.warning("cold chunks not read: error=%s", error)
        self.stats.errors += 1
        self.stats.error = error
        if len(self._failed) >= FAILURES_KEPT:
            self._failed.pop(next(iter(self._failed)))
        self._failed[key] = self._now() + retry_s

    def _damaged(self, name: str, text: str) -> None:
        if name not in self.damages and len(self.damages) < DAMAGES_KEPT:
            log.error("cold object damaged: name=%s error=%s", name, text)
            self.damages[name] = text

    def _keep(self, key: Key, found: ColdObject) -> None:
        self._cache[key] = _Cached(found)
        self.stats.cache_bytes += found.weight
        # The least recently used ones go; one always stays.
        while self.stats.cache_bytes > self._cache_bytes_max and len(self._cache) > 1:
            _, cached = self._cache.popitem(last=False)
            self.stats.cache_bytes -= cached.found.weight

    async def _in_thread(self, work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
        is_begun = is_left = False

        def run() -> T:
            nonlocal is_begun
            with self._lock:
                if is_left or self.hanging >= HANGING_MAX:
                    raise ObjectStoreAway(f"{self.hanging} requests hang")
                is_begun = True
            try:
                return work()
            finally:
                with self._lock:
                    is_begun = False
                    self.hanging -= is_left

        try:
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=limiter)
        except BaseException:
            with self._lock:  # one that still waited for a thread does not hang
                is_left = True
                self.hanging += is_begun
            raise

    # Moves.

    async def _move_always(self) -> None:
        while True:
            await anyio.sleep(LOOK_S)
            if self._shipper.state is not ShippingState.SHIPPING or self.hanging > HANGING_MAX // 2:
                continue  # the threads that are left are for reads
            try:
                above = await self._logs_above()
                for name in self._bytes.keys() - above.keys():
                    await self._look(name, UNLIMITED)  # it was trimmed or deleted
                rests = {each: at for each, at in self._rests.items() if each in above}
                self._rests = rests
                for name, keep_bytes in above.items():
                    if rests.get(name, -inf) <= self._now():
                        while await self._move(name, keep_bytes):
                            pass
            except (ReplicaError, OSError) as exc:
                log.warning("chunks not moved to the replica: error=%s", exc)
                self.stats.error = str(exc)

    async def _logs_above(self) -> dict[bytes, int]:
        """The logs that may have more bytes than stay in their files, with how many stay."""
        above: dict[bytes, int] = {}
        for index, (name, size) in enumerate(self._store.logs_with_files(), 1):
            if index % LOGS_A_TURN == 0:
                await anyio.lowlevel.checkpoint()
            if 0 < (keep_bytes := self._limit(name)) < size:
                above[name] = keep_bytes
        return above

    async def _move(self, name: bytes, keep_bytes: int) -> bool:
        """Move the oldest chunks of a log. False: that is all for now."""
        found = await self._look(name, keep_bytes)
        claim = self._shipper.claim
        if found is None or not found.chunks or claim is None:
            return False
        if claim.epoch != self._epoch:
            self._epoch, self._next = claim.epoch, 0
        self._under_way = key = self._epoch, self._next
        self._next += 1
        try:
            upload = partial(self._upload, name, key, found.chunks)
            with anyio.fail_after(UPLOAD_S):
                moved = await self._in_thread(upload, self._upload_thread)
            if self._shipper.claim is not claim:
                return False
            left = await _answer(partial(self._store.make_cold, name, moved))
        except TimeoutError as exc:
            raise ReplicaError(f"{cold_name(*key)}: no answer within {UPLOAD_S:.0f} s") from exc
        finally:
            self._under_way = None
        if not isinstance(left, LocalBytes):
            return False
        self.stats.objects += 1
        self.stats.moved_bytes += sum(reference.size for _, reference in moved)
        self.stats.error = ""
        self._count(name, left)
        return True

    async def _look(self, name: bytes, keep_bytes: int) -> OldestLocal | None:
        """The oldest chunks of a log that may be moved, whose bytes are counted; None: a fault."""
        began = self._now()
        found = await _answer(
            partial(self._store.oldest_local, name, keep_bytes, OBJECT_BYTES, CHUNKS_MAX)
        )
        self._rests[name] = self._now() + (self._now() - began) * RESTS
        if not isinstance(found, OldestLocal):
            return None
        self._count(name, found.bytes)
        return found

    def _upload(
        self, name: bytes, key: Key, chunks: Sequence[Chunk]
    ) -> list[tuple[Chunk, ColdReference]]:
        node = self._shipper.position.node
        data, moved = encode_cold_object(node, *key, name, self._wall(), chunks)
        try:
            self._objects.create(cold_name(*key), data)
        except ObjectExists:
            # An attempt of ours whose answer was lost.
            if self._objects.get(cold_name(*key)) != data:
                raise BadReplica(f"{cold_name(*key)} is there, and another one") from None
        return moved

    def _count(self, name: bytes, found: LocalBytes) -> None:
        self.stats.bytes += found.cold - self._bytes.get(name, 0)
        if found.cold:
            self._bytes[name] = found.cold
        else:
            self._bytes.pop(name, None)


def _with_data(chunk: Chunk, data: bytes) -> Chunk:
    return Chunk(
        chunk.first,
        chunk.count,
        chunk.first_timestamp,
        chunk.last_timestamp,
        chunk.first_id,
        chunk.last_id,
        data,
    )


async def _answer(ask: Callable[[Callable[[Any], None]], None]) -> Any:
    """The answer of the store."""
    answers: list[Any] = []
    is_there = anyio.Event()

    def take(answer: Any) -> None:
        answers.append(answer)
        is_there.set()

    ask(take)
    await is_there.wait()
    return answers[0]
