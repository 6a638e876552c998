"""What is noted of a stream for Durable Streams; what changes one gives the changes for the store.

Most streams have none of it, so it is one object that stands in for all notes that are missing.
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
BURIED = b"buried"
_PRODUCER = b"producer\0"
_REF = b"ref\0"

_encode = msgspec.msgpack.Encoder().encode
_lifetime = msgspec.msgpack.Decoder(Lifetime)
_parentage = msgspec.msgpack.Decoder(ForkParent)
_closer = msgspec.msgpack.Decoder(Producer | None)
_progress = msgspec.msgpack.Decoder(ProducerState)


class DurableMetadata:
    """`refs` are the cells of forks by their numbers."""

    __slots__ = (
        "closer",
        "is_closed",
        "is_tombstone",
        "lifetime",
        "order",
        "parentage",
        "producers",
        "refs",
        "touched_ms",
    )

    def __init__(self, notes: Mapping[bytes, bytes]) -> None:
        lifetime, fork, closed = notes.get(LIFETIME), notes.get(FORK), notes.get(CLOSED)
        self.lifetime = NO_EXPIRY if lifetime is None else _lifetime.decode(lifetime)
        self.touched_ms = int.from_bytes(notes.get(TOUCHED, b""))
        self.parentage = None if fork is None else _parentage.decode(fork)
        self.is_closed = closed is not None
        self.closer = None if closed is None else _closer.decode(closed)
        """The producer whose append closed the stream, if it was one."""
        self.order = notes.get(ORDER)
        self.is_tombstone = BURIED in notes
        self.producers = {
            name[len(_PRODUCER) :]: _progress.decode(value)
            for name, value in notes.items()
            if name.startswith(_PRODUCER)
        }
        self.refs = {
            int.from_bytes(name[len(_REF) :]): value
            for name, value in notes.items()
            if name.startswith(_REF)
        }

    def begin(self, lifetime: Lifetime, now_ms: int) -> Iterator[MetadataSet]:
        """The stream is made with this lifetime."""
        self.lifetime = lifetime
        if lifetime != NO_EXPIRY:
            yield MetadataSet(LIFETIME, _encode(lifetime))
            if lifetime.ttl_s is not None:
                yield self.touch(now_ms)

    def touch(self, now_ms: int) -> MetadataSet:
        """The stream was used."""
        self.touched_ms = now_ms
        return MetadataSet(TOUCHED, now_ms.to_bytes(8))

    def descend(self, parentage: ForkParent) -> MetadataSet:
        """The stream is a fork."""
        self.parentage = parentage
        return MetadataSet(FORK, _encode(parentage))

    def close(self, closer: Producer | None) -> MetadataSet:
        """The stream takes no more records."""
        self.is_closed, self.closer = True, closer
        return MetadataSet(CLOSED, _encode(closer))

    def follow(self, order: bytes) -> MetadataSet:
        """What comes next has to come behind this `Stream-Seq`."""
        self.order = order
        return MetadataSet(ORDER, order)

    def advance(self, producer: Producer, now_ms: int) -> Iterator[MetadataSet]:
        """A producer got so far; another is forgotten, if there are too many."""
        if producer.id not in self.producers and len(self.producers) >= PRODUCERS_MAX:
            oldest = least_recent_producer(self.producers)
            del self.producers[oldest]
            yield MetadataSet(_PRODUCER + oldest, None)
        progress = ProducerState(producer.epoch, producer.seq, now_ms)
        self.producers[producer.id] = progress
        yield MetadataSet(_PRODUCER + producer.id, _encode(progress))

    def refer(self, ref: int, cell: bytes) -> MetadataSet:
        """There is, or is to be, a fork of this number."""
        self.refs[ref] = cell
        return MetadataSet(_REF + ref.to_bytes(8), cell)

    def release(self, ref: int) -> MetadataSet:
        """There is no fork of this number any more."""
        del self.refs[ref]
        return MetadataSet(_REF + ref.to_bytes(8), None)

    def bury(self) -> MetadataSet:
        """The stream is gone for everybody but its forks."""
        self.is_tombstone = True
        return MetadataSet(BURIED, b"1")
