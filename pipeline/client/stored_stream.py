"""The records of a stream as the file of a snapshot has them (docs/reference/replica.md): settled
chunks in the table `chunks`, each with its checksum, or with the place of a cold object.

The file is that of the stream's partition, with the layout of docs/reference/on-disk-format.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from millpond.pipeline.client.columns import Columns, Numbers
from millpond.pipeline.client.s2_codec import Headers
from millpond.pipeline.client.table_file import DamagedFile, PagedFile, TableFile, Value

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # not on every executor; the numbers are the same
    from zlib import crc32

SEEDED_FORMAT, COLD_FORMAT = 4, 5
"""The versions of a file: with a seed of its own for checksums; with cold chunks."""
_CREATED = b"created"
_SERIAL_BITS = 20
_KIND_LOG = 1
_META_COLUMNS = 15
_DEADLINE = 7
_COLD_MAGIC = b"MILLPOND CHUNKS\0"
_HEADER_BYTES_MAX = 2**24


class _Records(msgspec.Struct, array_like=True, gc=False):
    """The data of a chunk, as MessagePack; more columns may follow."""

    bodies: list[bytes]
    timestamps: list[int] | None = None
    ids: msgspec.Raw = msgspec.Raw()
    headers: list[Headers] | None = None


class _ColdObject(NamedTuple):
    name: str
    data: bytes
    start: int
    """Where the body begins."""


_encode = msgspec.msgpack.Encoder().encode
_decode_records = msgspec.msgpack.Decoder(_Records).decode
_decode_any = msgspec.msgpack.Decoder().decode
_MAX = 2**63


class StoredStream:
    """The file of a stream. `path` is its path in a data folder, which tells the seed of its
    checksums; `fetch` gets a whole cold object. The methods raise DamagedFile, and what reading
    raises.

    `tail`: records from there on are not in the file. `identity`: that of the stream; None: the
    file has none.
    """

    def __init__(self, pages: PagedFile, path: str, fetch: Callable[[str], bytes]) -> None:
        if not 1 <= pages.version <= COLD_FORMAT:
            raise DamagedFile(f"format {pages.version}, and this version knows {COLD_FORMAT}")
        self._seed = _seed_of(path) if pages.version >= SEEDED_FORMAT else 0
        self._tables = TableFile(pages)
        self._fetch = fetch
        self._cold: _ColdObject | None = None
        self.tail = self._read_tail()
        self.identity = self._read_identity()

    def _read_tail(self) -> int:
        found = [columns for _, columns in self._tables.rows("meta", 0)]
        if len(found) != 1 or len(found[0]) <= _META_COLUMNS:
            raise DamagedFile("it does not tell what it has")
        columns = found[0]
        if isinstance(columns[_DEADLINE], int):  # as SQLite stores a whole number of a REAL column
            columns[_DEADLINE] = float(columns[_DEADLINE] or 0)
        more = columns[_META_COLUMNS + 1 :]
        values = (*columns[:_META_COLUMNS], *([] if None in more else more))
        if columns[_META_COLUMNS] != _crc(values, 0):
            raise DamagedFile("what it says of itself is not what was written (crc)")
        tail = columns[10]
        if columns[1] != _KIND_LOG or not isinstance(tail, int):
            raise DamagedFile("it is none of a stream")
        return tail % 2**64

    def _read_identity(self) -> str | None:
        for _, (name, value, crc) in self._tables.rows("notes", 3):
            if name != _CREATED or not isinstance(value, bytes):
                continue
            if crc != _crc((name, value), self._seed):
                raise DamagedFile("the note of its creation is not what was written (crc)")
            try:
                ms, *rest = _decode_any(value)
                serial = rest[4] if len(rest) > 4 else 0
                return f"{ms << _SERIAL_BITS | serial % (1 << _SERIAL_BITS):x}"
            except (msgspec.MsgspecError, TypeError, ValueError):
                raise DamagedFile("the note of its creation is not what was written") from None
        return None

    def read(self, start: int, end: int) -> Iterator[Columns]:
        """The records from `start` to before `end`, up to the first one that the file does not
        have. A fork's file does not have those of its source."""
        end = min(end, self.tail)
        if start >= min(end, _MAX):
            return
        first = self._tables.floor("chunks", start)
        expected = None
        for key, columns in self._tables.rows("chunks", 8, start if first is None else first):
            count, data = columns[1], columns[7]
            if key >= end:
                return
            if not isinstance(count, int) or count < 1:
                raise DamagedFile(f"chunk {key} has no records")
            if key + count <= start:
                continue
            if key > start if expected is None else key != expected:
                return
            if data == b"":  # lost
                return
            expected = key + count
            found = _columns_of(key, count, columns[2], self._data(key, columns))
            kept = slice(max(0, start - key), min(count, end - key))
            yield found if kept == slice(0, count) else found.part(kept)

    def _data(self, key: int, columns: list[Value]) -> bytes:
        """The data of a chunk, as they were written. Raises DamagedFile."""
        data, crc = columns[7], columns[6]
        if isinstance(data, str):
            data, crc = self._cold_data(key, data)
        if not isinstance(data, bytes):
            raise DamagedFile(f"chunk {key} has no data")
        if crc != _crc((key, *columns[1:6], data), self._seed):
            raise DamagedFile(f"chunk {key} is not what was written (crc)")
        return data

    def _cold_data(self, key: int, reference: str) -> tuple[bytes, int]:
        try:
            size, name, offset, crc = reference.split(" ")
            epoch, number = map(int, name.split("-"))
            first, behind = int(offset), int(offset) + int(size)
        except ValueError:
            raise DamagedFile(f"chunk {key} has no data") from None
        whole = f"cold/{epoch:020}-{number:020}"
        if self._cold is None or self._cold.name != whole:
            self._cold = _cold_object(whole, self._fetch(whole))
        start, data = self._cold.start, self._cold.data
        if not 0 <= first <= behind <= len(data) - start:
            raise DamagedFile(f"{whole} is damaged: chunk {key} is not in it")
        return data[start + first : start + behind], int(crc)


def _cold_object(name: str, data: bytes) -> _ColdObject:
    """An object whose header and body are whole. Raises DamagedFile, which names it."""
    begin = len(_COLD_MAGIC) + 4
    length = int.from_bytes(data[len(_COLD_MAGIC) : begin], "little")
    if not data.startswith(_COLD_MAGIC) or length > _HEADER_BYTES_MAX:
        raise DamagedFile(f"{name} is damaged: it has no chunks")
    head, start = data[begin : begin + length], begin + length + sha256().digest_size
    try:
        if sha256(head).digest() != data[begin + length : start]:
            raise ValueError
        header = _decode_any(head)
        if header["size"] != len(data) - start:
            raise ValueError
        if sha256(memoryview(data)[start:]).digest() != header["sha256"]:
            raise ValueError
    except (ValueError, KeyError, TypeError):  # those of MessagePack among them
        raise DamagedFile(f"{name} is damaged: it is not what was written") from None
    return _ColdObject(name, data, start)


def _columns_of(first: int, count: int, timestamp: Value, data: bytes) -> Columns:
    """The records of a chunk as arrays. Raises DamagedFile."""
    try:
        found = _decode_records(data)
        if len(found.bodies) != count or not isinstance(timestamp, bytes):
            raise ValueError
        sequences: Numbers = np.arange(first, first + count, dtype=np.uint64)
        timestamps: Numbers = np.full(count, int.from_bytes(timestamp), np.uint64)
        if found.timestamps is not None:
            timestamps = np.array(found.timestamps, np.uint64)
        if len(timestamps) != count or len(found.headers or found.bodies) != count:
            raise ValueError
    except (ValueError, OverflowError):
        raise DamagedFile(f"chunk {first} has not the records that it should have") from None
    return Columns(sequences, timestamps, _bodies(found.bodies, count), found.headers)


def _bodies(bodies: list[bytes], count: int) -> Any:
    """Bodies as an array of Arrow, which has them one behind the other."""
    ends: Numbers = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(map(len, bodies), np.int64, count), out=ends[1:])
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(bodies))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _seed_of(path: str) -> int:
    try:
        return int(path.rpartition("/")[2][:8], 16)
    except ValueError:
        raise DamagedFile(f"{path} is no file of a stream") from None


def _crc(values: tuple[Any, ...], seed: int) -> int:
    """The CRC-32 of the columns of a row, as MessagePack; a long last one is not copied."""
    last = values[-1]
    if not isinstance(last, bytes) or len(last) < 2**16:
        return crc32(_encode(values), seed)
    head = _encode((*values[:-1], b""))[:-2] + b"\xc6" + len(last).to_bytes(4)
    return crc32(last, crc32(head, seed))
