"""The cost of reading S3P, counted in bytes that are moved and lines that are run, not in time.

However a command trickles in, each of its bytes is moved a few times and no more.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from millpond.transports.s3p import fast_parser, parser, scanner
from millpond.transports.s3p.client_codec import ReplyDecoder, encode_append
from millpond.transports.s3p.commands import Command, S3pLimits
from millpond.transports.s3p.decoder import Decoder
from millpond.transports.s3p.fast_parser import FastParser, RepeatedAppend
from millpond.transports.s3p.scanner import InputBuffer, PartialString
from tests.transports.s3p.samples import w

pytestmark = pytest.mark.wire

LIMITS = S3pLimits()
FILES = {module.__file__ for module in (fast_parser, parser, scanner)}


class Moved:
    """Counts the bytes that were copied or scanned."""

    def __init__(self) -> None:
        self.bytes = 0


class WeighedInput(InputBuffer):
    """Counts the bytes of its data, and those it keeps apart."""

    def __init__(self, moved: Moved) -> None:
        self._moved = moved
        super().__init__()

    @property
    def _data(self) -> bytes:
        return self._now

    @_data.setter
    def _data(self, data: bytes) -> None:
        self._moved.bytes += len(data)
        self._now = data

    @property
    def _kept(self) -> PartialString | None:
        return self._apart

    @_kept.setter
    def _kept(self, kept: PartialString | None) -> None:
        self._moved.bytes += len(kept or b"")
        self._apart = kept


class WeighedSplit(FastParser):
    """Counts what it is given."""

    __slots__ = ("_moved",)

    def __init__(self, moved: Moved) -> None:
        super().__init__(LIMITS)
        self._moved = moved

    def take(self, data: bytes, found: list[Command]) -> bytes:
        self._moved.bytes += len(data)
        return super().take(data, found)


class WeighedLast(RepeatedAppend):
    """Counts what it took off the front, which the decoder then cuts off."""

    __slots__ = ("_moved",)

    def __init__(self, moved: Moved) -> None:
        super().__init__(LIMITS)
        self._moved = moved

    def take(self, data: bytes, found: list[Command]) -> int:
        if at := super().take(data, found):
            self._moved.bytes += len(data)
        return at


def work(wire: bytes, size: int) -> tuple[int, int, int]:
    """Commands found, bytes moved and lines run when the bytes come `size` at a time."""
    moved = Moved()
    decoder = Decoder(LIMITS)
    decoder._incremental._source = WeighedInput(moved)
    decoder._fast = WeighedSplit(moved)
    decoder._repeated = WeighedLast(moved)
    lines = 0

    def in_frame(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return in_frame

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        return in_frame if frame.f_code.co_filename in FILES else None

    pieces = [wire[start : start + size] for start in range(0, len(wire), size)]
    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        found = sum(len(decoder.feed(piece)) for piece in pieces)
    finally:
        sys.settrace(before)
    assert decoder.error is None and not decoder.is_midway
    return found, moved.bytes, lines


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Gives the bytes that were allocated since, and are not free."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def append(body: bytes, count: int) -> bytes:
    return encode_append(b"orders", [body] * count)


TRICKLES = [
    pytest.param(append(b"x" * 500, 1000), 600, 1, id="508 KB in reads of 600 B"),
    pytest.param(append(b"\r\n" * 250, 1000), 600, 1, id="508 KB of line ends in reads of 600 B"),
    pytest.param(append(b"x" * 20, 1000), 1, 1, id="small records byte by byte"),
    pytest.param(append(b"\r\n" * 20_000, 1), 1, 1, id="line ends byte by byte"),
    pytest.param(append(b"x" * 2**20, 1), 1000, 1, id="1 MiB in reads of 1000 B"),
    pytest.param(append(b"x" * 2**20, 1), 65536, 1, id="1 MiB in reads of 64 KiB"),
    pytest.param(append(b"x" * 100, 1) * 300, 7, 300, id="300 commands in reads of 7 B"),
    pytest.param(append(b"x" * 100, 100) * 40, 16384, 40, id="records in reads of 16 KiB"),
    pytest.param(append(b"\r\n" * 50, 100) * 40, 16384, 40, id="line ends in reads of 16 KiB"),
    pytest.param(append(b"x" * 9, 1) * 3000, 65536, 3000, id="3000 commands in reads of 64 KiB"),
    pytest.param(append(b"\r\n", 1) * 3000, 65536, 3000, id="3000 line ends in reads of 64 KiB"),
    pytest.param(
        w("*3~$4~READ~$1~s~*16~" + "$5~COUNT~$1~1~" * 8) * 50, 1, 50, id="options byte by byte"
    ),
]


@pytest.mark.parametrize(("wire", "size", "commands"), TRICKLES)
def test_s3p_47_each_byte_is_moved_a_few_times(wire: bytes, size: int, commands: int) -> None:
    """S3P-11: an unfinished command keeps its place. A header may be seen once for each of its
    bytes, a string never."""
    reads = len(wire) // size + 1
    found, moved, _ = work(wire, size)
    assert found == commands
    assert moved <= 6 * len(wire) + 25 * reads


@pytest.mark.parametrize(
    ("body", "size"), [(b"x" * 500, 600), (b"\r\n" * 250, 600), (b"x" * 20, 1), (b"\r\n" * 9, 5)]
)
def test_s3p_47_twice_as_much_costs_twice_as_much(body: bytes, size: int) -> None:
    _, moved, lines = work(append(body, 250), size)
    _, moved_twice, lines_twice = work(append(body, 500), size)
    assert 1.5 * moved < moved_twice < 2.2 * moved
    assert 1.5 * lines < lines_twice < 2.2 * lines


def test_the_fast_parser_is_not_tried_in_vain_again_and_again() -> None:
    for body in (b"x" * 1000, b"\r\n" * 50):
        one = append(body, 10)
        _, moved, _ = work(one * 50, len(one))
        assert moved < 1.1 * 50 * len(one)


def test_s3a_22_nothing_is_kept_for_announced_bytes() -> None:
    """A length that is declared costs nothing until its bytes come."""
    decoder = Decoder(LIMITS)
    with traced() as memory:
        decoder.feed(w("*4~$6~APPEND~$6~orders~*0~*1000~$1048576~"))
        before = memory()
        assert before < 5000
        decoder.feed(b"x" * 1000)
        assert memory() - before < 3000


@pytest.mark.parametrize("size", [500, 5000, 16_384, 262_144])
def test_a_record_that_comes_in_pieces_takes_little_more_memory_than_its_bytes(size: int) -> None:
    decoder = Decoder(LIMITS)
    wire = append(b"x" * 2**20, 1)[:-100]
    with traced() as memory:
        for start in range(0, len(wire), size):
            piece = wire[start : start + size]
            decoder.feed(piece)
            del piece
            assert memory() - decoder.buffered_bytes < 2**14
    assert decoder.is_midway


def test_bytes_that_were_read_are_freed() -> None:
    """S3P-47: between commands a connection keeps none of the bytes that came."""
    decoder = Decoder(LIMITS)
    for wire in (append(b"x" * 1000, 1000), append(b"\r\n" * 50, 100), append(b"x", 1)):
        assert len(decoder.feed(wire)) == 1
        assert not decoder.is_midway
        assert (
            decoder._incremental._source._data == b"" and decoder._incremental._source._kept is None
        )
    decoder.feed(append(b"x" * 1000, 100) + b"*4")
    assert decoder._incremental._source._data == b"*4"


def test_decoders_go_without_the_garbage_collector() -> None:
    """S3P-47: what a connection held is free when it ends, also midway and after an error."""
    gc.collect()
    gc.disable()
    try:
        for wire in (w("*3~"), w("*3~:"), append(b"x" * 1000, 2)[:-1], append(b"x", 1)):
            assert Decoder(LIMITS).feed(wire[:2]) == []
            Decoder(LIMITS).feed(wire)
            ReplyDecoder().feed(wire)
        assert gc.collect() == 0
    finally:
        gc.enable()
