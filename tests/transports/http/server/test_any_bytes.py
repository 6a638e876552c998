"""Any received bytes: nothing is raised, nothing is logged as our error, nothing is left."""

from __future__ import annotations

import logging

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.transports.http.server.connection import PREFACE
from tests.transports.http.server.rig import Echo, serving
from tests.transports.http.server.test_http1_requests import ASKED, BAD
from tests.transports.http.server.test_http2_streams import frame

HEAD = b"\x82\x86\x84\x41\x01a"
MISTAKES = "millpond.actors.runtime.supervisor"
FRAMES = st.builds(
    frame,
    st.integers(0, 11),
    st.sampled_from([0, 1, 4, 5, 8, 9, 0x20, 0x24, 0xFF]),
    st.integers(0, 7),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([HEAD, HEAD + b"\x40\x01x\x01y", b"\0\0\0\1", bytes(8), b"\0\4\0\0\0\1"]),
    ),
)


async def _survives(data: bytes, step: int) -> None:
    """Said in pieces; the other end leaves behind it."""
    async with serving(Echo()) as rig:
        line = rig.connect()
        for at in range(0, len(data), step):
            line.say(data[at : at + step])
            if at % 3 == 0:
                await anyio.lowlevel.checkpoint()
        await line.read()
        if not line.wire.is_closed:
            line.session.eof()
        await rig.pass_s(300, step_s=30)
        assert line.wire.is_closed


def _run(data: bytes, step: int) -> None:
    records: list[logging.LogRecord] = []
    watch = logging.Handler()
    watch.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger(MISTAKES)
    log.addHandler(watch)
    try:
        anyio.run(_survives, data, step)
    finally:
        log.removeHandler(watch)
    assert not records


@settings(max_examples=50, deadline=None)
@given(frames=st.lists(FRAMES, max_size=12), step=st.sampled_from([1, 7, 4096]))
def test_any_frames_of_http_2(frames: list[bytes], step: int) -> None:
    _run(PREFACE + b"".join(frames), step)


@settings(max_examples=50, deadline=None)
@given(
    requests=st.lists(st.sampled_from([*ASKED, BAD]), min_size=1, max_size=4),
    changes=st.lists(st.tuples(st.integers(0, 600), st.binary(max_size=3)), max_size=4),
    step=st.sampled_from([1, 7, 4096]),
)
def test_any_change_to_requests_of_http_1(
    requests: list[bytes], changes: list[tuple[int, bytes]], step: int
) -> None:
    data = bytearray(b"".join(requests))
    for at, new in changes:
        data[at % len(data) : at % len(data) + 1] = new or b""
        data = data or bytearray(b"x")
    _run(bytes(data), step)


@pytest.mark.parametrize("data", [b"", b"\0", PREFACE[:5], PREFACE])
async def test_who_leaves_at_once(data: bytes) -> None:
    await _survives(data, 4096)
