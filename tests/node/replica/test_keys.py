"""The keys of a node in its replica: sealed, taken up by a standby and by a restoration, and told
where the passphrase is wrong."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond import connect
from millpond.node.cli.exit_codes import ExitCode
from millpond.node.config import Config
from millpond.node.data_folder import RESTORING
from millpond.node.node import Node
from millpond.node.peers.data_key import ScryptCost
from millpond.node.replica import keys, keys_shipping, service, shipping
from millpond.node.replica.errors import BadReplica, ObjectStoreAway, WrongKeysPassphrase
from millpond.node.replica.keys import (
    KeysCipher,
    NodeKeys,
    check_keys,
    read_files,
    read_keys,
    signature,
    write_files,
)
from millpond.node.replica.object_store import FolderObjects
from millpond.node.replica.objects import JOURNAL, KEYS, keys_name
from millpond.node.replica.standby import COPY, REPLACED
from tests.node.encrypted_folders import (
    CHEAP,
    OTHER_PASSPHRASE,
    PASSPHRASE,
    passphrase_file,
    secrets_of,
    used_folder,
)
from tests.node.outbox.peer_nodes import until
from tests.node.outbox.test_end_to_end import TIMEOUT, Person
from tests.node.processes import Serving, command, environment, serving

LIMIT_S = 60.0
NAME = keys_name(3, 7)
SETTLED_S = 2.5
"""Keys are shipped within about a second."""


def cipher(passphrase: bytes = PASSPHRASE) -> KeysCipher:
    return KeysCipher(passphrase, Random(1).randbytes, CHEAP)


def test_files_of_a_folder_come_back_as_they_were(tmp_path: Path) -> None:
    folder = used_folder(tmp_path)
    files = read_files(folder)
    sealed = cipher().seal(NAME, NodeKeys(1_700_000_000.5, files))
    for secret in secrets_of(folder):
        assert secret not in sealed
    assert check_keys(NAME, sealed) == 1_700_000_000.5
    opened = KeysCipher(PASSPHRASE, Random(2).randbytes, CHEAP).open(NAME, sealed)
    assert opened.files == files and opened.made_at == 1_700_000_000.5
    (tmp_path / "new").mkdir()
    write_files(tmp_path / "new", opened.files)
    assert secrets_of(tmp_path / "new") == secrets_of(folder)
    assert (tmp_path / "new/identity.key").stat().st_mode & 0o777 == 0o600
    assert "identity" not in repr(opened).replace("'identity.key'", "")
    assert secrets_of(folder)[0] not in repr(opened).encode()


def test_wrong_passphrases_and_changed_objects_are_told(tmp_path: Path) -> None:
    sealed = cipher().seal(NAME, NodeKeys(1.0, {"identity.key": b"secret"}))
    with pytest.raises(WrongKeysPassphrase, match="passphrase is not that of the keys"):
        cipher(OTHER_PASSPHRASE).open(NAME, sealed)
    with pytest.raises(WrongKeysPassphrase):  # an older one under the name of a newer one
        cipher().open(keys_name(3, 8), sealed)
    for at in (0, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(BadReplica, match=f"{NAME} is damaged"):
            cipher().open(NAME, bytes(changed))
    outside = cipher().seal(NAME, NodeKeys(1.0, {"../identity.key": b"secret"}))
    with pytest.raises(BadReplica, match="no path within"):
        cipher().open(NAME, outside)
    hungry = sealed.replace(b"scrypt 16 1 1", b"scrypt 67108864 8 1")
    with pytest.raises(BadReplica):
        cipher().open(NAME, hungry)


def test_a_change_of_any_file_shows(tmp_path: Path) -> None:
    folder = used_folder(tmp_path)
    seen = {signature(folder)}
    for name in ("peers.toml", "access.conf", "prekeys/20.key", "successions"):
        (folder / name).write_bytes(b"something")
        assert signature(folder) not in seen
        seen.add(signature(folder))


class HeldFolder(FolderObjects):
    """An object store that takes keys, and no journal while it is held."""

    is_held = False
    keys_made = 0

    def create(self, name: str, data: bytes) -> None:
        if self.is_held and name.startswith(JOURNAL):
            raise ObjectStoreAway("held")
        super().create(name, data)
        self.keys_made += name.startswith(KEYS)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldFolder:
    objects = HeldFolder(tmp_path / "objects")
    monkeypatch.setattr(service, "open_object_store", lambda url: objects)
    monkeypatch.setattr(keys_shipping, "KEYS_S", 0.01)
    monkeypatch.setattr(keys_shipping, "KEYS_RETRY_S", 0.01)
    monkeypatch.setattr(shipping, "RETRY_S_MAX", 0.02)
    monkeypatch.setattr(keys, "ScryptCost", lambda *cost: ScryptCost(*cost) if cost else CHEAP)
    return objects


def _node(tmp_path: Path) -> Node:
    return Node(
        Config(
            data=str(tmp_path / "data"),
            replica=f"file://{tmp_path}/objects",
            replica_keys=passphrase_file(tmp_path),
            p2p="127.0.0.1:0",
            **dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off"),
        )
    )


def _shipped(objects: FolderObjects) -> dict[str, bytes]:
    found = read_keys(objects, cipher())
    return {} if found is None else found.files


@pytest.mark.anyio
async def test_keys_are_shipped_behind_their_journal(tmp_path: Path, held: HeldFolder) -> None:
    """A key that is destroyed, as its message is in a channel, is not gone before that is there."""
    async with _node(tmp_path) as node:
        await until(lambda: held.keys_made > 0)
        assert node.replica is not None
        held.is_held = True
        url = f"tcp://{node.listeners['p2p']}"
        async with connect(url, "jobs/mail", role="producer") as channel:
            await channel.put(b"one")
        await until(lambda: node.replica.info.error == "held")
        (tmp_path / "data/successions").write_bytes(b"changed")
        for _ in range(20):
            await anyio.sleep(0.01)
            assert "successions" not in _shipped(held)
        held.is_held = False
        await until(lambda: _shipped(held).get("successions") == b"changed")
        assert node.replica.info.keys_at > 0 and node.replica.info.lag_bytes == 0


@pytest.mark.anyio
async def test_large_keys_are_not_shipped_and_changing_ones_slowly(
    tmp_path: Path,
    held: HeldFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(keys, "KEYS_BYTES_MAX", 100)
    async with _node(tmp_path):
        await until(lambda: "keys not shipped" in caplog.text)
        assert "the limit is 100" in caplog.text and not held.keys_made
        monkeypatch.setattr(keys, "KEYS_BYTES_MAX", 2**20)
        monkeypatch.setattr(keys_shipping, "KEYS_BYTES_S", 1)  # the next ones in hours
        await until(lambda: held.keys_made == 1)
        (tmp_path / "data/successions").write_bytes(b"changed")
        for _ in range(20):
            await anyio.sleep(0.01)
        assert held.keys_made == 1
    assert caplog.text.count("keys not shipped") == 1
    assert _shipped(held)["successions"] == b"changed"  # by the end of the node


@pytest.fixture
def alice(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Person:
    return Person(tmp_path, "alice", capfdbinary)


@pytest.fixture
def bob(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Person:
    return Person(tmp_path, "bob", capfdbinary)


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, "never"
        time.sleep(0.05)


def _wait_until_shipped(replica: Path) -> None:
    """Until the keys in the replica are those of some time ago."""
    seen: list[object] = []

    def is_quiet() -> bool:
        names = sorted(each.name for each in (replica / KEYS).glob("[0-9]*"))
        if not seen or seen[-1] != names:
            seen[:] = [time.monotonic(), names]
        return bool(names) and time.monotonic() - float(str(seen[0])) > SETTLED_S

    _until(is_quiet)


def _kill(node: Serving) -> None:
    os.kill(node.process.pid, signal.SIGKILL)
    node.process.wait()


def test_a_standby_is_the_same_peer_and_reads_what_was_sealed_for_the_owner(
    alice: Person, bob: Person, tmp_path: Path
) -> None:
    """One message was opened by the owner, and one was sealed for its keys while nobody was there.
    The standby had an identity of its own."""
    replica, secret = tmp_path / "objects", passphrase_file(tmp_path)
    shipping = ("--replica", f"file://{replica}", "--durability", "replicated")
    shipping += ("--replica-keys", secret)
    alice.adds(bob, "--address", bob.url)
    bob.adds(alice)
    other, own = ("--data", str(tmp_path / "other")), json.loads(bob.says("keys", "show", "--json"))
    assert command("keys", "new", *other).returncode == 0
    words = (*other, "--p2p", bob.address, "--ws", "off", "--peer-channel", "notes", *shipping)
    with alice.starts(), bob.starts(*shipping) as owner:
        alice.asks("put", "--to", "bob", "notes", "one")
        assert bob.asks("recv", "notes", *TIMEOUT)[0] == "one\n"
        alice.asks("put", "--to", "bob", "notes", "two")
        _until(lambda: _waiting(bob, "notes") == 1)
        _wait_until_shipped(replica)
        secrets = secrets_of(tmp_path / "bob")
        assert len(secrets) > 4
        stored = [each.read_bytes() for each in replica.rglob("*") if each.is_file()]
        assert not [True for each in stored for one in secrets if one in each]
        with serving(*words, "--standby", "--takeover-s", "0.5") as other_node:
            assert other_node.ready["event"] == "standby"
            _kill(owner)
            alice.asks("put", "--to", "bob", "notes", "three")
            assert other_node.process.stdout is not None
            assert json.loads(other_node.process.stdout.readline())["event"] == "ready"
            for text in ("two", "three"):
                shown = json.loads(bob.asks("recv", "notes", "--json", *TIMEOUT)[0])
                assert (shown["data"], shown["name"]) == (text, "alice")
            alice.asks("put", "--to", "bob", "notes", "four")
            assert bob.asks("recv", "notes", *TIMEOUT)[0] == "four\n"
    shown = command("keys", "show", "--json", *other).stdout
    assert json.loads(shown)["id"] == own["id"]
    assert (tmp_path / "other" / REPLACED / "identity.key").exists()
    assert not (tmp_path / "other" / COPY).exists()
    assert not (tmp_path / "other" / RESTORING).exists()


def _waiting(person: Person, channel: str) -> int:
    page = json.loads(person.asks("info", "--json")[0])["page"]
    return sum(each["messages"] for each in page if each["name"] == channel)


def test_a_restoration_has_the_identity_and_a_wrong_passphrase_is_told(
    bob: Person, tmp_path: Path
) -> None:
    url, secret = f"file://{tmp_path}/objects", passphrase_file(tmp_path)
    own = json.loads(bob.says("keys", "show", "--json"))["id"]
    with bob.starts("--replica", url, "--replica-keys", secret):
        _wait_until_shipped(tmp_path / "objects")
    (tmp_path / "wrong").mkdir()
    wrong = passphrase_file(tmp_path / "wrong", OTHER_PASSPHRASE)
    target = ("--data", str(tmp_path / "target"))
    told = command("restore", "--from", url, *target, "--replica-keys", wrong)
    assert told.returncode == ExitCode.FAILURE, told.stderr
    assert b"the passphrase is not that of the keys in the replica" in told.stderr
    assert not (tmp_path / "target").exists()
    told = command(
        *("serve", "--standby", "--replica", url, *target, "--replica-keys", wrong),
        env=environment(MILLPOND_P2P="127.0.0.1:0", MILLPOND_WS="off"),
    )
    assert told.returncode == ExitCode.FAILURE, told.stderr
    assert b"the passphrase is not that of the keys in the replica" in told.stderr
    told = command("restore", "--from", url, "--data", str(tmp_path / "plain"))
    assert told.returncode == 0 and b"--replica-keys" in told.stdout
    assert not (tmp_path / "plain/identity.key").exists()
    told = command("restore", "--from", url, *target, "--replica-keys", secret)
    assert told.returncode == 0, told.stderr
    assert b"it has the identity and the keys" in told.stdout
    assert json.loads(command("keys", "show", "--json", *target).stdout)["id"] == own
    told = command("replica", "status", url)
    assert b"keys         sealed, " in told.stdout
    assert command("replica", "verify", url).returncode == 0


def test_an_option_without_a_replica_or_its_passphrase_is_refused(tmp_path: Path) -> None:
    url, data = f"file://{tmp_path}/objects", ("--data", str(tmp_path / "data"))
    secret, backup = passphrase_file(tmp_path), str(tmp_path / "backup")
    missing = str(tmp_path / "missing")
    for words, said in (
        (("serve", *data, "--replica-keys", secret), b"there is no replica"),
        (("serve", *data, "--replica", url, "--replica-keys", missing), b"No such file"),
        (
            ("serve", "--standby", *data, "--replica", url, "--replica-keys", missing),
            b"No such file",
        ),
        (("restore", "--from", backup, *data, "--replica-keys", secret), b"is for replicas"),
    ):
        told = command(*words)
        assert told.returncode == ExitCode.USAGE and said in told.stderr, told.stderr


def test_older_keys_are_removed_and_a_later_owner_ships_its_own(
    tmp_path: Path, bob: Person
) -> None:
    replica, secret = tmp_path / "objects", passphrase_file(tmp_path)
    words = ("--replica", f"file://{replica}", "--replica-keys", secret)
    carol = _some_id(tmp_path)
    with bob.starts(*words) as node:
        _wait_until_shipped(replica)
        bob.says("peer", "add", "carol", "--key", carol)  # shipped by the end of the node
        node.process.terminate()
        assert node.process.wait(LIMIT_S) == 0
    names = {each.name for each in (replica / KEYS).iterdir()}
    assert len(names) == 1
    opened = read_keys(FolderObjects(replica), KeysCipher(PASSPHRASE, os.urandom))
    assert opened is not None and b"carol" in opened.files["peers.toml"]
    with bob.starts(*words):
        _until(lambda: {each.name for each in (replica / KEYS).iterdir()}.isdisjoint(names))


def _some_id(folder: Path) -> str:
    data = ("--data", str(folder / "carol"))
    assert command("keys", "new", *data).returncode == 0
    found: str = json.loads(command("keys", "show", "--json", *data).stdout)["id"]
    return found
