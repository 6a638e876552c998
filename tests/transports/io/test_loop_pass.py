"""Passes of the loop: an exception of one wire or session leaves the others unharmed; large reads
are handled at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from millpond.transports.io.loop_pass import LARGE_BYTES, LoopPass


class Echo:
    """A wire that writes the bytes it reads, or raises."""

    def __init__(self, loop_pass: LoopPass, *, raises_at: str = "") -> None:
        self._loop_pass = loop_pass
        self._raises_at = raises_at
        self._unwritten = b""
        self.written = b""
        self.is_aborted = False

    def handle_read(self, data: bytes) -> None:
        if self._raises_at == "take":
            raise RuntimeError("take")
        if not self._unwritten:
            self._loop_pass.add_write(self)
        self._unwritten += data

    def write_out(self) -> None:
        if self._raises_at == "write":
            raise RuntimeError("write")
        self.written += self._unwritten
        self._unwritten = b""

    def abort(self) -> None:
        self.is_aborted = True


@pytest.fixture
def anyio_backend() -> str:
    """Trio has no passes of this kind."""
    return "asyncio"


class LoopErrors(list[str]):
    """Exceptions, as the loop reports them."""

    def keep(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        self.append(str(context["exception"]))


@pytest.fixture
async def errors() -> AsyncIterator[LoopErrors]:
    loop, errors = asyncio.get_running_loop(), LoopErrors()
    before = loop.get_exception_handler()
    loop.set_exception_handler(errors.keep)
    yield errors
    loop.set_exception_handler(before)


async def passes(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_wires_that_raise_at_writing_end_alone(errors: LoopErrors) -> None:
    loop_pass = LoopPass(asyncio.get_running_loop())
    wires = [Echo(loop_pass, raises_at="write" if at in (0, 2, 3) else "") for at in range(6)]
    for wire in wires:
        loop_pass.add_read(wire, b"x")
    await passes()
    assert [wire.written for wire in wires] == [b"", b"x", b"", b"", b"x", b"x"]
    assert [wire.is_aborted for wire in wires] == [True, False, True, True, False, False]
    assert errors == ["write"] * 3
    loop_pass.add_read(wires[1], b"y")
    await passes()
    assert wires[1].written == b"xy" and len(errors) == 3


async def test_a_session_and_a_wire_that_raise_in_one_pass(errors: LoopErrors) -> None:
    loop_pass = LoopPass(asyncio.get_running_loop())
    whole, session, wire, last = (Echo(loop_pass, raises_at=at) for at in ("", "take", "write", ""))
    for each in (wire, whole, session, last):
        loop_pass.add_read(each, b"x")
    await passes()
    assert whole.written == last.written == b"x"
    assert wire.is_aborted and session.is_aborted
    assert not whole.is_aborted and not last.is_aborted
    assert "write" in errors


async def test_an_exception_after_the_reads_stops_neither_callbacks_nor_writes(
    errors: LoopErrors,
) -> None:
    loop_pass, called = LoopPass(asyncio.get_running_loop()), list[str]()

    def fail() -> None:
        raise RuntimeError("end")

    class Calling(Echo):
        def handle_read(self, data: bytes) -> None:
            super().handle_read(data)
            loop_pass.call_at_end(lambda: called.append("first"))
            loop_pass.call_at_end(fail)
            loop_pass.call_at_end(lambda: called.append("last"))

    wire = Calling(loop_pass)
    loop_pass.add_read(wire, b"x")
    await passes()
    assert called == ["first", "last"] and wire.written == b"x" and not wire.is_aborted
    assert errors == ["end"]


async def test_large_reads_are_handled_before_the_transport_reads_on(errors: LoopErrors) -> None:
    loop_pass = LoopPass(asyncio.get_running_loop())
    small, large = Echo(loop_pass), Echo(loop_pass)
    loop_pass.add_read(small, b"x")
    assert small.written == b""
    loop_pass.add_read(large, bytes(LARGE_BYTES))
    assert small.written == b"x" and len(large.written) == LARGE_BYTES
    await passes()
    assert small.written == b"x" and errors == []
