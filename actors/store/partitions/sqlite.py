"""SQLite files of the store: creation, opening, and checksums of every row.

SQLite itself does not notice every changed byte, so what matters in a file has a CRC.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

import msgspec

from millpond.actors.store.checksum import crc32, crc_start

FIRST_FORMAT = 1
SUBSCRIBERS_FORMAT = 2
"""The version (`PRAGMA user_version`) of queues with subscribers or terms."""
SUMS_FORMAT = 3
"""The version of partitions whose header has sums of the CRCs of rows: of the properties of a log,
of all rows of a queue. Older files are given the columns with their next change."""
SEEDED_FORMAT = 4
"""The version of partitions whose rows have CRCs from the seed of their file. Rows of older files
have them from 0, also those that come later."""
COLD_FORMAT = 5
"""The version of logs of which some chunks are in the replica alone, so that no earlier version
reads them. Only a file of the version before becomes one."""
FORMAT = SEEDED_FORMAT
"""The version of new partitions. Other files have the first one."""

_MAGIC = b"SQLite format 3\0"
HASH_BYTES = 20
"""Of the BLAKE2b hash of a name, which names its file."""
SEED_BYTES = 4

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_WAL_BYTES_MAX = 2**20

SUM_MASK = 2**32 - 1
CRC = f"crc & {SUM_MASK}"
"""In a query: a number, whatever is there. Readers of the row find damage."""
CRCS = f"coalesce(sum({CRC}), 0)"

_encode = msgspec.msgpack.Encoder().encode
_LONG_BYTES = 2**16
"""From here on the length of bytes is written in four."""
_EMPTY = _encode(b"")


class Damaged(Exception):
    """The file does not hold what was written."""


class UnknownFormat(Damaged):
    """The file is of a format that this version does not know; nothing in it was touched."""


def make_file(
    schema: str,
    application: int,
    fill: Callable[[sqlite3.Connection], object],
    version: int = FIRST_FORMAT,
) -> bytes:
    """The content of a new file with `schema`, and with what `fill` puts into it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute("PRAGMA page_size = 4096")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.executescript(schema)
        connection.execute(f"PRAGMA application_id = {application}")
        connection.execute(f"PRAGMA user_version = {version}")
        fill(connection)
        return with_wal(connection.serialize())
    finally:
        connection.close()


def with_wal(data: bytes) -> bytes:
    """The bytes of a database made in memory, with a header that asks for a write-ahead log."""
    return data[:18] + b"\x02\x02" + data[20:]


def without_wal(data: bytes) -> bytes:
    """A file as it can be opened in memory, where there is no write-ahead log."""
    return data[:18] + b"\x01\x01" + data[20:]


def prepare(
    connection: sqlite3.Connection, application: int, cache_kib: int, latest: int = COLD_FORMAT
) -> int:
    """Set up a connection to a file of ours, and give its version, at most `latest`. Raises Damaged
    if it is none, UnknownFormat."""
    # A byte that changed may make a text of anything: bytes can always be looked at.
    connection.text_factory = bytes
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != application:
        raise Damaged(f"not a file of the store: its application id is {found:#x}")
    if not FIRST_FORMAT <= version <= latest:
        raise UnknownFormat(f"format {version}, and this version knows {latest}")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES_MAX}")
    return int(version)


def is_sqlite(file: bytes) -> bool:
    """True: it begins as a file of SQLite does."""
    return file.startswith(_MAGIC)


def version_of(file: bytes) -> int:
    """The `user_version` on the first page of a file; 0: that is none."""
    return int.from_bytes(file[60:64]) if is_sqlite(file) else 0


@contextmanager
def damage_named() -> Iterator[None]:
    """Turns those errors of SQLite that mean damage into Damaged; the others stay what they are."""
    try:
        yield
    except sqlite3.DatabaseError as exc:
        # Errors that the module raises itself have no code.
        code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
        # The statements are right, so a table that is missing was there once.
        if code in _DAMAGE or (code == sqlite3.SQLITE_ERROR and str(exc).startswith("no such ")):
            raise Damaged(str(exc)) from exc
        raise
    except UnicodeDecodeError as exc:
        # The module decodes a message of SQLite that quotes the schema.
        raise Damaged("the schema is not text") from exc


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing. If undoing fails as well, the connection is of no more use."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def seed_of(name: bytes) -> int:
    """The seed of the CRCs in the file of the partition `name`: the first bytes of the hash that
    names the file. So a row of another file is not what was written, whatever is in it."""
    return int.from_bytes(blake2b(name, digest_size=HASH_BYTES).digest()[:SEED_BYTES])


def crc_of(values: tuple[object, ...], seed: int = 0) -> int:
    """The CRC-32 of the columns of a row, as MessagePack; a long last one is not copied for it."""
    last = values[-1]
    if type(last) is not bytes or len(last) < _LONG_BYTES:
        return crc32(_encode(values), seed)
    empty = _encode((*values[:-1], b""))
    head = b"%b\xc6%b" % (empty[: -len(_EMPTY)], len(last).to_bytes(4))
    return crc32(last, crc32(head, seed))


def seed_from(values: tuple[object, ...], crc: int) -> int:
    """The seed from which the CRC of the columns is this one."""
    data = _encode(values)
    return crc_start(crc ^ crc32(data, 0), len(data))


def signed(number: int) -> int:
    """A u64 as the integer of 64 bits that SQLite keeps: numbers below 2^63 stay as they are."""
    return number if number < 2**63 else number - 2**64


def unsigned(number: int) -> int:
    """The u64 that `signed` was given."""
    return number if number >= 0 else number + 2**64


def integrity_check(connection: sqlite3.Connection) -> list[str]:
    """The errors that SQLite itself finds in the file, also in its indexes, which writes need."""
    return _errors(connection, "PRAGMA integrity_check")


def check_trees(connection: sqlite3.Connection) -> None:
    """See that each row is where a search for it looks, which a read of all rows does not show.
    Raises Damaged."""
    if wrong := _errors(connection, "PRAGMA quick_check(1)"):
        raise Damaged(wrong[0])


def _errors(connection: sqlite3.Connection, pragma: str) -> list[str]:
    lines = [line for (line,) in connection.execute(pragma)]
    texts = [x.decode(errors="replace") if isinstance(x, bytes) else str(x) for x in lines]
    return [text for text in texts if text != "ok"]
