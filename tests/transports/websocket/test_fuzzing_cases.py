"""The classes of cases of Autobahn's fuzzing client against the framing of the listener: an echo of
every packet, and frames by the published `websockets` and by hand.

Of its chapters these have a meaning here: 1 framing of binary messages, 2 pings and pongs, 3
reserved bits, 4 opcodes, 5 fragments, 7 closes, 9 sizes. Text (6) is refused by the protocol with
1003, and compression (12, 13) is not offered.
"""

from __future__ import annotations

import struct
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import CLOSED, OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.errors import WireError
from millpond.transports.websocket.framing import ServerFraming
from tests.transports.websocket.test_framing import close_code

PACKET_MAX = 2**20
URI = "ws://127.0.0.1:7401/v1/channels/echo"
SIZES = (1, 125, 126, 127, 128, 65_535, 65_536, 65_536 + 1)
RESERVED = (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)


class Echo:
    """The listener's end of one connection: every packet goes back as it came."""

    def __init__(self, packet_max: int = PACKET_MAX) -> None:
        self.framing = ServerFraming(packet_max, BrowserPolicy())
        self.client = ClientProtocol(parse_uri(URI), subprotocols=[Subprotocol("p2pbuf.v1")])
        self.client.send_request(self.client.connect())
        self.pump()
        assert self.client.state is OPEN
        self.client.events_received()

    def feed(self, data: bytes, step: int = 2**20) -> bytes:
        """The node's bytes in answer to any bytes of the client."""
        said = b""
        for at in range(0, len(data), step):
            packets = self.framing.feed(data[at : at + step])
            said += self.framing.take_output() + self.framing.frame(packets)
        if self.framing.error is not None or self.framing.closed:
            said += self.framing.close_frame(1000)
        return said

    def pump(self, step: int = 2**20) -> None:
        """Carry what the published client has to say, and what comes back."""
        while data := b"".join(self.client.data_to_send()):
            self.client.receive_data(self.feed(data, step))

    def heard(self) -> list[tuple[Opcode, bytes]]:
        """The frames that came back, checked by the published client."""
        assert self.client.parser_exc is None
        return [(each.opcode, bytes(each.data)) for each in self.client.events_received()]


def raw(first: int, payload: bytes = b"", *, is_masked: bool = True) -> bytes:
    """A frame with any first byte."""
    size, bit = len(payload), 0x80 if is_masked else 0
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 2**16:
        head = struct.pack(">BBH", first, bit | 126, size)
    else:
        head = struct.pack(">BBQ", first, bit | 127, size)
    return head + (bytes(4) if is_masked else b"") + payload


@pytest.mark.parametrize(("size", "step"), [*product(SIZES, (997, 2**20))])
def test_chapters_1_and_9_binary_messages_come_back(size: int, step: int) -> None:
    echo = Echo()
    data = bytes(each & 255 for each in range(size))
    echo.client.send_binary(data)
    echo.pump(step)
    assert echo.heard() == [(Opcode.BINARY, data)]


def test_chapter_9_a_message_above_the_limit_is_1009() -> None:
    echo = Echo(packet_max=1000)
    assert close_code(echo.feed(raw(0x82, bytes(1001)))) == 1009


@pytest.mark.parametrize("size", [0, 1, 124, 125])
@pytest.mark.parametrize("step", [1, 2**20])
def test_chapter_2_a_ping_is_answered_with_its_data(size: int, step: int) -> None:
    echo = Echo()
    echo.client.send_ping(b"\xfe" * size)
    echo.pump(step)
    assert echo.heard() == [(Opcode.PONG, b"\xfe" * size)]


def test_chapter_2_pongs_that_nobody_asked_for_change_nothing() -> None:
    echo = Echo()
    echo.client.send_pong(b"unsolicited")
    echo.client.send_ping(b"asked")
    echo.pump()
    assert echo.heard() == [(Opcode.PONG, b"asked")]


@pytest.mark.parametrize("first", [0x89, 0x8A, 0x88])
def test_chapter_2_a_control_frame_of_126_bytes_is_1002(first: int) -> None:
    echo = Echo()
    assert close_code(echo.feed(raw(first, b"x" * 126))) == 1002


@pytest.mark.parametrize("bits", range(1, 8))
@pytest.mark.parametrize("opcode", [2, 9, 10, 8])
def test_chapter_3_reserved_bits_are_1002(bits: int, opcode: int) -> None:
    """Behind a good message, which comes back first."""
    echo = Echo()
    assert echo.feed(raw(0x82, b"good")) == raw(0x82, b"good", is_masked=False)
    assert close_code(echo.feed(raw(0x80 | bits << 4 | opcode, b"bad"))) == 1002
    assert isinstance(echo.framing.error, WireError)


@pytest.mark.parametrize("opcode", RESERVED)
@pytest.mark.parametrize("payload", [b"", b"payload"])
def test_chapter_4_reserved_opcodes_are_1002(opcode: int, payload: bytes) -> None:
    echo = Echo()
    said = echo.feed(raw(0x82, b"good") + raw(0x80 | opcode, payload) + raw(0x89, b"after"))
    good = raw(0x82, b"good", is_masked=False)
    closes = said.removeprefix(good)
    # A refused frame may hold back what the same piece brought before it, but nothing follows it.
    assert close_code(closes) == 1002 and raw(0x8A, b"after", is_masked=False) not in said


@pytest.mark.parametrize(
    "data",
    [
        raw(0x80, b"a"),
        raw(0x00, b"a"),
        raw(0x02, b"a") + raw(0x82, b"b"),
        raw(0x02, b"a") + raw(0x02, b"b"),
        raw(0x02, b"a") + raw(0x80, b"b") + raw(0x80, b"c"),
        raw(0x09, b"a"),
        raw(0x0A, b"a"),
        raw(0x08, b"\x03\xe8"),
    ],
    ids=[
        "an end of nothing",
        "a middle of nothing",
        "a message within a message",
        "two beginnings",
        "an end too many",
        "a ping in fragments",
        "a pong in fragments",
        "a close in fragments",
    ],
)
@pytest.mark.parametrize("step", [1, 2**20])
def test_chapter_5_fragments_out_of_order_are_1002(data: bytes, step: int) -> None:
    echo = Echo()
    said = echo.feed(data, step)
    at = said.rindex(b"\x88")
    assert close_code(said[at:]) == 1002


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=6),
    st.lists(st.sampled_from(["ping", "pong", ""]), max_size=6),
    st.integers(1, 64),
)
@settings(max_examples=60, deadline=None)
def test_chapter_5_fragments_with_pings_between_them_come_back_whole(
    parts: list[bytes], between: list[str], step: int
) -> None:
    whole = b"".join(parts)
    if not whole:
        return
    echo, pings = Echo(), 0
    for at, part in enumerate(parts):
        is_last = at + 1 == len(parts)
        opcode = Opcode.CONT if at else Opcode.BINARY
        wire = Frame(opcode, part, is_last).serialize(mask=True)
        echo.client.receive_data(echo.feed(wire, step))
        kind = between[at] if at < len(between) else ""
        if kind:
            pings += kind == "ping"
            first = 0x89 if kind == "ping" else 0x8A
            echo.client.receive_data(echo.feed(raw(first, kind.encode()), step))
    heard = echo.heard()
    assert heard.count((Opcode.BINARY, whole)) == 1
    assert heard.count((Opcode.PONG, b"ping")) == pings and len(heard) == 1 + pings


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 4999])
@pytest.mark.parametrize("reason", ["", "x" * 123])
def test_chapter_7_a_close_is_answered_and_ends_the_connection(code: int, reason: str) -> None:
    echo = Echo()
    said = echo.feed(raw(0x88, Close(code, reason).serialize()) + raw(0x82, b"after"))
    assert close_code(said) == code and echo.framing.closed
    assert b"after" not in said


@pytest.mark.parametrize("code", [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000])
def test_chapter_7_codes_that_nobody_may_send_are_1002(code: int) -> None:
    echo = Echo()
    assert close_code(echo.feed(raw(0x88, code.to_bytes(2, "big")))) == 1002


@pytest.mark.parametrize(
    ("payload", "codes"),
    [(b"", {1000, 1005}), (b"\x03", {1002}), (b"\x03\xe8\xff\xfe", {1007, 1002})],
    ids=["nothing", "half a code", "no text"],
)
def test_chapter_7_other_payloads_of_a_close(payload: bytes, codes: set[int]) -> None:
    said = Echo().feed(raw(0x88, payload))
    assert said[:1] == b"\x88"
    assert (close_code(said) if len(said) > 2 else 1005) in codes


def test_chapter_7_the_published_client_closes_well() -> None:
    echo = Echo()
    echo.client.send_binary(b"last")
    echo.pump()  # replies behind its close are nobody's any more
    echo.client.send_close(1000, "done")
    echo.pump()
    assert echo.heard()[0] == (Opcode.BINARY, b"last")
    echo.client.receive_eof()
    assert echo.client.state is CLOSED and echo.client.close_code == 1000


def test_chapter_6_text_is_refused_by_the_protocol() -> None:
    assert close_code(Echo().feed(raw(0x81, b"text"))) == 1003


@pytest.mark.parametrize("first", [0x82, 0x89, 0x88])
def test_frames_of_a_client_are_masked(first: int) -> None:
    assert close_code(Echo().feed(raw(first, b"\x03\xe8", is_masked=False))) == 1002


@given(st.binary(min_size=2, max_size=400), st.integers(1, 50))
@settings(max_examples=150, deadline=None)
def test_whatever_comes_is_answered_in_good_frames(junk: bytes, step: int) -> None:
    """Any bytes: the answers are frames that the published client reads, and any split of the input
    gives the same packets."""
    echo, whole = Echo(), Echo()
    echo.client.receive_data(echo.feed(junk, step))
    assert echo.client.parser_exc is None
    whole.client.receive_data(whole.feed(junk))
    assert (echo.framing.error is None) == (whole.framing.error is None)
    assert echo.framing.closed == whole.framing.closed
