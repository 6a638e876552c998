"""The tables of a log: its chunks, found by sequence, timestamp or id, and its metadata.

Timestamps and ids use all 64 bits, so they are stored as big-endian bytes, which SQLite compares in
their order. Chunks from the header's `tail` on are of a flush that was not completed. A chunk
without data stands for records that a repair found lost; only repairs write
one, and no read shows it. A chunk whose data is in the replica alone (`ColdChunk`) has a text in
its place, which is a `ColdReference`; the sizes in the header count it all the same.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Chunk,
    ColdChunk,
    ColdReference,
    LogSnapshot,
    Position,
)
from millpond.actors.store.interface import Seek
from millpond.actors.store.log_memtable import CHUNK_BYTES, LogMemtable
from millpond.actors.store.partitions.flush_batches import Flush, batches
from millpond.actors.store.partitions.metadata import (
    FileHeader,
    PropertyCount,
    make_sum_columns,
    property_count,
    write_header,
)
from millpond.actors.store.partitions.sqlite import (
    COLD_FORMAT,
    FORMAT,
    Damaged,
    crc_of,
    transaction,
)

SCHEMA = """
CREATE TABLE chunks (
    first INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    first_timestamp BLOB NOT NULL,
    last_timestamp BLOB NOT NULL,
    first_id BLOB NOT NULL,
    last_id BLOB NOT NULL,
    crc INTEGER NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX chunks_timestamp ON chunks (last_timestamp);
CREATE INDEX chunks_id ON chunks (last_id);
CREATE TABLE notes (name BLOB PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL);
"""

_COLUMNS = "first, count, first_timestamp, last_timestamp, first_id, last_id, data, crc"
_INSERT = f"INSERT OR IGNORE INTO chunks ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_SELECTED = f"{_COLUMNS}, typeof(data) = 'text'"
_SIZE = "CASE typeof(data) WHEN 'text' THEN CAST(data AS INTEGER) ELSE length(data) END"
COLD = b"cold"
"""In the checksum of a row whose data is a reference: neither passes for the other."""
_TRIMMED = "first < ?1 AND first + count <= ?1"
# Only the chunk that begins at or before the sequence may hold it.
_AT_SEQUENCE = (
    "SELECT first FROM chunks WHERE first + count > :sequence "
    "AND first >= coalesce((SELECT max(first) FROM chunks WHERE first <= :sequence), 0) "
    "ORDER BY first LIMIT 1"
)
_SEQUENCE_MAX = 2**63 - 1

_ChunkValues = tuple[int, int, bytes, bytes, bytes, bytes, bytes | str, int]


class LocalBytes(NamedTuple):
    """The bytes of a log's chunks that are in its file, and those in the replica alone."""

    local: int
    cold: int


class ColdCount(NamedTuple):
    """The records and bytes of chunks that are in the replica alone."""

    records: int
    bytes: int


def apply(flush: Flush, memtable: LogMemtable) -> None:
    """Bring a memtable into the tables. Chunks count only once all is done; what else is committed
    before harms nothing: the memtable, which is still in the journal, says the same again."""
    header = flush.header
    if memtable.is_fresh:
        _empty(flush)
    elif header.properties is None:
        make_sum_columns(flush.connection, header.kind)
        header.properties = property_count(_crcs(flush.connection))
    header.trim_point = max(header.trim_point, memtable.trim_point)
    _trim(flush)
    _set_metadata(flush, memtable)
    kept = [chunk for chunk in memtable.chunks if chunk.end > header.trim_point]
    new = [chunk for chunk in kept if chunk.first >= header.tail]
    for batch in batches(new, _size):
        flush.connection.executemany(_INSERT, (_encode(each, header.seed) for each in batch))
        flush.spend(sum(map(_size, batch)))
    # From here on nothing is committed before all is done.
    old = kept[: len(kept) - len(new)]
    new += [each for each in old if _is_inserted(flush, each)]
    header.messages += sum(chunk.count for chunk in new)
    header.bytes += sum(chunk.size for chunk in new)
    if any(isinstance(chunk, ColdChunk) for chunk in new):
        flush.connection.execute(f"PRAGMA user_version = {COLD_FORMAT}")
    header.keys += sum(chunk.count for chunk in new if not chunk.data)
    if memtable.chunks and memtable.chunks[-1].end > header.tail:
        last = memtable.chunks[-1]
        header.tail, header.end_id, header.end_timestamp = (
            last.end,
            last.last_id,
            last.last_timestamp,
        )


def _empty(flush: Flush) -> None:
    """A new log begins."""
    flush.connection.execute("DELETE FROM chunks")
    flush.connection.execute("DELETE FROM notes")
    header = flush.header
    header.messages = header.bytes = header.keys = 0
    header.tail = header.trim_point = header.end_timestamp = 0
    header.end_id = Position(0, 0)
    if header.properties is None:
        make_sum_columns(flush.connection, header.kind)
    header.properties = PropertyCount()


def _trim(flush: Flush) -> None:
    point = (min(flush.header.trim_point, _SEQUENCE_MAX),)
    records, size, lost = flush.connection.execute(
        f"SELECT coalesce(sum(count), 0), coalesce(sum({_SIZE}), 0), "
        "coalesce(sum(CASE length(data) WHEN 0 THEN count END), 0) "
        f"FROM chunks WHERE {_TRIMMED}",
        point,
    ).fetchone()
    if records:
        flush.connection.execute(f"DELETE FROM chunks WHERE {_TRIMMED}", point)
        flush.header.messages -= records
        flush.header.bytes -= size
        flush.header.keys = max(flush.header.keys - lost, 0)


def _set_metadata(flush: Flush, memtable: LogMemtable) -> None:
    counted = flush.header.properties or PropertyCount()
    for name, value in memtable.metadata.items():
        for crc in _crcs(flush.connection, "WHERE name = ?", name):
            counted = counted.minus(crc)
        if value is None:
            flush.connection.execute("DELETE FROM notes WHERE name = ?", (name,))
        else:
            crc = crc_of((name, value), flush.header.seed)
            flush.connection.execute(
                "INSERT OR REPLACE INTO notes (name, value, crc) VALUES (?, ?, ?)",
                (name, value, crc),
            )
            counted = counted.plus(crc)
    flush.header.properties = counted


def _crcs(connection: sqlite3.Connection, which: str = "", *values: bytes) -> list[int]:
    """The CRCs of properties. Raises Damaged."""
    crcs = [crc for (crc,) in connection.execute(f"SELECT crc FROM notes {which}", values)]
    if not all(isinstance(crc, int) for crc in crcs):
        raise Damaged("the crc of a note is no number")
    return crcs


def discard_unfinished(connection: sqlite3.Connection, header: FileHeader) -> None:
    """Remove what a flush left that did not come to its end."""
    (last,) = connection.execute("SELECT max(first) FROM chunks").fetchone()
    (has_metadata,) = connection.execute("SELECT EXISTS (SELECT 1 FROM notes)").fetchone()
    is_first = not header.applied and (has_metadata or header.trim_point > 0)
    if is_first or (last is not None and last >= header.tail):
        with transaction(connection):
            connection.execute("DELETE FROM chunks WHERE first >= ?", (header.tail,))
            if is_first:
                # No caller knows of a file whose first flush failed: nothing lies over its notes.
                connection.execute("DELETE FROM notes")
                header.trim_point = 0
                if header.properties is not None:
                    header.properties = PropertyCount()
                write_header(connection, header)


def log_snapshot(connection: sqlite3.Connection, header: FileHeader) -> LogSnapshot:
    """The bounds and metadata of the log. Raises Damaged."""
    snapshot = header.log_snapshot
    counted = PropertyCount()
    for name, value, crc in connection.execute("SELECT name, value, crc FROM notes"):
        if crc != crc_of((name, value), header.seed):
            raise Damaged(f"note {name!r} is not what was written (crc)")
        snapshot.metadata[name] = value
        counted = counted.plus(crc)
    if header.properties not in (None, counted):
        raise Damaged(_wrong_properties(counted, header.properties))
    return snapshot


def _wrong_properties(found: PropertyCount, expected: PropertyCount) -> str:
    if found.count == expected.count:
        return "properties are not those that were written last"
    return f"{found.count} properties, and meta says {expected.count}"


def read(connection: sqlite3.Connection, header: FileHeader, seek: Seek) -> list[Chunk]:
    """Chunks from where `seek` says, ascending; lost records are stepped over. Raises Damaged.

    The file promises its records from `tail - messages` to `tail`: the first chunk has the wanted
    sequence, each begins where the one before ends, and the last one ends at a limit or at `tail`.
    """
    first = _find(connection, header, seek)
    if first is None:
        return []
    chunks: list[Chunk] = []
    size, count, end = 0, 0, first
    query = f"SELECT {_SELECTED} FROM chunks WHERE first >= ? ORDER BY first"
    for record in connection.execute(query, (first,)):
        chunk = _decode(record, header.seed)
        if chunk.first != end:
            raise Damaged(_missing(end, chunk.first))
        end = chunk.end
        if not chunk.data:
            continue
        count += chunk.count if chunks else _asked_for(chunk, seek)
        chunks.append(chunk)
        size += chunk.size
        if size >= seek.bytes_max or count >= seek.count_max:
            return chunks
    if end != header.tail:
        raise Damaged(_missing(end, header.tail))
    return chunks


def _missing(first: int, end: int) -> str:
    if first < end:
        return f"records {first} to {end - 1} are missing"
    return f"records {end} to {first - 1} are there twice"


def _asked_for(chunk: Chunk, seek: Seek) -> int:
    """The number of records of the first chunk that are asked for, at least: most may be before
    that."""
    if seek.by is not SeekBy.SEQUENCE:
        return 0
    return chunk.end - max(chunk.first, seek.sequence)


def _find(connection: sqlite3.Connection, header: FileHeader, seek: Seek) -> int | None:
    """The first chunk to read, by its first sequence. Raises Damaged."""
    sequence = min(seek.sequence, _SEQUENCE_MAX)
    here = connection.execute(_AT_SEQUENCE, {"sequence": sequence}).fetchone()
    first: int = header.tail if here is None else here[0]
    wanted = max(sequence, header.tail - header.messages)
    if wanted < first:
        raise Damaged(_missing(wanted, first))
    if here is None or seek.by is SeekBy.SEQUENCE:
        return None if here is None else first
    if _is_late(_chunk_at(connection, header, first), seek):
        return first
    # All that is so late is behind that chunk: none before it is looked at.
    column = "last_timestamp" if seek.by is SeekBy.TIMESTAMP else "last_id"
    later = connection.execute(
        f"SELECT first FROM chunks WHERE {column} >= :at AND first + count > :sequence "
        f"ORDER BY {column}, first LIMIT 1",
        {"sequence": sequence, "at": _goal(seek)},
    ).fetchone()
    found: int | None = None if later is None else later[0]
    _check_index(connection, header, sequence, seek, found)
    return found


def _check_index(
    connection: sqlite3.Connection,
    header: FileHeader,
    sequence: int,
    seek: Seek,
    found: int | None,
) -> None:
    """The tables say the same as the index: the chunk before the one that is `found` (None: the
    last one) is none that the index should have found. Raises Damaged."""
    below = _SEQUENCE_MAX if found is None else found
    query = f"SELECT {_SELECTED} FROM chunks WHERE first < ? ORDER BY first DESC LIMIT 1"
    before = connection.execute(query, (below,)).fetchone()
    chunk = None if before is None else _decode(before, header.seed)
    is_late = chunk is not None and chunk.end > sequence and _is_late(chunk, seek)
    if found is None:
        if is_late:
            raise Damaged(f"the index does not have chunk {before[0]}")
        return
    at = _chunk_at(connection, header, found)
    if not _is_late(at, seek):
        raise Damaged(f"the index has chunk {found} in another place")
    if chunk is not None and is_late and _end_of(chunk, seek) <= _end_of(at, seek):
        raise Damaged(f"the index does not have chunk {chunk.first}")


def _chunk_at(connection: sqlite3.Connection, header: FileHeader, first: int) -> Chunk:
    query = f"SELECT {_SELECTED} FROM chunks WHERE first = ?"
    record = connection.execute(query, (first,)).fetchone()
    if record is None:
        raise Damaged(f"chunk {first} is missing")
    return _decode(record, header.seed)


def _is_late(chunk: Chunk, seek: Seek) -> bool:
    """True: the last record of the chunk is at or behind the time or id of the seek."""
    return _end_of(chunk, seek) >= _goal(seek)


def _end_of(chunk: Chunk, seek: Seek) -> bytes:
    is_time = seek.by is SeekBy.TIMESTAMP
    return _pack(chunk.last_timestamp) if is_time else _pack_id(chunk.last_id)


def _goal(seek: Seek) -> bytes:
    return _pack(seek.timestamp) if seek.by is SeekBy.TIMESTAMP else _pack_id(seek.id)


def verify(connection: sqlite3.Connection, header: FileHeader) -> Iterator[str]:
    """Texts of what is wrong."""
    records = size = lost = 0
    end: int | None = None
    for record in connection.execute(f"SELECT {_SELECTED} FROM chunks ORDER BY first"):
        try:
            chunk = _decode(record, header.seed)
        except Damaged as exc:
            yield str(exc)
            end = None
            continue
        if end is not None and chunk.first != end:
            yield _missing(end, chunk.first)
        records, size, end = records + chunk.count, size + chunk.size, chunk.end
        lost += 0 if chunk.data else chunk.count
    if (records, size) != (header.messages, header.bytes):
        expected = f"{header.messages}, {header.bytes}"
        yield f"{records} records with {size} bytes, and meta says {expected}"
    if header.keys and lost != header.keys:
        yield f"{lost} records are lost, and meta says {header.keys}"
    if end is not None and end != header.tail:
        yield f"the last record is {end - 1}, and meta says {header.tail - 1}"
    try:
        log_snapshot(connection, header)
    except Damaged as exc:
        yield str(exc)


# Cold chunks.


def local_bytes(connection: sqlite3.Connection) -> LocalBytes:
    """The bytes of all chunks, by where their data is."""
    local, size = connection.execute(
        "SELECT coalesce(sum(length(data)) FILTER (WHERE typeof(data) != 'text'), 0), "
        f"coalesce(sum({_SIZE}), 0) FROM chunks"
    ).fetchone()
    return LocalBytes(local, size - local)


def oldest_local(
    connection: sqlite3.Connection, header: FileHeader, bytes_max: int, count_max: int
) -> list[Chunk]:
    """The oldest chunks whose data is in the file, in order, up to these limits. The last of all
    stays: a log that ends in the replica would ask for it at each start."""
    found: list[Chunk] = []
    size = 0
    query = (
        f"SELECT {_SELECTED} FROM chunks WHERE typeof(data) = 'blob' AND length(data) > 0 "
        "AND first + count < ? AND first + count > ? ORDER BY first LIMIT ?"
    )
    for record in connection.execute(query, (header.tail, header.trim_point, count_max)):
        chunk = _decode(record, header.seed)
        size += len(chunk.data)
        if found and size > bytes_max:
            break
        found.append(chunk)
    return found


def make_cold(
    connection: sqlite3.Connection,
    header: FileHeader,
    moved: Sequence[tuple[Chunk, ColdReference]],
) -> int:
    """Within a transaction, put references in the place of the data of chunks. Those that are not
    here any more as they were stay away. Gives the bytes that went."""
    query = f"SELECT {_SELECTED} FROM chunks WHERE first = ?"
    gone = 0
    for chunk, reference in moved:
        record = connection.execute(query, (chunk.first,)).fetchone()
        if record is None or _decode(record, header.seed) != chunk:
            continue
        cold = ColdChunk(
            chunk.first,
            chunk.count,
            chunk.first_timestamp,
            chunk.last_timestamp,
            chunk.first_id,
            chunk.last_id,
            reference.encode(),
        )
        values = _encode(cold, header.seed)
        change = "UPDATE chunks SET data = ?, crc = ? WHERE first = ?"
        connection.execute(change, (*values[6:], chunk.first))
        gone += len(chunk.data)
    if gone:
        connection.execute(f"PRAGMA user_version = {COLD_FORMAT}")
    return gone


def cold_objects(connection: sqlite3.Connection) -> dict[tuple[int, int], int]:
    """The objects that have data of the log, by epoch and number, and the bytes there that the log
    still needs. Raises Damaged."""
    found: dict[tuple[int, int], int] = {}
    query = "SELECT CAST(data AS BLOB) FROM chunks WHERE typeof(data) = 'text'"
    for (data,) in connection.execute(query):
        try:
            reference = ColdChunk(0, 0, 0, 0, Position(0, 0), Position(0, 0), data).reference
        except ValueError as exc:
            raise Damaged(f"the reference of a chunk is {data!r}") from exc
        found[reference.object] = found.get(reference.object, 0) + reference.size
    return found


def cold_count(connection: sqlite3.Connection) -> ColdCount:
    """The chunks whose data is in the replica alone."""
    query = (
        f"SELECT coalesce(sum(count), 0), coalesce(sum({_SIZE}), 0) FROM chunks "
        "WHERE typeof(data) = 'text'"
    )
    return ColdCount(*connection.execute(query).fetchone())


def make_local(
    connection: sqlite3.Connection,
    header: FileHeader,
    read: Callable[[ColdChunk], bytes],
    bytes_max: int,
) -> int:
    """Within a transaction, put the data that `read` gives in the place of references, the oldest
    first, until that is about `bytes_max`. Gives the bytes; 0: the file has all its data, and the
    format of one that always had. Raises Damaged for data that is another one."""
    query = (
        f"SELECT {_SELECTED} FROM chunks WHERE typeof(data) = 'text' AND first >= ? "
        "ORDER BY first LIMIT 1"
    )
    size = first = 0
    while size < bytes_max:
        record = connection.execute(query, (first,)).fetchone()
        if record is None:
            break
        cold = _decode(record, header.seed)
        assert isinstance(cold, ColdChunk), "its data is a text"
        data = read(cold)
        values = (*record[:6], data)
        if crc_of(values, header.seed) != cold.reference.crc:
            raise Damaged(f"the data of chunk {cold.first} is not what was written (crc)")
        change = "UPDATE chunks SET data = ?, crc = ? WHERE first = ?"
        connection.execute(change, (data, cold.reference.crc, cold.first))
        size, first = size + len(data), cold.end
    if not size:
        connection.execute(f"PRAGMA user_version = {FORMAT}")
    return size


def next_cold(
    connection: sqlite3.Connection, header: FileHeader, sequence: int
) -> ColdReference | None:
    """The reference of the first cold chunk from a sequence on."""
    query = (
        f"SELECT {_SELECTED} FROM chunks WHERE first >= ? AND typeof(data) = 'text' "
        "ORDER BY first LIMIT 1"
    )
    record = connection.execute(query, (min(sequence, _SEQUENCE_MAX),)).fetchone()
    chunk = None if record is None else _decode(record, header.seed)
    return chunk.reference if isinstance(chunk, ColdChunk) else None


def _is_inserted(flush: Flush, chunk: Chunk) -> bool:
    """False: the chunk was there already."""
    return flush.connection.execute(_INSERT, _encode(chunk, flush.header.seed)).rowcount > 0


def _encode(chunk: Chunk, seed: int) -> _ChunkValues:
    values = (
        chunk.first,
        chunk.count,
        _pack(chunk.first_timestamp),
        _pack(chunk.last_timestamp),
        _pack_id(chunk.first_id),
        _pack_id(chunk.last_id),
        chunk.data,
    )
    if isinstance(chunk, ColdChunk):
        return (*values[:6], chunk.data.decode(), crc_of((*values, COLD), seed))
    return (*values, crc_of(values, seed))


def crc_of_chunk(chunk: Chunk, seed: int) -> int:
    """The CRC of the row of a chunk."""
    return _encode(chunk, seed)[7]


def _decode(record: tuple[object, ...], seed: int) -> Chunk:
    is_cold = record[8]
    if crc_of((*record[:7], COLD) if is_cold else record[:7], seed) != record[7]:
        raise Damaged(f"chunk {record[0]} is not what was written (crc)")
    values: tuple[int, int, bytes, bytes, bytes, bytes, bytes, int]
    values = record[:8]  # type: ignore[assignment]  # the crc says so
    first, count, first_timestamp, last_timestamp, first_id, last_id, data, _ = values
    return (ColdChunk if is_cold else Chunk)(
        first,
        count,
        int.from_bytes(first_timestamp),
        int.from_bytes(last_timestamp),
        _unpack_id(first_id),
        _unpack_id(last_id),
        data,
    )


def _pack(number: int) -> bytes:
    return number.to_bytes(8)


def _pack_id(position: Position) -> bytes:
    return _pack(position.ms) + _pack(position.seq)


def _unpack_id(packed: bytes) -> Position:
    return Position(int.from_bytes(packed[:8]), int.from_bytes(packed[8:]))


def _size(chunk: Chunk) -> int:
    return len(chunk.data) + CHUNK_BYTES
