"""A node's store and channels on a simulated disk, over many boots.

One seed is one history: which client requests what, when a worker steps, when a call of the disk
fails, when the power does. Everything is checked as it is shown, and everything there is after each
restart.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TypeVar

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.settings import ChannelSettings, DeliverySettings
from millpond.actors.ids import IdSource
from millpond.actors.messages import Attach, Batch, CellMessage, Durability, Mode, Port, Put
from millpond.actors.positions import SeekBy
from millpond.actors.runtime.scheduler import Scheduler, SchedulerSettings
from millpond.actors.store.changes import Chunk, LogSnapshot, Snapshot, StoredKey
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Deferred, Fault, Seek
from millpond.actors.store.partitions.catalog import CATALOG
from millpond.actors.store.partitions.file_pool import file_name, is_file_name
from millpond.node.testing.disk.damage import DamageKind
from tests.sim.clients import Client, ClientModel
from tests.sim.damage import DamageLog, rows_of
from tests.sim.disk import SimDisk
from tests.sim.faults import Crashed
from tests.sim.loop import FOREIGN, Clock, LogCapture, Loop
from tests.sim.plan import Plan
from tests.sim.queue_facts import Fact, Level, QueueFacts, View
from tests.sim.recording_store import Broken, RecordingStore
from tests.sim.snapshots import Snapshots

T = TypeVar("T")

START_S = 1_763_683_200.0
DEAD = b"!dead"
PASSES_MAX = 2_000
"""So many steps of all workers finish everything."""


class World:
    """`folder` is real and empty; the node's files are in its folder `node`."""

    store_class: type[DurableStore] = DurableStore
    disk_class: type[SimDisk] = SimDisk

    def __init__(self, plan: Plan, rng: Random, folder: Path, log_capture: LogCapture) -> None:
        self.plan = plan
        self.rng = rng
        self.clock = Clock(START_S)
        self.home = folder / "node"
        self.disk = self.disk_class(Random(rng.getrandbits(32)), folder, garbage=plan.garbage)
        self.ledger = RecordingStore(lambda: self.clock.now, self._durability)
        self.ledger.may_leave = self._may_leave
        self.ledger.newest_segment = lambda: self.disk.newest(".journal")
        self.ledger.make_facts = self._facts_of
        self.models = {
            name: ClientModel(name, mode)
            for stem, mode in plan.channels.items()
            for name in (stem, stem + DEAD)
        }
        self.snapshots = Snapshots(self)
        self.clients: list[Client] = []
        self.refused: set[bytes] = set()
        """Names that a start found damaged: they are never served again."""
        self.damage = DamageLog()
        self._is_closed = False
        """The node wrote down where its journal ends."""
        self.ledger.may_refuse = self.is_reported
        self.is_up = False
        self.is_verbose = False
        self.boots = 0
        self.store_failures = 0
        self._log_capture = log_capture
        self._level = Level.DISK
        self.puts = 0
        """Keys given out; no two PUTs have the same."""
        self._ports = 0
        self._trace = sha256()

    def trace(self, *what: object) -> None:
        """Add an event to the trace, for comparing runs."""
        self._trace.update(repr(what).encode())
        if self.is_verbose:
            print(*what)

    @property
    def history(self) -> str:
        """The history so far, in short."""
        return self._trace.hexdigest()

    def _durability(self, name: bytes) -> Durability:
        return self.plan.durability[name.removesuffix(DEAD)]

    def _facts_of(self, name: bytes) -> QueueFacts:
        facts = QueueFacts(keeps_expired=name in self.plan.keeps_expired)
        model = self.models[name]
        facts.has_acked = lambda identity, message_id: (identity, message_id) in model.said
        return facts

    def _may_leave(self, name: bytes, fact: Fact) -> bool:
        """Its time is over, its consumers are done with it, or its dead letter is kept."""
        is_over = fact.row.expires_at <= self.clock.now and name not in self.plan.keeps_expired
        if is_over or name.endswith(DEAD) or self._is_dead_letter(name, fact):
            return True
        facts, model = self.ledger.queue(name), self.models[name]
        if model.mode is Mode.FANOUT and facts.subscribers.waits_for(
            fact.row, fact.owed, facts.has_acked
        ):
            return False
        return fact.row.id in model.acked

    def _is_dead_letter(self, name: bytes, fact: Fact) -> bool:
        dead = self.ledger.queue(name + DEAD).facts.values()
        level = self.ledger.promised(name).level
        return any(
            each.row.origin is not None
            and each.row.origin.id == fact.row.id
            # Writes that a restart found are durable, and came with no write of this boot.
            and (
                each.write.level >= level
                or each.write.boot < self.ledger.boot
                or not each.write.changes
            )
            for each in dead
        )

    # Boots.

    def boot(self) -> None:
        """Start the node, as often as it takes, and check everything that is there."""
        while not self.is_up:
            has_trouble = self.disk.faults.is_failing
            try:
                self._open()
                self.disk.faults.heal()
                self._look_at_everything()
            except Crashed:
                self._lose_power()
            except FOREIGN as exc:
                if not has_trouble:
                    raise Broken(f"the node does not start: {exc!r}") from exc
                self.trace("does not start", type(exc).__name__)
                self.disk.faults.heal()
                self.disk.end_process()
            else:
                self._start_cells()
                self.is_up = True
                self.boots += 1

    @property
    def served(self) -> list[bytes]:
        """The channels that are served, without those of dead letters."""
        return [name for name in self.plan.channels if not self.is_reported(name)]

    def is_reported(self, name: bytes) -> bool:
        """Does the store report damage of this name? Only where a file was damaged."""
        is_reported = name in self.refused or self._is_listed(name)
        if is_reported and not self.damage.places:
            raise Broken(f"{name!r} is damaged, on a sound disk: {self.store.damages}")
        return is_reported

    def _is_listed(self, name: bytes) -> bool:
        is_kept = self.ledger.durability(name) is not Durability.MEMORY
        return any(each.name == name or (each.is_all and is_kept) for each in self.store.damages)

    def _open(self) -> None:
        self.loop = Loop(self.clock, Random(self.rng.getrandbits(32)))
        self.store = self.store_class(
            self.home, self.disk, self.plan.settings, self.loop, self._durability
        )
        self.damage.has_diverted = False
        self.store.open()
        if self.damage.is_proven and not self.store.damages:
            raise Broken("a group took the place of another one, and no damage is reported")
        self.ledger.start(self.store)

    def _start_cells(self) -> None:
        rng = Random(self.rng.getrandbits(32))
        ids = IdSource(5, last_id=self.store.last_id)
        self._shared = ChannelContext(
            ids=ids, rng=rng, usage=self.store.usage, health=self.store.health
        )
        settings = SchedulerSettings(passivate_after_s=self.plan.passivate_after_s)
        self.scheduler = Scheduler(self.ledger, self._spawn, lambda: self.clock.now, rng, settings)
        for kept in self.store.stored_queues():
            self.scheduler.adopt(kept.name, kept.deadline)

    def _spawn(self, name: bytes, snapshot: Snapshot, attachments: dict[Port, Attach]) -> Channel:
        delivery = DeliverySettings(ack_timeout_s=5.0, attempts_max=3)
        keeps_expired = name in self.plan.keeps_expired
        mode = self.models[name].mode
        settings = ChannelSettings(mode=mode, delivery=delivery, dead_letter_expired=keeps_expired)
        return Channel(name, snapshot, attachments, settings, self._shared)

    def _look_at_everything(self) -> None:
        """Check that every partition is right after such an end, and has the size it reports."""
        view = View(self._level, is_restart=True, now=self.clock.now)
        found = [0, 0, 0]
        for name in self.models:
            snapshot = self._finish(name, self.store.load(name))
            if snapshot is None:
                continue
            if name in self.damage.changed:
                raise Broken(f"{name!r} is served, and its file has other rows than were written")
            self.ledger.found_queue(name, snapshot, view)
            found[0] += len(snapshot.rows)
            found[1] += sum(len(row.data) for row in snapshot.rows)
            found[2] += sum(isinstance(each, StoredKey) for each in snapshot.keys.values())
            found[2] += 0 if snapshot.subscribers is None else len(snapshot.subscribers.by_number)
        usage = self.store.usage
        if [usage.messages, usage.bytes, usage.keys] != found and not self.refused:
            raise Broken(f"usage is {usage}, and there is {found}")
        for name in self.plan.logs:
            outline = self._finish(name, self.store.log_snapshot(name))
            chunks = None if outline is None else self._read_all(name, outline)
            if outline is not None and chunks is not None:
                self.ledger.found_log(name, outline, chunks, view)
        self._check_damages()

    def _check_damages(self) -> None:
        """Exactly the reported cells are refused, and only damaged ones are reported."""
        damages, log = self.store.damages, self.damage
        for name in (*self.models, *self.plan.logs):
            if self._is_listed(name) and name not in self.refused:
                self._load(name)  # a flush found it behind the last answer
            if self._is_listed(name) and name not in self.refused:
                raise Broken(f"{name!r} is served, and reported: {damages}")
            if name in self.refused and not self._is_listed(name):
                raise Broken(f"{name!r} is refused, and not reported: {damages}")
        others = self.refused - log.names
        if others and log.is_of_files:
            raise Broken(f"{others} are refused, and the files of {log.names} were damaged")
        level = max(self._level, Level.OS)
        if any(each.is_all for each in damages):
            return  # nothing gets an id before it is repaired
        if self.store.last_id < self.ledger.last_id(level):
            raise Broken(f"id {self.ledger.last_id(level)} may come again")

    def _load(self, name: bytes) -> Snapshot | LogSnapshot | None:
        """The content of a queue, or the metadata of a log; None: the store refuses the name."""
        if name in self.models:
            return self._finish(name, self.store.load(name))
        return self._finish(name, self.store.log_snapshot(name))

    def _read_all(self, name: bytes, outline: LogSnapshot) -> list[Chunk] | None:
        chunks: list[Chunk] = []
        at = outline.trim_point
        while at < outline.tail:
            seek = Seek(SeekBy.SEQUENCE, at, bytes_max=self.rng.choice((1, 1000, 100_000)))
            some = self._finish(name, self.store.read(name, seek))
            if some is None:
                return None
            if not some:
                break
            chunks += some
            at = chunks[-1].end
        return chunks

    def _finish(self, name: bytes, answer: T | Deferred[T | Fault]) -> T | None:
        """The store's answer, once its workers have stepped for it; None: it refuses the name."""
        if not isinstance(answer, Deferred):
            return answer
        results: list[T | Fault] = []
        answer.when_done(results.append)
        for _ in range(PASSES_MAX):
            if results:
                break
            self.loop.work(idle=False)
        (result,) = results or [Fault.UNREADABLE]
        if result is Fault.DAMAGED and self.is_reported(name):
            self.refused.add(name)
            return None
        if isinstance(result, Fault):
            raise Broken(f"{name!r} is {result}, and there is no report: {self.store.damages}")
        if name in self.refused:
            raise Broken(f"{name!r} was refused, and is served again")
        return result

    # Damage.

    def divert(self, kind: DamageKind) -> None:
        """The next write of the journal is lost, or goes elsewhere."""
        self.trace("divert", kind.value)
        self.disk.divert(kind.value)
        self.damage.places.append(f"{kind.value}, boot {self.boots}")
        self.damage.is_of_files = False
        self.damage.has_diverted = True

    def damage_file(self, kind: DamageKind) -> None:
        """Some file is damaged while the node is down."""
        disk, log = self.disk, self.damage
        match kind:
            case DamageKind.STALE:
                paths = disk.copies()
            case DamageKind.STALE_PAGE:
                paths = [path for path in disk.changed() if is_file_name(path.name)]
            case _:
                paths = disk.paths()
        if not paths:
            return
        self.damage.is_proven = False
        path = self.rng.choice(paths)
        open_segment = None if self._is_closed else disk.newest(".journal")
        before = path.read_bytes() if path.exists() else b""
        if not disk.damage(kind.value, path):
            return
        self.trace("damage", kind.value, path.name)
        log.places.append(f"{kind.value} {path.name}, boot {self.boots}")
        names = {each for each in self._all_names if file_name(each).endswith(path.name)}
        log.names |= names
        log.is_of_files &= bool(names)
        if names & self.models.keys():
            after = path.read_bytes() if path.exists() else b""
            log.changed |= names if rows_of(before) != rows_of(after) else set()
        if path == open_segment:
            self._doubt_segment(self.disk.newest(".journal"))

    def lose_catalog(self) -> None:
        """The catalog is lost while the node is down, and perhaps segments and files with it."""
        paths = self.disk.paths()
        catalog = [path for path in paths if path.name == CATALOG]
        segments = [path for path in paths if path.suffix == ".journal"]
        files = [path for path in paths if path not in (*catalog, *segments)]
        some = self.rng.sample(files, min(1, len(files)))
        more = self.rng.choice(([], segments[-1:], segments, some, segments + files))
        if not catalog:
            return
        self.damage.is_proven = False
        for path in (*catalog, *more):
            self.disk.damage(DamageKind.MISSING.value, path)
            self.damage.places.append(f"missing {path.name}, boot {self.boots}")
            self.trace("missing", path.name)
        self.damage.is_of_files = False

    @property
    def _all_names(self) -> list[bytes]:
        return [*self.models, *self.plan.logs]

    def _doubt_segment(self, segment: Path | None) -> None:
        """The end of the open segment cannot be told from a torn tail: what this boot wrote there
        may be lost."""
        self.ledger.doubt(segment)
        for model in self.models.values():
            model.forget_promises()

    # Ends.

    def crash(self) -> None:
        """The power fails."""
        self.trace("crash")
        self._hang_up()
        self._lose_power()

    def _lose_power(self) -> None:
        self.disk.lose_power()
        self.damage.is_proven = False
        self._expect(Level.DISK)

    def _expect(self, level: Level) -> None:
        """Writes at least this safe must be there at the next start."""
        self._level = level
        if self.damage.has_diverted and not self._is_closed:
            self._doubt_segment(self.disk.newest(".journal"))
        for name, model in self.models.items():
            durability = self._durability(name)
            is_promised = durability is Durability.DISK or level < Level.DISK
            if durability is Durability.MEMORY or not is_promised:
                model.forget_promises()

    def kill(self) -> None:
        """The process ends; what it wrote is still in the system's memory.

        Where the journal failed before, only what was synced is promised.
        """
        self.trace("kill")
        self._hang_up()
        self.disk.end_process()
        self.damage.is_proven = self.disk.shows_misplaced()
        self._expect(Level.DISK if self.store.health.failures else Level.OS)

    def close(self) -> None:
        """The node stops as it should, and everything it took is there afterwards."""
        self.trace("close")
        self._log_capture.take_failure()
        is_sound = self.store.health.is_writable and not self.disk.faults.is_failing
        self.store.close()
        self._hang_up()
        self.disk.end_process()
        has_failed = self._log_capture.take_failure() or bool(self.store.health.failures)
        if self.damage.places and has_failed:
            is_sound = False  # a damaged catalog was found only now
        self._is_closed = is_sound
        if is_sound:
            self._expect(Level.OPEN)
        else:
            self._expect(Level.DISK if has_failed else Level.OS)

    def _hang_up(self) -> None:
        self.is_up = self._is_closed = False
        self.store_failures += self.store.health.failures
        self.snapshots.drop()
        for client in self.clients:
            client.hang_up()
        self.clients.clear()

    # The events of a boot. Any of them may raise Crashed.

    def join(self, name: bytes, *, push: bool, identity: bytes | None = None) -> Client:
        """A connection; one that is pushed messages may ack them."""
        self._ports += 1
        client = Client(self.models[name], self.ledger, self._ports, self.clock, self.rng)
        client.identity = identity
        self.clients.append(client)
        join = Attach(push=push, keep_alive_s=1e9, identity=identity)
        self.scheduler.attach(name, client, join, self.clock.now)
        self.loop.finish_pass()
        return client

    def leave(self, client: Client) -> None:
        self.clients.remove(client)
        client.hang_up()
        self.scheduler.detach(client.model.name, client)
        self.loop.finish_pass()

    def say(self, client: Client, messages: list[CellMessage]) -> None:
        """One read of a connection."""
        size = sum(len(each.data) + 16 for each in messages if isinstance(each, Put))
        batch = Batch(client, messages, size)
        self.scheduler.submit(client.model.name, batch, self.clock.now)
        self.loop.finish_pass()

    def turn(self) -> None:
        """Everything that is due, and everything in mailboxes."""
        self.scheduler.turn(self.clock.now)
        self.loop.finish_pass()

    def listen(self) -> None:
        """Nothing went wrong that the disk is not to blame for."""
        if self._log_capture.surprise is not None:
            record = self._log_capture.surprise
            error = record.exc_info[1] if record.exc_info else None
            raise Broken(f"{record.getMessage()}: {error!r}") from error
