"""Idempotent producers: what was appended by whom, so that a repetition is not appended again."""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from millpond.actors.streams.durable.messages import Producer

PRODUCERS_MAX = 1000
"""Of a stream; the one that was quiet for longest is forgotten."""


class ProducerState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The progress of a producer and its time: the value of its key, as MessagePack."""

    epoch: int
    seq: int
    ms: int


class ProducerCheck(Enum):
    """The result of checking an append of a producer."""

    NEXT = auto()
    DUPLICATE = auto()
    STALE_EPOCH = auto()
    EPOCH_BEGINS_AT_ZERO = auto()
    GAP = auto()


def check_producer(known: ProducerState | None, asked: Producer) -> ProducerCheck:
    """Check an append against the progress of its producer (B.3 13)."""
    if known is None:
        return ProducerCheck.NEXT if asked.seq == 0 else ProducerCheck.GAP
    if asked.epoch < known.epoch:
        return ProducerCheck.STALE_EPOCH
    if asked.epoch > known.epoch:
        return ProducerCheck.NEXT if asked.seq == 0 else ProducerCheck.EPOCH_BEGINS_AT_ZERO
    if asked.seq <= known.seq:
        return ProducerCheck.DUPLICATE
    return ProducerCheck.NEXT if asked.seq == known.seq + 1 else ProducerCheck.GAP


def least_recent_producer(known: dict[bytes, ProducerState]) -> bytes:
    """The producer that was quiet for longest."""
    return min(known, key=lambda name: known[name].ms)
