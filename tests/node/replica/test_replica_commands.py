"""`millpond serve --replica`, `replica` and `restore --from URL`, as an operator uses them: in a
folder and in an S3 bucket, with kill -9, and where something is wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from millpond.node.cli.exit_codes import ExitCode
from millpond.node.data_folder import offline_store
from millpond.sync import connect
from tests.node.processes import Serving, command, environment, serving, started
from tests.pipeline.object_store import object_store
from tests.ports import free_port

LIMIT_S = 60.0
CHANNEL = "jobs/mail"


def quick(url: str, **more: str) -> dict[str, str]:
    """An environment of a node with a replica, and a limit of memory for what waits."""
    return environment(MILLPOND_REPLICA=url, **more)


def status(url: str, env: dict[str, str]) -> dict[str, object]:
    shown = command("replica", "status", url, "--json", env=env)
    assert shown.returncode == 0, shown.stderr
    found: dict[str, object] = json.loads(shown.stdout)
    return found


def wait_for(url: str, env: dict[str, str], snapshots: int, shipped: int = 0) -> None:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if command("replica", "status", url, env=env).returncode == 0:
            found = status(url, env)
            done = found["lsn"] is not None and int(str(found["lsn"])) >= shipped
            if done and len(list(found["snapshots"])) >= snapshots:  # type: ignore[call-overload]
                return
        time.sleep(0.05)
    raise AssertionError("the replica never had it")


def _wait_for_epoch(url: str, env: dict[str, str], epoch: int) -> None:
    end = time.monotonic() + LIMIT_S
    while int(str(status(url, env)["epoch"])) < epoch:
        assert time.monotonic() < end, "never claimed"
        time.sleep(0.05)


def killed(node: Serving) -> None:
    os.kill(node.process.pid, signal.SIGKILL)
    node.process.wait()


def put(node: Serving, *texts: bytes) -> None:
    with connect(node.urls["tcp"], channel=CHANNEL, role="producer") as channel:
        for text in texts:
            channel.put(text)


def received(node: Serving, count: int) -> list[bytes]:
    with connect(node.urls["tcp"], channel=CHANNEL, role="consumer") as channel:
        return [bytes(channel.receive(timeout_s=LIMIT_S).data) for _ in range(count)]


@pytest.fixture(params=("folder", "s3"))
def replica(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a replica, and the environment that reaches it."""
    if request.param == "folder":
        yield f"file://{tmp_path}/replica", {}
        return
    pytest.importorskip("obstore")
    with object_store("bucket") as variables:
        yield "s3://bucket/node", variables


def test_a_node_is_restored_after_a_kill(
    replica: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    url, variables = replica
    env = quick(url, **variables)
    with serving("--data", str(tmp_path / "data"), env=env) as node:
        put(node, b"one", b"two")
        wait_for(url, env, snapshots=1)
        put(node, b"three")
        told = command("info", "--connect", node.urls["tcp"], env=environment())
        assert f"{url}, shipping".encode() in told.stdout
        seen = command("doctor", "--connect", node.urls["tcp"], env=environment())
        assert f"{url} is ".encode() in seen.stdout, seen.stdout
        lsn = int(str(status(url, env)["lsn"]))
        wait_for(url, env, snapshots=1, shipped=lsn)
        time.sleep(0.5)
        killed(node)
    verified = command("replica", "verify", url, env=env)
    assert verified.returncode == 0, verified.stderr
    assert b"verified" in verified.stdout
    target = str(tmp_path / "restored")
    done = command("restore", "--from", url, "--data", target, env=env)
    assert done.returncode == 0, done.stderr
    again = command("restore", "--from", url, "--data", target, env=env)
    assert again.returncode == 1 and b"not empty" in again.stderr
    checked = command("doctor", "--data", target, env=environment())
    assert b"fail" not in checked.stdout, checked.stdout
    with serving("--data", target, env=env) as node:
        assert received(node, 3) == [b"one", b"two", b"three"]
        put(node, b"four")
        wait_for(url, env, snapshots=2)
    assert status(url, env)["epoch"] == 2


def test_the_earlier_owner_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/replica"
    env = quick(url)
    with serving("--data", str(tmp_path / "data"), env=env) as first:
        put(first, b"one")
        wait_for(url, env, snapshots=1)
        target = str(tmp_path / "restored")
        assert command("restore", "--from", url, "--data", target, env=env).returncode == 0
        with serving("--data", target, env=env) as second:
            _wait_for_epoch(url, env, 2)
            try:
                put(first, b"two")
            except Exception:
                pass  # it may have ended already
            assert first.process.wait(LIMIT_S) == ExitCode.FENCED
            assert first.process.stderr is not None
            assert b"another process ships to this replica" in first.process.stderr.read()
            assert received(second, 1) == [b"one"]


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    for words, told in (
        (("--replica", "ftp://host/x"), b"begins with one of"),
        (("--replica", "s3://user:secret@bucket/x"), b"the environment has them"),
        (("--replica", "file:///r", "--memory"), b"nothing is stored"),
    ):
        data = () if "--memory" in words else ("--data", folder)
        done = command("serve", *data, *words)
        assert done.returncode == ExitCode.USAGE, done.stderr
        assert told in done.stderr and b"secret" not in done.stderr
    nothing = command("replica", "status", f"file://{tmp_path}/none")
    assert nothing.returncode == 1 and b"there is no replica" in nothing.stderr
    bad = command("restore", "--from", str(tmp_path), "--data", folder, "--at=-1h")
    assert bad.returncode == ExitCode.USAGE and b"are for replicas" in bad.stderr


def test_a_prefix_of_another_node_ends_the_start(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/replica"
    with serving("--data", str(tmp_path / "a"), env=quick(url)):
        wait_for(url, environment(), snapshots=1)
    other = command("serve", "--p2p", "127.0.0.1:0", "--data", str(tmp_path / "b"), env=quick(url))
    assert other.returncode == 1 and b"the replica of another node" in other.stderr


def test_a_bucket_that_is_not_there_is_told_and_the_node_serves(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    with object_store("bucket") as variables:
        env = quick("s3://missing/node", MILLPOND_HTTP="127.0.0.1:0", **variables)
        with serving("--data", str(tmp_path / "data"), env=env) as node:
            put(node, b"one")
            assert received(node, 1) == [b"one"]
            end = time.monotonic() + LIMIT_S
            ready: dict[str, object] = {}
            while "warnings" not in ready and time.monotonic() < end:
                ready = _get_json(node, "/ready")
                time.sleep(0.05)
            assert ready["ready"] is True and "replica: " in str(ready["warnings"])


def test_a_snapshot_is_made_on_request(replica: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """It has the messages of before, so a restoration reads no journal."""
    url, variables = replica
    env = quick(url, **variables)
    with serving("--data", str(tmp_path / "data"), env=env) as node:
        wait_for(url, env, snapshots=1)
        put(node, b"one")
        words = ("replica", "snapshot", "--connect", node.urls["tcp"])
        made = command(*words, "--json", env=environment())
        assert made.returncode == 0, made.stderr
        told = json.loads(made.stdout)
        assert told["replica"] == url and told["snapshot"].startswith("snapshot/")
        last = list(status(url, env)["snapshots"])[-1]  # type: ignore[call-overload]
        assert last["messages"] == 1 and last["at"] == told["made_at"]
        again = command(*words, env=environment())
        assert again.returncode == 0 and told["snapshot"].encode() in again.stdout, again.stderr
        shown = command("info", "--json", "--connect", node.urls["tcp"], env=environment())
        assert json.loads(shown.stdout)["replica"]["snapshots"] == 2  # one moment, one snapshot


def test_a_snapshot_that_cannot_be_made_is_a_failure(tmp_path: Path) -> None:
    words = ("replica", "snapshot", "--timeout", "20", "--connect")
    rules = tmp_path / "access.conf"
    rules.write_text("listener:p2p put,get,list\nlistener:ws all\n")
    rules.chmod(0o600)
    plain = ("--data", str(tmp_path / "plain"), "--access-file", str(rules))
    with serving(*plain, env=environment(MILLPOND_WS="127.0.0.1:0")) as node:
        denied = command(*words, node.urls["tcp"], env=environment())
        assert denied.returncode == ExitCode.REFUSED and b"right" in denied.stderr
        none = command(*words, node.urls["ws"], env=environment())
        assert none.returncode == ExitCode.FAILURE and b"has no replica" in none.stderr
    gone = command(*words, node.urls["ws"], env=environment())
    assert gone.returncode == ExitCode.FAILURE and b"no node at" in gone.stderr
    url = f"file://{tmp_path}/replica"
    with serving("--data", str(tmp_path / "data"), env=quick(url)) as node:
        wait_for(url, environment(), snapshots=1)
        path = tmp_path / "replica" / "snapshot"
        path.rename(tmp_path / "snapshot")
        path.write_bytes(b"")  # no folder: nothing can be made there
        failed = command(*words, node.urls["tcp"], env=environment())
        assert failed.returncode == ExitCode.FAILURE and b"no snapshot: " in failed.stderr


def test_a_takeover_without_the_last_history_is_told_and_allowed(tmp_path: Path) -> None:
    """Of a replica whose owner was lost before it uploaded a snapshot of its new history."""
    url, data = f"file://{tmp_path}/replica", str(tmp_path / "data")
    words = ("replica", "takeover", url)
    none = command(*words, env=environment())
    assert none.returncode == ExitCode.FAILURE and b"no replica" in none.stderr
    with serving("--data", data, env=quick(url)) as node:
        put(node, b"kept")
        wait_for(url, environment(), snapshots=1)
    nothing = command(*words, env=environment())
    assert nothing.returncode == ExitCode.FAILURE and b"takes over by itself" in nothing.stderr
    with offline_store(tmp_path / "data") as store:
        assert store.vacate_journal()
    before = json.loads(command("replica", "status", url, "--json", env=environment()).stdout)
    snapshots = tmp_path / "replica" / "snapshot"
    aside = {each.name: each.read_bytes() for each in snapshots.iterdir()}
    with serving("--data", data, env=quick(url)) as node:
        put(node, b"lost")
        wait_for(url, environment(), snapshots=len(aside) + 1)
        killed(node)
    for each in snapshots.iterdir():  # as if it had not come so far
        if each.name not in aside:
            each.unlink()
    told = command(*words, env=environment())
    assert told.returncode == 0, told.stderr
    assert (
        b"no snapshot of it" in told.stderr and b"what the disk of the owner alone" in told.stderr
    )
    found = json.loads(command(*words, "--json", env=environment()).stdout)
    assert found["kept_lsn"] == before["lsn"] and found["lost_records"] > 0
    standby = quick(url, MILLPOND_STANDBY="true", MILLPOND_TAKEOVER_S="0.5")
    with serving("--data", str(tmp_path / "other"), env=standby) as follower:
        assert follower.ready["event"] == "standby" and follower.process.stdout is not None
        node = Serving(follower.process, json.loads(follower.process.stdout.readline()))
        shown = command("export", CHANNEL, "--connect", node.urls["tcp"], env=environment())
    assert [json.loads(line)["data"] for line in shown.stdout.splitlines()] == ["kept"]


def test_a_standby_tells_what_it_is(tmp_path: Path) -> None:
    """Its listener is that of the node, from the takeover on."""
    url = f"file://{tmp_path}/replica"
    env = quick(url, MILLPOND_STANDBY="true", MILLPOND_TAKEOVER_S="1")
    words = ("serve", "--json", "--p2p", "127.0.0.1:0", "--ws", "off", "--s3p", "off")
    words = (*words, "--rustlog", "off", "--data", str(tmp_path / "b"), "--http")
    http = f"127.0.0.1:{free_port()}"
    with serving("--data", str(tmp_path / "a"), env=quick(url)) as owner:
        wait_for(url, environment(), snapshots=1)
        with started(*words, http, env=env) as process:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            assert told["event"] == "standby" and told["replica"] == url
            assert told["http"] == http
            status, _, body = _answer(http, "/health")
            assert status == 200 and body == {"role": "standby"}
            status, headers, body = _answer(http, "/ready")
            assert status == 503 and headers["Retry-After"] == "1"
            assert body["ready"] is False and "follows up to object" in str(body["reasons"])
            status, headers, body = _answer(http, "/v1/streams")
            assert status == 503 and body["code"] == "standby" and headers["Retry-After"] == "1"
            assert _answer(http, "/health", "POST")[0] == 405
            status, _, body = _answer(http, "/health", Host="attacker.example")
            assert status == 421 and body["code"] == "host_refused"
            status, _, body = _answer(http, "/ready", Origin="https://attacker.example")
            assert status == 403 and body["code"] == "origin_refused"
            taken = command(*words, http, "--data", str(tmp_path / "c"), env=env)
            assert taken.returncode == 1 and b"is in use" in taken.stderr
            found = command("doctor", "--data", str(tmp_path / "b"), env=environment())
            assert b"in use" in found.stdout and b"standby" in found.stdout
            killed(owner)
            assert json.loads(process.stdout.readline())["event"] == "ready"
            assert _answer(http, "/ready")[0] == 200


def test_a_standby_redirects_to_the_public_address_of_the_owner(tmp_path: Path) -> None:
    """With the same method, path and query, as long as the owner lives."""
    url = f"file://{tmp_path}/replica"
    port, http = free_port(), f"127.0.0.1:{free_port()}"
    public = f"http://127.0.0.1:{port}"
    owner_env = quick(url, MILLPOND_PUBLIC_URL=public, MILLPOND_HTTP=f"127.0.0.1:{port}")
    standby_env = quick(url, MILLPOND_STANDBY="true", MILLPOND_TAKEOVER_S="60")
    words = ("serve", "--json", "--p2p", "127.0.0.1:0", "--ws", "off", "--s3p", "off")
    words = (*words, "--rustlog", "off", "--data", str(tmp_path / "b"), "--http", http)
    owner = ("serve", "--json", "--p2p", "127.0.0.1:0", "--ws", "off", "--s3p", "off")
    owner = (*owner, "--rustlog", "off", "--data", str(tmp_path / "a"))
    with started(*owner, env=owner_env) as node:
        assert node.stdout is not None and node.stdout.readline()
        wait_for(url, environment(), snapshots=1)
        with started(*words, env=standby_env) as process:
            assert process.stdout is not None and process.stdout.readline()
            with closing(HTTPConnection(http, timeout=LIMIT_S)) as connection:
                connection.request("PUT", "/v1/stream/a%20b?x=1", body=b"data")
                answer = connection.getresponse()
                assert answer.status == 307
                assert answer.headers["Location"] == f"{public}/v1/stream/a%20b?x=1"
                assert json.loads(answer.read())["code"] == "standby"
            assert _answer(http, "/health")[2] == {"role": "standby"}, "of itself"
            followed, direct = (_answer(each, "/v1/streams") for each in (http, public[7:]))
            assert followed[2] == direct[2] and direct[2].get("code") != "standby"


def _answer(
    address: str, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], dict[str, object]]:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    try:
        request = Request(f"http://{address}{path}", method=method, headers=headers)
        with urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except HTTPError as exc:
        with exc:
            return exc.code, {k.title(): v for k, v in exc.headers.items()}, json.load(exc)


def _get_json(node: Serving, path: str) -> dict[str, object]:
    from urllib.request import urlopen

    with urlopen(f"http://{node.ready['listeners']['http']}{path}", timeout=LIMIT_S) as answer:
        found: dict[str, object] = json.load(answer)
    return found
