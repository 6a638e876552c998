"""Data folders with keys and chat histories, and the secrets that are to be found in none of them
once they are encrypted."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Change, Chunk, LogTrimmed, MetadataSet, Position
from millpond.actors.store.interface import Fault, Seek
from millpond.node.chat.history_cipher import LOGS, HistoryCipher
from millpond.node.data_folder import FolderLock, OfflineStore
from millpond.node.folder_encryption import FolderConversion
from millpond.node.peers.data_key import DataKey, ScryptCost
from millpond.node.peers.identity import create_identity
from millpond.node.peers.local_envelope import load_or_create_local_key
from millpond.node.peers.peer_store import PeerState, PeerStore
from millpond.node.peers.prekeys import Prekeys
from tests.node.folders import Stopped, rows, stopped

PASSPHRASE = b"three hedgehogs in a boat"
OTHER_PASSPHRASE = b"no hedgehogs at all"
CHEAP = ScryptCost(2**4, 1, 1)
HISTORY = LOGS + b"somebody"
OTHER_LOG = b"\0stream\0clicks"
FROM_START = Seek(SeekBy.SEQUENCE)
TEXT = b"what nobody else may read"
PEER = bytes(range(32))
TIME = 1_763_683_200.0
SMALL, LARGE = 4, 800
"""The records of a history that is in the journal only, and of one that has a file."""


def used_folder(parent: Path, *, count: int = SMALL, trimmed: int = 0) -> Path:
    """The folder of a node that was used."""
    folder = parent / "data"
    identity = create_identity(folder / "identity.key", os.urandom)
    load_or_create_local_key(folder, os.urandom)
    Prekeys(folder / "prekeys", identity, lambda: TIME, os.urandom).current()
    peers = PeerStore(folder / "peers.db")
    peers.make_key(PEER, 1000, 1000, os.urandom)
    peers._commit([peers.stored(PEER)])
    peers.close()
    with stopped(folder) as store:
        write_history(store, count, trimmed=trimmed)
        store.write(OTHER_LOG, chunks(20, b"what everybody may read"))
        store.write(b"jobs", rows(30))
    return folder


def needles_of(folder: Path) -> list[bytes]:
    """The secrets of a folder in clear text: keys, and what its history says."""
    return [TEXT, *secrets_of(folder)]


def converted(folder: Path, work: Callable[[FolderConversion], None]) -> None:
    """Do something with a stopped folder, under its lock."""
    lock = FolderLock(folder)
    try:
        work(FolderConversion(folder, PASSPHRASE, os.urandom, CHEAP))
    finally:
        lock.release()


def encrypt(folder: Path) -> None:
    converted(folder, FolderConversion.encrypt)


def decrypt(folder: Path) -> None:
    converted(folder, FolderConversion.decrypt)


def passphrase_file(folder: Path, passphrase: bytes = PASSPHRASE) -> str:
    path = folder / "passphrase"
    path.write_bytes(passphrase + b"\n")
    path.chmod(0o600)
    return str(path)


def secrets_of(folder: Path) -> list[bytes]:
    """The private keys that a folder has in clear text: as bytes, and in digits."""
    found = secrets_of_identity(folder)
    for path in (folder / "local.key", *folder.glob("prekeys/*.key")):
        found += _digits(path)
    with closing(sqlite3.connect(folder / "peers.db")) as db:
        for (state,) in db.execute("SELECT state FROM peers"):
            keys = msgspec.msgpack.decode(state, type=PeerState).keys.keys
            found += [each.private for each in keys]
    return found


def secrets_of_identity(folder: Path) -> list[bytes]:
    """The seed of its identity, in both forms."""
    return _digits(folder / "identity.key")


def _digits(path: Path) -> list[bytes]:
    for line in path.read_bytes().splitlines():
        word, _, digits = line.partition(b" ")
        if word in (b"secret", b"private"):
            return [digits, bytes.fromhex(digits.decode())]
    raise AssertionError(f"{path} has no secret in clear text")


def files_with(folder: Path, needles: list[bytes]) -> list[str]:
    """The files below a folder that have one of these."""
    assert needles
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(each in path.read_bytes() for each in needles)
    ]


def chunks(count: int, text: bytes = TEXT) -> list[Change]:
    """Records of a log, two in each chunk, with times and ids of their own."""
    found: list[Change] = []
    for sequence in range(0, count, 2):
        time = 1_763_683_200_000 + sequence
        data = b"%d %b" % (sequence, text) + 200 * b"."
        ids = Position(time, 1), Position(time + 1, 0)
        found.append(Chunk(sequence, 2, time, time + 1, *ids, data))
    return found


def write_history(store: Stopped, count: int, *, trimmed: int = 0) -> None:
    """A history with properties, whose first records may be trimmed."""
    store.write(HISTORY, [MetadataSet(b"created", b"yes"), *chunks(count)])
    store.write(HISTORY, [MetadataSet(b"group/read", b"7")])
    if trimmed:
        store.write(HISTORY, [LogTrimmed(trimmed)])


def history(folder: Path, key: DataKey | None = None, name: bytes = HISTORY) -> list[object]:
    """Everything that there is of a log of a stopped node: its bounds, properties and chunks."""
    lock = FolderLock(folder)
    store = OfflineStore(folder)
    store.open()
    try:
        snapshot = store.log_snapshot(name)
        assert not isinstance(snapshot, Fault)
        ends = snapshot.trim_point, snapshot.tail, snapshot.last_id, snapshot.last_timestamp
        found: list[object] = [ends, sorted(snapshot.metadata.items())]
        found += _chunks(store, name, key, snapshot.trim_point, snapshot.tail)
        return found
    finally:
        store.close()
        lock.release()


def _chunks(
    store: OfflineStore, name: bytes, key: DataKey | None, at: int, tail: int
) -> Iterator[Chunk | None]:
    while at < tail:
        read = store.read(name, Seek(SeekBy.SEQUENCE, sequence=at))
        assert not isinstance(read, Fault)
        for each in read:
            yield each if key is None else HistoryCipher(key).decrypted(name, each)
        if not read:
            return
        at = read[-1].end


def killed_at(
    number: int, work: Callable[[], object], cut_power: Callable[[], None] | None = None
) -> bool:
    """Run in a process that is killed before it syncs, renames or removes a file for the
    `number`-th time. False: it came to its end before.

    With `cut_power` that comes first, and statements of SQLite count as well.
    """
    child = os.fork()
    if not child:  # pragma: no cover
        code = 1
        try:
            left = [number]

            def count_down(*_: object) -> None:
                left[0] -= 1
                if not left[0]:
                    if cut_power is not None:
                        cut_power()
                    os.kill(os.getpid(), signal.SIGKILL)

            def counted(call: Callable[..., Any]) -> Callable[..., Any]:
                def count(*words: Any, **options: Any) -> Any:
                    count_down()
                    return call(*words, **options)

                return count

            def traced(*words: Any, **options: Any) -> sqlite3.Connection:
                connection = connect(*words, **options)
                connection.set_trace_callback(count_down)
                return connection

            connect = sqlite3.connect
            if cut_power is not None:
                sqlite3.connect = traced
            for name in ("fsync", "fdatasync", "replace", "rename", "unlink", "link"):
                setattr(os, name, counted(getattr(os, name)))
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def restore(kept: Path, folder: Path) -> None:
    """Have a folder be a copy of another one."""
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
