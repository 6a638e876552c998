"""A connection on a recorded wire, with a real scheduler behind it: order, limits, endings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.msgpack import encode
from websockets.frames import Opcode

from millpond.transports.p2p.connection import LARGE_REPLIES_BYTES_MAX
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection, Rig, Upgradable
from tests.transports.p2p.identity_packets import ALICE, NODE, hello
from tests.transports.websocket.test_framing import from_client, request_of

pytestmark = pytest.mark.wire

MIB = 2**20


def test_packets_of_one_read_are_answered_in_one_write_in_order() -> None:
    line = Rig().logged_in()
    answers = line.ask(p.put(1, b"a"), p.put(2, b"b"), p.list_())
    ids = [int.from_bytes(answer[9:], "big") for answer in answers[:2]]
    assert answers == [p.put_ack(1, ids[0]), p.put_ack(2, ids[1]), p.list_ack(*ids)]


def test_a_hello_and_its_first_requests_may_come_together() -> None:
    line = Rig().connect()
    ready, stored, listed = line.ask(p.hello(b"chat/1"), p.put(1, b"x"), p.list_())
    assert ready[0] == 0x83 and stored[0] == 7 and len(listed) == 9


def test_packets_before_a_goodbye_in_the_same_read_are_handled() -> None:
    rig = Rig()
    reader, leaving = rig.logged_in(), rig.logged_in()
    (stored,) = leaving.ask(p.put(1, b"x"))
    message_id = int.from_bytes(stored[9:], "big")
    reader.say(p.ack(message_id), p.put(2, b"y"), p.GOODBYE, p.put(3, b"after the goodbye"))
    assert reader.wire.closed
    (listed,) = leaving.ask(p.list_())[-1:]
    assert len(listed) == 9 and listed != p.list_ack(message_id)


def test_pa_23_requests_before_the_tenth_malformed_packet_are_answered() -> None:
    rig = Rig()
    line = rig.logged_in()
    answers = line.ask(p.put(1, b"x"), *[b"\x04short"] * 10, p.put(2, b"never"))
    assert [each[:3] for each in answers if each[0] == 0xFF] == [b"\xff\x04\xf0"] * 10 + [p.ABORT]
    assert sum(each[0] == 7 for each in answers) == 1 and answers[-1] == p.ABORT
    assert line.wire.closed
    assert len(rig.logged_in(flags=0).ask(p.list_())[0]) == 9


@pytest.mark.parametrize(
    "packet", [b"\x84", b"\x86abc", b"\x87", b"\x88ab", b"\x90", b"\x91x", b"\x92"]
)
def test_p2p_19_a_malformed_extension_is_dropped_unless_it_was_negotiated(packet: bytes) -> None:
    rig = Rig()
    for line in (rig.connect(), rig.logged_in()):
        assert line.ask(*[packet] * 20) == []
        assert line.ask(p.PING) == [p.PONG]
    extensions = {p.EXTENSIONS: bytes(range(0x84, 0x94))}
    negotiated = rig.logged_in(tags=extensions)
    expected = [] if packet[0] & 1 else [p.nack(packet[0], 0xF0, packet[1:9])]
    assert negotiated.ask(packet) == expected


@pytest.mark.parametrize("packet", [p.credit(1), p.touch(1, 2), p.admin(1, 1, b""), b"\x88" * 20])
def test_an_extension_is_no_first_word_of_a_bare_client(packet: bytes) -> None:
    line = Rig().connect()
    assert line.ask(packet) == []
    (ready,) = line.ask(p.hello(b"chat/1"))
    assert ready[0] == 0x83


def test_too_many_connections_are_refused() -> None:
    rig = Rig(connections_max=2)
    first, second = rig.logged_in(), rig.logged_in()
    third = rig.connect()
    assert third.take_packets() == [p.TOO_MANY_CONNECTIONS, p.ABORT] and third.wire.closed
    third.end()
    first.end()
    assert rig.logged_in().ask(p.PING) == [p.PONG]
    assert second.ask(p.PING) == [p.PONG]


def test_connections_of_one_address_are_limited_but_not_those_of_this_machine() -> None:
    rig = Rig(connections_per_address_max=1)
    near, far = "127.0.0.1", "192.0.2.7"
    assert not any(rig.connect(near).wire.closed for _ in range(3))
    first = rig.connect(far)
    assert rig.connect(far).take_packets() == [p.TOO_MANY_CONNECTIONS, p.ABORT]
    assert rig.connect("192.0.2.8").take_packets() == []
    first.end()
    assert rig.connect(far).wire.closed, "the refused one still stands"


def test_ipv6_addresses_of_one_network_count_as_one() -> None:
    """One host has all addresses of a /64."""
    rig = Rig(connections_per_address_max=1)
    first = rig.connect("2001:db8::1")
    for near in ("2001:db8::2", "2001:db8::ffff:1:2:3", "2001:DB8:0:0:9::"):
        assert rig.connect(near).take_packets() == [p.TOO_MANY_CONNECTIONS, p.ABORT]
    assert rig.connect("2001:db8:0:1::1").take_packets() == []
    assert rig.connect("192.0.2.7").take_packets() == rig.connect("192.0.2.8").take_packets() == []
    assert rig.connect("::ffff:192.0.2.7").wire.closed, "an IPv4 address in another form"
    assert not any(rig.connect("::1").wire.closed for _ in range(3))
    first.end()
    assert rig.connect("2001:db8::2").wire.closed, "the refused ones still stand"


def test_handshakes_of_one_ipv6_network_are_answered_as_those_of_one_address() -> None:
    rig = Rig(handshakes_per_address_max=2, allow_plain_peers=True)
    rig.node.services.signer = NODE
    answers = [
        rig.connect(f"2001:db8::{number}").ask(hello(ALICE, b"chat/1"))[0] for number in range(3)
    ]
    assert [each[0] for each in answers] == [0x81, 0x81, 0xFF]
    assert answers[2] == p.TOO_MANY_CONNECTIONS
    assert rig.connect("2001:db8:0:1::").ask(hello(ALICE, b"chat/1"))[0][0] == 0x81


def test_of_connections_before_ready_the_oldest_is_closed() -> None:
    """So silent connections, however many, keep no client out."""
    rig = Rig(connections_before_ready_max=2)
    greeted, first, second = rig.connect(), rig.connect(), None
    greeted.ask(p.hello(b"chat/1"))
    second = rig.connect()
    newcomer = rig.connect()
    assert first.wire.closed and not second.wire.closed
    newcomer.ask(p.hello(b"chat/1"))
    assert newcomer.ask(p.PING) == greeted.ask(p.PING) == [p.PONG]


@pytest.mark.parametrize("head_bytes", [4, 5, 500])
def test_p2p_18_nothing_large_is_kept_before_login(head_bytes: int) -> None:
    """Every client needs a HELLO here, and none is as large as that."""
    line = Rig(default_channel="").connect()
    size = MIB // 2
    line.feed((size.to_bytes(4, "big") + p.put(1, bytes(1000)))[:head_bytes])
    assert line.take_packets() == [p.ABORT] and line.wire.closed


def test_p2p_18_nothing_large_is_kept_before_an_identity_is_proved() -> None:
    rig = Rig()
    rig.node.services.signer = NODE
    line = rig.connect()
    (challenge,) = line.ask(hello(ALICE, b"chat/1"))
    assert challenge[0] == 0x81
    line.feed((MIB // 2).to_bytes(4, "big"))
    assert line.take_packets() == [p.ABORT] and line.wire.closed


@pytest.mark.parametrize("is_in_pieces", [False, True], ids=["a frame", "fragments"])
def test_p2p_18_the_same_on_a_websocket_that_promised_a_hello(is_in_pieces: bool) -> None:
    line = Rig().connect_websocket()
    line.feed(request_of(Sec_WebSocket_Protocol="p2pbuf.v1.hello"))
    if is_in_pieces:
        for number in range(20):
            line.feed(from_client(Opcode.CONT if number else Opcode.BINARY, bytes(9000), fin=False))
    else:
        line.feed(from_client(Opcode.BINARY, bytes(MIB // 2))[:1000])
    assert line.take_packets() == [p.ABORT] and line.wire.closed
    assert isinstance(line._framing, Upgradable) and line._framing.close_code == 1009


def test_a_first_packet_of_the_size_of_a_hello_is_awaited() -> None:
    line = Rig(default_channel="").connect()
    first = p.hello(b"chat/1", {0x80: bytes(3000)})
    wire = len(first).to_bytes(4, "big") + first
    line.feed(wire[:2000])
    assert line.take_packets() == []
    line.feed(wire[2000:])
    assert line.take_packets()[0][0] == 0x83


def test_large_packets_may_be_the_first_of_a_bare_client_and_come_right_behind_a_hello() -> None:
    rig = Rig()
    packet = p.put(1, bytes(MIB // 2))
    wire = len(packet).to_bytes(4, "big") + packet
    greeting = p.hello(b"chat/1")
    for before in (b"", len(greeting).to_bytes(4, "big") + greeting):
        line = rig.connect()
        line.feed(before + wire[:-1])
        line.feed(wire[-1:])
        assert line.take_packets()[-1][0] == 7


def test_a_goodbye_before_hello_closes_at_once() -> None:
    rig = Rig(default_channel="")
    line = rig.connect()
    line.connection.start_drain()
    assert line.take_packets() == [p.GOODBYE] and line.wire.closed
    line.say(p.get(1), p.put(1, b"x"), p.hello(b"chat/1"))
    assert line.take_packets() == []


def test_a_goodbye_to_a_silent_bare_client_is_not_taken_back_by_its_hello() -> None:
    rig = Rig()
    line = rig.connect()
    rig.advance(1)
    line.connection.start_drain()
    assert line.take_packets() == [p.GOODBYE]
    assert all(packet[0] != 0x83 for packet in line.ask(p.hello(b"chat/1")))


def test_a_drain_closes_a_connection_whose_refusal_is_delayed() -> None:
    rig = Rig()
    line = rig.connect()
    line.say(p.hello(b"chat/1", {p.PUBLIC_KEY: bytes(32), p.NONCE: bytes(32)}))
    line.connection.start_drain()
    line.say(p.get(1), p.list_(), p.put(1, b"x"), p.ack(1))
    assert line.take_packets() == [p.GOODBYE] and line.wire.closed


def test_ps_12_malformed_packets_far_apart_do_not_add_up() -> None:
    rig = Rig()
    line = rig.logged_in(tags={p.KEEP_ALIVE: p.u32(300_000)})
    for _ in range(30):
        assert line.ask(b"\x04short") == [p.nack(4, 0xF0, b"short")]
        rig.advance(6.7)
    assert not line.wire.is_over


over_both = pytest.mark.parametrize("over", ["tcp", "ws"])


def _with_large_messages(
    rig: Rig, count: int, size: int, over: str = "tcp"
) -> tuple[RecordedConnection, list[int]]:
    line = rig.logged_in(tags={p.ROLE: p.BOTH}, flags=0, over=over)
    ids = [int.from_bytes(line.ask(p.put(key, bytes(size)))[0][9:], "big") for key in range(count)]
    return line, ids


@over_both
def test_as_many_large_answers_as_fit_are_made_at_a_time(over: str) -> None:
    rig = Rig()
    line, (message_id,) = _with_large_messages(rig, 1, MIB - 64, over)
    line.wire.reads = False
    line.say(*[p.get(message_id)] * 100_000)
    assert line.wire.paused
    answered = len(line.take_packets())
    while line.wire.unsent_bytes:
        line.read()
        answered += len(line.take_packets())
        if answered > 200:
            break
    assert line.wire.unsent_bytes_peak <= 4 * MIB + LARGE_REPLIES_BYTES_MAX
    assert not line.wire.is_over


@over_both
def test_large_answers_are_bounded_also_when_the_channel_is_busy(over: str) -> None:
    rig = Rig()
    line, (message_id,) = _with_large_messages(rig, 1, MIB - 64, over)
    line.wire.reads = False
    writes = [p.put(key, b"x") for key in range(1, 700)]
    line.say(*writes, *[p.get(message_id)] * 3000, *[p.list_()] * 100)
    assert line.wire.unsent_bytes_peak <= 6 * MIB + LARGE_REPLIES_BYTES_MAX
    answers = line.take_packets()
    while line.wire.unsent_bytes and len(answers) < 1000:
        line.read()
        answers += line.take_packets()
    assert [answer[0] for answer in answers[:1000]] == [7] * 699 + [5] * 301
    assert line.wire.unsent_bytes_peak <= 6 * MIB + LARGE_REPLIES_BYTES_MAX


def test_many_of_the_largest_messages_can_be_read_in_one_go() -> None:
    size = 8 * MIB - 64
    rig = Rig(packet_bytes_max=8 * MIB)
    line, ids = _with_large_messages(rig, 6, size)
    answers = []
    line.say(*[p.get(each) for each in ids])
    rig.advance(0)
    answers = line.take_packets()
    assert [len(each) for each in answers] == [9 + size] * 6 and not line.wire.is_over


@over_both
def test_a_peer_that_reads_nothing_is_pushed_nothing_more_and_closed_after_30_s(over: str) -> None:
    rig = Rig(window=1024, window_bytes=64 * MIB)
    stalled, other = rig.logged_in(over=over), rig.logged_in()
    producer = rig.logged_in(tags={p.ROLE: p.PRODUCER})
    stalled.wire.reads = False
    for key in range(40):
        producer.say(p.put(key, bytes(100_000)))
    assert len(other.take_packets()) == 40
    pushed = len(stalled.take_packets())
    assert 10 <= pushed < 15
    rig.advance(29)
    assert not stalled.wire.is_over
    rig.advance(1.5)
    assert stalled.wire.aborted and not other.wire.is_over
    stalled.end()
    assert producer.ask(p.PING)[-1:] == [p.PONG]


def test_a_peer_that_reads_again_gets_the_rest() -> None:
    rig = Rig(window=1024, window_bytes=64 * MIB)
    slow, producer = rig.logged_in(), rig.logged_in(tags={p.ROLE: p.PRODUCER})
    slow.wire.reads = False
    for key in range(40):
        producer.say(p.put(key, bytes(100_000)))
    rig.advance(15)
    for _ in range(10):
        slow.read()
    rig.advance(3)
    assert len([each for each in slow.take_packets() if each[0] == 2]) == 40
    assert not slow.wire.is_over


def test_requests_before_a_half_close_are_answered() -> None:
    rig = Rig()
    line, (message_id,) = _with_large_messages(rig, 1, MIB - 64)
    line.wire.reads = False
    line.say(*[p.get(message_id)] * 50)
    line.eof()
    for _ in range(60):
        line.read()
    assert len(line.take_packets()) == 50 and line.wire.closed


def test_a_large_batch_before_a_half_close_is_answered() -> None:
    rig = Rig()
    line = rig.logged_in()
    line.connection.received(p.framed(*(p.put(key, b"x") for key in range(2000))))
    line.connection.eof()
    rig.settle()
    assert len(line.take_packets()) == 2000 and line.wire.closed


@pytest.mark.parametrize(("configured_s", "kept_s"), [(0.001, 1), (0.5, 1), (7, 7), (9999, 300)])
def test_a_bare_client_is_given_1_to_300_s_of_silence(configured_s: float, kept_s: float) -> None:
    rig = Rig(keep_alive_s=configured_s)
    line = rig.connect()
    assert line.ask(p.PING) == [p.PONG]
    rig.advance(kept_s - 0.01)
    assert line.take_packets() == []
    rig.advance(0.02)
    assert line.take_packets() == [p.PING]


def test_administration_survives_hostile_bodies() -> None:
    line = Rig().logged_in(tags={p.EXTENSIONS: b"\x90\x91"})
    nested = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
    for body in (b"", b"\xc1", b"\x81", nested, b"\x81\xa5limit\xa1x", b"\x80\x80"):
        assert line.ask(p.admin(7, 1, body)) == [p.nack(0x90, 0xF0, p.u32(7))]
    assert line.ask(p.admin(7, 250, b"\x80")) == [p.nack(0x90, 0xF0, p.u32(7))]
    (answer,) = line.ask(p.admin(8, 1, b"\x80"))
    assert answer[:6] == b"\x91" + p.u32(8) + b"\x01"


def test_64_requests_about_channels_are_unanswered_at_once() -> None:
    """Their channel waits, as one that crashed does."""
    rig = Rig()
    line = rig.logged_in(tags={p.EXTENSIONS: b"\x90\x91"})
    rig.node.scheduler.cells[b"chat/1"].resumes_at = rig.node.clock.now() + 5
    bodies = [encode({"channel": b"chat/1", "key": key, "data": b"x"}) for key in range(66)]
    refused = line.ask(*(p.admin(number, 10, body) for number, body in enumerate(bodies)))
    assert refused == [p.nack(0x90, 0x26, p.u32(number)) for number in (64, 65)]
    assert line.ask(p.admin(7, 10, bodies[7])) == [p.nack(0x90, 0xF0, p.u32(7))]
    rig.advance(5)
    answers = line.take_packets()
    assert [answer[:6] for answer in answers] == [
        b"\x91" + p.u32(number) + b"\x0a" for number in range(64)
    ]
    assert line.ask(p.admin(7, 10, bodies[7]))[0] == answers[7], "the key got its receipt again"


def test_requests_about_channels_survive_hostile_bodies() -> None:
    line = Rig().logged_in(tags={p.EXTENSIONS: b"\x90\x91"})
    for operation in (6, 7, 8, 9, 10):
        for body in (b"", b"\xc1", b"\x81", b"\x81\xa7channel\xc4\x00", b"\x81\xa7channel\xa1x"):
            assert line.ask(p.admin(7, operation, body)) in (
                [p.nack(0x90, 0xF0, p.u32(7))],
                [b"\x91" + p.u32(7) + b"\x06" + encode({"page": [], "more": False, "changes": 2})],
            )


MANY = 2000
SHARE = 512
"""Packets of a connection in one turn of the loop."""
PONG_FRAME = b"\x8a\x00"
SMALL_FRAMES = {
    "pings": b"\x89\x80" + bytes(4),
    "fragments": b"\x00\x80" + bytes(4),
}


def turns(rig: Rig, busy: RecordedConnection, other: RecordedConnection) -> Iterator[None]:
    """Turns of the scheduler while `busy` is handled; `other` is answered in each."""
    rig.tick_s = 1e-6
    while busy.wire.paused:
        other.connection.received(other._framing.encode([p.PING]))
        assert other.take_packets() == [p.PONG]
        rig.node.scheduler.turn(rig.node.clock.now())
        yield


@pytest.mark.parametrize("over", ["tcp", "ws"])
@pytest.mark.parametrize("packet", [p.PING, p.PING + bytes(8)], ids=["bare", "timed"])
def test_small_packets_of_one_read_are_handled_in_turns(over: str, packet: bytes) -> None:
    rig = Rig()
    busy, other = rig.logged_in(over=over), rig.logged_in(over=over)
    busy.connection.received(busy._framing.encode([packet] * MANY))
    counts = [len(busy.take_packets())]
    counts += [len(busy.take_packets()) for _ in turns(rig, busy, other)]
    assert sum(counts) == MANY and max(counts) <= SHARE


@pytest.mark.parametrize("kind", SMALL_FRAMES)
def test_frames_that_are_no_packets_are_handled_in_turns(kind: str) -> None:
    rig = Rig()
    busy, other = rig.logged_in(over="ws"), rig.logged_in(over="ws")
    first = b"\x02\x81" + bytes(4) + p.PING if kind == "fragments" else b""
    last = b"\x80\x80" + bytes(4) if kind == "fragments" else b""
    busy.connection.received(first + SMALL_FRAMES[kind] * MANY + last)
    pongs = [busy.wire.written.count(PONG_FRAME)]
    pongs += [busy.wire.written.count(PONG_FRAME) for _ in turns(rig, busy, other)]
    assert len(pongs) > 2, "all at once"
    if kind == "pings":
        assert pongs[0] < MANY / 2 and pongs[-1] == MANY
    else:
        assert busy.take_packets() == [p.PONG]


@pytest.mark.parametrize("size", [1, 100, 3000])
def test_puts_of_one_read_are_answered_in_order(size: int) -> None:
    rig = Rig(channel_bytes_max=2**24, node_bytes_max=2**24)
    busy, other = rig.logged_in(b"chat/2"), rig.logged_in()
    keys = range(1, 256 * 1024 // (size + 13))
    busy.connection.received(busy._framing.encode([p.put(key, b"x" * size) for key in keys]))
    for _ in turns(rig, busy, other):
        pass
    rig.settle()
    answers = busy.take_packets()
    assert [each[:5] for each in answers] == [b"\x07" + p.u32(key) for key in keys]


@pytest.mark.parametrize("end", ["eof", "goodbye", "bad frame"])
def test_all_of_one_read_is_answered_before_the_end(end: str) -> None:
    rig = Rig()
    line = rig.logged_in()
    sent = line._framing.encode([p.PING] * MANY)
    if end == "goodbye":
        sent += line._framing.encode([p.GOODBYE, p.PING])
    elif end == "bad frame":
        sent += bytes(4)
    line.connection.received(sent)
    if end == "eof":
        line.connection.eof()
    assert not line.wire.closed
    rig.settle()
    answers = line.take_packets()
    assert answers.count(p.PONG) == MANY and line.wire.closed
    assert answers[MANY:] == ([p.ABORT] if end == "bad frame" else [])


def test_packets_before_a_login_are_handled_in_turns() -> None:
    rig = Rig(default_channel="")
    busy, other = rig.connect(), rig.logged_in()
    dropped = rig.node.services.counters.dropped
    hello = [p.hello(b"chat/1"), p.PING]
    busy.connection.received(busy._framing.encode([b"\xaa"] * MANY + hello))
    assert 0 < rig.node.services.counters.dropped - dropped <= SHARE
    for _ in turns(rig, busy, other):
        pass
    ready, pong = busy.take_packets()
    assert ready[0] == 0x83 and pong == p.PONG


def test_a_connection_that_floods_before_its_login_ends_in_time() -> None:
    rig = Rig(default_channel="")
    line = rig.connect()
    for _ in range(12):
        line.feed(line._framing.encode([b"\xaa"] * MANY))
        rig.advance(1)
    assert line.wire.is_over
