"""A node whose store is in Redis, as its operators see it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.node.processes import Serving, command, environment, serving
from tests.redis_server import RedisServer, needs_redis, redis_server

pytestmark = [needs_redis, pytest.mark.crash]

CHANNEL = "chat/1"
STOP_S = 15.0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


def words(redis: RedisServer, folder: Path) -> tuple[str, ...]:
    return ("--data", str(folder), "--store", redis.url, "--http", "127.0.0.1:0")


def run(node: Serving, *given: str) -> str:
    """The output of a command that succeeds."""
    done = command(*given, "--connect", node.urls["tcp"])
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def is_ready(node: Serving) -> bool:
    try:
        with urlopen(f"http://{dict(node.listeners)['http']}/ready", timeout=10) as answer:
            return bool(json.load(answer)["ready"])
    except OSError:
        return False


def test_the_store_is_shown_where_operators_look(redis: RedisServer, tmp_path: Path) -> None:
    with serving(*words(redis, tmp_path / "data")) as node:
        url = f"{redis.url}?prefix=millpond"
        assert node.ready["store"] == url
        run(node, "put", CHANNEL, "text")
        shown = run(node, "info")
        assert f"{url}, durability up to disk (appendfsync always)" in shown
        assert "writable, 0 failures" in shown
        findings = run(node, "doctor", "--json")
        found = [json.loads(each) for each in findings.splitlines()]
        stores = [each for each in found if each["check"] == "store"]
        assert [each["level"] for each in stores] == ["ok"] and url in stores[0]["text"]
        with urlopen(f"http://{dict(node.listeners)['http']}/metrics", timeout=10) as answer:
            metrics = answer.read().decode()
        assert "\nmillpond_redis_waiting_bytes 0.0" in metrics
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(STOP_S) == 0
    assert redis.command("EXISTS", "millpond:owner") == "0"


def test_the_password_of_the_store_is_shown_nowhere(tmp_path: Path) -> None:
    password = "swordfish"
    user = ("--user", "me", "on", f">{password}", "~*", "&*", "+@all")
    with redis_server(tmp_path / "redis", *user) as redis:
        url = f"unix://me:{password}@{redis.socket}"
        folder = tmp_path / "data"
        here = environment(MILLPOND_STORE=url, MILLPOND_DATA=str(folder))
        node_words = ("--data", str(folder), "--http", "127.0.0.1:0", "--log-level", "debug")
        with serving(*node_words, env=here) as node:
            at = ("--connect", node.urls["tcp"])
            run(node, "put", CHANNEL, "text")
            shown = [json.dumps(node.ready)]
            for words in (
                ("info", "--json"),
                ("events", "--json"),
                ("doctor", "--json"),
                ("top", "-n", "1"),
            ):
                done = command(*words, *at, env=here)
                shown += [done.stdout.decode(), done.stderr.decode()]
            done = command("config", "show", "--origin", "--json", env=here)
            shown.append(done.stdout.decode())
            assert json.loads(shown[-1])["store"]["value"] == f"unix://me:***@{redis.socket}"
            http = f"http://{dict(node.listeners)['http']}"
            for path in ("/metrics", "/ready"):
                with urlopen(http + path, timeout=10) as answer:
                    shown.append(answer.read().decode())
            assert str(redis.socket) in "".join(shown[:2])
            node.process.send_signal(signal.SIGTERM)
            _, log = node.process.communicate(timeout=STOP_S)
            shown.append(log.decode())
        files = [each.read_bytes() for each in folder.rglob("*") if each.is_file()]
        assert files and not any(password.encode() in each for each in files)
        assert not [each for each in shown if password in each]
        for wrong in (url.replace("//", "/", 1), url + "x", url.replace(password, f"{password}2")):
            done = command("serve", *node_words, env=here | {"MILLPOND_STORE": wrong})
            assert done.returncode != 0 and password.encode() not in done.stderr


def test_a_node_stops_in_time_while_redis_does_not_answer(
    redis: RedisServer, tmp_path: Path
) -> None:
    with serving(*words(redis, tmp_path / "data")) as node:
        run(node, "put", CHANNEL, "text")
        redis.pause()
        try:
            end = time.monotonic() + 20
            while is_ready(node):
                assert time.monotonic() < end
                time.sleep(0.1)
            refused = command("put", "chat/2", "more", "--connect", node.urls["tcp"])
            assert refused.returncode == 1 and b"nothing is acknowledged" in refused.stderr
            doctor = command("doctor", "--connect", node.urls["tcp"])
            assert doctor.returncode == 1 and b"cannot be written" in doctor.stdout
            node.process.send_signal(signal.SIGTERM)
            assert node.process.wait(STOP_S) == 0
        finally:
            redis.resume()
    with serving(*words(redis, tmp_path / "data")) as node:
        assert run(node, "recv", CHANNEL, "-n", "1") == "text\n"


def test_a_channel_whose_values_are_not_understood_is_a_damage(
    redis: RedisServer, tmp_path: Path
) -> None:
    with serving(*words(redis, tmp_path / "data")) as node:
        run(node, "put", CHANNEL, "text")
        run(node, "put", "chat/2", "more")
    redis.command("HSET", "millpond:{chat/1}:messages", "1", "no change")
    with serving(*words(redis, tmp_path / "data")) as node:
        refused = command("put", CHANNEL, "again", "--connect", node.urls["tcp"])
        assert refused.returncode == 1
        assert run(node, "recv", "chat/2", "-n", "1") == "more\n"
        doctor = command("doctor", "--connect", node.urls["tcp"])
        assert doctor.returncode == 1
        assert b"millpond:{chat/1}:*: a value is not understood" in doctor.stdout
        assert "1: `millpond doctor` tells which" in run(node, "info")


def test_a_store_of_a_later_version_is_named(redis: RedisServer, tmp_path: Path) -> None:
    redis.command("SET", "millpond:format", "9")
    done = command("serve", *words(redis, tmp_path / "data"), "--p2p", "127.0.0.1:0")
    assert done.returncode == 1
    assert done.stderr.startswith(b"millpond serve: store: ") and b"format 9" in done.stderr


def test_a_second_node_with_the_prefix_does_not_start(redis: RedisServer, tmp_path: Path) -> None:
    with serving(*words(redis, tmp_path / "data")) as node:
        other = command("serve", *words(redis, tmp_path / "other"), "--p2p", "127.0.0.1:0")
        assert other.returncode == 1
        assert other.stderr.startswith(b"millpond serve: store: ")
        assert str(tmp_path / "data").encode() in other.stderr
        run(node, "put", CHANNEL, "text")


def test_a_node_ends_with_1_where_redis_is_not_there_or_was_started_anew(
    redis: RedisServer, tmp_path: Path
) -> None:
    with serving(*words(redis, tmp_path / "data")) as node:
        run(node, "put", CHANNEL, "text")
        redis.kill()
        redis.start()
        command("put", CHANNEL, "more", "--connect", node.urls["tcp"], "--timeout", "2")
        assert node.process.wait(STOP_S) == 1
    redis.kill()
    try:
        none = command("serve", *words(redis, tmp_path / "data"), "--p2p", "127.0.0.1:0")
        assert none.returncode == 1
        assert none.stderr.startswith(b"millpond serve: store: ")
    finally:
        redis.start()
