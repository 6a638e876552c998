"""The overview of a node (operation 17 of packet 90), and `millpond console`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond import Config, Node, connect
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.stats import StoreStats
from millpond.node.access.rules_file import FILE_NAME as ACCESS_FILE
from millpond.node.client.channel import Channel
from millpond.node.client.probe import PROBE
from millpond.node.config import LISTENERS
from millpond.node.peers.identity import Identity
from tests.node.chat.chat_client import couple, say
from tests.node.processes import command_here, environment, serving

OVERVIEW = 17
USAGE = type(shutil.disk_usage("/"))
OFF = {**dict.fromkeys(LISTENERS, "off"), "p2p": "127.0.0.1:0", "drain_timeout_s": 0.2}


@pytest.fixture(autouse=True)
def disk_free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The free bytes of each disk of 100 GiB: findings do not depend on the machine's disk."""
    free = [50 * 2**30]
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _folder: USAGE(100 * 2**30, 100 * 2**30 - free[0], free[0])
    )
    return free


async def test_counters_grow_and_a_disk_that_fails_is_told_in_words(tmp_path: Path) -> None:
    async with Node(Config(data=str(tmp_path), **OFF)) as node:  # type: ignore[arg-type]
        url = f"tcp://{node.listeners['p2p']}"
        async with connect(url, PROBE, window=0) as probe, connect(url, "chat/1") as chat:
            before = await probe.admin(OVERVIEW, {})
            for number in range(5):
                await chat.put(b"%d" % number)
            after = await probe.admin(OVERVIEW, {})
            node._store.health.is_writable, node._store.health.reason = False, "no space"
            failing = await probe.admin(OVERVIEW, {})
            node._store.health.is_writable = True
    assert before["findings"] == []
    assert after["counters"]["kept"] - before["counters"]["kept"] == 5
    assert after["at"] > before["at"] and after["totals"]["messages"] == 5
    assert sum(after["latencies"]["commit"]) > sum(before["latencies"]["commit"])
    assert after["listeners"] == node.listeners
    assert after["store"]["folder"] == str(tmp_path) and 0 < after["store"]["disk_free"]
    assert after["memory"]["used"] < after["memory"]["max"]
    (found,) = failing["findings"]
    assert found["level"] == "bad" and "cannot write (no space)" in found["text"]


async def test_little_room_on_the_disk_is_told_before_it_is_full(
    tmp_path: Path, disk_free: list[int]
) -> None:
    async with Node(Config(data=str(tmp_path), **OFF)) as node:  # type: ignore[arg-type]
        async with connect(f"tcp://{node.listeners['p2p']}", PROBE, window=0) as probe:
            disk_free[0] = 2**30
            assert (await probe.admin(OVERVIEW, {}))["findings"] == []
            disk_free[0] = 892 * 2**20
            (finding,) = (await probe.admin(OVERVIEW, {}))["findings"]
    assert finding["level"] == "warn" and finding["text"].startswith("892 MiB are left on the disk")


async def test_partitions_are_not_counted_for_each_overview(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[StoreStats]()
    stats = DurableStore.stats.fget
    assert stats is not None

    def counted(store: DurableStore) -> StoreStats:
        looks.append(stats(store))
        return looks[-1]

    async with Node(Config(data=str(tmp_path), **OFF)) as node:  # type: ignore[arg-type]
        async with connect(f"tcp://{node.listeners['p2p']}", PROBE, window=0) as probe:
            monkeypatch.setattr(DurableStore, "stats", property(counted))
            for _ in range(20):
                await probe.admin(OVERVIEW, {})
            monkeypatch.undo()
    assert 1 <= len(looks) <= 2


async def test_peers_have_what_their_connections_move() -> None:
    async with Node(Config(**OFF)) as node:  # type: ignore[arg-type]
        url, identity = f"tcp://{node.listeners['p2p']}", Identity(bytes(range(32)))
        async with (
            connect(url, PROBE, window=0) as probe,
            connect(url, "chat/1", identity=identity) as chat,
            connect(url, "chat/2", identity=identity),
        ):
            (before,) = (await probe.admin(OVERVIEW, {}))["peers"]
            await chat.put(b"x" * 1000)
            (after,) = (await probe.admin(OVERVIEW, {}))["peers"]
        assert (before["id"], before["connections"]) == (identity.id, 2)
        assert 1000 < after["bytes"] - before["bytes"] < 1200


async def test_contacts_are_named_to_the_operator_alone(tmp_path: Path) -> None:
    alice, _bob = couple(tmp_path)
    rules = "".join(
        f"token:{sha256(token).hexdigest()} {rights} {PROBE.decode()}\n"
        for token, rights in ((b"all", "all,operator"), (b"admin", "list,admin"))
    )
    (alice.folder / ACCESS_FILE).write_text(rules)
    async with alice.node() as here:
        await say(here, "bob", "hello")
        for token, text in (("all", "1 message for bob, who is"), ("admin", "1 message for 1 con")):
            async with connect(alice.url, PROBE, window=0, token=token) as probe:
                found = await told_in(probe, "1 message for")
                assert text in found, token
                assert ("bob" in found) is (token == "all")


async def told_in(probe: Channel, begin: str) -> str:
    """The finding that begins so, once there is one."""
    found = await told(probe, lambda each: any(begin in it["text"] for it in each["findings"]))
    return next(str(each["text"]) for each in found["findings"] if begin in each["text"])


async def test_a_replica_tells_what_it_has_and_why_it_is_behind(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    settings = {"data": str(tmp_path / "data"), "replica": f"file:{store}", **OFF}
    async with Node(Config(**settings)) as node:  # type: ignore[arg-type]
        url = f"tcp://{node.listeners['p2p']}"
        async with connect(url, PROBE, window=0) as probe, connect(url, "chat/1") as chat:
            await chat.put(b"x")
            found = await told(probe, lambda overview: overview["replica"]["lsn"] > 0)
            assert found["findings"] == []
            assert found["replica"]["url"] == f"file:{store}" and found["replica"]["epoch"] == 1
            (tmp_path / "store").rename(tmp_path / "elsewhere")
            (tmp_path / "store").write_text("no folder")
            await chat.put(b"y")
            found = await told(probe, lambda overview: overview["replica"]["error"])
            (finding,) = found["findings"]
            assert finding["level"] == "warn" and "replica is" in finding["text"]
            store.unlink()
            (tmp_path / "elsewhere").rename(store)
            await told(probe, lambda overview: not overview["replica"]["error"])
            assert found["replica"]["lag_bytes"] > 0


async def told(probe: Channel, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The overview once this holds."""
    with anyio.fail_after(60):
        while True:
            found = await probe.admin(OVERVIEW, {})
            if holds(found):
                return found
            await anyio.sleep(0.05)


def test_the_command_prints_a_link_and_ends_sessions() -> None:
    with serving("--ws", "off", "--http", "127.0.0.1:0") as node:
        variables = environment(MILLPOND_CONNECT=node.urls["tcp"])
        done = command_here("console", "--json", env=variables)
        assert done.returncode == 0, done.stderr
        url = json.loads(done.stdout)["url"]
        assert "/millpond/#mpc1." in url
        ended = command_here("console", "--revoke", env=variables)
        assert ended.stdout.decode() == "ended sessions: 0\n"
