"""Encryption of the keys and chat histories in the data folder of a stopped node, and its removal.

The file `data.key` says first that it was begun, and last that it is done. In between each file and
each history is replaced as a whole, and what is so already stays. So the same command finishes what
was interrupted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import quote

from millpond.actors.positions import SeekBy
from millpond.actors.state.checkpoint_store import state_file
from millpond.actors.store.catalog_recovery import JOURNAL, PARTITIONS
from millpond.actors.store.changes import Change, Chunk, LogDeleted, LogTrimmed, MetadataSet
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.store.partitions.catalog import CATALOG
from millpond.actors.store.partitions.file_pool import file_name
from millpond.actors.streams.names import stream_of
from millpond.node.atomic_files import sync_folder
from millpond.node.chat.history_cipher import HistoryCipher, is_history
from millpond.node.data_folder import OfflineStore, was_used
from millpond.node.peers.data_key import (
    FILE_NAME,
    KEY_BYTES,
    DataKey,
    FolderState,
    ScryptCost,
    is_encrypted,
    read_data_key,
    write_data_key,
)
from millpond.node.peers.identity import FILE_NAME as IDENTITY_FILE
from millpond.node.peers.identity import Identity, IdentityError, load_identity, replace_identity
from millpond.node.peers.keyring import PREKEYS_FOLDER
from millpond.node.peers.local_envelope import FILE_NAME as LOCAL_KEY_FILE
from millpond.node.peers.local_envelope import LocalKeyError, read_local_key, replace_local_key
from millpond.node.peers.peer_store import FILE_NAME as PEER_STORE_FILE
from millpond.node.peers.peer_store import rewrite_states
from millpond.node.peers.prekeys import rewrite_prekeys

READ_BYTES = 2**20
Entropy = Callable[[int], bytes]


class CannotConvert(Exception):
    """The folder stays as it is, or what was begun is not finished; the text says why."""


class FolderConversion:
    """Encrypts or decrypts a folder whose lock the caller has. `cost`: that of scrypt.

    The methods raise CannotConvert, DataKeyError, IdentityError, LocalKeyError, PeerStoreError and
    OSError, and those that a store raises.
    """

    def __init__(
        self, folder: Path, passphrase: bytes, entropy: Entropy, cost: ScryptCost | None = None
    ) -> None:
        self._folder = folder
        self._passphrase = passphrase
        self._entropy = entropy
        self._cost = cost

    def encrypt(self) -> None:
        """Encrypt a folder in clear text, or go on where that was interrupted."""
        key = DataKey(self._entropy(KEY_BYTES))
        if is_encrypted(self._folder):
            key, state = read_data_key(self._folder, self._passphrase)
            if state is FolderState.ENCRYPTED:
                raise CannotConvert(f"{self._folder}: it is encrypted already")
        self._convert(key, FolderState.ENCRYPTING)
        self._write(key, FolderState.ENCRYPTED)

    def decrypt(self) -> None:
        """Store everything in clear text, and remove the data key."""
        key, _ = read_data_key(self._folder, self._passphrase)
        self._convert(key, FolderState.DECRYPTING)
        (self._folder / FILE_NAME).unlink()
        sync_folder(self._folder)

    def change_passphrase(self, new: bytes) -> None:
        """Put the data key under another passphrase. An unfinished encryption or decryption stays
        unfinished."""
        key, state = read_data_key(self._folder, self._passphrase)
        write_data_key(self._folder, key, state, new, self._entropy, self._cost)

    def _write(self, key: DataKey, state: FolderState) -> None:
        write_data_key(self._folder, key, state, self._passphrase, self._entropy, self._cost)

    def _convert(self, key: DataKey, state: FolderState) -> None:
        """Bring everything into the form of `state`."""
        folder, is_sealing = self._folder, state is FolderState.ENCRYPTING
        with ExitStack() as stack:
            histories = None
            if _has_store(folder):
                histories = _Histories(stack.enter_context(closing(_store(folder))), folder)
            self._write(key, state)
            _convert_keys(folder, key, is_sealing=is_sealing)
            names = [] if histories is None else histories.convert(key, is_sealing=is_sealing)
        for name in names:
            _forget_removed_rows(folder / PARTITIONS / file_name(name))
            stream = stream_of(name)
            if stream is not None:
                state_file(folder, stream).unlink(missing_ok=True)
        _remove_drafts(folder)


def _has_store(folder: Path) -> bool:
    names = (JOURNAL, CATALOG)
    return any((folder / name).exists() for name in names) or was_used(folder) is not None


def _store(folder: Path) -> OfflineStore:
    store = OfflineStore(folder)
    store.open()
    return store


class _Histories:
    """The histories in a store."""

    def __init__(self, store: OfflineStore, folder: Path) -> None:
        """Raises CannotConvert if one is damaged."""
        self._store = store
        self._folder = folder
        self._names = [name for name in store.logs() if is_history(name)]
        for damage in store.damages:
            if damage.is_all or (damage.name is not None and is_history(damage.name)):
                raise self._failed("a chat history is damaged: see `millpond doctor`")

    def convert(self, key: DataKey, *, is_sealing: bool) -> Sequence[bytes]:
        """Rewrite those that are in the other form, and remove that from the journal."""
        cipher = HistoryCipher(key)
        for name in self._names:
            self._rewrite(name, cipher, is_sealing=is_sealing)
        if not self._store.vacate_journal():
            raise self._failed(f"the journal cannot be rewritten: {self._store.reason}")
        return self._names

    def _rewrite(self, name: bytes, cipher: HistoryCipher, *, is_sealing: bool) -> None:
        """Replace a history in one commit: its records keep their sequences, times and ids."""
        change = cipher.encrypted if is_sealing else cipher.decrypted
        chunks = list(self._chunks(name))
        first = next((chunk for chunk in chunks if chunk.data), None)
        # Where all is trimmed, the file may still have the last chunk.
        is_done = first is not None and (cipher.decrypted(name, first) is not None) is is_sealing
        if is_done or not chunks:
            return
        changes: list[Change] = [LogDeleted()]
        for chunk in chunks:
            changed = change(name, chunk)
            if changed is None:
                raise self._failed("a chat history was not encrypted with the key of this folder")
            changes.append(changed)
        snapshot = self._store.log_snapshot(name)
        if isinstance(snapshot, Fault):
            raise self._unreadable(snapshot)
        if snapshot.trim_point:
            changes.append(LogTrimmed(snapshot.trim_point))
        changes += [MetadataSet(*each) for each in snapshot.metadata.items()]
        fault = self._store.write(name, changes)
        if fault is not None:
            raise self._failed(f"a chat history is not stored: {self._store.reason}")

    def _chunks(self, name: bytes) -> Iterator[Chunk]:
        """All chunks of a history, without holes: where a repair found records lost there is a
        chunk without data, as a repair makes it."""
        snapshot = self._store.log_snapshot(name)
        if isinstance(snapshot, Fault):
            raise self._unreadable(snapshot)
        before: Chunk | None = None
        at = snapshot.trim_point
        while at < snapshot.tail:
            seek = Seek(SeekBy.SEQUENCE, sequence=at, bytes_max=READ_BYTES)
            chunks = self._store.read(name, seek)
            if isinstance(chunks, Fault):
                raise self._unreadable(chunks)
            for chunk in chunks:
                if chunk.first > at:
                    yield _lost(at, chunk.first, before or chunk)
                yield chunk
                at, before = chunk.end, chunk
            if not chunks:
                break
        if snapshot.tail and (at < snapshot.tail or before is None):
            end = Chunk(0, 0, 0, snapshot.last_timestamp, snapshot.last_id, snapshot.last_id, b"")
            yield _lost(min(at, snapshot.tail - 1), snapshot.tail, end)

    def _unreadable(self, fault: Fault) -> CannotConvert:
        return self._failed(f"a chat history cannot be read ({fault.name.lower()})")

    def _failed(self, text: str) -> CannotConvert:
        return CannotConvert(f"{self._folder}: {text}")


def _lost(first: int, end: int, before: Chunk) -> Chunk:
    times = before.last_timestamp, before.last_timestamp
    return Chunk(first, end - first, *times, before.last_id, before.last_id, b"")


def _convert_keys(folder: Path, key: DataKey, *, is_sealing: bool) -> None:
    read, write = (None, key) if is_sealing else (key, None)
    identity = _identity(folder / IDENTITY_FILE, read, write)
    if identity is not None:
        rewrite_prekeys(folder / PREKEYS_FOLDER, identity, read, write)
    _convert_local_key(folder / LOCAL_KEY_FILE, read, write)
    if (folder / PEER_STORE_FILE).exists():
        rewrite_states(folder / PEER_STORE_FILE, key, is_sealing=is_sealing)


def _convert_local_key(path: Path, read: DataKey | None, write: DataKey | None) -> None:
    if not path.exists():
        return
    with suppress(LocalKeyError):
        read_local_key(path, write)
        return
    replace_local_key(path, read_local_key(path, read), write)


def _identity(path: Path, read: DataKey | None, write: DataKey | None) -> Identity | None:
    """The identity in a file, which is brought into the form of `write`; None: there is none."""
    if not path.exists():
        return None
    with suppress(IdentityError):
        return load_identity(path, write)
    identity = load_identity(path, read)
    replace_identity(path, identity, write)
    return identity


def _remove_drafts(folder: Path) -> None:
    """Remove what writers of keys left that were killed."""
    for name in (IDENTITY_FILE, LOCAL_KEY_FILE):
        for path in (folder / f"{name}.new", *folder.glob(f".{name}.*")):
            path.unlink(missing_ok=True)
    sync_folder(folder)


def _forget_removed_rows(path: Path) -> None:
    """Overwrite what was removed from a partition's file, by writing the file anew."""
    if not path.exists():
        return
    uri = f"file:{quote(str(path))}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
