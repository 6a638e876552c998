"""The shipping of a node's journal to its replica, object by object.

The store gives every group of records once it is stored (`take`). They are gathered for a tenth of
a second or a megabyte, and put as the next journal object, which only one process can make. While
the object store is away, records wait in memory and the same object is tried again: made by an
attempt whose answer was lost, it is recognized by its header. When more waits than
`lag_bytes_max`, callers are told of their commits later, as fast as objects are made; where none
are made at all, what waits is given up instead of the node's clients: a new history begins with
the next snapshot.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from hashlib import sha256
from random import Random
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec

from millpond.actors.store.journal.format import encode_record
from millpond.actors.store.recovery import JournalSuffix
from millpond.node.data_folder import REPLICA_POSITION
from millpond.node.replica.errors import (
    BadReplica,
    ObjectExists,
    ObjectStoreAway,
    ObjectStoreRefuses,
    Superseded,
)
from millpond.node.replica.interface import StandbyRow
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import (
    BEAT_S,
    FORMAT_VERSION,
    OWNER,
    STANDBY,
    Beat,
    JournalHeader,
    beat_name,
    changes_something,
    decode_journal_object,
    encode_journal_object,
    encode_json,
    journal_body,
    journal_name,
    number_of,
    owner_name,
)
from millpond.node.replica.ownership import Claim, Claimant, claim, last_header

log = logging.getLogger(__name__)

T = TypeVar("T")

OBJECT_BYTES = 2**20
"""Records are put together up to about this size, and up to eight times as much after a delay."""
OBJECT_BYTES_MAX = 8 * OBJECT_BYTES
OBJECT_S = 1.0
"""Records that were stored further apart are in different objects."""
GATHER_S = 0.1
BEATS_KEPT = 3
BEATS_A_TAKEOVER = 4
"""So many beats come within the time after which a standby takes over."""
STANDBYS_MAX = 100
STANDBY_S = 60.0
"""The owner beats for a standby for so long after it last told of itself."""
RETRY_S, RETRY_S_MAX = 0.5, 15.0
FIRST_BEAT_S, FIRST_BEATS_S = 0.5, 30.0
"""A new owner beats so often for so long, until it has heard of its standbys."""
RETRIES_COUNTED = 30
CLAIM_WAIT_S = 0.5
RUNS_KEPT = 100
FINISH_S = 5.0
ANSWER_S = 60.0
"""A request that has no answer after so long is one that failed. Its thread goes on: a folder of
another machine may hold it for ever."""
THREADS_MAX = 8
PASS_S = 0.02
WATCH_S, PAUSE_S = 0.25, 3.0
POSITION_FILE = REPLICA_POSITION


class ShippingState(StrEnum):
    """The node's state towards its replica: it does not own it yet, ships, or cannot reach it."""

    CLAIMING = "claiming"
    SHIPPING = "shipping"
    AWAY = "away"


class ShippingPosition(msgspec.Struct, frozen=True):
    """Where shipping stands, as the data folder keeps it now and then: the next number, the
    history, the lsn up to which records were shipped, and the salt of the run's journal. `node` is
    the id of the node in its replica, `run` that of the last run that was about to claim it, `runs`
    those that may have made the last object. With a `mark` the store was made of the replica up to
    the object of that digest, which is its lsn."""

    node: bytes
    number: int = 0
    history: int = 0
    lsn: int = 0
    salt: int = 0
    run: bytes = b""
    runs: tuple[bytes, ...] = ()
    mark: bytes = b""


class Opened(msgspec.Struct, frozen=True):
    """The store as it was opened: its last lsn, the salt of this run, and the journal behind the
    position (None: it does not go back so far)."""

    lsn: int
    salt: int
    suffix: JournalSuffix | None

    @property
    def writer(self) -> int:
        """The salt of the run that wrote the last record, as far as the journal tells."""
        runs = {} if self.suffix is None else self.suffix.runs
        return next((salt for salt, (_, last) in runs.items() if last == self.lsn), self.salt)


class _Waiting(msgspec.Struct):
    """Records of a group. `taken_at` is by the clock for spans, `stored_at` a moment; all up to
    `after_lsn` is in groups before."""

    records: Sequence[bytes]
    last_lsn: int
    size: int
    taken_at: float
    stored_at: float
    after_lsn: int
    is_awaited: bool = False


class _Attempt(msgspec.Struct):
    """An object that is being made, which may be made already. A caller waits for it since
    `awaited_at` (0: none does)."""

    header: JournalHeader
    data: bytes
    taken_at: float
    after_lsn: int
    awaited_at: float = 0.0


class Shipper:
    """Ships records to `objects`. `now` is a clock for spans, `wall` one for moments, in seconds;
    `release` has callers told whose commits waited. Those that wait for the replica are told by
    `refuse` after `ack_s` seconds that they have not got there."""

    def __init__(
        self,
        objects: ObjectStore,
        claimant: Claimant,
        position: ShippingPosition,
        *,
        lag_bytes_max: int,
        now: Callable[[], float],
        wall: Callable[[], float],
        rng: Random,
        release: Callable[[], None],
        refuse: Callable[[], None] = lambda: None,
        ack_s: float = math.inf,
        check_new: Callable[[], None] = lambda: None,
    ) -> None:
        self._objects = objects
        self._check_new = check_new
        self._claimant = claimant
        self._found = position
        runs = (*position.runs, claimant.run)[-RUNS_KEPT:]
        self.position = msgspec.structs.replace(position, run=claimant.run, runs=runs)
        self._last_run = position.run
        self._continues = False
        self._lag_bytes_max = lag_bytes_max
        self._now = now
        self._wall = wall
        self._rng = rng
        self._release = release
        self._refuse = refuse
        self._ack_s = ack_s
        self.is_refusing = False
        self.is_settled = anyio.Event()
        """Set once everything that is stored can be replicated."""
        self._restorable_history = -1
        """The history that has a snapshot."""
        self._opened: Opened | None = None
        self._waiting: deque[_Waiting] = deque()
        self._attempt: _Attempt | None = None
        self._attempted_bytes = 0
        self._claim: Claim | None = None
        self._epoch = 0
        """That of the last claim; 0: there was none in this run."""
        self._previous = b""
        self._taken_lsn = 0
        self._is_first = True
        """The next claim is the first one of this run."""
        self._writer = 0
        """The salt of the run that wrote the record before the first object of a claim."""
        self._waits_behind = 0
        """The lsn behind which what waits begins, while there is no claim."""
        self._wake = anyio.Event()
        self._threads = anyio.CapacityLimiter(THREADS_MAX)
        """Its own: requests that hang take no thread from the rest of the node."""
        self._beats = 0
        self._beat_s, self._beats_until = BEAT_S, 0.0
        self._standbys: dict[str, tuple[float, float]] = {}
        """By the id of a run: the time after which it takes over, and when it told of itself."""
        self.owner_since = 0.0
        """The moment of the last claim; 0: there was none."""
        self._waits_since = 0.0
        """Since when a caller waits until its records are replicated; 0: none does."""
        self.state = ShippingState.CLAIMING
        self.error = ""
        """Why the object store cannot be reached, or refuses."""
        self.lag_bytes = 0
        self.objects_made = self.bytes_made = self.breaks = 0

    # The store's side, in the loop's thread.

    def open(self, opened: Opened) -> None:
        """The store is open; `take` follows."""
        self._opened = opened
        self._taken_lsn = self._waits_behind = opened.lsn

    @property
    def is_behind(self) -> bool:
        return self.lag_bytes > self._lag_bytes_max

    def take(self, records: Sequence[bytes], last_lsn: int, *, is_awaited: bool) -> None:
        after_lsn, self._taken_lsn = self._taken_lsn, last_lsn
        self._waits_since = self._waits_since or (self._now() if is_awaited else 0.0)
        changed = [each for each in records if changes_something(each)]
        if not changed:
            return
        size = sum(map(len, changed))
        self._waiting.append(
            _Waiting(changed, last_lsn, size, self._now(), self._wall(), after_lsn, is_awaited)
        )
        self.lag_bytes += size
        if len(self._waiting) == 1 or is_awaited or self.lag_bytes >= OBJECT_BYTES:
            self._wake.set()
        if self.is_behind and self.state is not ShippingState.SHIPPING:
            self._give_up()

    def hurry(self) -> None:
        now = self._now()
        self._waits_since = self._waits_since or now
        if self._waiting:
            self._waiting[-1].is_awaited = True
        elif self._attempt is not None:
            self._attempt.awaited_at = self._attempt.awaited_at or now
        self._wake.set()

    @property
    def replicated_lsn(self) -> int:
        """Everything up to this lsn is in objects that a restoration reads."""
        if self._claim is None or self._restorable_history != self.position.history:
            return -1
        return self.shipped_lsn

    @property
    def shipped_lsn(self) -> int:
        """Everything up to this lsn that was not given up is in objects."""
        oldest = self._attempt or (self._waiting[0] if self._waiting else None)
        return self._taken_lsn if oldest is None else oldest.after_lsn

    @property
    def taken_lsn(self) -> int:
        """The last lsn that the store has given."""
        return self._taken_lsn

    def has_snapshot(self, history: int) -> None:
        """A snapshot of this history is uploaded: what is shipped can be restored."""
        self._restorable_history = max(self._restorable_history, history)
        self._went_on()

    def _went_on(self) -> None:
        """Tell the callers whose records are replicated."""
        if self.replicated_lsn >= 0:
            self.is_refusing = False
            self.is_settled.set()
            outstanding = (each for each in self._waiting if each.is_awaited)
            oldest = next(outstanding, None)
            self._waits_since = 0.0 if oldest is None else oldest.taken_at
            if self._attempt is not None:
                self._waits_since = self._attempt.awaited_at or self._waits_since
        self._release()

    @property
    def lag_s(self) -> float:
        """The age of the oldest record that is not shipped, in seconds."""
        oldest = self._attempt or (self._waiting[0] if self._waiting else None)
        return 0.0 if oldest is None else max(0.0, self._now() - oldest.taken_at)

    @property
    def claim(self) -> Claim | None:
        """The claim to the replica; None: there is none yet."""
        return self._claim

    @property
    def standbys(self) -> Iterator[StandbyRow]:
        """Those that told of themselves within the last minute."""
        now = self._now()
        for run, (takeover_s, told_at) in self._standbys.items():
            if now - told_at < STANDBY_S:
                yield StandbyRow(run, takeover_s, now - told_at)

    # The tasks.

    async def run(self) -> None:
        """Claim the replica, and ship. A damaged object holds up shipping, not the node. Raises
        Superseded, OtherReplica."""
        failures = 0
        while True:
            try:
                if self._claim is None:
                    await self._claim_replica()
                else:
                    await self._ship()
                failures = 0
            except (ObjectStoreAway, ObjectStoreRefuses, BadReplica) as exc:
                self._failed(exc)
                delay_s = min(RETRY_S * 2**failures, RETRY_S_MAX)
                failures = min(failures + 1, RETRIES_COUNTED)
                await anyio.sleep(delay_s * self._rng.uniform(0.5, 1.0))

    async def beat(self) -> None:
        """Tell now and then that the owner is alive, and see whether it is the owner still: one
        that has nothing to ship learns it here. Raises Superseded."""
        while True:
            claim = self._claim
            if claim is not None:
                if not self._beats:
                    self._beat_s = min(FIRST_BEAT_S, BEAT_S)
                    self._beats_until = self._now() + FIRST_BEATS_S
                elif self._now() > self._beats_until:
                    self._beat_s = BEAT_S
                try:
                    await self._in_thread(partial(self._check_owner, claim.epoch))
                    await self._in_thread(self._look_for_standbys)
                    await self._in_thread(partial(self._make_beat, claim.epoch))
                except (ObjectStoreAway, ObjectStoreRefuses, BadReplica) as exc:
                    log.debug("no beat: error=%s", exc)
            await anyio.sleep(self._beat_s if claim is not None else min(BEAT_S, CLAIM_WAIT_S))

    async def watch(self) -> None:
        """Refuse what has to be replicated while that takes too long."""
        looked_at = self._now()
        while True:
            await anyio.sleep(WATCH_S)
            before, looked_at = looked_at, self._now()
            if looked_at - before > WATCH_S + PAUSE_S and self._claim is not None:
                # This process was paused, and may be the owner no more.
                with suppress(ObjectStoreAway, ObjectStoreRefuses, BadReplica):
                    await self.check_owner()
            since = self._waits_since
            if since and self._now() - since >= self._ack_s:
                log.warning("replica refuses: waited_s=%.1f", self._now() - since)
                self.is_refusing, self._waits_since = True, 0.0
                for each in self._waiting:
                    each.is_awaited = False
                self._refuse()

    async def finish(self) -> None:
        """Wait until all that was stored is shipped, not for long."""
        with anyio.move_on_after(FINISH_S):
            while self.state is ShippingState.SHIPPING and self.lag_bytes:
                self._wake.set()
                await anyio.sleep(PASS_S)

    async def check_owner(self) -> None:
        """Raises Superseded, once a later owner has made a journal object."""
        if self._claim is not None:
            await self._in_thread(partial(self._check_owner, self._claim.epoch))

    def _check_owner(self, epoch: int) -> None:
        """A later owner counts once it has made a journal object."""
        if not self._objects.list(OWNER, owner_name(epoch)):
            return
        last = last_header(self._objects, self.position.number)
        if last is not None and last.epoch > epoch:
            raise _fenced(last, epoch)

    def _look_for_standbys(self) -> None:
        """Beat as often as the standbys need, which tell of themselves now and then."""
        found = [each.name for each in self._objects.list(STANDBY)]
        if found:
            self._objects.remove(found)
            standbys = {
                each.removeprefix(STANDBY).rpartition("-")[0]: (number_of(each) / 1000, self._now())
                for each in found[:STANDBYS_MAX]
            }
            self._standbys = dict([*self._standbys.items(), *standbys.items()][-STANDBYS_MAX:])
            shortest_s = min(number_of(each) for each in found) / 1000
            self._beat_s = min(BEAT_S, shortest_s / BEATS_A_TAKEOVER)
            self._beats_until = self._now() + STANDBY_S

    def _make_beat(self, epoch: int) -> None:
        count, self._beats = self._beats, self._beats + 1
        beat = Beat(epoch, self._wall(), self.position.lsn, self._beat_s)
        try:
            self._objects.create(beat_name(epoch, count), encode_json(beat))
        except ObjectExists:
            pass  # an attempt whose answer was lost
        if count >= BEATS_KEPT:
            self._objects.remove([beat_name(epoch, count - BEATS_KEPT)])

    # Claiming.

    async def _claim_replica(self) -> None:
        """Become the owner. The first object of a claim is empty, and keeps all others out; where
        an earlier owner made one first, the claim is made anew behind that."""
        assert self._opened is not None, "the store is open"
        number, wall = self.position.number, self._wall()
        work = partial(claim, self._objects, self._claimant, number, wall, self._check_new)
        found: Claim = await self._in_thread(work)
        history, after_lsn = self._take_over(found)
        self._previous = b"" if found.last is None else found.last.digest
        self.position = msgspec.structs.replace(
            self.position,
            number=found.number,
            history=history,
            lsn=after_lsn,
            salt=self._opened.salt,
            runs=(self._claimant.run,),
            mark=b"",
        )
        self._claim, self._epoch = found, found.epoch
        self.owner_since = self._wall()
        begins_at = self._waiting[0].after_lsn if self._waiting else self._taken_lsn
        self._attempt = self._object([], after_lsn, self._now(), self._wall(), begins_at)
        await self._make(self._attempt)
        text = "replica claimed: epoch=%d number=%d history=%d lsn=%d"
        log.info(text, found.epoch, found.number, history, after_lsn)

    def _take_over(self, found: Claim) -> tuple[int, int]:
        """The history that goes on, and the lsn behind which it does."""
        assert self._opened is not None
        self._check_standing(found)
        continues = self._is_marked(found)
        rest, last = self._unshipped(found), found.last
        self._is_first = False
        opened = self._opened
        self._opened = msgspec.structs.replace(opened, suffix=None)  # it may be large
        if rest is not None and last is not None:
            if rest:
                size = sum(len(record) for _, record in rest)
                parts = _parts(rest, last.last_lsn, opened.lsn, self._now(), self._wall())
                self._waiting.extendleft(reversed(parts))
                self.lag_bytes += size
            self._waits_behind, self._writer = last.last_lsn, last.salt
            return last.history, last.last_lsn
        self._writer = opened.writer
        if continues and last is not None:
            self._continues, self._restorable_history = True, last.history + 1
            return last.history + 1, self._waits_behind
        self.breaks += 1
        self._restorable_history = -1  # also if an earlier claim of this number was given up
        return (0 if last is None else last.history) + 1, self._waits_behind

    def _check_standing(self, found: Claim) -> None:
        """A node whose replica went on without it must not claim that: acknowledged records of the
        other node would be lost. That holds also for a claim that is made anew, after what waited
        was given up. A folder that was restored may claim, as nobody shipped from it."""
        position, last = self._found, found.last
        if last is None or last.digest == position.mark:
            return
        if last.run in (self._claimant.run, position.run, *position.runs):
            return
        if self._epoch and last.epoch > self._epoch:
            raise _fenced(last, self._epoch)
        if position.run or position.mark:
            raise Superseded(
                f"another process has shipped to this replica since this data folder did: it made "
                f"{journal_name(last.number)} in epoch {last.epoch}; start this node with "
                "--standby, or restore the replica into a new folder",
                last.epoch,
            )

    def _is_marked(self, found: Claim) -> bool:
        """True: the store is what the replica has, and nothing was written to it since."""
        assert self._opened is not None
        last, suffix = found.last, self._opened.suffix
        is_marked = last is not None and last.digest == self._found.mark
        return self._is_first and is_marked and suffix is not None and not suffix.records

    def _unshipped(self, found: Claim) -> list[tuple[int, bytes]] | None:
        """The records of earlier runs that are not shipped, by their lsn, if these follow what is:
        the last object tells of a run that the journal has up to there, or was empty and made by
        the last run on this folder."""
        opened, last = self._opened, found.last
        if not self._is_first or opened is None or opened.suffix is None or last is None:
            return None
        suffix = opened.suffix
        is_claim_of_ours = not last.size and last.run == self._last_run
        if not is_claim_of_ours and not suffix.has(last.last_lsn, last.salt):
            return None
        if last.last_lsn < self.position.lsn:
            return None
        return [
            (each.lsn, encode_record(opened.salt, each.lsn, each.kind, each.name, each.body))
            for each in suffix.records
            if each.lsn > last.last_lsn
        ]

    # Shipping.

    async def _ship(self) -> None:
        """Make one object of what waits, or the one whose outcome is unknown."""
        if self._attempt is None:
            await self._gather()
            self._attempt = self._next()
        await self._make(self._attempt)

    async def _gather(self) -> None:
        while not self._waiting:
            self._wake = anyio.Event()
            await self._wake.wait()
        left_s = self._waiting[0].taken_at + GATHER_S - self._now()
        is_awaited = any(each.is_awaited for each in self._waiting)
        if left_s > 0 and not is_awaited and self.lag_bytes < OBJECT_BYTES:
            self._wake = anyio.Event()
            with anyio.move_on_after(left_s):
                await self._wake.wait()

    def _next(self) -> _Attempt:
        """The next object: what waits, up to a size, and up to a span of time, so that a moment of
        an outage can be restored."""
        first = some = self._waiting.popleft()
        records, size = [*first.records], first.size
        awaited_at = first.taken_at if first.is_awaited else 0.0
        while self._waiting and self._goes_with(self._waiting[0], first.stored_at, size):
            some = self._waiting.popleft()
            records += some.records
            size += some.size
            awaited_at = awaited_at or (some.taken_at if some.is_awaited else 0.0)
        self._attempted_bytes = size
        taken_at, after_lsn = first.taken_at, first.after_lsn
        made = self._object(records, some.last_lsn, taken_at, some.stored_at, after_lsn)
        return msgspec.structs.replace(made, awaited_at=awaited_at)

    def _goes_with(self, some: _Waiting, stored_at: float, size: int) -> bool:
        is_near = abs(some.stored_at - stored_at) <= OBJECT_S
        return is_near and size + some.size <= OBJECT_BYTES_MAX

    def _object(
        self,
        records: Iterable[bytes],
        last_lsn: int,
        taken_at: float,
        made_at: float,
        after_lsn: int,
    ) -> _Attempt:
        claim, position = self._claim, self.position
        assert claim is not None, "objects are made by the owner"
        some = list(records)
        body = journal_body(position.salt, some, position.lsn)
        header = JournalHeader(
            version=FORMAT_VERSION,
            number=position.number,
            epoch=claim.epoch,
            history=position.history,
            node=self._claimant.node,
            run=self._claimant.run,
            made_at=made_at,
            after_lsn=position.lsn,
            last_lsn=last_lsn,
            salt=position.salt if some else self._writer,
            previous=self._previous,
            size=len(body),
            sha256=sha256(body).digest(),
            continues=self._continues,
        )
        self._continues = False
        return _Attempt(header, encode_journal_object(header, body), taken_at, after_lsn)

    async def _make(self, attempt: _Attempt) -> None:
        header = attempt.header
        try:
            await self._in_thread(partial(self._create, attempt))
        except Superseded as exc:
            if exc.epoch > header.epoch:
                raise
            if self._attempt is attempt:
                self._attempt = self._claim = None
            raise ObjectStoreAway("the earlier owner ships still: it is kept out next") from exc
        if self._attempt is not attempt:
            return  # given up meanwhile
        self._attempt = None
        self._previous = header.digest
        self.lag_bytes -= self._attempted_bytes
        self._attempted_bytes = 0
        self.position = msgspec.structs.replace(
            self.position, number=header.number + 1, lsn=header.last_lsn
        )
        self.objects_made += 1
        self.bytes_made += len(attempt.data)
        if self.state is not ShippingState.SHIPPING:
            self.state, self.error = ShippingState.SHIPPING, ""
            log.info("replica ships: number=%d lag_bytes=%d", header.number, self.lag_bytes)
        self._went_on()

    def _create(self, attempt: _Attempt) -> None:
        """Make the object. It is there already: ours, or somebody else owns the replica."""
        name = journal_name(attempt.header.number)
        try:
            self._objects.create(name, attempt.data)
        except ObjectExists:
            there, _ = decode_journal_object(self._objects.get(name), name)
            if there != attempt.header:
                raise _fenced(there, attempt.header.epoch) from None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            with anyio.fail_after(ANSWER_S):
                return await anyio.to_thread.run_sync(
                    work, abandon_on_cancel=True, limiter=self._threads
                )
        except TimeoutError as exc:
            raise ObjectStoreAway(f"no answer within {ANSWER_S:.0f} s") from exc

    def _failed(self, error: Exception) -> None:
        if self.state is not ShippingState.AWAY:
            log.warning("replica away: error=%s", error)
        self.state, self.error = ShippingState.AWAY, str(error)
        if self.is_behind:
            self._give_up()

    def _give_up(self) -> None:
        """Let go of what waits: clients do not wait for an object store that is away."""
        log.warning("replica left behind: lag_bytes=%d; a snapshot follows", self.lag_bytes)
        self._waiting.clear()
        self._attempt = self._claim = None
        self.lag_bytes = self._attempted_bytes = 0
        self._is_first = False
        self._waits_behind = self._taken_lsn
        self._release()


def _parts(
    rest: list[tuple[int, bytes]], after_lsn: int, last_lsn: int, now: float, wall: float
) -> list[_Waiting]:
    """Records of earlier runs, as much at once as goes into an object: they may be a journal."""
    parts: list[_Waiting] = []
    records: list[bytes] = []
    size = 0
    for at, (lsn, record) in enumerate(rest, 1):
        records.append(record)
        size += len(record)
        if size >= OBJECT_BYTES or at == len(rest):
            is_last = at == len(rest)
            end = last_lsn if is_last else lsn
            parts.append(_Waiting(records, end, size, now, wall, after_lsn))
            records, size, after_lsn = [], 0, end
    return parts


def _fenced(there: JournalHeader, epoch: int) -> Superseded:
    """The error of an owner of `epoch`, where another one made an object."""
    return Superseded(
        f"another process ships to this replica since epoch {there.epoch}: it made "
        f"{journal_name(there.number)}, and this node, of epoch {epoch}, serves no more",
        there.epoch,
    )
