"""Metadata of a stream for Durable Streams: lifetime, forks, producers, and whether it is closed.

A method that changes something gives the changes for the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from millpond.actors.store.changes import MetadataSet
from millpond.actors.streams.durable.messages import NO_EXPIRY, ForkParent, Lifetime, Producer
from millpond.actors.streams.producers import PRODUCERS_MAX, ProducerState, least_recent_producer

LIFETIME = b"lifetime"
TOUCHED = b"touched"
FORK = b"fork"
CLOSED = b"closed"
ORDER = b"order"
TOMBSTONE = b"buried"
_PRODUCER = b"producer\0"
_REF = b"ref\0"

_encode = msgspec.msgpack.Encoder().encode
_lifetime = msgspec.msgpack.Decoder(Lifetime)
_parent = msgspec.msgpack.Decoder(ForkParent)
_closer = msgspec.msgpack.Decoder(Producer | None)
_progress = msgspec.msgpack.Decoder(ProducerState)


class DurableMetadata:
    """The metadata of one stream. `forks` are the cells of its forks by their numbers. A tombstone
    is a deleted stream that still has forks."""

    __slots__ = (
        "closer",
        "forks",
        "is_closed",
        "is_tombstone",
        "lifetime",
        "parent",
        "producers",
        "stream_seq",
        "touched_ms",
    )

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        lifetime, fork, closed = values.get(LIFETIME), values.get(FORK), values.get(CLOSED)
        self.lifetime = NO_EXPIRY if lifetime is None else _lifetime.decode(lifetime)
        self.touched_ms = int.from_bytes(values.get(TOUCHED, b""))
        self.parent = None if fork is None else _parent.decode(fork)
        self.is_closed = closed is not None
        self.closer = None if closed is None else _closer.decode(closed)
        """The producer whose append closed the stream, if it was one."""
        self.stream_seq = values.get(ORDER)
        self.is_tombstone = TOMBSTONE in values
        self.producers = {
            name[len(_PRODUCER) :]: _progress.decode(value)
            for name, value in values.items()
            if name.startswith(_PRODUCER)
        }
        self.forks = {
            int.from_bytes(name[len(_REF) :]): value
            for name, value in values.items()
            if name.startswith(_REF)
        }

    def create(self, lifetime: Lifetime, now_ms: int) -> Iterator[MetadataSet]:
        """The stream is created with this lifetime."""
        self.lifetime = lifetime
        if lifetime != NO_EXPIRY:
            yield MetadataSet(LIFETIME, _encode(lifetime))
            if lifetime.ttl_s is not None:
                yield self.touch(now_ms)

    def touch(self, now_ms: int) -> MetadataSet:
        """The stream was used."""
        self.touched_ms = now_ms
        return MetadataSet(TOUCHED, now_ms.to_bytes(8))

    def set_parent(self, parent: ForkParent) -> MetadataSet:
        """The stream is a fork of this parent."""
        self.parent = parent
        return MetadataSet(FORK, _encode(parent))

    def close(self, closer: Producer | None) -> MetadataSet:
        """The stream takes no more records."""
        self.is_closed, self.closer = True, closer
        return MetadataSet(CLOSED, _encode(closer))

    def set_stream_seq(self, order: bytes) -> MetadataSet:
        """The next append has to have a greater `Stream-Seq`."""
        self.stream_seq = order
        return MetadataSet(ORDER, order)

    def advance_producer(self, producer: Producer, now_ms: int) -> Iterator[MetadataSet]:
        """Set the progress of a producer; of too many the least recent one is forgotten."""
        if producer.id not in self.producers and len(self.producers) >= PRODUCERS_MAX:
            oldest = least_recent_producer(self.producers)
            del self.producers[oldest]
            yield MetadataSet(_PRODUCER + oldest, None)
        progress = ProducerState(producer.epoch, producer.seq, now_ms)
        self.producers[producer.id] = progress
        yield MetadataSet(_PRODUCER + producer.id, _encode(progress))

    def add_fork(self, ref: int, cell: bytes) -> MetadataSet:
        """Add a fork by its number; it exists, or is about to."""
        self.forks[ref] = cell
        return MetadataSet(_REF + ref.to_bytes(8), cell)

    def remove_fork(self, ref: int) -> MetadataSet:
        """Remove a fork by its number."""
        del self.forks[ref]
        return MetadataSet(_REF + ref.to_bytes(8), None)

    def set_tombstone(self) -> MetadataSet:
        """The stream is deleted, but its forks still need its records."""
        self.is_tombstone = True
        return MetadataSet(TOMBSTONE, b"1")
