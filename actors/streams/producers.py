"""Idempotent producers: what was appended by whom, so that a repetition is not appended again."""

from __future__ import annotations

from enum import Enum, auto

import msgspec

from millpond.actors.streams.durable.messages import Producer

PRODUCERS_MAX = 1000
"""Of a stream; the one that was quiet for longest is forgotten."""


class Progress(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How far a producer got, and when; the note of one, as MessagePack."""

    epoch: int
    seq: int
    ms: int


class Verdict(Enum):
    """What an append of a producer is."""

    NEXT = auto()
    DUPLICATE = auto()
    STALE_EPOCH = auto()
    EPOCH_BEGINS_AT_ZERO = auto()
    GAP = auto()


def judge(known: Progress | None, asked: Producer) -> Verdict:
    """What an append is, by what is known of its producer (B.3 13)."""
    if known is None:
        return Verdict.NEXT if asked.seq == 0 else Verdict.GAP
    if asked.epoch < known.epoch:
        return Verdict.STALE_EPOCH
    if asked.epoch > known.epoch:
        return Verdict.NEXT if asked.seq == 0 else Verdict.EPOCH_BEGINS_AT_ZERO
    if asked.seq <= known.seq:
        return Verdict.DUPLICATE
    return Verdict.NEXT if asked.seq == known.seq + 1 else Verdict.GAP


def quietest(known: dict[bytes, Progress]) -> bytes:
    """The producer that was quiet for longest."""
    return min(known, key=lambda name: known[name].ms)
