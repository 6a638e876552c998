"""A reader of data folders that knows docs/reference/on-disk-format.md and nothing else of
Millpond."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from struct import pack, unpack_from
from typing import Any
from zlib import crc32

HEADER_BYTES, GROUP_BYTES, RECORD_BYTES = 1588, 32, 32
NONE, WHOLE, REST, MENDED = 0, 1, 2, 3
QUEUE, LOG = 0, 1


@dataclass
class Record:
    lsn: int
    kind: int
    name: bytes
    rewrite: int
    as_of: int
    body: bytes


@dataclass
class Group:
    first_lsn: int
    synced_lsn: int
    records: list[Record]


@dataclass
class Segment:
    """`size` is what is used of it."""

    number: int
    first_lsn: int
    last_id: int
    salt: int
    cuts: dict[int, tuple[int, int]]
    groups: list[Group] = field(default_factory=list)
    size: int = HEADER_BYTES
    previous: tuple[int, int, int] = (0, 0, 0)
    generation: int = 0
    id_mark: int = 0


@dataclass
class Queue:
    """`rows` are (key, ttl, expires_at, data, origin) by id, `keys` (id, ttl, until, digest).

    `members` are (identity, until, since) by number, `acks` are (number, id), also for number 0.
    """

    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    keys: dict[int, tuple[int, int, float, bytes]] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    mode: int | None = None
    members: dict[int, tuple[bytes, float, int | None]] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    acks: set[tuple[int, int]] = field(default_factory=set)
    due: dict[int, float] = field(default_factory=dict)
    names: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Log:
    """`chunks` are (first, count, 2 timestamps, 2 ids, data)."""

    chunks: list[tuple[Any, ...]] = field(default_factory=list)
    metadata: dict[bytes, bytes] = field(default_factory=dict)
    trim_point: int = 0
    tail: int = 0
    last_id: tuple[int, int] = (0, 0)
    last_timestamp: int = 0


def check(is_so: bool, what: str) -> None:
    if not is_so:
        raise ValueError(what)


# The journal.


def read_segment(data: bytes) -> Segment:
    """A sound segment, up to where nothing was written."""
    magic, version, count, salt, number, first_lsn, last_id = unpack_from("<16sHHIQQQ", data)
    check(magic == b"MILLPOND JOURNAL" and version in (1, 2, 3, 4), "not a journal")
    check(unpack_from("<I", data, 1584)[0] == crc32(data[:1584]), "header")
    each_cut = (unpack_from("<QQQ", data, 48 + 24 * index) for index in range(count))
    cuts = {earlier: (end, synced) for earlier, end, synced in each_cut}
    segment = Segment(number, first_lsn, last_id, salt, cuts)
    if version >= 3:
        number, end, crc, _, segment.generation, segment.id_mark = unpack_from(
            "<QQIIQQ", data, 1536
        )
        segment.previous = (number, end, crc)
    while any(data[segment.size : segment.size + GROUP_BYTES]):
        at = segment.size
        magic, length, first_lsn, synced_lsn, count = unpack_from("<4sIQQI", data, at)
        (crc,) = unpack_from("<I", data, at + 28)
        if magic != b"ROUP" or crc != crc32(data[at : at + 28], salt):
            break  # torn: a later segment has a cut here
        start = at + GROUP_BYTES
        if start + length > len(data):
            break
        records = list(read_records(data[start : start + length], salt))
        if len(records) < count:
            break
        segment.groups.append(Group(first_lsn, synced_lsn, records))
        segment.size = start + length
    return segment


def read_records(data: bytes, salt: int) -> Iterator[Record]:
    at = 0
    while at < len(data):
        size, name_size, kind, carry, lsn, as_of, body_crc, head_crc = unpack_from(
            "<IHBBQQII", data, at
        )
        name = data[at + RECORD_BYTES : at + RECORD_BYTES + name_size]
        start = at + RECORD_BYTES + name_size
        body = data[start : start + size]
        is_sound = head_crc == crc32(name, crc32(data[at : at + 28], salt))
        if not is_sound or body_crc != crc32(body, salt) or len(body) < size:
            return
        yield Record(lsn, kind, name, carry, as_of, body)
        at = start + size


def read_journal(folder: Path) -> list[Record]:
    """The records that count, of a journal that is torn only where a cut says so."""
    segments = [read_segment(path.read_bytes()) for path in sorted(folder.glob("*.journal"))]
    cuts: dict[int, int] = {}
    for segment in segments:
        for number, (end, _) in segment.cuts.items():
            cuts.setdefault(number, end)
    records: list[Record] = []
    for segment in segments:
        at = HEADER_BYTES
        for group in segment.groups:
            at += GROUP_BYTES
            for record in group.records:
                at += RECORD_BYTES + len(record.name) + len(record.body)
                if at <= cuts.get(segment.number, at):
                    records.append(record)
    return records


# Changes.


def take(body: bytes, at: int, *layout: str) -> tuple[list[Any], int]:
    """Fields in order: numbers by struct's letter, data as the index of its length or a size."""
    values: list[Any] = []
    for each in layout:
        if each.isdigit():
            size = values[int(each)]
            values.append(body[at : at + size])
            check(len(values[-1]) == size, "cut off")
            at += size
        elif each == "32s":
            values.append(body[at : at + 32])
            at += 32
        else:
            values.append(unpack_from(f"<{each}", body, at)[0])
            at += len(pack(f"<{each}", 0))
    return values, at


CHANGES = {
    1: ("Q", "Q", "I", "d", "I", "4"),
    2: ("Q", "Q", "I", "d", "I", "4", "Q", "I", "H", "8"),
    3: ("Q", "Q", "I"),
    4: ("Q", "Q", "I", "I", "d", "32s"),
    5: ("Q", "Q", "I", "d", "32s"),
    6: ("Q", "B"),
    7: ("Q", "I"),
    8: ("B",),
    9: ("I", "32s", "d", "Q"),
    10: ("I", "d", "Q"),
    11: ("I",),
    12: ("I", "Q"),
    13: ("I", "Q"),
    14: ("Q", "d"),
    15: ("Q", "B", "1"),
    16: ("Q", "I", "Q", "Q", "Q", "Q", "Q", "Q", "I", "8"),
    17: ("Q",),
    18: ("H", "I", "0", "1"),
    19: ("H", "0"),
    20: (),
    21: ("Q", "d"),
}


def changes_of(body: bytes) -> Iterator[tuple[int, list[Any]]]:
    at = 0
    while at < len(body):
        op = body[at]
        fields, at = take(body, at + 1, *CHANGES[op])
        yield op, fields


def change_queue(queue: Queue, op: int, fields: list[Any]) -> None:
    match op, fields:
        case 1 | 2, [message_id, key, ttl, expires_at, _, data, *dead]:
            origin = (dead[0], dead[1], dead[3].decode()) if dead else None
            queue.rows[message_id] = (key, ttl, expires_at, data, origin)
            if key in queue.keys and queue.keys[key][0] < message_id:
                del queue.keys[key]
        case 3 | 4, [message_id, key, _, *left]:
            queue.rows.pop(message_id, None)
            queue.attempts.pop(message_id, None)
            queue.acks = {each for each in queue.acks if each[1] != message_id}
            queue.due.pop(message_id, None)
            queue.names.pop(message_id, None)
            if left:
                queue.keys[key] = (message_id, *left)
        case 5, [key, *left]:
            queue.keys[key] = (left[0], left[1], left[2], left[3])
        case 6, [key, was_left]:
            if was_left:
                queue.keys.pop(key, None)
        case 7, [message_id, attempts]:
            if message_id in queue.rows:
                queue.attempts[message_id] = attempts
        case 8, [mode]:
            queue.mode = mode
        case 14, [message_id, due]:
            queue.due.pop(message_id, None)
            if due and message_id in queue.rows:
                queue.due[message_id] = due
        case 15, [message_id, _, name]:
            if message_id in queue.rows:
                queue.names[message_id] = name
        case 21, [message_id, expires_at]:
            if message_id in queue.rows:
                key, ttl, _, data, origin = queue.rows[message_id]
                queue.rows[message_id] = (key, ttl, expires_at, data, origin)
        case _:
            change_members(queue, op, fields)


def change_members(queue: Queue, op: int, fields: list[Any]) -> None:
    match op, fields:
        case 9, [number, identity, until, since]:
            queue.members[number] = (identity, until, since_of(since))
        case 10, [number, until, since]:
            if number in queue.members:
                queue.members[number] = (queue.members[number][0], until, since_of(since))
        case 11, [number]:
            queue.members.pop(number, None)
            queue.floors.pop(number, None)
            queue.acks = {each for each in queue.acks if each[0] != number}
        case 12, [number, message_id]:
            queue.acks.add((number, message_id))
        case 13, [number, message_id]:
            queue.floors[number] = max(queue.floors.get(number, 0), message_id)
        case _:
            raise ValueError(f"change {op} of a queue")


def since_of(value: int) -> int | None:
    return None if value == 2**64 - 1 else value


def change_log(log: Log, op: int, fields: list[Any]) -> None:
    match op, fields:
        case 16, [first, count, since, until, ms, seq, last_ms, last_seq, _, data]:
            if first >= log.tail:
                ids = (ms, seq), (last_ms, last_seq)
                log.chunks.append((first, count, since, until, *ids, data))
                log.tail, log.last_id, log.last_timestamp = first + count, ids[1], until
        case 17, [point]:
            log.trim_point = max(log.trim_point, point)
        case 18, [_, _, name, value]:
            log.metadata[name] = value
        case 19, [_, name]:
            log.metadata.pop(name, None)
        case 20, []:
            log.__init__()  # type: ignore[misc]  # a new log begins
        case _:
            raise ValueError(f"change {op} of a log")


# Files of SQLite.


def packed(value: object) -> bytes:
    """MessagePack, in the shortest form."""
    match value:
        case None:
            return b"\xc0"
        case float():
            return pack(">Bd", 0xCB, value)
        case int() if value >= 0:
            forms = ((2**7, "B", b""), (2**8, "B", b"\xcc"), (2**16, "H", b"\xcd"))
            forms += ((2**32, "I", b"\xce"), (2**64, "Q", b"\xcf"))
            return next(h + pack(f">{form}", value) for end, form, h in forms if value < end)
        case int():
            forms = ((2**5, "b", b""), (2**7, "b", b"\xd0"), (2**15, "h", b"\xd1"))
            forms += ((2**31, "i", b"\xd2"), (2**63, "q", b"\xd3"))
            return next(h + pack(f">{form}", value) for end, form, h in forms if -value <= end)
        case bytes():
            size = len(value)
            forms = ((2**8, "B", b"\xc4"), (2**16, "H", b"\xc5"), (2**32, "I", b"\xc6"))
            return next(h + pack(f">{form}", size) for end, form, h in forms if size < end) + value
        case _:
            raise TypeError(value)


def checked(row: tuple[Any, ...], seed: int = 0) -> tuple[Any, ...]:
    """A row without its checksum, which is the last column."""
    *values, crc = row
    check(crc_of(values, seed) == crc, f"checksum of {values[0]!r}")
    return tuple(values)


def crc_of(values: list[Any], seed: int = 0) -> int:
    data = bytes([0x90 + len(values)]) + b"".join(map(packed, values))
    if len(values) > 15:
        data = b"\xdc" + pack(">H", len(values)) + data[1:]
    return crc32(data, seed)


def unsigned(number: int) -> int:
    return number % 2**64


def connect(path: Path, application: bytes) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    check(connection.execute("PRAGMA user_version").fetchone()[0] in (1, 2, 3, 4), "version")
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    check(found == int.from_bytes(application, "big"), "application")
    return connection


OUTLINE = "name, kind, applied, frozen_at, messages, bytes, keys, deadline, last_id, mode, tail"


def read_queue(connection: sqlite3.Connection, meta: tuple[Any, ...], seed: int) -> Queue:
    queue = Queue(mode=meta[9])
    crcs = lesser = 0
    for *row, attempts in connection.execute(
        "SELECT message_id, key, ttl, expires_at, origin_id, origin_attempts, origin_reason, "
        f"data, crc, attempts FROM messages WHERE message_id <= {meta[8]} ORDER BY message_id"
    ):
        message_id, key, ttl, expires_at, origin_id, tries, reason, data = checked(tuple(row), seed)
        crcs += row[8]
        origin = None if origin_id is None else (origin_id, tries, reason.decode())
        queue.rows[message_id] = (unsigned(key), ttl, expires_at, data, origin)
        if attempts:
            lesser += crc_of([message_id, attempts])
            queue.attempts[message_id] = attempts
    for row in connection.execute("SELECT key, message_id, ttl, until, digest, crc FROM keys"):
        key, *left = checked(row, seed)
        queue.keys[unsigned(key)] = (left[0], left[1], left[2], left[3])
        crcs += row[5]
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if b"members" in tables:
        read_members(connection, queue, seed)
        read_terms(connection, queue, seed)
        for table in ("members", "acks", "dues", "uniques"):
            lesser += sum(crc for (crc,) in connection.execute(f"SELECT crc FROM {table}"))
    check(len(meta) == 15 or meta[15:] == (crcs % 2**32, lesser % 2**32), "rows")
    return queue


def read_members(connection: sqlite3.Connection, queue: Queue, seed: int) -> None:
    columns = "number, identity, until, since, floor, crc"
    for row in connection.execute(f"SELECT {columns} FROM members"):
        number, identity, until, since, floor = checked(row, seed)
        queue.members[number] = (identity, until, since)
        if floor:
            queue.floors[number] = floor
    for row in connection.execute("SELECT message_id, number, crc FROM acks"):
        message_id, number = checked(row, seed)
        queue.acks.add((number, message_id))


def read_terms(connection: sqlite3.Connection, queue: Queue, seed: int) -> None:
    for row in connection.execute("SELECT message_id, due, crc FROM dues"):
        message_id, due = checked(row, seed)
        if message_id in queue.rows:
            queue.due[message_id] = due
    for row in connection.execute("SELECT message_id, name, crc FROM uniques"):
        message_id, name = checked(row, seed)
        if message_id in queue.rows:
            queue.names[message_id] = name


def read_log(connection: sqlite3.Connection, meta: tuple[Any, ...], seed: int) -> Log:
    tail, trim_point, ms, seq, timestamp = (unsigned(each) for each in meta[10:15])
    log = Log(trim_point=trim_point, tail=tail, last_id=(ms, seq), last_timestamp=timestamp)
    for row in connection.execute(
        "SELECT first, count, first_timestamp, last_timestamp, first_id, last_id, data, crc "
        f"FROM chunks WHERE first < {tail} ORDER BY first"
    ):
        first, count, since, until, first_id, last_id, data = checked(row, seed)
        times = (int.from_bytes(each, "big") for each in (since, until))
        ids = (unpack_from(">QQ", each) for each in (first_id, last_id))
        log.chunks.append((first, count, *times, *ids, data))
    crcs: list[int] = []
    for row in connection.execute("SELECT name, value, crc FROM notes"):
        name, value = checked(row, seed)
        log.metadata[name] = value
        crcs.append(row[2])
    check(len(meta) == 15 or meta[15:] == (len(crcs), sum(crcs) % 2**32), "properties")
    return log


def partition_path(folder: Path, name: bytes) -> Path:
    digits = blake2b(name, digest_size=20).hexdigest()
    return folder / "partitions" / digits[:2] / f"{digits}.sqlite3"


def read_partition(path: Path) -> tuple[tuple[Any, ...], Queue | Log]:
    """The header of the file, and its content."""
    connection = connect(path, b"MlpP")
    columns = f"{OUTLINE}, trim_point, end_ms, end_seq, end_timestamp, "
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    seed = int(path.name[:8], 16) if version >= 4 else 0
    if version >= 3:
        (kind,) = connection.execute("SELECT kind FROM meta").fetchone()
        columns += "rows_sum, delivery_sum, " if kind == QUEUE else "properties, properties_sum, "
    columns += "crc"
    meta = checked(connection.execute(f"SELECT {columns} FROM meta").fetchone())
    read = read_queue if meta[1] == QUEUE else read_log
    content: Queue | Log = read(connection, meta, seed)
    connection.close()
    return meta, content


def read_catalog(folder: Path) -> tuple[dict[bytes, tuple[Any, ...]], set[bytes], dict[str, int]]:
    """Outlines by name, the names that are dirty, facts."""
    connection = connect(folder / "catalogue.sqlite3", b"MlpC")
    rows = connection.execute(f"SELECT {OUTLINE}, crc FROM partitions").fetchall()
    outlines = {row[0]: checked(row) for row in rows}
    dirty = {name for (name,) in connection.execute("SELECT name FROM partitions WHERE is_dirty")}
    facts = connection.execute("SELECT name, value, crc FROM facts").fetchall()
    connection.close()
    return outlines, dirty, {name.decode(): value for name, value in map(checked, facts)}


def read_list(folder: Path) -> tuple[dict[int, dict[str, Any]], dict[str, int]]:
    """The list of segments and the marks, in a catalog of version 3."""
    connection = connect(folder / "catalogue.sqlite3", b"MlpC")
    columns = "number, salt, first_lsn, size_max, end, checksum, last_lsn, last_id, is_noted, names"
    rows = connection.execute(f"SELECT {columns}, crc FROM segments").fetchall()
    marks = connection.execute("SELECT name, value, crc FROM marks").fetchall()
    connection.close()
    named = [dict(zip(columns.split(", "), checked(row), strict=True)) for row in rows]
    segments = {row["number"]: row for row in named}
    return segments, {name.decode(): value for name, value in map(checked, marks)}


# All together.


def read_folder(folder: Path) -> dict[bytes, Queue | Log]:
    """The content under each name."""
    outlines, dirty, _ = read_catalog(folder)
    records: dict[bytes, list[Record]] = {name: [] for name in outlines}
    for record in read_journal(folder / "journal"):
        records.setdefault(record.name, []).append(record)
    found: dict[bytes, Queue | Log] = {}
    for name, said in records.items():
        path = partition_path(folder, name)
        if path.exists() and name in outlines:
            meta, content = read_partition(path)
            applied, frozen_at = (meta if name in dirty else outlines[name])[2:4]
        else:
            content = Queue() if said[0].kind == QUEUE else Log()
            applied = frozen_at = 0
        found[name] = replay(content, said, applied, frozen_at)
    return found


def replay(
    content: Queue | Log, records: list[Record], applied: int, frozen_at: int
) -> Queue | Log:
    carries = [
        each
        for each in records
        if (each.rewrite in (WHOLE, MENDED) and each.lsn > frozen_at)
        or (each.rewrite == REST and each.lsn == frozen_at)
    ]
    base = max(applied, *(each.as_of for each in carries[-1:]), 0)
    later = [each for each in records if each.rewrite == NONE and each.lsn > base]
    for record in carries[-1:] + later:
        for op, fields in changes_of(record.body):
            if isinstance(content, Queue):
                change_queue(content, op, fields)
            else:
                change_log(content, op, fields)
    if isinstance(content, Log):
        content.chunks = [each for each in content.chunks if each[0] + each[1] > content.trim_point]
    return content
