"""P2P over WebSocket (docs/reference/wire-protocol.md): path, subprotocol, token, origin, frames; a
real client."""

from __future__ import annotations

import base64
from pathlib import Path

import anyio
import pytest
import websockets.asyncio.client
import websockets.trio.client
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from tests.conformance import packets as p
from tests.conformance.peer import Peer, Refused, SocketPipe, Upgraded, upgrade
from tests.conformance.served import Serve, Served

BARE, HELLO = "p2pbuf.v1", "p2pbuf.v1.hello"
pytestmark = pytest.mark.parametrize("wiring", ["ws-asyncio", "ws-trio"])


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "tokens"
    path.write_text("s3cret all chat/*\n\u00fc\u00df all chat/*\n")
    path.chmod(0o600)
    return str(path)


async def _open(
    server: Served, *subprotocols: str, channel: bytes = b"chat/1", **how: object
) -> Peer:
    pipe = await server.raw()
    try:
        return Peer(pipe, await upgrade(pipe, channel, *subprotocols, **how))  # type: ignore[arg-type]
    except Refused:
        await pipe.aclose()
        raise


async def test_the_path_names_the_channel(serve: Serve) -> None:
    async with serve() as server:
        for name in (b"chat/1", b"a b", b"\x01\xff", "\u2603".encode(), b"%41", b"a?b#c"):
            async with await _open(server, BARE, channel=name) as peer:
                message_id = await peer.put(1, name)
                async with await _open(server, HELLO, channel=name) as other:
                    await other.send(p.hello(name))
                    p.read_ready(await other.packet())
                    await other.expect(p.msg(message_id, name))


@pytest.mark.parametrize(
    ("status", "path"),
    [
        (404, "/"),
        (404, "/v1/channels/"),
        (404, "/v1/streams/a"),
        (404, "/v1/channels/a?token=s3cret"),
        (400, "/v1/channels/%zz"),
        (400, "/v1/channels/" + "a" * 256),
    ],
)
async def test_other_paths_are_refused(serve: Serve, status: int, path: str) -> None:
    async with serve() as server:
        with pytest.raises(Refused) as refused:
            await _open(server, BARE, path=path)
        assert refused.value.status == status
        assert b"s3cret" not in bytes(refused.value.response.body or b"")


@pytest.mark.parametrize("offers", [[], ["chat"], ["p2pbuf.v2"], ["P2PBUF.V1"]])
async def test_a_subprotocol_must_be_agreed_on(serve: Serve, offers: list[str]) -> None:
    async with serve() as server:
        with pytest.raises(Refused) as refused:
            await _open(server, *offers)
        assert refused.value.status == 400


async def test_one_subprotocol_is_echoed_and_never_the_token(serve: Serve, token_file: str) -> None:
    async with serve(token_file=token_file) as server:
        bearer = "bearer." + base64.urlsafe_b64encode("\u00fc\u00df".encode()).decode().rstrip("=")
        for offers in ([bearer, HELLO], [HELLO, bearer, BARE]):
            async with await _open(server, *offers) as peer:
                assert isinstance(peer.framing, Upgraded)
                assert peer.framing.core.subprotocol == HELLO
                assert "bearer" not in str(peer.framing.response.headers)
                await peer.send(p.hello(b"chat/1"))
                p.read_ready(await peer.packet())


async def test_a_bearer_token_opens_the_channels_of_its_pattern(
    serve: Serve, token_file: str
) -> None:
    async with serve(token_file=token_file) as server:
        good = {"Authorization": "Bearer s3cret"}
        async with await _open(server, BARE, headers=good) as peer:
            await peer.put(1, b"x")
        for channel, headers in (
            (b"chat/1", {}),
            (b"chat/1", {"Authorization": "Bearer wrong"}),
            (b"chat/1", {"Authorization": "Basic s3cret"}),
            (b"other", good),
        ):
            async with await _open(server, BARE, channel=channel, headers=headers) as peer:
                await peer.send(p.put(1, b"x"))
                await peer.ends_with(p.nack(6, 0xF6), p.ABORT)
        async with await _open(server, HELLO, headers=good) as peer:
            await peer.send(p.hello(b"chat/1"))
            p.read_ready(await peer.packet())


async def test_path_and_hello_must_name_the_same_channel(serve: Serve) -> None:
    async with serve() as server:
        async with await _open(server, HELLO) as peer:
            await peer.send(p.hello(b"chat/2"))
            await peer.ends_with(p.MALFORMED_HELLO, p.ABORT)
            assert peer.close_code == 1008


async def test_a_promised_hello_must_be_sent(serve: Serve) -> None:
    async with serve() as server:
        async with await _open(server, HELLO) as peer:
            await peer.send(p.put(1, b"x"))
            await peer.ends_with(p.nack(6, 0xF6), p.ABORT)


async def test_browsers_come_from_the_node_itself_or_from_a_listed_origin(serve: Serve) -> None:
    async with serve(origins=("https://app.example",)) as server:
        for origin in ("http://127.0.0.1:7401", "https://app.example"):
            async with await _open(server, BARE, headers={"Origin": origin}) as peer:
                await peer.quiet()
        for origin in ("https://evil.example", "null", "https://app.example.evil"):
            with pytest.raises(Refused) as refused:
                await _open(server, BARE, headers={"Origin": origin})
            assert refused.value.status == 403


async def _frames(peer: Peer, *frames: bytes) -> None:
    await peer.pipe.send(b"".join(frames))


async def test_a_text_frame_is_1003(serve: Serve) -> None:
    async with serve() as server:
        async with await _open(server, BARE) as peer:
            await _frames(peer, Frame(Opcode.TEXT, b"hello").serialize(mask=True))
            await peer.ends_with(p.ABORT)
            assert peer.close_code == 1003


async def test_a_message_above_the_limit_is_1009_from_its_header(serve: Serve) -> None:
    async with serve(packet_bytes_max=4096) as server:
        async with await _open(server, BARE) as peer:
            await _frames(peer, b"\x82\xfe\x10\x01" + bytes(4))
            await peer.ends_with(p.ABORT)
            assert peer.close_code == 1009
        async with await _open(server, BARE) as peer:
            await _frames(peer, *[Frame(Opcode.CONT, bytes(4000), fin=False).serialize(mask=True)])
            await peer.ends_with(p.ABORT)
            assert peer.close_code == 1002
        async with await _open(server, BARE) as peer:
            first = Frame(Opcode.BINARY, bytes(4000), fin=False).serialize(mask=True)
            second = Frame(Opcode.CONT, bytes(4000), fin=False).serialize(mask=True)
            await _frames(peer, first, second)
            await peer.ends_with(p.ABORT)
            assert peer.close_code == 1009


async def test_an_unmasked_frame_is_1002(serve: Serve) -> None:
    async with serve() as server:
        async with await _open(server, BARE) as peer:
            await _frames(peer, b"\x82\x01\x00")
            await peer.ends_with(p.ABORT)
            assert peer.close_code == 1002


async def test_a_packet_may_come_in_fragments_with_pings_between(serve: Serve) -> None:
    async with serve() as server:
        async with await _open(server, BARE) as peer:
            packet = p.put(1, b"fragments")
            parts = [
                Frame(Opcode.BINARY, packet[:3], fin=False),
                Frame(Opcode.PING, b"between"),
                Frame(Opcode.CONT, packet[3:10], fin=False),
                Frame(Opcode.CONT, packet[10:]),
            ]
            await _frames(peer, *(part.serialize(mask=True) for part in parts))
            assert (await peer.packet())[:5] == b"\x07" + p.u32(1)
            async with await _open(server, BARE) as other:
                await other.send(p.list_())
                assert {(await other.packet())[0], (await other.packet())[0]} == {2, 9}


async def test_a_close_frame_counts_as_goodbye(serve: Serve) -> None:
    async with serve() as server:
        async with await _open(server, BARE) as peer:
            close = Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True)
            await _frames(peer, peer.framing.encode([p.put(1, b"x")]), close)
            assert [each[0] for each in await peer.rest()] in ([], [7])
            assert peer.close_code == 1000
        async with await _open(server, BARE) as other:
            await other.send(p.list_())
            assert {(await other.packet())[0], (await other.packet())[0]} == {2, 9}


async def test_a_request_that_is_no_websocket_gets_an_http_answer(serve: Serve) -> None:
    async with serve() as server:
        for request, status in (
            (b"GET /v1/channels/a HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 426 "),
            (b"POST /v1/channels/a HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 405 "),
            (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
            (p.framed(p.hello(b"chat/1")) + b"\r\n\r\n", b"HTTP/1.1 400 "),
        ):
            pipe: SocketPipe = await server.raw()
            await pipe.send(request)
            answer = b""
            while data := await pipe.receive():
                answer += data
            await pipe.aclose()
            assert answer.startswith(status)


async def test_half_a_hello_is_no_silence(serve: Serve) -> None:
    """PA-19: in a frame that has no end yet, and in a message whose last frame is missing."""
    hello = p.hello(b"chat/1")
    key = bytes(4)
    for begun in (
        b"\x82",
        bytes((0x82, 0x80 | len(hello))) + key,
        bytes((0x82, 0x80 | len(hello))) + key + hello[:1],
        b"\x02\x81" + key + hello[:1],
    ):
        async with serve(handshake_s=0.6) as server:
            async with await _open(server, BARE) as other:
                await other.put(1, b"x")
                async with await _open(server, BARE) as half:
                    await half.pipe.send(begun)
                    await half.ends_with(p.ABORT)  # and no message before it
                    assert half.close_code == 1008


async def test_a_silent_client_is_closed_in_time(serve: Serve) -> None:
    async with serve(handshake_s=0.2) as server:
        silent, slow = await server.raw(), await server.raw()
        await slow.send(b"GET /v1/channels/a HTT")
        promised = await _open(server, HELLO)
        assert await silent.receive() == b"" and await slow.receive() == b""
        await promised.ends_with(p.ABORT)
        assert promised.close_code == 1008
        for pipe in (silent, slow, promised.pipe):
            await pipe.aclose()


async def test_pa_36_a_goodbye_is_a_packet_and_then_a_close_frame(serve: Serve) -> None:
    async with serve(drain_timeout_s=0.3) as server:
        polite, silent, half = await server.hello(), await server.hello(), await server.raw()
        await half.send(b"GET /v1/channels/a HTT")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.node.drain)
            await polite.expect(p.GOODBYE)
            await polite.send(p.GOODBYE)
            await polite.ends_with()
            await silent.ends_with(p.GOODBYE)
        assert await half.receive() == b""
        await half.aclose()
        assert polite.close_code == silent.close_code == 1000


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_the_websockets_client_talks_to_the_node(
    serve: Serve, wiring: str, compression: str | None
) -> None:
    """Interoperability: an independent client, with and without offering compression."""
    client = websockets.trio.client if wiring == "ws-trio" else websockets.asyncio.client
    async with serve(keep_alive_s=1) as server:
        url = f"ws://{server.node.listeners['ws']}/v1/channels/chat%2F1"
        how = {"subprotocols": [HELLO], "compression": compression}
        async with (
            client.connect(url, **how) as producer,
            client.connect(url, **how) as consumer,
        ):
            assert producer.subprotocol == HELLO
            for each in (producer, consumer):
                await each.send(p.hello(b"chat/1"))
                p.read_ready(await each.recv())
            for key, size in enumerate((1, 125, 126, 65_535, 65_536, 1_000_000)):
                await producer.send(p.put(key, bytes(size)))
                message_id = int.from_bytes((await producer.recv())[9:], "big")
                assert await consumer.recv() == p.msg(message_id, bytes(size))
                await consumer.send(p.ack(message_id))
            await consumer.send(p.list_())
            assert await consumer.recv() == p.list_ack()
            await producer.ping()
            await producer.send(p.GOODBYE)
            with pytest.raises(ConnectionClosed) as closed:
                await producer.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1000


async def test_the_websockets_client_is_refused_in_http(serve: Serve, wiring: str) -> None:
    client = websockets.trio.client if wiring == "ws-trio" else websockets.asyncio.client
    async with serve() as server:
        with pytest.raises(InvalidStatus) as refused, anyio.fail_after(60):
            async with client.connect(f"ws://{server.node.listeners['ws']}/", subprotocols=[BARE]):
                pass
        assert refused.value.response.status_code == 404
