"""Mutations of good input: small enough that parsers get far into it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Protocol, TypeVar

T = TypeVar("T", covariant=True)


def mutated(rng: random.Random, wire: bytes, edges: bytes) -> bytes:
    """The bytes after up to three of: a byte changed, a piece cut out, doubled or put in.

    `edges` are the bytes on which the format turns: quotes, separators, type bytes.
    """
    raw = bytearray(wire)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        place = rng.randrange(len(raw)) if raw else 0
        match rng.randint(0, 5):
            case 0 if raw:
                raw[place] ^= 1 << rng.randint(0, 7)
            case 1 if raw:
                raw[place] = rng.choice(edges)
            case 2:
                del raw[place:]
            case 3:
                del raw[place : place + rng.randint(1, 6)]
            case 4:
                raw[place:place] = raw[place : place + rng.randint(1, 30)]
            case _:
                raw[place:place] = bytes(rng.choices(edges, k=rng.randint(1, 3)))
    return bytes(raw)


def split(rng: random.Random, wire: bytes) -> list[bytes]:
    """The bytes in one to seven pieces, of which some may be empty."""
    places = sorted(rng.randint(0, len(wire)) for _ in range(rng.randint(0, 6)))
    return [wire[start:end] for start, end in pairwise([0, *places, len(wire)])]


class FrameDecoder(Protocol[T]):
    """A decoder of a protocol. `error` ends the input."""

    @property
    def error(self) -> object: ...

    def feed(self, data: bytes, /) -> Iterable[T]: ...


def fed(decoder: FrameDecoder[T], pieces: Iterable[bytes]) -> tuple[list[T], object]:
    """All that a decoder reads from these pieces, and its error; None: there is none."""
    found = [each for piece in pieces for each in decoder.feed(piece)]
    return found, decoder.error
