"""WebSocket framing: the upgrade's rules, frames in any split, and a foreign implementation."""

from __future__ import annotations

import base64
import logging
import random
from itertools import count, pairwise

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.errors import FrameEmpty, FrameTooLarge, UpgradeRefused, WireError
from millpond.transports.io.interface import Wire
from millpond.transports.io.tcp import dial, listen, parse_address
from millpond.transports.p2p.framing import Upgrade
from millpond.transports.websocket.framing import ClientFraming, ServerFraming

PACKET_MAX = 2**16
HOST = "127.0.0.1:7401"
REQUEST = {
    "Host": HOST,
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "p2pbuf.v1.hello",
}
asyncio_only = pytest.mark.parametrize(
    "anyio_backend",
    [
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)


def request_of(path: str = "/v1/channels/chat%2F1", line: str = "", **changes: str | None) -> bytes:
    """A request; `changes` replace headers (`_` for `-`), or with None leave them out."""
    headers = {name.lower(): value for name, value in REQUEST.items()}
    headers |= {name.replace("_", "-").lower(): value for name, value in changes.items()}
    lines = [line or f"GET {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def upgraded_server(packet_max: int = PACKET_MAX) -> ServerFraming:
    framing = ServerFraming(packet_max, BrowserPolicy())
    assert framing.feed(request_of()) == []
    assert framing.take_output().startswith(b"HTTP/1.1 101 ")
    return framing


def pair(token: bytes | None = None, *, hello: bool = True) -> tuple[ServerFraming, ClientFraming]:
    server = ServerFraming(PACKET_MAX, BrowserPolicy())
    client = ClientFraming(HOST, b"chat/1", hello, token, PACKET_MAX)
    server.feed(client.take_output())
    client.feed(server.take_output())
    assert client.ready and client.error is None
    return server, client


def from_client(opcode: Opcode, data: bytes, fin: bool = True, **bits: bool) -> bytes:
    return Frame(opcode, data, fin, **bits).serialize(mask=True)


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(wire) + 1) for place in places), len(wire)]
    return [wire[a:b] for a, b in pairwise(edges) if a < b]


# The upgrade.


@pytest.mark.parametrize(
    ("subprotocol", "hello"), [("p2pbuf.v1", False), ("p2pbuf.v1.hello", True)]
)
def test_an_upgrade_names_the_channel_and_the_subprotocol(subprotocol: str, hello: bool) -> None:
    framing = ServerFraming(PACKET_MAX, BrowserPolicy())
    framing.feed(request_of(Sec_WebSocket_Protocol=f"other, {subprotocol}"))
    assert framing.upgrade == Upgrade(b"chat/1", hello, None)
    head, end = framing.take_output().split(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 101 Switching Protocols"
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in lines
    assert b"Sec-WebSocket-Protocol: " + subprotocol.encode() in lines
    assert b"xtension" not in head and end == b"" and framing.take_output() == b""


@pytest.mark.parametrize(
    ("path", "channel"),
    [
        ("a", b"a"),
        ("%00%ff", b"\x00\xff"),
        ("chat/1", b"chat/1"),
        ("%3F", b"?"),
        ("q%21dead", b"q!dead"),
    ],
)
def test_channel_names_are_percent_encoded_bytes(path: str, channel: bytes) -> None:
    framing = ServerFraming(PACKET_MAX, BrowserPolicy())
    framing.feed(request_of(f"/v1/channels/{path}"))
    assert framing.upgrade is not None and framing.upgrade.channel == channel


@pytest.mark.parametrize("token", [b"secret-0.1~x+/=", b"\x00\xffs p a c e\n", b""])
def test_tokens_arrive_and_are_never_echoed_or_logged(
    token: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = ServerFraming(PACKET_MAX, BrowserPolicy())
    client = ClientFraming(HOST, b"chat/1", True, token, PACKET_MAX)
    server.feed(client.take_output())
    assert server.upgrade is not None and server.upgrade.token == token
    answer = server.take_output()
    assert b"bearer" not in answer and b"secret" not in answer
    client.feed(answer)
    assert client.ready
    assert "secret" not in caplog.text and "bearer" not in caplog.text.lower()


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        (404, {"path": "/"}),
        (404, {"path": "/v1/channels/"}),
        (404, {"path": "/v1/channel/a"}),
        (404, {"path": "/v1/channels/a?token=secret"}),
        (404, {"path": "http://127.0.0.1:7401/v1/channels/a"}),
        (400, {"path": "/v1/channels/%zz"}),
        (400, {"path": "/v1/channels/100%"}),
        (400, {"path": "/v1/channels/" + "a" * 256}),
        (400, {"Sec_WebSocket_Protocol": None}),
        (400, {"Sec_WebSocket_Protocol": "chat"}),
        (400, {"Sec_WebSocket_Protocol": "p2pbuf.v1, bearer.secret="}),
        (400, {"Sec_WebSocket_Protocol": "p2pbuf.v1, bearer.secret!"}),
        (
            400,
            {"Sec_WebSocket_Protocol": "p2pbuf.v1, bearer.c2Vj", "Authorization": "Bearer secret"},
        ),
        (400, {"Sec_WebSocket_Key": "secret"}),
        (400, {"Sec_WebSocket_Version": None}),
        *(
            (426, {"Sec_WebSocket_Version": each})
            for each in ("12", "8", "14", "013", "13, 8", "x")
        ),
        (400, {"Host": None}),
        (400, {"line": "nonsense"}),
        (400, {"line": "GET /v1/channels/a SPDY/3"}),
        (400, {"Content_Length": "5"}),
        (405, {"line": "POST /v1/channels/a HTTP/1.1"}),
        (426, {"Upgrade": None}),
        (426, {"Upgrade": "h2c"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": "http://127.0.0.1:74010"}),
        (403, {"Origin": "http://127.0.0.1:7401.evil.example"}),
    ],
)
def test_a_refused_upgrade_is_an_http_answer_without_secrets(
    status: int, changes: dict[str, str]
) -> None:
    framing = ServerFraming(PACKET_MAX, BrowserPolicy())
    assert framing.feed(request_of(**changes)) == []
    assert isinstance(framing.error, UpgradeRefused) and framing.error.status == status
    answer = framing.take_output()
    assert answer.startswith(b"HTTP/1.1 %d " % status) and b"secret" not in answer
    assert framing.upgrade is None and framing.feed(request_of()) == []
    assert framing.frame([b"x"]) == b"" and framing.close_frame(1000) == b""
    client = ClientFraming(HOST, b"a", True, None, PACKET_MAX)
    client.feed(answer)
    assert isinstance(client.error, UpgradeRefused) and client.error.status == status


@pytest.mark.parametrize("changes", [{"Sec_WebSocket_Version": "8"}, {"Upgrade": None}])
def test_an_answer_426_says_what_would_be_accepted(changes: dict[str, str | None]) -> None:
    """RFC 6455, 4.2.2; RFC 9110, 7.8 and 15.5.22."""
    framing = ServerFraming(PACKET_MAX, BrowserPolicy())
    framing.feed(request_of(**changes))
    head = framing.take_output().partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert head[0].startswith(b"HTTP/1.1 426 ")
    assert b"Sec-WebSocket-Version: 13" in head and b"Upgrade: websocket" in head
    assert b"Connection: Upgrade, close" in head


@pytest.mark.parametrize(
    "origin",
    [None, "http://127.0.0.1:7401", "https://127.0.0.1:7401", "https://app.example"],
)
def test_origins_of_the_node_itself_and_listed_ones_may_come(origin: str | None) -> None:
    framing = ServerFraming(PACKET_MAX, BrowserPolicy(origins=["https://app.example"]))
    framing.feed(request_of(Origin=origin))
    assert framing.upgrade is not None


def test_a_header_without_end_is_refused() -> None:
    framing = ServerFraming(PACKET_MAX, BrowserPolicy())
    fed = 0
    while framing.error is None:
        framing.feed(b"x" * 1000)
        fed += 1000
        assert fed < 2**17
    assert framing.take_output().startswith(b"HTTP/1.1 431 ")


def test_frames_before_the_101_are_refused() -> None:
    framing = ServerFraming(PACKET_MAX, BrowserPolicy())
    assert framing.feed(request_of() + from_client(Opcode.BINARY, b"early")) == []
    assert isinstance(framing.error, UpgradeRefused) and framing.error.status == 400


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-mill\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: AAAA\r\nSec-WebSocket-Protocol: p2pbuf.v1.hello\r\n\r\n",
    ],
)
def test_a_client_refuses_what_is_no_upgrade(answer: bytes) -> None:
    client = ClientFraming(HOST, b"a", True, None, PACKET_MAX)
    assert client.feed(answer) == [] and not client.ready
    assert isinstance(client.error, UpgradeRefused)


def test_a_client_refuses_another_subprotocol() -> None:
    server = ServerFraming(PACKET_MAX, BrowserPolicy())
    client = ClientFraming(HOST, b"a", True, None, PACKET_MAX)
    server.feed(client.take_output())
    client.feed(server.take_output().replace(b"p2pbuf.v1.hello", b"p2pbuf.v1"))
    assert isinstance(client.error, UpgradeRefused) and not client.ready


# Frames.


@pytest.mark.parametrize("size", [1, 2, 125, 126, 2047, 2048, 65535, 65536])
def test_one_binary_message_is_one_packet_both_ways(size: int) -> None:
    server, client = pair()
    packet = random.Random(size).randbytes(size)
    plain = Frame(Opcode.BINARY, packet).serialize(mask=False)
    assert server.frame([packet]) == plain
    assert client.feed(plain) == [packet]
    masked = client.frame([packet])
    assert masked[1] & 0x80 and (size < 8 or packet not in masked)
    assert server.feed(masked) == [packet]
    assert server.feed(from_client(Opcode.BINARY, packet)) == [packet]


packets_of_any_size = st.lists(
    st.one_of(st.binary(min_size=1, max_size=40), st.integers(100, 3000).map(bytes)), max_size=12
)
places = st.lists(st.integers(0, 2**20), max_size=30)


@given(packets_of_any_size, places, st.booleans())
def test_any_split_gives_the_same_packets(
    packets: list[bytes], cuts: list[int], to_server: bool
) -> None:
    server, client = pair()
    sender, receiver = (client, server) if to_server else (server, client)
    wire = sender.frame(packets)
    got = [packet for part in cut(wire, cuts) for packet in receiver.feed(part)]
    assert got == packets and receiver.error is None


@settings(max_examples=50)
@given(packets_of_any_size, places)
def test_fragments_and_pings_between_them_in_any_split(
    packets: list[bytes], cuts: list[int]
) -> None:
    server = upgraded_server()
    wire = b""
    for packet in packets:
        parts = [packet[start : start + 700] for start in range(0, len(packet), 700)]
        for place, part in enumerate(parts):
            wire += from_client(Opcode.CONT if place else Opcode.BINARY, part, fin=False)
            wire += from_client(Opcode.PING, b"%d" % place)
        wire += from_client(Opcode.CONT, b"")
    pings = wire_pings(packets)
    got, said = [], b""
    for part in cut(wire, cuts):
        got += server.feed(part)
        said += server.take_output()
    assert got == packets and said == pings


def wire_pings(packets: list[bytes]) -> bytes:
    pongs = [
        Frame(Opcode.PONG, b"%d" % place).serialize(mask=False)
        for packet in packets
        for place in range(-(-len(packet) // 700))
    ]
    return b"".join(pongs)


def test_byte_by_byte_from_the_first_to_the_last() -> None:
    server = ServerFraming(PACKET_MAX, BrowserPolicy())
    client = ClientFraming(HOST, b"chat/1", False, None, PACKET_MAX)
    for byte in client.take_output():
        server.feed(bytes((byte,)))
    for byte in server.take_output() + server.frame([b"one", b"two"]):
        client.feed(bytes((byte,)))
    assert client.ready and server.upgrade == Upgrade(b"chat/1", False, None)
    got = [packet for byte in client.frame([b"a" * 300]) for packet in server.feed(bytes((byte,)))]
    assert got == [b"a" * 300]


def test_packets_right_behind_the_101_are_not_lost() -> None:
    server = ServerFraming(PACKET_MAX, BrowserPolicy())
    client = ClientFraming(HOST, b"chat/1", True, None, PACKET_MAX)
    server.feed(client.take_output())
    assert client.feed(server.take_output() + server.frame([b"welcome"])) == [b"welcome"]


WIDTHS = {7: b"", 16: b"\x7e", 64: b"\x7f"}


@given(
    st.sampled_from([Opcode.BINARY, Opcode.PING, Opcode.CONT]),
    st.integers(1, 300) | st.sampled_from([125, 126, 65535, 65536]),
    st.sampled_from([7, 16, 64]),
    st.booleans(),
    st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_a_length_has_one_form(
    opcode: Opcode, size: int, bits: int, is_server: bool, step: int
) -> None:
    """HX-05: at either end, for each kind of frame, and in any split."""
    shortest = 7 if size < 126 else 16 if size < 2**16 else 64
    if bits < shortest:
        return
    mask_bit, mask = (0x80, bytes(4)) if is_server else (0, b"")
    if bits == 7:
        length = bytes((mask_bit | size,))
    else:
        length = bytes((mask_bit | WIDTHS[bits][0],)) + size.to_bytes(bits // 8, "big")
    server, client = pair()
    framing = server if is_server else client
    first = b""
    if opcode is Opcode.CONT:
        first = b"\x02" + bytes((mask_bit | 1,)) + mask + b"-"
    packets: list[bytes] = []
    head = first + bytes((0x80 | opcode,)) + length + mask
    for at in range(0, len(head), step):
        packets += framing.feed(head[at : at + step])
    if bits > shortest:
        assert type(framing.error) is WireError
        assert framing.close_frame(1000)[2 if is_server else 6 :]
        assert packets == [] and framing.feed(b"x" * size) == []
        return
    packets += framing.feed(b"x" * size)
    if opcode is Opcode.PING:
        assert (framing.error is None) == (size < 126) and packets == []
    elif opcode is Opcode.BINARY:
        assert packets == [b"x" * size]
    elif size < PACKET_MAX:
        assert packets == [b"-" + b"x" * size]


def close_code(said: bytes) -> int:
    """The code of the one close frame in `said`, from a server."""
    assert said[:1] == b"\x88" and len(said) == 2 + said[1]
    return int.from_bytes(said[2:4], "big")


@pytest.mark.parametrize(
    ("frames", "error", "code"),
    [
        (from_client(Opcode.TEXT, b"hi"), WireError, 1003),
        (from_client(Opcode.TEXT, b"hi", fin=False), WireError, 1003),
        (from_client(Opcode.BINARY, bytes(PACKET_MAX + 1))[:14], FrameTooLarge, 1009),
        (b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff", FrameTooLarge, 1009),
        # A length has one form, the shortest, and its top bit is 0 (RFC 6455, 5.2).
        (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff", WireError, 1002),
        (b"\x82\xff\x80\0\0\0\0\0\0\0", WireError, 1002),
        (b"\x82\xfe\0\x02\0\0\0\0hi", WireError, 1002),
        (b"\x82\xfe\0\x7d\0\0\0\0" + bytes(125), WireError, 1002),
        (b"\x82\xff\0\0\0\0\0\0\0\x02\0\0\0\0hi", WireError, 1002),
        (b"\x82\xff\0\0\0\0\0\0\xff\xff", WireError, 1002),
        (b"\x02\xfe\0\x02\0\0\0\0hi", WireError, 1002),
        (b"\x81\xfe\0\x02\0\0\0\0hi", WireError, 1002),
        (b"\x89\xfe\0\x02\0\0\0\0hi", WireError, 1002),
        (b"\x88\xfe\0\x02\0\0\0\0\x03\xe8", WireError, 1002),
        (
            from_client(Opcode.BINARY, bytes(PACKET_MAX), fin=False)
            + from_client(Opcode.CONT, b"x"),
            FrameTooLarge,
            1009,
        ),
        (from_client(Opcode.BINARY, b""), FrameEmpty, 1002),
        (
            from_client(Opcode.BINARY, b"", fin=False) + from_client(Opcode.CONT, b""),
            FrameEmpty,
            1002,
        ),
        (Frame(Opcode.BINARY, b"hi").serialize(mask=False), WireError, 1002),
        (from_client(Opcode.CONT, b"hi"), WireError, 1002),
        (
            from_client(Opcode.BINARY, b"a", fin=False) + from_client(Opcode.BINARY, b"b"),
            WireError,
            1002,
        ),
        (b"\xc2\x81\0\0\0\0x", WireError, 1002),
        (b"\x83\x81\0\0\0\0x", WireError, 1002),
        (b"\x88\x81\0\0\0\0x", WireError, 1002),
        (b"\x89\xfe\x00\x7e\0\0\0\0" + bytes(126), WireError, 1002),
    ],
    ids=count(),  # masks are random, names of tests are not
)
def test_a_broken_stream_is_a_typed_error_and_a_close_code(
    frames: bytes, error: type[WireError], code: int
) -> None:
    """PA-24, PA-34, docs/reference/wire-protocol.md: the packets before it are kept, what follows
    is ignored."""
    server = upgraded_server()
    good = from_client(Opcode.BINARY, b"good")
    assert server.feed(good + frames) == [b"good"]
    assert type(server.error) is error
    assert server.feed(good) == [] and server.take_output() == b""
    assert server.frame([b"\xff\xff\xff"]) == b"\x82\x03\xff\xff\xff"
    assert close_code(server.close_frame(1002)) == code
    assert server.frame([b"x"]) == b"" and server.close_frame(1000) == b""


def test_a_close_from_the_other_end_is_answered_once() -> None:
    server, client = pair()
    said = client.close_frame(1001)
    assert client.frame([b"late"]) == b"" and not client.closed
    assert server.feed(said + from_client(Opcode.BINARY, b"late")) == []
    assert server.closed and server.error is None
    answer = server.take_output()
    assert close_code(answer) == 1001
    assert server.close_frame(1000) == b"" and server.frame([b"x"]) == b""
    assert client.feed(answer) == [] and client.closed and client.take_output() == b""


def test_packets_still_come_between_our_close_and_theirs() -> None:
    server, client = pair()
    assert close_code(server.close_frame(1000)) == 1000
    assert server.feed(client.frame([b"ack"])) == [b"ack"]
    server.feed(client.close_frame(1000))
    assert server.closed and server.take_output() == b""


def test_random_bytes_only_ever_give_typed_errors() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        server, client = upgraded_server(), pair()[1]
        for framing in (server, client):
            packets = framing.feed(rng.randbytes(rng.randint(1, 60)))
            assert all(packets) and isinstance(framing.error, WireError | None)
            framing.close_frame(1002)
            framing.take_output()


# Over sockets, against another implementation.


class EchoSession:
    """Sends every packet back."""

    def __init__(self) -> None:
        self.framing = ServerFraming(PACKET_MAX, BrowserPolicy())
        self.is_over = False

    def opened(self, wire: Wire) -> None:
        self.wire = wire

    def received(self, data: bytes) -> None:
        packets = self.framing.feed(data)
        self.wire.write(self.framing.take_output() + self.framing.frame(packets))
        if self.framing.error is not None or self.framing.closed:
            self.wire.write(self.framing.close_frame(1002))
            self.wire.close()

    def uncongested(self) -> None: ...

    def eof(self) -> None:
        self.wire.close()

    def ended(self) -> None:
        self.is_over = True


class AskingSession(EchoSession):
    """Asks, and keeps the answers."""

    def __init__(self, address: str, token: bytes | None = None) -> None:
        super().__init__()
        self.framing = ClientFraming(address, b"chat/1", True, token, PACKET_MAX)
        self.packets: list[bytes] = []
        self.changed = anyio.Event()

    def opened(self, wire: Wire) -> None:
        self.wire = wire
        wire.write(self.framing.take_output())

    def received(self, data: bytes) -> None:
        self.packets += self.framing.feed(data)
        self.wire.write(self.framing.take_output())
        self.changed.set()

    async def until(self, count: int) -> None:
        with anyio.fail_after(60):
            while len(self.packets) < count or not self.framing.ready:
                self.changed = anyio.Event()
                await self.changed.wait()


@asyncio_only
async def test_a_foreign_client_is_served() -> None:
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, EchoSession)
        url = f"ws://{listener.address}/v1/channels/chat%2F1"
        async with connect(url, subprotocols=["p2pbuf.v1"], proxy=None) as client:
            assert client.subprotocol == "p2pbuf.v1"
            await client.send(b"hello")
            assert await client.recv() == b"hello"
            await client.send([b"in ", b"three ", b"parts"])
            assert await client.recv() == b"in three parts"
            await (await client.ping(b"alive?"))
            await client.send(bytes(PACKET_MAX))
            assert await client.recv() == bytes(PACKET_MAX)
        assert client.close_code == 1000
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{listener.address}/", proxy=None)
        assert refused.value.response.status_code == 404
        await listener.aclose()


@asyncio_only
@pytest.mark.parametrize(("message", "code"), [("text", 1003), (bytes(PACKET_MAX + 1), 1009)])
async def test_a_foreign_client_hears_the_close_code(message: str | bytes, code: int) -> None:
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, EchoSession)
        url = f"ws://{listener.address}/v1/channels/a"
        async with connect(url, subprotocols=["p2pbuf.v1"], proxy=None) as client:
            await client.send(message)
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert client.close_code == code
        await listener.aclose()


@asyncio_only
async def test_a_foreign_server_is_asked() -> None:
    tokens = []

    async def answer(connection: ServerConnection) -> None:
        assert connection.request is not None
        assert connection.request.path == "/v1/channels/chat%2F1"
        tokens.append(connection.request.headers["Authorization"])
        async for message in connection:
            await connection.send([message[:1], message[1:]])

    async with serve(answer, "127.0.0.1", 0, subprotocols=["p2pbuf.v1.hello"]) as server:
        host, port = server.sockets[0].getsockname()
        session = AskingSession(f"{host}:{port}", b"secret")
        async with anyio.create_task_group() as tasks:
            await dial(tasks, host, port, session)
            await session.until(0)
            session.wire.write(session.framing.frame([b"ab", b"c" * 60_000]))
            await session.until(2)
            assert session.packets == [b"ab", b"c" * 60_000]
            session.wire.write(session.framing.close_frame(1000))
            session.wire.close()
    assert tokens == ["Bearer secret"] and session.is_over


async def test_both_ends_of_ours_over_loopback(anyio_backend: object) -> None:
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, EchoSession)
        session = AskingSession(listener.address)
        await dial(tasks, *parse_address(listener.address), session)
        await session.until(0)
        packets = [b"%d" % number * 50 for number in range(200)]
        session.wire.write(session.framing.frame(packets))
        await session.until(len(packets))
        assert session.packets == packets
        session.wire.write(session.framing.close_frame(1000))
        session.wire.close()
        await listener.aclose()


def test_the_subprotocol_form_of_a_token_is_base64url_without_padding() -> None:
    framing = ServerFraming(PACKET_MAX, BrowserPolicy())
    encoded = base64.urlsafe_b64encode(b"\xfb\xff\xfe~").decode().rstrip("=")
    framing.feed(request_of(Sec_WebSocket_Protocol=f"bearer.{encoded}, p2pbuf.v1"))
    assert framing.upgrade == Upgrade(b"chat/1", False, b"\xfb\xff\xfe~")
    assert b"bearer" not in framing.take_output()


@pytest.mark.parametrize("size", [60, 3000, 2**16])
@pytest.mark.parametrize("pieces", [1, 7])
def test_a_message_that_is_skipped_is_kept_nowhere_and_the_next_one_comes(
    size: int, pieces: int
) -> None:
    server = upgraded_server()
    body = b"\x06\0\0\0\x07\0\0\0\x09" + bytes(size - 9)
    frame = from_client(Opcode.BINARY, body)
    assert server.feed(frame[:40]) == []
    assert server.skip_packet() == body[:9] and server.buffered_bytes == 0
    assert server.skip_packet() == b""
    rest = frame[40:] + from_client(Opcode.BINARY, b"next")
    found = []
    for start in range(0, len(rest), max(1, len(rest) // pieces)):
        found += server.feed(rest[start : start + max(1, len(rest) // pieces)])
    assert found == [b"next"] and server.error is None


def test_a_message_in_fragments_is_not_skipped() -> None:
    server = upgraded_server()
    assert server.feed(from_client(Opcode.BINARY, b"half", fin=False)) == []
    assert server.skip_packet() == b""
    assert server.feed(from_client(Opcode.CONT, b" and half")) == [b"half and half"]
