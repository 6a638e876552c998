"""The store in Redis, with a real server: what is written is what cells are built from, whatever
the server, the network and other nodes do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millpond.actors.messages import Durability, Mode
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    Chunk,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    MessageRemoved,
    MetadataSet,
    ModeSet,
    Position,
    Snapshot,
    StoredMessage,
)
from millpond.actors.store.interface import Deferred, Fault, Seek, Usage
from millpond.actors.store.memory import MemoryStore
from millpond.actors.store.redis.commands import Command, PackedCommand
from millpond.actors.store.redis.connection import (
    RedisConnection,
    RedisUrl,
    connect_redis,
    parse_redis_url,
)
from millpond.actors.store.redis.errors import (
    RedisAway,
    RedisConfigError,
    RedisMoving,
    RedisRefused,
    StoreLost,
)
from millpond.actors.store.redis.store import PENDING_BYTES_MAX, RedisStore
from tests.actors.store.harness import NOW
from tests.actors.store.queue_model import Queue
from tests.redis_server import RedisServer, needs_redis, redis_cluster, redis_server
from tests.sim.loop import Clock, Loop

pytestmark = [needs_redis, pytest.mark.crash]

NAME = "orders/{7} é".encode()
LOG = b"streams/{orders}"
DATA_KEY = "millpond:{streams/%7Borders%7D}:data"
ALL = Seek(SeekBy.SEQUENCE, bytes_max=2**40)


class Run:
    """A store from its opening to its end, whose worker steps when it is told to."""

    def __init__(
        self,
        url: str,
        owner: str = "host a",
        asked: Durability = Durability.DISK,
        connect: Callable[[RedisUrl], RedisConnection] = connect_redis,
        clock: Clock | None = None,
    ) -> None:
        self.clock = Clock(NOW) if clock is None else clock
        self.loop = Loop(self.clock, Random(1))
        self.store = RedisStore(parse_redis_url(url), connect, self.loop, lambda _: asked)
        self.lost: list[StoreLost] = []
        self.store.on_lost = self.lost.append
        self.store.open(asked, owner)

    def work(self, *, idle: bool = False) -> None:
        self.loop.work(idle=idle)
        while self.loop.work(idle=False):
            pass

    def finish(self, answer: Any) -> Any:
        if not isinstance(answer, Deferred):
            return answer
        results: list[Any] = []
        answer.when_done(results.append)
        self.loop.finish_pass()
        self.work()
        (result,) = results
        return result

    def write(self, name: bytes, *changes: Change) -> Fault | None:
        result: Fault | None = self.finish(self.store.write(name, changes))
        self.work()
        return result

    def load(self, name: bytes = NAME) -> Snapshot:
        result = self.finish(self.store.load(name))
        assert isinstance(result, Snapshot)
        return result

    def log_snapshot(self) -> LogSnapshot:
        result = self.finish(self.store.log_snapshot(LOG))
        assert isinstance(result, LogSnapshot)
        return result

    def read(self, seek: Seek = ALL) -> list[Chunk]:
        result = self.finish(self.store.read(LOG, seek))
        assert isinstance(result, list)
        return result


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def url(server: RedisServer) -> str:
    server.command("FLUSHALL")
    return server.url


@pytest.fixture(params=["server", "cluster"])
def any_url(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[str]:
    """The URL of one server, or of a cluster."""
    if request.param == "server":
        yield url
    else:
        with redis_cluster(tmp_path) as cluster:
            yield cluster.url


def put(number: int, size: int = 3) -> StoredMessage:
    return StoredMessage(number, number, 60, NOW + 60, bytes(size))


def chunk(first: int, count: int = 10, size: int = 600) -> Chunk:
    last = first + count - 1
    ids = Position(first, 0), Position(last, 0)
    stamps = min(10 * first, 2**64 - 1), min(10 * last, 2**64 - 1)
    return Chunk(first, count, *stamps, *ids, bytes([first % 256]) * size)


@pytest.mark.parametrize("seed", range(4))
def test_a_queue_is_what_its_changes_made(url: str, seed: int) -> None:
    run, model = Run(url), Queue(Random(seed))
    for step in range(150):
        if changes := model.step():
            assert run.write(NAME, *changes) is None
        if step % 25 == 0:
            expected = model.snapshot
            if not expected.rows and not expected.keys and expected.subscribers is None:
                expected.mode = None
            assert run.load() == expected
    usage = run.store.usage
    assert (usage.messages, usage.bytes, usage.keys) == model.weight
    run.store.close()
    again = Run(url)
    assert again.load() == model.snapshot and again.store.usage == usage
    assert again.store.last_id == max(model.id, 0) or not model.rows
    again.store.close()


def log_changes(rng: Random, tail: int) -> list[Change]:
    """Some change of a log with this tail."""
    match rng.randrange(8):
        case 0:
            return [LogTrimmed(rng.randrange(tail + 1), 5)]
        case 1:
            return [MetadataSet(b"type", rng.choice((None, b"json")))]
        case 2 if rng.random() < 0.2:
            return [LogDeleted(), chunk(0, rng.randint(1, 5))]
        case _:
            return [chunk(tail, rng.randint(1, 9), rng.randint(1, 900))]


@pytest.mark.parametrize("seed", range(4))
def test_a_log_reads_as_one_in_memory(url: str, seed: int) -> None:
    rng, run, memory = Random(seed), Run(url), MemoryStore()
    for step in range(120):
        tail = memory.log_snapshot(LOG).tail
        changes = log_changes(rng, tail)
        assert run.write(LOG, *changes) is None
        memory.write(LOG, changes)
        if step == 60:
            run.store.close()
            run = Run(url)
        for by in SeekBy:
            at = rng.randrange(tail + 2)
            limits = rng.choice((1, 500, 2**20)), rng.choice((1, 20, 2**63))
            seek = Seek(by, at if by is SeekBy.SEQUENCE else 0, 10 * at, Position(at, 0), *limits)
            assert run.read(seek) == memory.read(LOG, seek), (step, seek)
        found, expected = run.log_snapshot(), memory.log_snapshot(LOG)
        found.bytes = expected.bytes = 0
        assert found == expected
        assert run.store.log_tail(LOG) == tail or changes
    run.store.close()


@pytest.mark.parametrize("first", [10**10 - 5, 2**53 - 5, 2**63 - 5, 2**64 - 100])
def test_a_trim_is_exact_beyond_the_numbers_of_scripts(url: str, first: int) -> None:
    run = Run(url)
    chunks = [chunk(first + each, 1) for each in range(10)]
    chunks.append(chunk(first + 10, 9))
    assert run.write(LOG, *chunks) is None
    for point in [*range(first, first + 11), first + 18]:
        assert run.write(LOG, LogTrimmed(point, 0)) is None
        left = [each for each in chunks if each.end > point]
        assert run.read() == left and run.log_snapshot().trim_point == point
        assert run.store.connection.run([("HLEN", DATA_KEY)]) == [len(left)]
    assert run.write(LOG, LogTrimmed(first + 19, 0)) is None
    assert run.read() == [] and run.log_snapshot().tail == first + 19
    run.store.close()


def test_the_last_sequence_of_all_is_trimmed(url: str) -> None:
    run, first = Run(url), 2**64 - 3
    assert run.write(LOG, chunk(first, 2)) is None
    assert run.read() == [chunk(first, 2)] and run.log_snapshot().tail == 2**64 - 1
    assert run.write(LOG, LogTrimmed(2**64 - 2, 0)) is None
    assert run.read() == [chunk(first, 2)]
    assert run.write(LOG, LogTrimmed(2**64 - 1, 0)) is None
    assert run.read() == []
    run.store.close()


def test_partitions_are_on_one_server_or_in_a_cluster(any_url: str) -> None:
    run = Run(any_url)
    names = [b"c/%d" % each for each in range(40)]
    commits = [run.store.write(name, [ModeSet(Mode.QUEUE), put(7)]) for name in names]
    assert [run.finish(each) for each in commits] == [None] * 40
    assert run.write(LOG, chunk(0), MetadataSet(b"a", b"b")) is None
    run.store.close()
    again = Run(any_url)
    assert {each.name for each in again.store.stored_queues()} == set(names)
    assert [*again.store.logs()] == [LOG] and again.read() == [chunk(0)]
    assert all(again.load(name).rows == [put(7)] for name in names)
    again.store.save_facts({"instance": 5})
    again.store.close()
    third = Run(any_url)
    assert third.store.facts == {"instance": 5}
    third.store.close()


def test_nothing_is_left_of_an_empty_partition(server: RedisServer, url: str) -> None:
    run = Run(url)
    run.write(NAME, ModeSet(Mode.QUEUE), put(1), AttemptsSet(1, 2))
    run.write(LOG, chunk(0), MetadataSet(b"a", b"b"))
    assert server.command("DBSIZE") == "11"
    run.write(NAME, MessageRemoved(1, 1, None, 3))
    run.write(LOG, LogDeleted(600))
    left = sorted(server.command("KEYS", "*").split())
    assert left == ["millpond:epoch", "millpond:format", "millpond:owner"]
    assert run.store.usage == Usage() and run.load() == Snapshot()
    # Two in one go: the second write follows the one that emptied the partition.
    first = run.store.write(NAME, [put(2), MessageRemoved(2, 2, None, 3)])
    second = run.store.write(NAME, [put(3)])
    assert run.finish(first) is None and run.finish(second) is None
    run.work()
    assert run.load().rows == [put(3)]
    run.store.close()


# Failures.


class Flaky:
    """A connection of which some calls fail, before or after the server has done them."""

    def __init__(self, inner: RedisConnection, rng: Random) -> None:
        self._inner = inner
        self._rng = rng
        self.chance = 0.0

    def run(self, commands: Sequence[Command]) -> list[Any]:
        fails = self._rng.random() < self.chance
        is_early = self._rng.random() < 0.3
        if fails and is_early:
            raise RedisAway("cut before")
        some = commands[: self._rng.randint(1, len(commands))] if fails else commands
        replies = self._inner.run(some)
        if fails:
            raise RedisAway("cut after")
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("seed", range(6))
def test_writes_are_done_once_however_often_the_connection_is_cut(url: str, seed: int) -> None:
    rng = Random(seed)
    connection = Flaky(connect_redis(parse_redis_url(url)), rng)
    run, model, tail = Run(url, connect=lambda _: connection), Queue(rng), 0
    acked: list[Fault | None] = []
    connection.chance = 0.3
    sent = 0
    for _ in range(80):
        for _ in range(rng.randint(1, 5)):
            # As cells do: what is refused at once was never taken.
            is_refusing = not run.store.health.is_writable
            if is_refusing:
                continue
            if changes := model.step():
                commit = run.store.write(NAME, changes)
                if commit is not None:
                    commit.when_done(acked.append)
                    sent += 1
            run.store.write(LOG, [chunk(tail)]).when_done(acked.append)  # type: ignore[union-attr]
            sent += 1
            tail += 10
        run.work(idle=rng.random() < 0.7)
    connection.chance = 0.0
    run.work(idle=True)
    run.work(idle=True)
    assert acked == [None] * sent and run.store.health.is_writable
    assert run.load().rows == model.snapshot.rows
    assert [each.first for each in run.read()] == [*range(0, tail, 10)]
    run.store.close()


def test_while_redis_is_away_new_writes_are_refused_and_sent_ones_wait(url: str) -> None:
    connection = Flaky(connect_redis(parse_redis_url(url)), Random(1))
    run = Run(url, connect=lambda _: connection)
    assert run.write(NAME, put(1)) is None
    connection.chance = 1.0
    waiting, results = run.store.write(NAME, [put(2)]), list[Fault | None]()
    assert waiting is not None
    waiting.when_done(results.append)
    run.work()
    assert not results and not run.store.health.is_writable
    assert "away" in run.store.health.reason
    assert run.write(NAME, put(3)) is Fault.NOT_STORED
    assert run.finish(run.store.load(NAME)) is Fault.UNREADABLE
    assert run.store.write(NAME, [MessageRemoved(1, 1, None, 3)]) is None
    connection.chance = 0.0
    run.work()
    run.work(idle=True)
    assert results == [None] and run.store.health.is_writable
    assert run.load().rows == [put(2)]
    run.store.close()


def test_a_node_ends_when_redis_stays_away(url: str) -> None:
    connection = Flaky(connect_redis(parse_redis_url(url)), Random(1))
    run = Run(url, connect=lambda _: connection)
    connection.chance = 1.0
    results: list[Fault | None] = []
    commit = run.store.write(NAME, [put(1)])
    assert commit is not None
    commit.when_done(results.append)
    run.work()
    assert not run.lost
    run.clock.now += 61
    run.work(idle=True)
    assert len(run.lost) == 1 and "away for 60 s" in str(run.lost[0])
    assert not results, "its outcome is not known"


def test_a_server_that_was_started_anew_ends_the_node(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis") as server:
        run = Run(server.url)
        assert run.write(NAME, put(1)) is None
        server.kill()
        run.store.write(NAME, [put(2)])
        run.work()
        server.start()
        run.work(idle=True)
        assert len(run.lost) == 1 and "started anew" in str(run.lost[0])
        again = Run(server.url)
        assert put(1) in again.load().rows
        again.store.close()


def test_a_server_that_was_started_anew_meanwhile_gets_nothing_from_the_node(
    tmp_path: Path,
) -> None:
    with redis_server(tmp_path / "redis") as server:
        run = Run(server.url)
        assert run.write(NAME, put(1)) is None
        server.kill()
        server.start()
        results: list[Fault | None] = []
        for name, changes in ((NAME, [put(2)]), (LOG, [chunk(0)])):
            commit = run.store.write(name, changes)
            assert commit is not None
            commit.when_done(results.append)
        run.work()
        run.work(idle=True)
        assert len(run.lost) == 1 and "started anew" in str(run.lost[0])
        assert not results
        again = Run(server.url)
        assert again.load().rows == [put(1)] and again.read() == []
        again.store.close()


def test_nothing_is_read_from_a_server_that_was_started_anew(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", "--appendonly", "no") as server:
        run = Run(server.url, asked=Durability.MEMORY)
        assert run.write(NAME, put(1)) is None and run.write(LOG, chunk(0)) is None
        server.kill()
        server.start()
        results: list[object] = []
        for answer in (run.store.read(LOG, ALL), run.store.load(NAME)):
            assert isinstance(answer, Deferred)
            answer.when_done(results.append)
        run.loop.finish_pass()
        run.work()
        assert results == []
        assert len(run.lost) == 1 and "started anew" in str(run.lost[0])


def test_reads_go_on_over_a_new_connection_to_the_same_server(any_url: str) -> None:
    run = Run(any_url)
    assert run.write(NAME, put(1)) is None and run.write(LOG, chunk(0)) is None
    before = run.store.connection.connects
    for client in run.store.connection._servers():
        client.connection_pool.disconnect()
    assert run.read() == [chunk(0)] and run.load().rows == [put(1)]
    assert run.store.connection.connects > before and run.lost == []
    run.store.close()


def test_a_full_server_refuses_puts_and_takes_acks(server: RedisServer, url: str) -> None:
    run = Run(url)
    assert run.write(NAME, put(1)) is None
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        commits = [run.store.write(NAME, [put(each)]) for each in (2, 3)]
        assert [run.finish(each) for each in commits] == [Fault.NOT_STORED] * 2
        assert run.write(LOG, chunk(0)) is Fault.NOT_STORED
        assert run.store.write(NAME, [MessageRemoved(1, 1, None, 3)]) is None
        run.work()
        assert run.load() == Snapshot()
        assert run.store.usage.messages == run.store.usage.log_bytes == 0
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert run.write(NAME, put(4)) is None and run.load().rows == [put(4)]
    assert run.write(LOG, chunk(0)) is None and run.read() == [chunk(0)]
    run.store.close()


class CutAfter:
    """A connection whose next call fails after the server has done all of it. With `refusal` the
    server then takes no writes."""

    def __init__(self, inner: RedisConnection) -> None:
        self._inner = inner
        self.is_cut = False
        self.refusal: RedisRefused | None = None

    def run(self, commands: Sequence[Command]) -> list[Any]:
        if self.refusal is not None and any(isinstance(each, PackedCommand) for each in commands):
            return [self.refusal for _ in commands]
        replies = self._inner.run(commands)
        if self.is_cut:
            self.is_cut = False
            raise RedisAway("cut after")
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("is_full", [True, False])
def test_a_write_whose_answer_was_lost_is_not_refused_by_a_server_that_takes_none_since(
    server: RedisServer, url: str, is_full: bool
) -> None:
    connection = CutAfter(connect_redis(parse_redis_url(url)))
    run, results = Run(url, connect=lambda _: connection), list[Fault | None]()
    assert run.write(NAME, put(1)) is None
    connection.is_cut = True
    commit = run.store.write(NAME, [put(2)])
    assert commit is not None
    commit.when_done(results.append)
    run.work()
    assert not results
    if is_full:
        server.command("CONFIG", "SET", "maxmemory", "1mb")
    else:
        connection.refusal = RedisRefused("MISCONF Errors writing to the AOF file")
    try:
        run.clock.now += 1
        run.work(idle=True)
        assert results == ([None] if is_full else []), "it is stored"
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    connection.refusal = None
    run.clock.now += 1
    run.work(idle=True)
    assert results == [None] and not run.lost
    assert run.write(NAME, put(3)) is None
    assert run.load().rows == [put(1), put(2), put(3)] and run.store.usage.messages == 3
    run.store.close()


def test_what_redis_refused_when_full_is_found_at_the_next_start_once_it_is_taken(
    server: RedisServer, url: str
) -> None:
    run = Run(url)
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        assert run.write(NAME, put(1)) is run.write(LOG, chunk(0)) is Fault.NOT_STORED
        assert [*run.store.logs(), *run.store.stored_queues()] == []
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert run.write(NAME, put(1)) is run.write(LOG, chunk(0)) is None
    run.store.close()
    again = Run(url)
    assert again.load().rows == [put(1)] and again.read() == [chunk(0)]
    again.store.close()


def test_a_write_is_refused_when_the_name_of_its_partition_is(
    server: RedisServer, url: str
) -> None:
    run = Run(url)
    server.command("SET", "millpond:partitions", "no set")
    assert run.write(NAME, put(1), ModeSet(Mode.QUEUE)) is Fault.NOT_STORED
    assert run.store.usage == Usage()
    server.command("DEL", "millpond:partitions")
    assert run.write(NAME, put(1)) is None
    run.store.close()
    again = Run(url)
    assert again.load().rows == [put(1)]
    again.store.close()


def test_facts_that_could_not_be_stored_for_now_are_an_error(url: str) -> None:
    connection = connect_redis(parse_redis_url(url))
    run, send = Run(url, connect=lambda _: connection), connection.run

    def moved(commands: Sequence[Command]) -> list[Any]:
        is_fact = [each for each in commands if each[0] == "HSET"]
        return [RedisMoving("its slot is moved") for _ in is_fact] or send(commands)

    connection.run = moved  # type: ignore[method-assign]
    with pytest.raises(RedisAway):
        run.store.save_facts({"instance": 6})
    assert run.store.facts == {}
    run.store.close()


def test_a_node_starts_while_redis_is_full(server: RedisServer, url: str) -> None:
    first = Run(url)
    first.store.save_facts({"instance": 5})
    assert first.write(NAME, put(1)) is None
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        run = Run(url)
        assert run.load().rows == [put(1)]
        assert run.store.write(NAME, [MessageRemoved(1, 1, None, 3)]) is None
        run.work()
        assert run.load() == Snapshot()
        with pytest.raises(RedisRefused):
            run.store.save_facts({"instance": 6})
        run.store.close()
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")


def test_counts_are_those_of_what_is_stored_after_a_refusal(server: RedisServer, url: str) -> None:
    run = Run(url)
    assert run.write(NAME, put(1)) is None
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    refused = run.store.write(NAME, [put(2)])
    assert refused is not None
    # The cell is built anew at once, and writes before the second answer is there.
    refused.when_done(lambda _: run.store.write(NAME, [AttemptsSet(1, 1)]))
    for number in range(3, 9):
        run.store.write(NAME, [put(number, 1000)])
    try:
        run.work()
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    run.work()
    usage = Usage(1, 3)
    assert run.store.usage == usage and run.load().rows == [put(1)]
    run.store.close()
    again = Run(url)
    assert again.store.usage == usage
    again.store.close()


def test_keys_without_a_name_are_no_content(server: RedisServer, url: str) -> None:
    run = Run(url)
    assert run.write(NAME, put(1)) is None and run.write(LOG, chunk(50)) is None
    run.store.close()
    server.command("DEL", "millpond:partitions")
    again = Run(url)
    assert again.load() == Snapshot()
    assert again.write(NAME, put(2)) is None and again.write(LOG, chunk(0)) is None
    assert again.load().rows == [put(2)] and again.read() == [chunk(0)]
    again.store.close()


def test_a_node_ends_when_its_writes_are_missing_in_redis(server: RedisServer, url: str) -> None:
    run = Run(url)
    assert run.write(NAME, put(1)) is None
    server.command("FLUSHALL")
    results: list[Fault | None] = []
    commit = run.store.write(NAME, [put(2)])
    assert commit is not None
    commit.when_done(results.append)
    run.work()
    assert not results and len(run.lost) == 1 and "missing" in str(run.lost[0])


def test_scripts_that_were_flushed_are_loaded_again(server: RedisServer, url: str) -> None:
    run, results = Run(url), list[Fault | None]()
    server.command("SCRIPT", "FLUSH")
    commit = run.store.write(NAME, [put(1)])
    assert commit is not None
    commit.when_done(results.append)
    run.work()
    run.work(idle=True)
    assert results == [None] and not run.lost
    run.store.close()


def test_a_store_that_closes_while_redis_is_away_sends_what_waits_once_it_is_back(url: str) -> None:
    connection = Flaky(connect_redis(parse_redis_url(url)), Random(1))
    run = Run(url, connect=lambda _: connection)
    assert run.write(NAME, put(1), put(2)) is None
    connection.chance = 1.0
    run.store.write(NAME, [put(3)])
    run.work()
    # The node has told of this one.
    assert run.store.write(NAME, [MessageRemoved(1, 1, None, 3)]) is None
    connection.chance = 0.0
    run.store.close()
    again = Run(url)
    assert again.load().rows == [put(2), put(3)]
    again.store.close()


def test_a_stream_of_acks_does_not_keep_the_store_from_asking_redis_again(url: str) -> None:
    connection = Flaky(connect_redis(parse_redis_url(url)), Random(1))
    run = Run(url, connect=lambda _: connection)
    assert run.write(NAME, put(1)) is None
    connection.chance = 1.0
    run.store.write(NAME, [AttemptsSet(1, 1)])
    run.work()
    connection.chance = 0.0
    assert not run.store.health.is_writable
    for attempt in range(2, 12):
        run.store.write(NAME, [AttemptsSet(1, attempt)])
        run.clock.now += 0.1
        run.work()
    assert run.store.health.is_writable
    assert run.load().attempts == {1: 11}
    run.store.close()


def test_what_was_built_upon_a_refused_write_is_refused(server: RedisServer, url: str) -> None:
    run = Run(url)
    assert run.write(LOG, chunk(0)) is None
    # An entry that is there already makes the server refuse the second chunk.
    server.command("XADD", "millpond:{streams/%7Borders%7D}:bounds", "15-1", "b", "x")
    server.command("XDEL", "millpond:{streams/%7Borders%7D}:bounds", "15-1")
    commits = [run.store.write(LOG, [chunk(each)]) for each in (10, 20, 30)]
    assert [run.finish(each) for each in commits] == [Fault.NOT_STORED] * 3
    assert run.read() == [chunk(0)] and run.log_snapshot().tail == 10
    run.store.close()


# Owners.


def test_a_prefix_has_one_owner(url: str) -> None:
    run = Run(url)
    with pytest.raises(StoreLost, match="belongs to a node that runs"):
        Run(url, owner="host b")
    other = Run(f"{url}?prefix=other", owner="host b")
    other.write(NAME, put(1))
    assert run.load() == Snapshot()
    other.store.close()
    run.store.close()
    Run(url, owner="host b").store.close()


def test_an_owner_that_was_paused_for_long_writes_nothing_more(
    server: RedisServer, url: str
) -> None:
    paused = Run(url)
    assert paused.write(NAME, put(1)) is None and paused.write(LOG, chunk(0)) is None
    server.command("DEL", "millpond:owner")  # its time is over
    owner = Run(url, owner="host b")
    results: list[Fault | None] = []
    for commit in (paused.store.write(NAME, [put(2)]), paused.store.write(LOG, [chunk(10)])):
        assert commit is not None
        commit.when_done(results.append)
    paused.work()
    assert not results and len(paused.lost) == 1
    assert owner.load().rows == [put(1)] and owner.read() == [chunk(0)]
    assert owner.write(NAME, put(3)) is None
    paused.clock.now += 10
    paused.work(idle=True)
    owner.store.close()


def test_a_paused_owner_makes_no_channel_and_revives_none(server: RedisServer, url: str) -> None:
    paused = Run(url)
    assert paused.write(NAME, put(1)) is None
    paused.store.close()
    paused = Run(url)
    server.command("DEL", "millpond:owner")  # its time is over
    owner = Run(url, owner="host b")
    owner.write(NAME, MessageRemoved(1, 1, None, 3))
    late = paused.store.write(NAME, [put(2)])
    new = paused.store.write(b"new", [put(3)])
    results: list[Fault | None] = []
    for commit in (late, new):
        assert commit is not None
        commit.when_done(results.append)
    paused.work()
    assert not results and len(paused.lost) == 1
    assert owner.write(b"new", put(4)) is None and owner.load(b"new").rows == [put(4)]
    assert owner.load() == Snapshot()
    owner.store.close()
    last = Run(url)
    assert last.load(b"new").rows == [put(4)] and last.load() == Snapshot()
    last.store.close()


class PausedAfterNaming(Flaky):
    """A connection whose owner is paused once it has stored the name of a partition."""

    meanwhile: Callable[[], None] | None = None

    def run(self, commands: Sequence[Command]) -> list[Any]:
        replies = super().run(commands)
        if commands[0][0] == "SADD" and self.meanwhile is not None:
            self.meanwhile()
        return replies


def test_an_owner_that_is_paused_while_it_makes_a_channel_is_fenced(
    server: RedisServer, url: str
) -> None:
    connection = PausedAfterNaming(connect_redis(parse_redis_url(url)), Random(1))
    paused = Run(url, connect=lambda _: connection)
    owners: list[Run] = []

    def take_over() -> None:
        server.command("DEL", "millpond:owner")
        owners.append(Run(url, owner="host b"))

    connection.meanwhile = take_over
    results: list[Fault | None] = []
    commit = paused.store.write(NAME, [put(1)])
    assert commit is not None
    commit.when_done(results.append)
    paused.work()
    (owner,) = owners
    assert not results and len(paused.lost) == 1 and owner.load() == Snapshot()
    assert owner.write(NAME, put(2)) is None and owner.load().rows == [put(2)]
    owner.store.close()


# Damages.

STEM = "millpond:{orders/%7B7%7D %C3%A9}:"
LOG_STEM = "millpond:{streams/%7Borders%7D}:"
DAMAGES = (
    ("messages", ("HSET", STEM + "messages", "1", "no change")),
    ("messages", ("SET", STEM + "messages", "text")),
    ("attributes", ("SET", STEM + "attributes", "text")),
    ("acks", ("HSET", STEM + "acks", "1", " x ")),
    ("subscribers", ("HSET", STEM + "subscribers", "s1", "no change")),
)


@pytest.mark.parametrize(("part", "words"), DAMAGES)
def test_a_value_that_is_not_understood_is_a_damage_of_its_channel(
    server: RedisServer, url: str, part: str, words: tuple[str, ...]
) -> None:
    run = Run(url)
    assert run.write(NAME, ModeSet(Mode.QUEUE), put(1)) is None
    assert run.write(b"other", put(2)) is None
    run.store.close()
    server.command("DEL", STEM + part)
    assert "ERR" not in server.command(*words)
    run = Run(url)
    assert run.finish(run.store.load(NAME)) is Fault.DAMAGED
    (damage,) = run.store.damages
    assert damage.name == NAME and damage.where == STEM + "*"
    assert run.finish(run.store.load(NAME)) is Fault.DAMAGED and len(run.store.damages) == 1
    assert run.write(NAME, put(3)) is Fault.NOT_STORED
    assert run.store.write(NAME, [AttemptsSet(1, 1)]) is None
    assert run.load(b"other").rows == [put(2)] and run.store.health.is_writable
    stats = run.store.server_stats
    assert stats.damages == 1 and stats.damaged[0].startswith(damage.where)
    run.store.close()


def test_a_key_of_another_type_refuses_the_write_that_meets_it(
    server: RedisServer, url: str
) -> None:
    run = Run(url)
    assert run.write(NAME, put(1)) is None
    server.command("SET", STEM + "keys", "text")
    assert run.write(NAME, put(2)) is Fault.NOT_STORED
    assert [each.name for each in run.store.damages] == [NAME]
    assert run.finish(run.store.load(NAME)) is Fault.DAMAGED
    server.command("DEL", STEM + "keys")
    run.store.close()
    again = Run(url)
    assert again.store.damages == [] and put(1) in again.load().rows
    again.store.close()


@pytest.mark.parametrize(
    "words",
    [
        ("HSET", LOG_STEM + "bounds", "a", "b"),
        ("XADD", LOG_STEM + "bounds", "0-10", "b", "short"),
        ("XADD", LOG_STEM + "bounds", "0-10", "c", "d"),
    ],
)
def test_bounds_that_are_not_understood_are_a_damage_of_their_stream(
    server: RedisServer, url: str, words: tuple[str, ...]
) -> None:
    run = Run(url)
    assert run.write(LOG, chunk(0)) is None
    server.command("DEL", LOG_STEM + "bounds")
    assert "ERR" not in server.command(*words)
    assert run.finish(run.store.read(LOG, ALL)) is Fault.DAMAGED
    assert [each.name for each in run.store.damages] == [LOG]
    assert run.finish(run.store.log_snapshot(LOG)) is Fault.DAMAGED
    assert run.write(LOG, chunk(10)) is Fault.NOT_STORED
    run.store.close()


@pytest.mark.parametrize("gone", [("10-10", "20-10"), ("0-10", "20-10", "30-10")])
def test_a_search_ends_in_a_stream_some_of_whose_chunks_are_gone(
    server: RedisServer, url: str, gone: tuple[str, ...]
) -> None:
    connection = connect_redis(parse_redis_url(url))
    run, calls, send = Run(url, connect=lambda _: connection), [0], connection.run

    def counted(commands: Sequence[Command]) -> list[Any]:
        calls[0] += 1
        assert calls[0] < 200, "the search does not end"
        return send(commands)

    for first in range(0, 50, 10):
        assert run.write(LOG, chunk(first)) is None
    server.command("XDEL", LOG_STEM + "bounds", *gone)
    connection.run = counted  # type: ignore[method-assign]
    for first in (0, 10, 20, 30, 40):
        stamp = chunk(first).last_timestamp
        found = run.read(Seek(SeekBy.TIMESTAMP, timestamp=stamp, bytes_max=2**40))
        left = [each for each in range(first, 50, 10) if f"{each}-10" not in gone]
        assert [each.first for each in found] == left
    run.store.close()


@pytest.mark.parametrize(
    "words",
    [
        ("HSET", STEM + "meta", "messages", "many"),
        ("HSET", STEM + "meta", "kind", "tree"),
        ("HDEL", STEM + "meta", "bytes"),
        ("SET", STEM + "meta", "text"),
    ],
)
def test_a_meta_that_is_not_understood_is_a_damage_at_the_start(
    server: RedisServer, url: str, words: tuple[str, ...]
) -> None:
    run = Run(url)
    assert run.write(NAME, put(1)) is None and run.write(b"other", put(2)) is None
    run.store.close()
    assert "ERR" not in server.command(*words)
    again = Run(url)
    assert [each.name for each in again.store.damages] == [NAME]
    assert again.finish(again.store.load(NAME)) is Fault.DAMAGED
    assert again.write(NAME, put(3)) is Fault.NOT_STORED
    assert again.load(b"other").rows == [put(2)]
    again.store.close()


@pytest.mark.parametrize("key", ["partitions", "owner", "epoch", "facts", "format"])
def test_keys_of_another_program_are_named(server: RedisServer, url: str, key: str) -> None:
    server.command(
        *("HSET", f"millpond:{key}", "a", "b")
        if key != "facts"
        else ("SET", f"millpond:{key}", "b")
    )
    with pytest.raises(RedisConfigError, match=r"is not of a node .* choose one by \?prefix="):
        Run(url)


def test_a_node_ends_when_its_own_key_is_replaced(server: RedisServer, url: str) -> None:
    run = Run(url)
    server.command("DEL", "millpond:owner")
    server.command("HSET", "millpond:owner", "a", "b")
    run.clock.now += 6
    run.work(idle=True)
    assert len(run.lost) == 1 and "another program" in str(run.lost[0])


def test_a_store_of_a_later_version_is_not_opened(server: RedisServer, url: str) -> None:
    Run(url).store.close()
    assert server.command("GET", "millpond:format") == "1"
    server.command("SET", "millpond:format", "2")
    with pytest.raises(RedisConfigError, match="format 2, which a later version wrote"):
        Run(url)
    assert server.command("EXISTS", "millpond:owner") == "0"


# Configuration.


def test_a_server_that_evicts_keys_is_refused(server: RedisServer, url: str) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(RedisConfigError, match="maxmemory-policy noeviction"):
            Run(url)
    finally:
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_no_disk_is_promised_where_a_rewrite_suspends_syncs(tmp_path: Path) -> None:
    words = ("--no-appendfsync-on-rewrite", "yes")
    with (
        redis_server(tmp_path / "redis", *words) as server,
        pytest.raises(RedisConfigError, match=r"durability os \(no-appendfsync-on-rewrite"),
    ):
        Run(server.url)


def test_no_more_is_promised_than_the_server_keeps(tmp_path: Path) -> None:
    with redis_server(tmp_path / "redis", "--appendfsync", "everysec") as server:
        with pytest.raises(RedisConfigError, match=r"durability os \(appendfsync everysec\)"):
            Run(server.url)
        run = Run(server.url, asked=Durability.OS)
        assert run.store.durability(NAME) is Durability.OS
        run.store.close()
    with redis_server(tmp_path / "memory", "--appendonly", "no") as server:
        with pytest.raises(RedisConfigError, match="no append-only file"):
            Run(server.url, asked=Durability.OS)
        Run(server.url, asked=Durability.MEMORY).store.close()


@pytest.mark.parametrize(
    "text", ["http://host", "redis://host?prefix=a{b}", "redis://host?prefix=", "host:6379"]
)
def test_urls_that_name_no_store(text: str) -> None:
    with pytest.raises(RedisConfigError):
        parse_redis_url(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("redis://me:sec/ret@host:6379/0", "the port must be a number"),
        ("redis://me:secret@host:port/0", "the port must be a number"),
        ("redis://me:secret@[::1/0", "no URL"),
        ("redis://me:sec\u2100@host/0", "no URL"),
        ("redis://me:***@host/0", "as `config show` prints it"),
        ("redis://me:secret@127.0.0.1/0?colour=red", "unknown option: colour"),
    ],
)
def test_an_error_of_a_url_names_the_fault_without_the_password(text: str, told: str) -> None:
    with pytest.raises(RedisConfigError, match=told) as caught:
        connect_redis(parse_redis_url(text))
    assert "sec" not in str(caught.value)


def test_a_password_is_not_shown() -> None:
    shown = parse_redis_url("rediss://me:secret@host:6380/2?prefix=p&ssl_ca_certs=x").shown
    assert shown == "rediss://host:6380/2?prefix=p"


def test_too_much_on_its_way_is_refused(url: str) -> None:
    run = Run(url)
    size = 2**20
    for number in range(1, PENDING_BYTES_MAX // size + 1):
        assert run.store.write(NAME, [put(number, size)]) is not None
    refused = run.store.write(NAME, [put(10_000, size)])
    results: list[Fault | None] = []
    assert refused is not None
    refused.when_done(results.append)
    assert results == [Fault.NOT_STORED]
    run.work()
    assert len(run.load().rows) == PENDING_BYTES_MAX // size
    run.store.close()
