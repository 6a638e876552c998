"""The keys of a node in its replica: the identity, its prekeys, the address book, `peers.db` and
the access rules, as one object that is sealed under a passphrase.

    millpond replica keys 1
    kdf scrypt N R P SALT
    made MILLISECONDS
    sha256 HEX

Behind these lines is a sealed value (`data_key`): MessagePack of the files. Authenticated with it
are the name of the object and the first three lines. Clear text of a key is in the memory of the
node, and in no file on the way.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import msgspec

from millpond.node.atomic_files import replace, sync_folder
from millpond.node.backup.backup import IDENTITY_FILES, IDENTITY_FOLDERS, OTHER_FILES, PEERS_DB
from millpond.node.backup.manifest import is_inside
from millpond.node.peers.data_key import (
    FILE_NAME,
    SALT_BYTES,
    CannotUnseal,
    DataKey,
    ScryptCost,
    wrapping_key,
)
from millpond.node.peers.identity import FILE_NAME as IDENTITY_FILE
from millpond.node.replica.errors import BadReplica, NoObject, WrongKeysPassphrase
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import KEYS

VERSION_LINE = "millpond replica keys 1"
KEYS_BYTES_MAX = 64 * 2**20
"""The most bytes of all files."""
READS_MAX = 5
REPLACED_FILES = (
    *IDENTITY_FILES,
    *IDENTITY_FOLDERS,
    *(f"{PEERS_DB}-wal", f"{PEERS_DB}-shm", FILE_NAME),
)
"""The files of one identity, and of the encryption of them: those of another one go."""

_OBJECT = re.compile(
    rb"(?P<head>%s\nkdf scrypt (?P<n>[0-9]{1,8}) (?P<r>[0-9]{1,2}) (?P<p>[0-9]{1,2}) "
    rb"(?P<salt>[0-9a-f]{32})\nmade (?P<made>[0-9]{1,15})\n)sha256 (?P<sha256>[0-9a-f]{64})\n"
    % VERSION_LINE.encode()
)


class NodeKeys(msgspec.Struct, frozen=True):
    """The files of a node, by their paths in the data folder. `made_at` in seconds since 1970."""

    made_at: float
    files: dict[str, bytes]

    def __repr__(self) -> str:
        """Without the keys: this may end up in a log."""
        return f"NodeKeys({self.made_at}, {sorted(self.files)})"


class KeysCipher:
    """Seals keys under a passphrase, and opens what was sealed under it. `cost`: that of scrypt. In
    one thread at a time."""

    def __init__(
        self,
        passphrase: bytes,
        entropy: Callable[[int], bytes],
        cost: ScryptCost | None = None,
    ) -> None:
        self._passphrase = passphrase
        self._cost = cost or ScryptCost()
        self._salt = entropy(SALT_BYTES)
        self._derived: dict[tuple[bytes, ScryptCost], DataKey] = {}
        """The last one, as it takes 0.3 s."""

    def seal(self, name: str, keys: NodeKeys) -> bytes:
        """The object of this name."""
        cost = self._cost
        head = (
            f"{VERSION_LINE}\nkdf scrypt {cost.n} {cost.r} {cost.p} {self._salt.hex()}\n"
            f"made {round(keys.made_at * 1000)}\n"
        ).encode("ascii")
        clear = msgspec.msgpack.encode(keys.files)
        sealed = self._key(self._salt, cost).seal(_location(name, head), clear)
        return head + f"sha256 {sha256(sealed).hexdigest()}\n".encode("ascii") + sealed

    def open(self, name: str, data: bytes) -> NodeKeys:
        """Raises BadReplica, WrongKeysPassphrase."""
        found, sealed = _parts(name, data)
        cost = ScryptCost(int(found["n"]), int(found["r"]), int(found["p"]))
        if not cost.is_usable:
            raise BadReplica(f"{name} is damaged, or of a later version")
        key = self._key(bytes.fromhex(found["salt"].decode("ascii")), cost)
        try:
            clear = key.unseal(_location(name, found["head"]), sealed)
        except CannotUnseal:
            raise WrongKeysPassphrase(
                f"the passphrase is not that of the keys in the replica (or {name} was changed)"
            ) from None
        try:
            files = msgspec.msgpack.decode(clear, type=dict[str, bytes])
        except msgspec.MsgspecError as exc:
            raise BadReplica(f"{name} is damaged: {exc}") from exc
        for path in files:
            if not is_inside(path):
                raise BadReplica(f"{name}: {path!r} is no path within a data folder")
        return NodeKeys(int(found["made"]) / 1000, files)

    def _key(self, salt: bytes, cost: ScryptCost) -> DataKey:
        key = self._derived.get((salt, cost))
        if key is None:
            key = wrapping_key(self._passphrase, salt, cost)
            self._derived = {(salt, cost): key}
        return key

    def __repr__(self) -> str:
        return "KeysCipher()"


def check_keys(name: str, data: bytes) -> float:
    """The moment at which an object of keys was made, in seconds since 1970. Raises BadReplica for
    one that is not what was written, as far as that shows without the passphrase."""
    found, _ = _parts(name, data)
    return int(found["made"]) / 1000


def _parts(name: str, data: bytes) -> tuple[re.Match[bytes], bytes]:
    found = _OBJECT.match(data)
    if found is None:
        raise BadReplica(f"{name} is damaged, or of a later version")
    sealed = data[found.end() :]
    if sha256(sealed).hexdigest().encode() != found["sha256"]:
        raise BadReplica(f"{name} is damaged: it is not what was written")
    return found, sealed


def _location(name: str, head: bytes) -> bytes:
    return name.encode() + b"\n" + head


def keys_in(objects: ObjectStore) -> tuple[str, bytes] | None:
    """The name and the bytes of the newest keys of a replica; None: it has none."""
    for _ in range(READS_MAX):
        names = [each.name for each in objects.list(KEYS)]
        if not names:
            return None
        try:
            return names[-1], objects.get(names[-1])
        except NoObject:
            pass  # newer ones took its place meanwhile
    raise BadReplica("the keys in the replica change all the time")


def read_keys(objects: ObjectStore, cipher: KeysCipher) -> NodeKeys | None:
    """The newest keys of a replica; None: it has none. Raises BadReplica, WrongKeysPassphrase."""
    found = keys_in(objects)
    return None if found is None else cipher.open(*found)


def read_files(folder: Path) -> dict[str, bytes]:
    """The files of a running node; empty before it has an identity. Raises OSError, sqlite3.Error,
    BadReplica for more than is shipped."""
    names = [each for each in (*IDENTITY_FILES, *OTHER_FILES) if each != PEERS_DB]
    for each in IDENTITY_FOLDERS:
        names += [f"{each}/{name}" for name in _names(folder / each)]
    files = {}
    size = 0
    for name in names:
        try:
            files[name] = (folder / name).read_bytes()
        except FileNotFoundError:  # there is none, or it was destroyed meanwhile
            continue
        size += len(files[name])
    if IDENTITY_FILE not in files:
        return {}
    if (folder / PEERS_DB).exists():
        files[PEERS_DB] = _database(folder / PEERS_DB)
        size += len(files[PEERS_DB])
    if size > KEYS_BYTES_MAX:
        raise BadReplica(f"keys of {size} bytes are not shipped: the limit is {KEYS_BYTES_MAX}")
    return files


def _names(folder: Path) -> list[str]:
    found = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(each for each in found if not each.endswith(".new") and not each.startswith("."))


def _database(path: Path) -> bytes:
    """The content of an SQLite file in use, copied in memory."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as found, closing(_memory()) as copy:
        found.backup(copy)
        return bytes(copy.serialize())


def _memory() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files into a folder that has none of them, synced; mode 0600. Raises OSError."""
    parents = {folder}
    for name, data in sorted(files.items()):
        path = folder / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        parents.add(path.parent)
        replace(path, data)
    for each in sorted(parents):
        sync_folder(each)


def signature(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Something that changes when the files do, soon enough: their times, sizes and numbers."""
    names = (*IDENTITY_FILES, *OTHER_FILES, f"{PEERS_DB}-wal", *IDENTITY_FOLDERS)
    found = []
    for name in names:
        try:
            stat = (folder / name).stat()
        except OSError:
            continue
        found.append((name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return tuple(found)
