"""The format of a checkpoint: a state as bytes with its stream, its position and a checksum.

    magic, 16 bytes | BLAKE2b of all that follows, 32 bytes | parts

A part is its length (u32, little-endian) and MessagePack. The first one is `_Header`; each of the
others is `[type, {key: value}]` with some of a type's values, JSON as it stood in the stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from struct import Struct

import msgspec

from millpond.actors.positions import Position
from millpond.actors.state.materialized import MaterializedState
from millpond.actors.state.stats import EventStats
from millpond.actors.state.table import size_of
from millpond.actors.streams.messages import RecordColumns

MAGIC = b"millpond-state-1"
PART_ROWS = 2000
"""Rows of a part: other threads run between two parts."""
_DIGEST_BYTES = 32
_LENGTH = Struct("<I")


class RecordFingerprint(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The last record that a state was made of, with a digest that tells it from any other."""

    sequence: int
    id: Position
    timestamp: int
    digest: bytes


def fingerprint_of_last(span: RecordColumns) -> RecordFingerprint:
    """The fingerprint of the last one of these records."""
    last = len(span.bodies) - 1
    position = Position(span.id.ms, span.id.seq + last) if span.ids is None else span.ids[last]
    timestamp = span.timestamp if span.timestamps is None else span.timestamps[last]
    digest = blake2b(span.bodies[last], digest_size=_DIGEST_BYTES).digest()
    return RecordFingerprint(span.first + last, position, timestamp, digest)


class Checkpoint(msgspec.Struct, frozen=True):
    """The state of the stream `name` behind the record `fingerprint`. `incarnation` is that of the
    stream; `first`: see `StateDescribed`."""

    name: bytes
    incarnation: int
    fingerprint: RecordFingerprint
    first: int
    stats: EventStats
    state: MaterializedState
    size: int = 0
    """Its size in memory in bytes; set for one that was read."""

    @property
    def position(self) -> int:
        """The sequence of the next record."""
        return self.fingerprint.sequence + 1


class _Header(msgspec.Struct, frozen=True):
    name: bytes
    incarnation: int
    fingerprint: RecordFingerprint = msgspec.field(name="witness")
    first: int
    stats: EventStats = msgspec.field(name="tally")
    parts: int


class BadCheckpointFile(Exception):
    """The bytes are no checkpoint, or damaged."""


_encode = msgspec.msgpack.Encoder().encode
_header = msgspec.msgpack.Decoder(_Header).decode
_part = msgspec.msgpack.Decoder(tuple[str, dict[str, bytes]]).decode


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The bytes of a checkpoint."""
    parts = [_encode(each) for each in _parts(checkpoint.state)]
    header = _Header(
        checkpoint.name,
        checkpoint.incarnation,
        checkpoint.fingerprint,
        checkpoint.first,
        checkpoint.stats,
        len(parts),
    )
    framed: list[bytes] = []
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in (_encode(header), *parts):
        framed += (_LENGTH.pack(len(part)), part)
        digest.update(framed[-2])
        digest.update(part)
    return b"".join((MAGIC, digest.digest(), *framed))


def _parts(state: MaterializedState) -> Iterator[tuple[str, dict[str, bytes]]]:
    for kind in state.types:
        rows = iter(state.get_type(kind).items())
        while part := dict(islice(rows, PART_ROWS)):
            yield kind, part


def decode_checkpoint(data: bytes) -> Checkpoint:
    """The checkpoint. Raises BadCheckpointFile."""
    begin = len(MAGIC) + _DIGEST_BYTES
    if not data.startswith(MAGIC) or len(data) < begin:
        raise BadCheckpointFile("no checkpoint of a state")
    body = memoryview(data)[begin:]
    if blake2b(body, digest_size=_DIGEST_BYTES).digest() != data[len(MAGIC) : begin]:
        raise BadCheckpointFile("the checksum is wrong")
    frames = _frames(body)
    try:
        header = _header(next(frames))
        state = MaterializedState()
        for part in frames:
            state.fill(*_part(part))
    except (msgspec.MsgspecError, UnicodeDecodeError, StopIteration) as exc:
        raise BadCheckpointFile(str(exc)) from exc
    return Checkpoint(
        header.name,
        header.incarnation,
        header.fingerprint,
        header.first,
        header.stats,
        state,
        size_of(state),
    )


def _frames(body: memoryview) -> Iterator[memoryview]:
    """The parts. Lengths need no check, as the checksum is right."""
    at = 0
    while at < len(body):
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size + length
        yield body[at - length : at]
