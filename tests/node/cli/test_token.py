"""`millpond token`, `millpond doctor access`: what they print, the file they leave, exit codes."""

from __future__ import annotations

import json
import signal
import stat
import time
from pathlib import Path

import pytest

from millpond.actors.messages import Rights
from millpond.node.access.policy import AccessPolicy, RuleFiles
from millpond.node.access.tokens import digest_of, id_of
from millpond.node.cli.main import main
from millpond.node.peers.identity import load_identity
from millpond.transports.server.interface import Principal
from tests.node.processes import Serving, command, environment, serving
from tests.node.stream_commands import Run, Told, objects

FAR = "192.0.2.7"
DAY_S = 86_400


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("MILLPOND_DATA", "MILLPOND_ACCESS_FILE", "MILLPOND_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str) -> Told:
        code = main(words)
        out, err = capfdbinary.readouterr()
        return Told(code, out, err.decode())

    return run


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> str:
    assert run("keys", "new", "--data", str(tmp_path / "data")).code == 0
    return str(tmp_path / "data")


def rights(folder: str, token: str, name: bytes, *, stream: bool = False) -> Rights | None:
    access = AccessPolicy(RuleFiles(Path(folder) / "access.conf"))
    judge = access.authorize_stream if stream else access.authorize
    return judge(Principal(token.encode(), address=FAR), name)


def kept(tmp_path: Path, token: str) -> str:
    path = tmp_path / "token"
    path.write_text(token + "\n")
    path.chmod(0o600)
    return str(path)


def test_a_new_token_is_shown_once_and_its_digest_kept(run: Run, folder: str) -> None:
    words = ("--rights", "put,get", "--channel", "jobs/*", "--stream", "logs", "--data", folder)
    told = run("token", "new", *words, "--note", "for the crawler")
    (token,) = told.out.decode().split()
    path = Path(folder) / "access.conf"
    assert told.code == 0 and "is new: from now on" in told.err and token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert rights(folder, token, b"jobs/1") == rights(folder, token, b"logs", stream=True)
    assert rights(folder, token, b"jobs/1") == Rights.PUT | Rights.GET
    assert rights(folder, token, b"other") is None
    again = run("token", "new", "--rights", "all", "--data", folder)
    assert "SIGHUP" in again.err and "is new" not in again.err
    assert rights(folder, again.out.decode().strip(), b"any") == Rights.ALL
    assert rights(folder, token, b"jobs/1") == Rights.PUT | Rights.GET
    rows = objects(run("token", "ls", "--json", "--data", folder))
    assert [row["id"] for row in rows] == [id_of(token), id_of(again.out.decode().strip())]
    assert rows[0] | {"id": ""} == {
        "id": "",
        "rights": ["put", "get"],
        "patterns": ["jobs/*", "stream:logs"],
        "until": None,
        "note": "for the crawler",
        "revoked": False,
    }
    assert rows[1]["note"] == ""
    text = run("token", "ls", "--data", folder).out.decode()
    assert text.splitlines()[0].endswith("put,get  jobs/* stream:logs  # for the crawler")


def test_without_a_folder_the_line_is_printed_and_nothing_changed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    told = run("token", "new", "--rights", "get")
    token, line = told.out.decode().splitlines()
    assert line == f"token:{digest_of(token)} get" and id_of(token) in told.err
    assert list(tmp_path.iterdir()) == []
    (shown,) = objects(run("token", "new", "--rights", "get", "--json"))
    assert shown["line"] == f"token:{digest_of(shown['token'])} get"


@pytest.mark.parametrize(("text", "seconds"), [("30d", 30 * DAY_S), ("12h", 12 * 3600)])
def test_a_token_ends(run: Run, folder: str, text: str, seconds: int) -> None:
    before = time.time()
    run("token", "new", "--rights", "get", "--expires", text, "--data", folder)
    run("token", "new", "--rights", "get", "--expires", "2020-01-01T00:00Z", "--data", folder)
    living, ended = objects(run("token", "ls", "--json", "--data", folder))
    assert before + seconds - 1 <= living["until"] <= time.time() + seconds
    lines = run("token", "ls", "--data", folder).out.decode().splitlines()
    assert ended["until"] == 1_577_836_800 and "ENDED" not in lines[0]
    assert lines[1].endswith("everywhere until 2020-01-01T00:00:00Z ENDED")


REFUSED = {
    "--rights get,fly": "unknown right 'fly'",
    "--rights get --expires tomorrow": "no time like",
    "--rights get --expires 9999-12-31T23:59-12:00": "too far away",
    "--rights get --channel stream:x": "cannot begin with stream:",
    "--rights get --channel until=x": "cannot begin with",
    "--rights get --channel #x": "cannot have spaces or begin with #",
    "--rights get --stream= --channel x": "--stream needs a pattern",
    "--channel x": "--rights",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_no_line_can_say_is_a_usage_error(run: Run, folder: str, words: str) -> None:
    told = run("token", "new", *words.split(), "--data", folder)
    assert told.code == 2 and REFUSED[words] in told.err and told.out == b""
    assert not (Path(folder) / "access.conf").exists()
    for more in (("--channel", "a b"), ("--note", "a\nanyone all")):
        assert run("token", "new", "--rights", "get", *more, "--data", folder).code == 2


def test_a_file_that_cannot_be_used_is_left_alone(run: Run, folder: str) -> None:
    path = Path(folder) / "access.conf"
    path.write_text("anyone get,fly\n")
    path.chmod(0o600)
    told = run("token", "new", "--rights", "get", "--data", folder)
    assert told.code == 1 and "access.conf:1: unknown right" in told.err and told.out == b""
    assert path.read_text() == "anyone get,fly\n"
    path.chmod(0o644)
    assert "chmod 600" in run("token", "ls", "--data", folder).err


def test_a_revoked_random_token_is_gone_with_its_note(
    run: Run, folder: str, tmp_path: Path
) -> None:
    tokens = [
        run("token", "new", "--rights", "get", "--note", name, "--data", folder)
        .out.decode()
        .strip()
        for name in ("alice", "bob", "carol")
    ]
    assert run("token", "revoke", id_of(tokens[0]), "--data", folder).code == 0
    file = kept(tmp_path, tokens[1])
    assert run("token", "revoke", "--token-file", file, "--data", folder).code == 0
    assert [rights(folder, token, b"a") for token in tokens] == [None, None, Rights.GET]
    (left,) = objects(run("token", "ls", "--json", "--data", folder))
    assert left["note"] == "carol"
    again = run("token", "revoke", id_of(tokens[0]), "--data", folder)
    assert again.code == 4 and "has no token" in again.err
    for words in ((), ("abc",), ("abcdefabcdef", "--token-file", file)):
        assert run("token", "revoke", *words, "--data", folder).code == 2


def test_a_signed_token_is_made_and_revoked_and_this_machine_keeps_its_rights(
    run: Run, folder: str, tmp_path: Path
) -> None:
    words = ("token", "new", "--signed", "--rights", "get", "--channel", "news", "--data", folder)
    (made,) = objects(run(*words, "--json", "--expires", "1h"))
    assert not (Path(folder) / "access.conf").exists() and made["line"] is None
    file = kept(tmp_path, made["token"])
    doctor = ("doctor", "access", f"token:{file}", "news", "--data", folder)
    told = run(*doctor)
    assert told.code == 0 and f"get    yes  signed token {made['id']}" in told.out.decode()
    assert run("token", "revoke", "--token-file", file, "--data", folder).code == 0
    told = run(*doctor)
    assert (
        told.code == 5 and f"get    no   signed token {made['id']} is revoked" in told.out.decode()
    )
    here = ("doctor", "access", "anyone", "news", "--address", "127.0.0.1", "--data", folder)
    assert run(*here).code == 0
    assert objects(run("token", "ls", "--json", "--data", folder))[0]["revoked"]
    (other,) = objects(run(*words, "--json"))
    assert run("token", "revoke", other["id"], "--data", folder).code == 0
    assert len(objects(run("token", "ls", "--json", "--data", folder))) == 2
    assert load_identity(Path(folder) / "identity.key").seed.hex() not in made["token"]


def test_a_comment_that_names_a_token_does_not_revoke_it(run: Run, folder: str) -> None:
    told = run("token", "new", "--signed", "--rights", "get", "--data", folder)
    token = told.out.decode().strip()
    path = Path(folder) / "access.conf"
    path.write_text(f"# not yet: revoked:{id_of(token)}\n")
    path.chmod(0o600)
    assert run("token", "revoke", id_of(token), "--data", folder).code == 0
    assert path.read_text().splitlines()[1:] == [f"revoked:{id_of(token)}"]
    assert run("token", "revoke", id_of(token), "--data", folder).code == 0
    assert len(path.read_text().splitlines()) == 2


def test_doctor_explains_each_right_by_its_lines(run: Run, folder: str) -> None:
    (bob,) = objects(run("keys", "new", "--json", "--data", f"{folder}-bob"))
    assert run("peer", "add", "bob", "--key", bob["id"], "--data", folder).code == 0
    path = Path(folder) / "access.conf"
    path.write_text("key:bob put jobs/*\nkey:bob put,get x until=2020-01-01T00:00Z\nanyone list\n")
    path.chmod(0o600)
    told = run("doctor", "access", "bob", "jobs/1", "--data", folder)
    lines = told.out.decode().splitlines()
    assert told.code == 0 and bob["id"] in lines[0] and "from another machine" in lines[0]
    assert lines[1].split(None, 2) == ["put", "yes", "access.conf:1"]
    assert lines[2].split(None, 2)[:2] == ["get", "no"]
    assert "access.conf:2 has ended" in lines[2] and "prekeys of this node" in lines[2]
    assert lines[5].split(None, 2) == ["list", "yes", "access.conf:3"]
    assert lines[6].split(None, 2) == ["admin", "no", "no line gives it"]
    (told_json,) = objects(run("doctor", "access", bob["id"], "jobs/1", "--json", "--data", folder))
    assert told_json["allowed"] and told_json["rights"]["put"]["because"][0] == {
        "line": "access.conf:1",
        "verdict": "GIVES",
    }
    own = json.loads(run("keys", "show", "--json", "--data", folder).out)["id"]
    mail = run("doctor", "access", "bob", f"mail/{own}", "--data", folder).out.decode()
    assert "put    yes  contacts: mail for this node" in mail
    dead = run("doctor", "access", "bob", "jobs/1!dead", "--data", folder).out.decode()
    assert "access.conf:1 would, but only its owner puts there" in dead


def test_doctor_says_where_a_delivery_token_is_needed(
    run: Run, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = {}
    for name in ("alice", "bob"):
        (made,) = objects(run("keys", "new", "--json", "--data", f"{folder}-{name}"))
        people[name] = made["id"]
        assert run("peer", "add", name, "--key", made["id"], "--data", folder).code == 0
    words = ("doctor", "access", "alice", f"mail/{people['bob']}", "--data", folder)
    note = "clients that show the delivery token of its owner may put, too"
    monkeypatch.setenv("MILLPOND_RELAY", "true")
    told = run(*words).out.decode()
    assert "put    yes  contacts: mail by way of this relay" in told and note in told
    monkeypatch.setenv("MILLPOND_DELIVERY_TOKENS_REQUIRED", "true")
    told = run(*words).out.decode()
    assert "mail by way of this relay" not in told and note in told
    monkeypatch.setenv("MILLPOND_RELAY", "false")
    assert note not in run(*words).out.decode()


def test_doctor_ends_with_5_when_nothing_is_allowed_and_4_for_nobody(run: Run, folder: str) -> None:
    where = ("--data", folder)
    refused = run("doctor", "access", "anyone", "chat/1", *where)
    assert (
        refused.code == 5 and "note: without an access file other machines" in refused.out.decode()
    )
    assert run("doctor", "access", "anyone", "s", "--stream", "--listener", "s3p", *where).code == 5
    assert run("doctor", "access", "nobody", "chat/1", *where).code == 4
    for words in (("anyone", "x" * 300), ("anyone", "x", "--address", "example.org")):
        assert run("doctor", "access", *words, *where).code == 2
    path = Path(folder) / "rules"
    path.write_text(f"listener:s3p get stream:s\ncert:{'ab' * 32} put\n")
    path.chmod(0o600)
    where = (*where, "--access-file", str(path))
    words = ("doctor", "access", "anyone", "s", "--stream", *where)
    assert (run(*words).code, run(*words, "--listener", "s3p").code) == (5, 0)
    assert run("doctor", "access", f"cert:{'ab' * 32}", "x", *where).code == 0


def put(node: Serving, token_file: str | None, channel: str) -> int:
    words = () if token_file is None else ("--token-file", token_file)
    env = environment(MILLPOND_CONNECT=node.urls["tcp"])
    return command("put", *words, channel, "x", env=env).returncode


def test_a_running_node_takes_the_file_up_on_sighup(run: Run, folder: str, tmp_path: Path) -> None:
    """From then on it decides, on this machine too; a file that cannot be used changes nothing."""
    with serving("--data", folder) as node:
        assert put(node, None, "jobs/1") == 0
        told = run("token", "new", "--rights", "put", "--channel", "jobs/*", "--data", folder)
        file = kept(tmp_path, told.out.decode().strip())
        assert put(node, None, "jobs/1") == 0
        hang_up(node, lambda: put(node, None, "jobs/1") == 5)
        assert put(node, file, "jobs/1") == 0 and put(node, file, "other") == 5
        path = Path(folder) / "access.conf"
        good = path.read_text()
        path.write_text(good + "everybody may everything\n")
        node.process.send_signal(signal.SIGHUP)
        assert put(node, file, "jobs/1") == 0 and put(node, None, "jobs/1") == 5
        path.write_text(good)
        assert run("token", "revoke", "--token-file", file, "--data", folder).code == 0
        hang_up(node, lambda: put(node, file, "jobs/1") == 5)
        node.process.terminate()
        assert node.process.wait(10) == 0
        assert node.process.stderr is not None
        log = node.process.stderr.read().decode()
        assert "access rules not reloaded" in log and "a line begins with one of" in log


def hang_up(node: Serving, is_done: object) -> None:
    assert callable(is_done)
    node.process.send_signal(signal.SIGHUP)
    give_up_at = time.monotonic() + 10
    while not is_done():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
