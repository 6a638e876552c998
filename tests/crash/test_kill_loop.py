"""Acknowledged messages are there after any end of the process (P2P-06, P2P-14, PA-09, PS-13)."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import anyio
import pytest

from tests.crash.loop import REDIS_ANEW, REDIS_FIRST, run
from tests.crash.process import OUTSIDE
from tests.node.processes import command, serving
from tests.redis_server import needs_redis, redis_server

SEED = 20261121
INSIDE_SHARE_MIN = 1 / 3
CHANNEL = "chat/1"


@pytest.mark.parametrize("kills", [10, pytest.param(20, marks=pytest.mark.full)])
def test_nothing_acknowledged_is_lost_in_any_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kills: int
) -> None:
    """Kills at random times and inside the calls of a commit, a rotation, a flush, a reclaim."""
    report = anyio.run(run, tmp_path, SEED, kills, backend_options={"use_uvloop": True})
    with capsys.disabled():
        print(f"\n{report.table()}")
    assert report.is_good, report.table()
    assert report.inside + report.outside == kills
    assert report.inside >= kills * INSIDE_SHARE_MIN
    assert report.result.unknown > 0 and report.result.recovered == report.result.unknown
    streams = report.streams
    assert streams.unknown > streams.recovered > 0
    assert streams.kept_unseen > 0 or kills < 20  # it takes a kill at a rare moment
    assert streams.looks > kills and streams.done > 0  # few where the machine is busy


@needs_redis
@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.full)])
def test_nothing_acknowledged_is_lost_when_the_node_or_its_redis_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kills: int
) -> None:
    """Kills of the node, of Redis and the node, and of Redis that is back while the node runs."""
    with redis_server(tmp_path / "redis") as redis:
        options = {"use_uvloop": True}
        report = anyio.run(run, tmp_path, SEED, kills, None, redis, backend_options=options)
    with capsys.disabled():
        print(f"\n{report.table()}")
    assert report.is_good, report.table()
    assert report.kills == dict.fromkeys((OUTSIDE, REDIS_FIRST, REDIS_ANEW), kills // 3)
    assert report.result.unknown > 0 and report.streams.unknown > 0


def put(url: str, count: int) -> list[str]:
    """Put so many messages through the command line; gives their ids."""
    done = [command("put", CHANNEL, f"message {n}", "--connect", url) for n in range(count)]
    assert not any(each.returncode for each in done), [each.stderr for each in done]
    return listed(url)


def listed(url: str) -> list[str]:
    done = command("list", CHANNEL, "--connect", url)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().split()


def test_sigterm_and_a_restart_keep_everything(tmp_path: Path) -> None:
    """PA-36, P2P-14: same ids, same order, same data; what was acked stays gone."""
    data = ("--data", str(tmp_path / "data"))
    with serving(*data) as node:
        assert node.ready["durability"] == "disk"
        first, *others = put(node.urls["tcp"], 4)
        assert command("ack", CHANNEL, first, "--connect", node.urls["tcp"]).returncode == 0
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait() == 0
    with serving(*data) as node:
        assert listed(node.urls["tcp"]) == others
        got = command("recv", CHANNEL, "-n", "3", "--connect", node.urls["tcp"])
        assert got.stdout.decode().splitlines() == [f"message {n}" for n in (1, 2, 3)]
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait() == 0
    with serving(*data) as node:
        assert listed(node.urls["tcp"]) == []


def test_a_retry_after_sigkill_gets_the_same_id(tmp_path: Path) -> None:
    """PA-09: the key is known after a kill, so the message is not kept twice."""
    data = ("--data", str(tmp_path / "data"))
    words = ("put", CHANNEL, "once", "--key", "77", "--json")
    with serving(*data) as node:
        first = command(*words, "--connect", node.urls["tcp"])
        node.process.kill()
    with serving(*data) as node:
        again = command(*words, "--connect", node.urls["tcp"])
        assert json.loads(first.stdout)["id"] == json.loads(again.stdout)["id"]
        assert len(listed(node.urls["tcp"])) == 1


def test_a_second_node_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    """It ends with 1 and names the folder and its owner; the first node is not disturbed."""
    folder = tmp_path / "data"
    with serving("--data", str(folder)) as node:
        second = command("serve", "--data", str(folder), "--p2p", "127.0.0.1:0", "--ws", "off")
        assert second.returncode == 1
        error = second.stderr.decode()
        assert str(folder) in error and "Traceback" not in error
        assert str(node.process.pid) in error
        assert len(put(node.urls["tcp"], 1)) == 1
        node.process.kill()
    with serving("--data", str(folder)) as node:
        assert len(listed(node.urls["tcp"])) == 1
