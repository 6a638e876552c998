"""The store in a cluster of Redis servers, whose slots are moved and whose masters die."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from millpond.actors.messages import Mode
from millpond.actors.store.changes import MessageRemoved, ModeSet
from millpond.actors.store.interface import Deferred, Fault
from millpond.actors.store.redis.commands import Command
from millpond.actors.store.redis.connection import (
    SCAN_COUNT,
    RedisConnection,
    connect_redis,
    parse_redis_url,
)
from millpond.actors.store.redis.errors import RedisConfigError
from tests.actors.store.redis.test_store import LOG, NAME, CutAfter, Run, chunk, put
from tests.redis_server import ClusterServers, needs_redis, redis_cluster

pytestmark = [needs_redis, pytest.mark.crash]

META = "millpond:{orders/%7B7%7D %C3%A9}:meta"
LOG_META = "millpond:{streams/%7Borders%7D}:meta"
OTHERS = [b"other/%d" % each for each in range(20)]
FAILOVER_S = 30.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterServers]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: ClusterServers) -> ClusterServers:
    for server in running.masters:
        server.command("FLUSHALL")
    return running


def pending(run: Run, answer: Any, results: list[Any] | None = None) -> list[Any]:
    """The result of something, once it is there."""
    results = [] if results is None else results
    assert isinstance(answer, Deferred)
    answer.when_done(results.append)
    run.loop.finish_pass()
    run.work()
    return results


def later(run: Run, seconds: float) -> None:
    run.clock.now += seconds
    run.work(idle=True)


@pytest.mark.parametrize("moved", [0, 1, 1000])
def test_writes_wait_while_their_slot_is_moved_and_others_go_on(
    cluster: ClusterServers, moved: int
) -> None:
    run = Run(cluster.url)
    assert run.write(NAME, ModeSet(Mode.QUEUE), put(1)) is None
    assert run.write(LOG, chunk(0)) is None
    slot = cluster.slot(META)
    source, target = cluster.begin_move(slot)
    cluster.move_keys(slot, source, target, moved)
    results = pending(run, run.store.write(NAME, [put(2)]))
    pending(run, run.store.write(NAME, [put(3)]), results)
    assert run.store.write(NAME, [MessageRemoved(1, 1, None, 3)]) is None
    loaded = pending(run, run.store.load(NAME))
    assert not results and not loaded
    for name in OTHERS:
        assert run.write(name, ModeSet(Mode.QUEUE), put(1)) is None
    assert run.read() == [chunk(0)] and run.store.health.is_writable
    later(run, 1)
    assert not results and not loaded
    cluster.end_move(slot, source, target)
    later(run, 1)
    later(run, 1)
    assert results == [None, None]
    (found,) = loaded
    assert found.rows == [put(2), put(3)] == run.load().rows
    assert run.write(NAME, put(4)) is None and not run.lost
    run.store.close()
    again = Run(cluster.url)
    assert again.load().rows == [put(2), put(3), put(4)]
    again.store.close()


def test_a_slot_that_is_moved_for_long_refuses_writes_and_is_read(
    cluster: ClusterServers,
) -> None:
    run = Run(cluster.url)
    assert run.write(NAME, ModeSet(Mode.QUEUE), put(1)) is None
    slot = cluster.slot(META)
    source, target = cluster.begin_move(slot)
    cluster.move_keys(slot, source, target, 1)
    assert run.store.write(NAME, [MessageRemoved(1, 1, None, 3)]) is None
    results = pending(run, run.store.write(NAME, [put(2)]))
    later(run, 9)
    assert not results
    later(run, 2)
    assert results == [Fault.NOT_STORED] and not run.lost
    assert run.store.usage.messages == 1
    assert run.load().rows == [put(1)]
    cluster.end_move(slot, source, target)
    assert run.write(NAME, put(2)) is None
    assert run.load().rows == [put(1), put(2)] and run.store.usage.messages == 2
    run.store.close()


def test_a_write_whose_answer_was_lost_waits_for_its_slot_until_it_is_known(
    cluster: ClusterServers,
) -> None:
    connection = CutAfter(connect_redis(parse_redis_url(cluster.url)))
    run = Run(cluster.url, connect=lambda _: connection)
    assert run.write(NAME, ModeSet(Mode.QUEUE), put(1)) is None
    connection.is_cut = True
    results = pending(run, run.store.write(NAME, [put(2)]))
    slot = cluster.slot(META)
    source, target = cluster.begin_move(slot)
    cluster.move_keys(slot, source, target, 1)
    for _ in range(2):
        later(run, 11)
    assert not results, "it is stored"
    cluster.end_move(slot, source, target)
    later(run, 1)
    later(run, 1)
    assert results == [None] and not run.lost
    assert run.write(NAME, put(3)) is None
    assert run.load().rows == [put(1), put(2), put(3)]
    run.store.close()


def test_a_slot_that_was_moved_is_found_at_once(cluster: ClusterServers) -> None:
    run = Run(cluster.url)
    assert run.write(LOG, chunk(0)) is None and run.write(NAME, put(1)) is None
    for _ in range(2):
        slot = cluster.slot(LOG_META)
        cluster.end_move(slot, *cluster.begin_move(slot))
        tail = run.log_snapshot().tail
        assert run.write(LOG, chunk(tail)) is None
        assert [each.first for each in run.read()] == [*range(0, tail + 10, 10)]
    assert run.store.health.failures == 0
    run.store.close()


def test_writes_keep_their_order_where_the_first_one_finds_its_slot_moved(
    cluster: ClusterServers,
) -> None:
    """A server may get a slot between two commands of one write to its socket."""
    from redis.exceptions import MovedError

    connection = connect_redis(parse_redis_url(cluster.url))
    run = Run(cluster.url, connect=lambda _: connection)
    assert run.write(NAME, ModeSet(Mode.QUEUE), put(1)) is None
    exchange = connection._exchange  # type: ignore[attr-defined]
    moved = [True]

    def first_is_moved(
        commands: Sequence[Command], waiting: Sequence[int], replies: list[Any]
    ) -> None:
        is_first = moved and len(waiting) > 1
        exchange(commands, waiting[1:] if is_first else waiting, replies)
        if is_first:
            moved.clear()
            replies[waiting[0]] = MovedError(f"{cluster.slot(META)} 127.0.0.1:1")

    connection._exchange = first_is_moved  # type: ignore[attr-defined]
    first = run.store.write(NAME, [put(2)])
    assert isinstance(first, Deferred)
    results: list[Any] = []
    first.when_done(results.append)
    pending(run, run.store.write(NAME, [put(3)]), results)
    assert results == [None, None] and not run.lost and not moved
    del connection._exchange  # type: ignore[attr-defined]
    assert run.load().rows == [put(1), put(2), put(3)]
    run.store.close()


class UnevenServers:
    """Servers of which that of the names gets its commands later than that of the epoch: between
    both another node takes the prefix."""

    def __init__(self, inner: RedisConnection) -> None:
        self._inner = inner
        self.meanwhile: Callable[[], None] | None = None

    def run(self, commands: Sequence[Command]) -> list[Any]:
        late = [each[0] == "SADD" for each in commands]
        if self.meanwhile is None or not any(late):
            return self._inner.run(commands)
        meanwhile, self.meanwhile = self.meanwhile, None
        others = [each for each, is_late in zip(commands, late, strict=True) if not is_late]
        first = iter(self._inner.run(others) if others else ())
        meanwhile()
        names = iter(self._inner.run([each for each in commands if each[0] == "SADD"]))
        return [next(names if is_late else first) for is_late in late]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_an_owner_of_before_makes_no_channel_that_the_next_one_does_not_know(
    cluster: ClusterServers,
) -> None:
    connection = UnevenServers(connect_redis(parse_redis_url(cluster.url)))
    paused, owners = Run(cluster.url, connect=lambda _: connection), list[Run]()

    def take_over() -> None:
        for server in cluster.masters:
            server.command("DEL", "millpond:owner")
        owners.append(Run(cluster.url, owner="host b"))

    connection.meanwhile = take_over
    results = pending(paused, paused.store.write(NAME, [put(1)]))
    (owner,) = owners
    assert not results and len(paused.lost) == 1
    assert owner.write(NAME, put(2)) is None and owner.load().rows == [put(2)]
    owner.store.close()


def test_a_queue_that_is_moved_while_it_is_read_is_read_whole(cluster: ClusterServers) -> None:
    run = Run(cluster.url)
    count = 4 * SCAN_COUNT
    assert run.write(NAME, *(put(each) for each in range(1, count + 1))) is None
    slot, connection = cluster.slot(META), run.store.connection
    inner, moves = connection.run, list[int]()

    def run_commands(commands: Sequence[Command]) -> list[Any]:
        replies = inner(commands)
        if commands[0][0] == "HSCAN" and replies[0][0] != b"0" and not moves:
            moves.append(slot)
            cluster.end_move(slot, *cluster.begin_move(slot))
        return replies

    connection.run = run_commands  # type: ignore[method-assign]
    assert sorted(each.id for each in run.load().rows) == [*range(1, count + 1)]
    assert moves == [slot]
    run.store.close()


def test_a_server_of_a_cluster_is_no_store_by_itself(cluster: ClusterServers) -> None:
    url = f"redis://{cluster.servers[0].address}"
    with pytest.raises(RedisConfigError, match=r"redis\+cluster://HOST:PORT"):
        Run(url)


@pytest.mark.parametrize("nodes", ["b", "b:x", ":1"])
def test_more_servers_are_addresses(nodes: str) -> None:
    with pytest.raises(RedisConfigError, match="is not HOST:PORT"):
        parse_redis_url(f"redis+cluster://a:1?nodes={nodes}")
    with pytest.raises(RedisConfigError, match=r"redis\+cluster"):
        parse_redis_url("redis://a:1?nodes=b:2")


def test_a_cluster_without_one_of_its_servers_is_away(tmp_path: Path) -> None:
    with redis_cluster(tmp_path, 0, "--cluster-node-timeout", "500") as cluster:
        run = Run(cluster.url)
        for name in OTHERS:
            assert run.write(name, ModeSet(Mode.QUEUE), put(1)) is None
        cluster.servers[2].kill()
        end = time.monotonic() + FAILOVER_S
        while "cluster_state:fail" not in cluster.servers[0].command("CLUSTER", "INFO"):
            assert time.monotonic() < end
            time.sleep(0.05)
        results = [pending(run, run.store.write(name, [put(2)])) for name in OTHERS]
        assert not run.store.health.is_writable and "away" in run.store.health.reason
        assert run.write(NAME, put(1)) is Fault.NOT_STORED
        assert [] in results and not run.lost
        later(run, 61)
        assert len(run.lost) == 1 and "away for 60 s" in str(run.lost[0])


def is_replicated(cluster: ClusterServers) -> bool:
    """Each replica is as far as its master."""
    for server in cluster.masters:
        role = server.command("ROLE").split()
        if len(role) < 5 or role[4] != role[1]:
            return False
    return True


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2))
def test_a_replica_takes_the_place_of_a_master_that_was_killed(tmp_path: Path, seed: int) -> None:
    """Replication is asynchronous, so the replica is given time for what is asserted to be there;
    one write is on its way."""
    with redis_cluster(tmp_path, 1, "--cluster-node-timeout", "1000") as cluster:
        run = Run(cluster.url)
        assert run.write(NAME, ModeSet(Mode.QUEUE), put(1), put(2)) is None
        assert run.write(LOG, chunk(0)) is None
        end = time.monotonic() + FAILOVER_S
        while not is_replicated(cluster):
            assert time.monotonic() < end
            time.sleep(0.05)
        old = cluster.owner(cluster.slot(META if seed else LOG_META))
        old.kill()
        is_queue = bool(seed)
        name, change = (NAME, put(3)) if is_queue else (LOG, chunk(10))
        results = pending(run, run.store.write(name, [change]))
        assert run.write(name, change) is Fault.NOT_STORED  # one that comes now is not sent
        while not run.lost:
            assert time.monotonic() < end + FAILOVER_S
            time.sleep(0.1)
            later(run, 0.6)
        assert "another server took its place" in str(run.lost[0])
        assert not results, "its outcome is not known"
        again = Run(cluster.url)
        rows, read = again.load().rows, again.read()
        assert rows in ([put(1), put(2)], [put(1), put(2), put(3)][: 3 if is_queue else 2])
        assert read in ([chunk(0)], [chunk(0), chunk(10)][: 1 if is_queue else 2])
        assert again.log_snapshot().tail == read[-1].end
        old.start()  # as a replica
        assert again.write(NAME, put(4)) is None
        assert again.write(LOG, chunk(read[-1].end)) is None
        assert again.load().rows == [*rows, put(4)] and not again.lost
        again.store.close()
