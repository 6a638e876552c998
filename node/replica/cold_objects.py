"""Cold objects: chunks of one stream, which its node has nowhere else.

    MILLPOND CHUNKS\\0   16 bytes
    length              4 bytes, little-endian, of the header
    header              MessagePack
    SHA-256             32 bytes, of the header
    body                the data of the chunks, one behind the other

They are named by the epoch of the owner that made them and a number that counts within it, and are
never changed. docs/reference/replica.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct

import msgspec

from millpond.actors.positions import Position
from millpond.actors.store.changes import Chunk, ColdChunk, ColdReference
from millpond.actors.store.partitions.log_tables import crc_of_chunk
from millpond.actors.store.partitions.sqlite import seed_of
from millpond.node.replica.errors import BadReplica, NoObject
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import check_version, cold_name

MAGIC = b"MILLPOND CHUNKS\0"
VERSION = 1
OBJECT_BYTES = 8 * 2**20
CHUNKS_MAX = 10_000
"""The most bytes and chunks of an object; one chunk alone may have more bytes."""
HEADER_BYTES_MAX = 2**24
_LENGTH = Struct("<I")


class ColdEntry(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of a cold object, as in its row: `crc` is that of the row, with the data. The data is
    `size` bytes at `offset` of the body."""

    first: int
    count: int
    first_timestamp: int
    last_timestamp: int
    first_id: tuple[int, int]
    last_id: tuple[int, int]
    crc: int
    offset: int
    size: int


class ColdHeader(msgspec.Struct, frozen=True):
    """The header of a cold object. `name` is that of the partition, `node` the random id of the
    node, `sha256` that of the body, whose length is `size`; `made_at` in seconds since 1970."""

    version: int
    node: bytes
    epoch: int
    number: int
    name: bytes
    made_at: float
    size: int
    sha256: bytes
    chunks: tuple[ColdEntry, ...]

    @property
    def end(self) -> int:
        """The sequence behind its last record."""
        last = self.chunks[-1]
        return last.first + last.count


class ColdObject:
    """A cold object that was read whole, and is what was written."""

    def __init__(self, header: ColdHeader, body: memoryview) -> None:
        self.header = header
        self._body = body
        self._entries = {each.first: each for each in header.chunks}

    @property
    def weight(self) -> int:
        """Its bytes in memory, about."""
        return len(self._body) + 200 * len(self._entries)

    def data(self, name: bytes, chunk: Chunk, reference: ColdReference) -> bytes | None:
        """The data of a chunk of the log `name`; None: the object does not have it."""
        entry = self._entries.get(chunk.first)
        if entry is None or name != self.header.name:
            return None
        if (entry.count, entry.crc, entry.size) != (chunk.count, reference.crc, reference.size):
            return None
        return bytes(self._body[entry.offset : entry.offset + entry.size])


class ColdChunks:
    """Reads the data of cold chunks, one after the other, with the last object in memory."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._last: ColdObject | None = None

    def data(self, name: bytes, chunk: ColdChunk) -> bytes:
        """The data of a chunk of the log `name`. Raises ReplicaError."""
        reference, found = chunk.reference, self._last
        where = cold_name(*reference.object)
        if found is None or (found.header.epoch, found.header.number) != reference.object:
            self._last = None  # two of them are never in memory
            try:
                found = decode_cold_object(self._objects.get(where), where)
            except NoObject as exc:
                raise BadReplica(f"{where} is missing") from exc
            self._last = found
        data = found.data(name, chunk, reference)
        if data is None:
            raise BadReplica(f"{where} does not have chunk {chunk.first} of {name!r}")
        return data


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ColdHeader)


def encode_cold_object(
    node: bytes, epoch: int, number: int, name: bytes, made_at: float, chunks: Sequence[Chunk]
) -> tuple[bytes, list[tuple[Chunk, ColdReference]]]:
    """The bytes of a cold object of the log `name`, and the reference to each chunk."""
    seed = seed_of(name)
    entries: list[ColdEntry] = []
    moved: list[tuple[Chunk, ColdReference]] = []
    offset = 0
    for chunk in chunks:
        crc, size = crc_of_chunk(chunk, seed), len(chunk.data)
        ids = _pair(chunk.first_id), _pair(chunk.last_id)
        times = chunk.first_timestamp, chunk.last_timestamp
        entries.append(ColdEntry(chunk.first, chunk.count, *times, *ids, crc, offset, size))
        moved.append((chunk, ColdReference(size, epoch, number, offset, crc)))
        offset += size
    body = b"".join(chunk.data for chunk in chunks)
    digest = sha256(body).digest()
    header = ColdHeader(
        VERSION, node, epoch, number, name, made_at, len(body), digest, tuple(entries)
    )
    head = _encoder.encode(header)
    data = b"".join((MAGIC, _LENGTH.pack(len(head)), head, sha256(head).digest(), body))
    return data, moved


def decode_cold_object(data: bytes, name: str) -> ColdObject:
    """A cold object that is what was written. Raises BadReplica, which names it."""
    start = len(MAGIC) + _LENGTH.size
    if not data.startswith(MAGIC) or len(data) < start:
        raise BadReplica(f"{name} is damaged: it is no object of chunks")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    head, end = data[start : start + length], start + length + sha256().digest_size
    if length > HEADER_BYTES_MAX or data[start + length : end] != sha256(head).digest():
        raise BadReplica(f"{name} is damaged: its header is not what was written")
    try:
        header = _decoder.decode(head)
    except msgspec.MsgspecError as exc:
        raise BadReplica(f"{name}: its header is none that this version reads: {exc}") from exc
    check_version(header.version, name)
    if cold_name(header.epoch, header.number) != name:
        raise BadReplica(f"{name} is damaged: it is {cold_name(header.epoch, header.number)}")
    body = memoryview(data)[end:]
    if len(body) != header.size or sha256(body).digest() != header.sha256:
        raise BadReplica(f"{name} is damaged: its content is not what was written")
    return ColdObject(header, body)


def _pair(position: Position) -> tuple[int, int]:
    return position.ms, position.seq
