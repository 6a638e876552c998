"""`millpond keys passphrase`, and what other commands do in an encrypted folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.node.cli.main import main
from millpond.node.data_folder import FolderLock
from millpond.node.peers import data_key
from millpond.node.peers.card import decode_card
from millpond.node.peers.data_key import ScryptCost
from tests.node import encrypted_folders as folders
from tests.node.chat.chat_processes import ChatProcess
from tests.node.processes import command, environment, serving
from tests.node.stream_commands import OFF, Run, Told, objects


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of a passphrase takes 0.5 s by default."""
    monkeypatch.setattr(
        data_key, "ScryptCost", lambda *cost: ScryptCost(*cost) if cost else folders.CHEAP
    )


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("MILLPOND_DATA", raising=False)
    monkeypatch.delenv("MILLPOND_PASSPHRASE_FILE", raising=False)

    def run(*words: str) -> Told:
        code = main(words)
        out, err = capfdbinary.readouterr()
        return Told(code, out, err.decode())

    return run


def _private(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)


def test_set_change_and_remove(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    where = ("--data", str(folder))
    old = ("--passphrase-file", _private(tmp_path / "old", b"three hedgehogs\r\n"))
    new = _private(tmp_path / "new", b"four hedgehogs\n")
    [made] = objects(run("keys", "new", "--json", *where))
    seed = folders.secrets_of_identity(folder)

    told = run("keys", "passphrase", "remove", *old, *where)
    assert told.code == 1 and "not encrypted" in told.err
    told = run("keys", "passphrase", "set", *where)
    assert told.code == 2 and "--passphrase-file" in told.err
    told = run("keys", "passphrase", "set", *old, *where)
    assert told.code == 0 and b"are encrypted" in told.out
    assert folders.files_with(folder, seed) == []
    told = run("keys", "passphrase", "set", *old, *where)
    assert told.code == 1 and "encrypted already" in told.err

    told = run("keys", "passphrase", "change", *old, *where)
    assert told.code == 2 and "--new-passphrase-file" in told.err
    told = run("keys", "passphrase", "change", *old, "--new-passphrase-file", new, *where)
    assert told.code == 0 and b"the passphrase is changed" in told.out
    told = run("keys", "passphrase", "remove", *old, *where)
    assert told.code == 2 and "the passphrase is wrong" in told.err
    monkeypatch.setenv("MILLPOND_PASSPHRASE_FILE", new)
    [told_json] = objects(run("keys", "passphrase", "remove", "--json", *where))
    assert told_json == {"data": str(folder), "encrypted": False}
    assert folders.secrets_of_identity(folder) == seed
    [shown] = objects(run("keys", "show", "--json", *where))
    assert shown == made


def test_a_mistyped_folder_is_told_and_not_made(run: Run, tmp_path: Path) -> None:
    """Else its owner takes the folder of the node for encrypted."""
    folder = tmp_path / "dta"
    words = ("--passphrase-file", folders.passphrase_file(tmp_path), "--data", str(folder))
    for existing in (False, True):
        if existing:
            folder.mkdir()
        told = run("keys", "passphrase", "set", *words)
        assert told.code == 4 and str(folder) in told.err
    assert not any(folder.iterdir())


def test_the_version_of_a_contact_without_messages_is_not_known_without_the_passphrase(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, bob = tmp_path / "data", tmp_path / "bob"
    [known] = objects(run("keys", "new", "--json", "--data", str(bob)))
    run("keys", "new", "--data", str(folder))
    run("peer", "add", "bob", "--key", str(known["id"]), "--data", str(folder))
    file = folders.passphrase_file(tmp_path)
    run("keys", "passphrase", "set", "--passphrase-file", file, "--data", str(folder))
    [listed] = objects(run("peer", "list", "--json", "--data", str(folder)))
    assert listed["version"] is None
    assert b"version=? unconfirmed=0" in run("peer", "list", "--data", str(folder)).out
    monkeypatch.setenv("MILLPOND_PASSPHRASE_FILE", file)
    [listed] = objects(run("peer", "list", "--json", "--data", str(folder)))
    assert listed["version"] == 1


def test_a_folder_in_use_stays_as_it_is(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    run("keys", "new", "--data", str(folder))
    before = (folder / "identity.key").read_bytes()
    lock = FolderLock(folder)
    words = ("--passphrase-file", folders.passphrase_file(tmp_path), "--data", str(folder))
    told = run("keys", "passphrase", "set", *words)
    lock.release()
    assert told.code == 1 and "in use" in told.err
    assert (folder / "identity.key").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "mode", "says"),
    [
        (b"short\n", 0o600, "8 to 1024 bytes"),
        (b"x" * 2000, 0o600, "longer than"),
        (b"three hedgehogs", 0o644, "others can read it"),
    ],
)
def test_passphrase_files_that_are_refused(
    run: Run, tmp_path: Path, content: bytes, mode: int, says: str
) -> None:
    folder, path = tmp_path / "data", tmp_path / "passphrase"
    run("keys", "new", "--data", str(folder))
    path.write_bytes(content)
    path.chmod(mode)
    told = run("keys", "passphrase", "set", "--passphrase-file", str(path), "--data", str(folder))
    assert told.code == 2 and says in told.err
    assert not (folder / "data.key").exists()


def test_a_credential_of_systemd_is_a_passphrase_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its access list shows as a right of the group."""
    folder, credential = tmp_path / "data", tmp_path / "credentials" / "passphrase"
    credential.parent.mkdir()
    credential.write_bytes(b"three hedgehogs")
    credential.chmod(0o440)
    where = ("--passphrase-file", str(credential), "--data", str(folder))
    run("keys", "new", "--data", str(folder))
    assert run("keys", "passphrase", "set", *where).code == 2
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credential.parent))
    assert run("keys", "passphrase", "set", *where).code == 0


def test_commands_that_need_a_key_take_the_passphrase_from_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "data", folders.passphrase_file(tmp_path)
    where = ("--data", str(folder))
    monkeypatch.setenv("MILLPOND_PASSPHRASE_FILE", file)
    [made] = objects(run("keys", "new", "--json", *where))
    assert (folder / "data.key").exists(), "a new folder is encrypted from the start"
    monkeypatch.delenv("MILLPOND_PASSPHRASE_FILE")
    assert json.loads(run("keys", "show", "--json", *where).out) == made
    for words in (("keys", "show", "--card"), ("keys", "rotate")):
        told = run(*words, *where)
        assert told.code == 2 and "give the file with its passphrase" in told.err
    told = run("put", "--identity", str(folder), "--connect", "tcp://127.0.0.1:1", "a", "b")
    assert told.code == 2 and "give the file with its passphrase" in told.err
    monkeypatch.setenv("MILLPOND_PASSPHRASE_FILE", file)
    card = decode_card(run("keys", "show", "--card", *where).out.decode())
    assert json.loads(run("keys", "show", "--json", *where).out)["id"] == made["id"]
    assert run("keys", "rotate", *where).code == 0
    rotated = decode_card(run("keys", "show", "--card", *where).out.decode())
    assert rotated.predecessors == [card.public]
    assert (folder / "identity.key").read_bytes().startswith(b"millpond identity 2\n")


def test_a_node_says_what_is_missing_and_does_not_start(tmp_path: Path) -> None:
    folder, file = tmp_path / "data", folders.passphrase_file(tmp_path)
    serve = ("serve", "--data", str(folder), "--p2p", "127.0.0.1:0", "--ws", "off")
    with serving(*OFF, "--data", str(folder), "--passphrase-file", file) as node:
        assert node.urls
    told = command(*serve)
    assert told.returncode == 2 and b"encrypted; give the file with its passphrase" in told.stderr
    wrong = _private(tmp_path / "wrong", b"no hedgehogs at all")
    told = command(*serve, env=environment(MILLPOND_PASSPHRASE_FILE=wrong))
    assert told.returncode == 2 and b"the passphrase is wrong" in told.stderr
    told = command(*serve, "--passphrase-file", str(tmp_path / "missing"))
    assert told.returncode == 2 and b"No such file" in told.stderr
    told = command("doctor", "--data", str(folder), "--json")
    findings = {each["check"]: each for each in map(json.loads, told.stdout.splitlines())}
    assert findings["encryption"]["level"] == "ok"


def test_peers_of_an_encrypted_folder_are_listed(tmp_path: Path) -> None:
    alice, bob = ChatProcess(tmp_path, "alice"), ChatProcess(tmp_path, "bob")
    alice.meet(bob)
    with alice.serving():
        alice.do("put", "--to", "bob", "notes", "hello")
    folders.encrypt(alice.folder)

    def listed(**variables: str) -> dict[str, object]:
        told = command(
            *("peer", "list", "--json", "--data", str(alice.folder)), env=environment(**variables)
        )
        [peer] = map(json.loads, told.stdout.splitlines())
        return {name: peer[name] for name in ("version", "unconfirmed")}

    assert listed() == {"version": None, "unconfirmed": 1}
    file = folders.passphrase_file(tmp_path)
    assert listed(MILLPOND_PASSPHRASE_FILE=file) == {"version": 2, "unconfirmed": 1}


def test_commands_show_the_chats_of_encrypted_nodes(tmp_path: Path) -> None:
    """They read the stream of the history over their connection, as the chat page does."""
    said = "the treasure is buried under the old oak"
    alice, bob = ChatProcess(tmp_path, "alice"), ChatProcess(tmp_path, "bob")
    alice.meet(bob)
    bob.meet(alice)
    for each in (alice, bob):
        folders.encrypt(each.folder)
        each.env |= {"MILLPOND_PASSPHRASE_FILE": folders.passphrase_file(tmp_path)}
    with alice.serving(), bob.serving():
        alice.do("chat", "bob", "--wait", "10", typed=f"{said}\n".encode())
        assert bob.do("chat", "alice") == f"alice: {said}\n"
        assert [each["text"] for each in bob.history(alice) if each["kind"] == "in"] == [said]
        [out] = [each for each in alice.history(bob) if each["kind"] == "out"]
        stream = f"chat/{bob.do('keys', 'show').split()[1]}"
        assert out["text"] == said and said in alice.do("stream", "read", "--json", stream)
        for each in (alice, bob):
            assert folders.files_with(each.folder, [said.encode()]) == []
