"""The durable state of sealed messages: `peers.db`, an SQLite file beside the catalog.

For each peer it has the windows of its lines, the keys for it and its key for us; further the
messages whose move into a channel is not finished, the sent messages that have no receipt yet, the
uuids of messages of version 1, the message requests and the refused senders, the invites, the ids
of groups, the senders of invitations into them, the private halves of one-time prekeys
(`private_slots`), the sizes and ends of stored files, and on a relay the delivery keys of mailboxes
and the one-time prekeys of their owners. A change is durable when `write` returns; the changes of
concurrent callers share one commit. Removed rows are overwritten (`secure_delete`).

In a folder with a data key the states, which have private keys, are sealed for their location:
`peers.db/` and the peer's public key. So are private halves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from millpond.node.client.future import ReplyFuture
from millpond.node.peers import private_slots
from millpond.node.peers.contact_keys import ContactKeys
from millpond.node.peers.data_key import CannotUnseal, DataKey
from millpond.node.peers.lines import Lines
from millpond.node.peers.sealed_message import ContactKey, kid_of

FILE_NAME = "peers.db"
CHANNELS_MAX = 64
"""The most channels that one sender may use."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS peers (public BLOB PRIMARY KEY, state BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unfinished (
    mailbox_id INTEGER PRIMARY KEY, sender BLOB NOT NULL, line BLOB NOT NULL,
    counter INTEGER NOT NULL, until INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (
    peer BLOB, uuid BLOB, mailbox_id INTEGER NOT NULL, attempts INTEGER NOT NULL,
    tried_at REAL NOT NULL, content BLOB NOT NULL, PRIMARY KEY (peer, uuid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen_v1 (
    sender BLOB, uuid BLOB, mailbox_id INTEGER NOT NULL, until INTEGER NOT NULL,
    PRIMARY KEY (sender, uuid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS requests (
    sender BLOB, uuid BLOB, received_at REAL NOT NULL, until REAL NOT NULL, sealed BLOB NOT NULL,
    PRIMARY KEY (sender, uuid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (public BLOB PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS delivery_keys (owner BLOB PRIMARY KEY, keys BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS invites (
    digest BLOB PRIMARY KEY, name TEXT NOT NULL, made_at REAL NOT NULL, until REAL NOT NULL,
    used_by BLOB, card TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (id BLOB PRIMARY KEY, added_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS invitations (id BLOB PRIMARY KEY, sender BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS given_prekeys (
    owner BLOB PRIMARY KEY, last INTEGER NOT NULL, keys BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    stream BLOB PRIMARY KEY, kind TEXT NOT NULL, root BLOB NOT NULL, owner BLOB NOT NULL,
    size INTEGER NOT NULL, made_at REAL NOT NULL, until REAL NOT NULL, leaves BLOB NOT NULL,
    used INTEGER NOT NULL) WITHOUT ROWID;
"""
_VERSION = 1

Statement = tuple[str, Sequence[Any]]
"""An SQL statement with its parameters."""


class PeerStoreError(Exception):
    """An unusable `peers.db`; the text names the file and the reason."""


class PeerState(msgspec.Struct, array_like=True):
    """The state of one peer, below 2 KB encoded with four lines and few channels.

    `lines`: what it has sent. `keys`: our keys for it; `their_key`: its newest key for us.
    `last_began`: when our newest line to it began (ms). `speaks_v2`: it has shown that it reads
    version 2, so that nobody gets it down to version 1 again. `channels`: those that it has used.
    """

    lines: Lines = msgspec.field(default_factory=Lines)
    keys: ContactKeys = msgspec.field(default_factory=ContactKeys)
    their_key: ContactKey | None = None
    last_began: int = 0
    speaks_v2: bool = False
    channels: list[bytes] = []


class PeerSummary(msgspec.Struct, frozen=True):
    """The part of `peers.db` about one peer that its owner may read.

    `version` is that of messages to it (None: the file is encrypted, and its key not known),
    `unconfirmed` the number of those without a receipt.
    """

    version: int | None = 1
    unconfirmed: int = 0


def read_summaries(
    path: Path, key: DataKey | None = None, *, is_sealed: bool = False
) -> dict[bytes, PeerSummary]:
    """The summaries of the peers in a file, which is left as it is; none if there is no file.

    `is_sealed`: its states are sealed, with `key`, or with one that is not known (None). Raises
    PeerStoreError.
    """
    if not path.exists():
        return {}
    # Without a write-ahead log no node has it open, and nothing is made beside it.
    is_closed = not path.with_name(path.name + "-wal").exists()
    mode = "immutable=1" if is_closed else "mode=ro"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as db:
            counts = dict(db.execute("SELECT peer, count(*) FROM outbox GROUP BY peer").fetchall())
            rows = db.execute("SELECT public, state FROM peers").fetchall()
        if is_sealed and key is None:
            return {
                public: PeerSummary(None, counts.get(public, 0))
                for public in {public for public, _ in rows} | counts.keys()
            }
        states = _states(rows, key)
    except CannotUnseal as error:
        raise PeerStoreError(f"{path}: not sealed with the data key of the folder") from error
    except (sqlite3.Error, msgspec.MsgspecError) as error:
        raise PeerStoreError(f"{path}: {error}") from error
    return {
        public: PeerSummary(
            2 if public in states and states[public].speaks_v2 else 1, counts.get(public, 0)
        )
        for public in states.keys() | counts.keys()
    }


def _states(rows: Iterable[tuple[bytes, bytes]], key: DataKey | None) -> dict[bytes, PeerState]:
    """The states in rows, which are sealed with `key` if there is one. Raises CannotUnseal, and
    MsgspecError."""
    if key is not None:
        rows = [(public, key.unseal(_location(public), state)) for public, state in rows]
    return {public: msgspec.msgpack.decode(state, type=PeerState) for public, state in rows}


class PeerStore:
    """The state of all peers of a node. `path` None: in memory.

    In a new file for a node that had prekeys before (`floor_ms` is not 0), lines that began before
    that time are not accepted: what was accepted of them is not known any more.

    The states are read at the start; a change of one is made durable by `write` with the statement
    of `stored`. All but `write` are for one thread; reading methods run in any.
    """

    def __init__(self, path: Path | None, floor_ms: int = 0, key: DataKey | None = None) -> None:
        """`key` seals the states. Raises PeerStoreError and OSError."""
        self._lock = Lock()
        self.key = key
        try:
            if path is not None:
                path.touch(mode=0o600)
            self._db = sqlite3.connect(
                ":memory:" if path is None else path, check_same_thread=False, isolation_level=None
            )
            self._prepare(floor_ms)
        except sqlite3.Error as error:
            raise PeerStoreError(f"{path}: {error}") from error
        self.states = self._read_states(path)
        self._contact_keys = self._index()
        self._waiting: list[tuple[Sequence[Statement], ReplyFuture[None]]] = []
        self._is_writing = False

    def close(self) -> None:
        """Close the file; earlier contents of the write-ahead log are removed."""
        with self._lock:
            self._db.close()

    def state(self, peer: bytes) -> PeerState:
        """The state of a peer, to be changed in place."""
        found = self.states.get(peer)
        if found is None:
            found = self.states[peer] = PeerState(Lines(self._floor_ms))
        return found

    def make_key(
        self, peer: bytes, now_ms: int, lifetime_ms: int, entropy: Callable[[int], bytes]
    ) -> None:
        """Make a new key for a peer; it is told to the peer after it is stored."""
        before = self.state(peer).keys.keys
        key = self.state(peer).keys.make(now_ms, lifetime_ms, entropy)
        self._contact_keys[kid_of(key.public)] = peer, key.private
        for each in before:
            if each not in self.state(peer).keys.keys:
                self._contact_keys.pop(kid_of(each.public), None)

    def sweep_keys(self, now_ms: int) -> list[bytes]:
        """Destroy the keys whose time is over; returns the peers that had them."""
        changed = [peer for peer, state in self.states.items() if state.keys.sweep(now_ms)]
        if changed:
            self._contact_keys = self._index()
        return changed

    def contact_key(self, kid: bytes) -> tuple[bytes, bytes] | None:
        """The peer that a key was made for, and its private half."""
        return self._contact_keys.get(kid)

    def _index(self) -> dict[bytes, tuple[bytes, bytes]]:
        return {
            kid_of(key.public): (peer, key.private)
            for peer, state in self.states.items()
            for key in state.keys.keys
        }

    def stored(self, peer: bytes) -> Statement:
        """The statement that stores the state of a peer."""
        encoded = msgspec.msgpack.encode(self.state(peer))
        if self.key is not None:
            encoded = self.key.seal(_location(peer), encoded)
        return "INSERT OR REPLACE INTO peers VALUES (?, ?)", (peer, encoded)

    async def write(self, statements: Sequence[Statement]) -> None:
        """Carry out statements, all or none; durable when this returns. Raises OSError."""
        if not statements:
            return
        done: ReplyFuture[None] = ReplyFuture()
        self._waiting.append((statements, done))
        if not self._is_writing:
            self._is_writing = True
            with anyio.CancelScope(shield=True):  # others wait for this commit
                await self._write_waiting()
        await done

    def query(self, text: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """The rows of a query. Raises OSError."""
        try:
            with self._lock:
                return self._db.execute(text, parameters).fetchall()
        except sqlite3.Error as error:
            raise OSError(f"peers.db: {error}") from error

    def erase(self) -> bool:
        """Empty the write-ahead log, which has the earlier contents of pages. False if a reader of
        the file is in the way. Raises OSError."""
        try:
            with self._lock:
                ((is_busy, *_),) = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            raise OSError(f"peers.db: {error}") from error
        return not is_busy

    async def _write_waiting(self) -> None:
        try:
            await anyio.lowlevel.checkpoint()  # what this pass of the loop writes goes together
            while self._waiting:
                batch, self._waiting = self._waiting, []
                error: Exception | None = None
                try:
                    statements = [each for some, _ in batch for each in some]
                    await anyio.to_thread.run_sync(self._commit, statements)
                except sqlite3.Error as reason:
                    error = OSError(f"peers.db: {reason}")
                for _, done in batch:
                    if error is None:
                        done.resolve(None)
                    else:
                        done.fail(error)
        finally:
            self._is_writing = False

    def _commit(self, statements: Iterable[Statement]) -> None:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for text, parameters in statements:
                    self._db.execute(text, parameters)
                self._db.execute("COMMIT")
            except sqlite3.Error:
                self._db.execute("ROLLBACK")
                raise

    def _prepare(self, floor_ms: int) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("PRAGMA secure_delete = ON")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError(f"version {version} is not known here")
        self._db.executescript(_SCHEMA + private_slots.SCHEMA)
        self._db.execute("INSERT OR IGNORE INTO facts VALUES ('floor_ms', ?)", (floor_ms,))
        (self._floor_ms,) = self._db.execute("SELECT value FROM facts").fetchone()
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _read_states(self, path: Path | None) -> dict[bytes, PeerState]:
        rows = self._db.execute("SELECT public, state FROM peers").fetchall()
        try:
            return _states(rows, self.key)
        except CannotUnseal as error:
            raise PeerStoreError(f"{path}: not sealed with the data key of the folder") from error
        except msgspec.MsgspecError as error:
            raise PeerStoreError(f"{path}: damaged: {error}") from error


def rewrite_states(path: Path, key: DataKey, *, is_sealing: bool) -> None:
    """Seal the states and private halves in a file, or unseal them, in one commit; those that are
    so stay. Their earlier bytes are overwritten. Raises PeerStoreError."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = FULL")
            db.execute("PRAGMA secure_delete = ON")
            db.execute(private_slots.SCHEMA)
            db.execute("BEGIN IMMEDIATE")
            for public, state in db.execute("SELECT public, state FROM peers").fetchall():
                clear, is_sealed = state, False
                with suppress(CannotUnseal):
                    clear, is_sealed = key.unseal(_location(public), state), True
                if is_sealed is not is_sealing:
                    new = key.seal(_location(public), clear) if is_sealing else clear
                    db.execute("UPDATE peers SET state = ? WHERE public = ?", (new, public))
            for row, data in db.execute("SELECT slot, data FROM one_time_prekeys").fetchall():
                new = private_slots.rewritten(data, key, is_sealing=is_sealing)
                db.execute(private_slots.UPDATE, (new, row))
            db.execute("COMMIT")
            # Also the pages of an earlier commit, whose process was killed behind it.
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise PeerStoreError(f"{path}: {error}") from error


def _location(peer: bytes) -> bytes:
    return b"peers.db/" + peer
