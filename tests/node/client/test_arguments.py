"""Wrong arguments raise errors at once, and harm neither the channel nor its other users."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import pytest
import trio.testing

from millpond.actors.errors import KeyReused
from millpond.actors.messages import U64_MAX, Get, Put
from millpond.node.client.channel import Channel
from millpond.node.client.connect import connect
from millpond.node.client.rustlog.client import connect_rustlog
from millpond.node.client.s3p.client import connect_s3p
from tests.node.client.scripted_node import Peer, keep, take_settings

Call = Callable[[Channel], Awaitable[object]]
WRONG: list[tuple[type[Exception], Callable[[Any], Awaitable[object]]]] = [
    (ValueError, lambda c: c.get(-1)),
    (ValueError, lambda c: c.get(U64_MAX + 1)),
    (TypeError, lambda c: c.get("1")),
    (ValueError, lambda c: c.ack(-1)),
    (TypeError, lambda c: c.ack(None)),
    (ValueError, lambda c: c.list(-1)),
    (ValueError, lambda c: c.list(0, U64_MAX + 1)),
    (TypeError, lambda c: c.list(0, 0, 1.5)),
    (TypeError, lambda c: c.credit(1.5)),
    (ValueError, lambda c: c.admin(256, {})),
    (TypeError, lambda c: c.put("text")),
    (TypeError, lambda c: c.put(None)),
    (TypeError, lambda c: c.put(b"x", ttl=1.5)),
    (ValueError, lambda c: c.put(b"x", ttl=2**32)),
    (TypeError, lambda c: c.put(b"x", key="1")),
    (ValueError, lambda c: c.put(b"x", key=-1)),
]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


def join(peer: Peer, **options: Any) -> Any:
    return connect(
        "tcp://peer:7400",
        "chat/1",
        settings=take_settings(options, dialer=peer.dial, rng=Random(7)),
        **options,
    )


@pytest.mark.parametrize(("error", "call"), WRONG)
async def test_a_wrong_argument_raises_every_time_and_the_channel_goes_on(
    error: type[Exception], call: Call
) -> None:
    """With room for one PUT: what came to nothing holds none."""
    peer = Peer(keep)
    async with join(peer, in_flight_max=1) as channel:
        with anyio.fail_after(60):
            for _ in range(2):
                with pytest.raises(error):
                    await call(channel)
        peer.line.cut()
        await peer.until(lambda: len(peer.lines) == 2 and channel.connected)
        with anyio.fail_after(60):
            await channel.put(b"still here")
        assert not peer.line.of(Get)


async def test_a_reused_key_gives_its_room_back_once() -> None:
    """PA-08."""
    peer = Peer()
    async with join(peer, in_flight_max=2) as channel:
        first = channel.put_nowait(b"one", key=5)
        for _ in range(3):
            with pytest.raises(KeyReused):
                channel.put_nowait(b"two", key=5)
            assert channel.put_nowait(b"one", key=5) is first
        channel.put_nowait(b"three")
        with pytest.raises(anyio.WouldBlock):
            channel.put_nowait(b"four")
        peer.answer = keep
        peer.line.cut()
        await first


async def test_data_may_be_anything_that_is_bytes() -> None:
    """A PUT carries what the buffer held at the time of the call."""
    peer = Peer(keep)
    numbers = array("H", [1, 2, 3])
    changing = bytearray(b"before")
    async with join(peer) as channel:
        answer = channel.put_nowait(changing)
        changing[:] = b"after!"
        await answer
        await channel.put(memoryview(b"abcd")[::2])
        await channel.put(memoryview(numbers))
        sent = [put.data for put in await peer.received(Put, 3)]
        await channel.flush()
    assert sent == [b"before", b"ac", numbers.tobytes()]


async def test_text_in_place_of_bytes_is_told_as_such() -> None:
    """Of every client; nothing is sent."""
    peer = Peer()
    text: Any = "hello"
    async with join(peer) as channel:
        for call in (lambda: channel.put(text), lambda: channel.streams.stream("s").append(text)):
            with pytest.raises(TypeError, match=r"must be bytes, not str: encode the text"):
                await call()
        with pytest.raises(TypeError, match="must be bytes, not int"):
            channel.put_nowait(7)
    s3p, rustlog = connect_s3p(), connect_rustlog()
    for call in (
        lambda: s3p.append("orders", text),
        lambda: s3p.append("orders", [text]),
        lambda: rustlog.produce("orders", text),
    ):
        with pytest.raises(TypeError, match="must be bytes, not str"):
            await call()
