"""Random and mutated streams against whole connections: no crash, no flood, no nonsense back.

An input is what one connection sends from its first byte to its end. Inputs run against a node
with small limits, several connections at a time, some of which do not read, while time passes.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from msgspec import structs

from millpond.actors.channels.settings import TTL_UNLIMITED, EmptyPolicy
from millpond.actors.streams.names import RESERVED
from millpond.node.config import ChannelRule
from millpond.transports.errors import MalformedPacket
from millpond.transports.p2p import connection
from millpond.transports.p2p.jobs.bodies import JobOperation
from millpond.transports.p2p.packets import DECODERS
from millpond.transports.p2p.streams.operations import Operation
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection, Rig

pytestmark = pytest.mark.wire

INPUTS_PER_RIG = 250
LINES = 4
PACKET_MAX = 4096
HEAVY_BYTES = 20_000
UNREAD_BYTES = 50_000
UNSENT_MAX = 250_000
HEAD = b"GET /v1/channels/%s HTTP/1.1\r\nHost: [::1]\r\n"
HEAD += b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
HEAD += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
HEAD += b"Sec-WebSocket-Protocol: p2pbuf.v1%s\r\n\r\n"
CHANNELS = [b"a", b"b", b"queue/1", b"all/1", b"a!dead"]
NUMBERS = [0, 1, 2, 0xFF, 0x1000, 2**31, 2**32 - 1]


class Fuzzer:
    """Makes inputs out of one seed; it knows the ids that the node gave out."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.ids = [0, 1, p.U64_MAX]

    def id(self) -> int:
        return self.rng.choice(self.ids)

    def number(self) -> int:
        return self.rng.choice(NUMBERS)

    def data(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([0, 1, 20, 20, 1000, 4030, 4030, 4080]))

    def hello(self) -> bytes:
        rng = self.rng
        tags = {
            p.ROLE: bytes((rng.randrange(1, 5),)),
            p.WINDOW: p.u16(rng.choice([0, 1, 4, 65_535])),
            p.PACKET_MAX: p.u32(rng.choice([0, 1024, 4096, 2**32 - 1])),
            p.KEEP_ALIVE: p.u32(self.number()),
            p.EXTENSIONS: bytes(rng.randrange(0x80, 0x98) for _ in range(rng.randrange(12))),
            p.LIST_MODE: bytes((rng.randrange(3),)),
            p.RESUME_AFTER: p.u64(self.id()),
            p.MODE: bytes((rng.randrange(3),)),
        }
        given = {tag: tags[tag] for tag in rng.sample(sorted(tags), rng.randrange(len(tags)))}
        return p.hello(rng.choice(CHANNELS), given, flags=rng.randrange(8))

    def packet(self) -> bytes:
        rng = self.rng
        match rng.randrange(20):
            case 0:
                return self.hello()
            case 16 | 17:
                return self.ask()
            case 18 | 19:
                return self.ask_jobs()
            case 1 | 2 | 3 | 4:
                return p.put(rng.randrange(40), self.data(), self.number())
            case 5 | 6:
                return p.ack(self.id())
            case 7:
                return p.get(self.id())
            case 8:
                return p.list_(rng.choice([0, 1, 65_535]), self.id(), self.id())
            case 9:
                delay = rng.choice([b"", b"\x00", p.u32(self.number())])
                code = rng.choice([0x30, 0x31, 0x32, 0x33, rng.randrange(256)])
                return p.nack(rng.choice([2, 0x88, 6]), code, p.u64(self.id()) + delay)
            case 10:
                return p.touch(self.id(), self.number())
            case 11:
                return p.credit(rng.choice([0, 1, 65_535]))
            case 12:
                return p.admin(self.number(), rng.randrange(3), rng.choice([b"\x80", self.data()]))
            case 13:
                return rng.choice([p.PING, b"\x00" + p.u64(self.id()), p.PONG])
            case 14:
                return bytes((rng.randrange(256),)) + self.data()
            case _:
                return rng.choice([p.GOODBYE, p.ABORT, p.nack(0xFF, rng.randrange(256)), p.PING])

    def ask(self) -> bytes:
        """A request to a stream, mostly one that can be read."""
        rng = self.rng
        name = rng.choice([b"s", b"t", b"t/0", b"", bytes(1025)])
        fields = {
            "stream": name,
            "topic": name,
            "bodies": [self.data() for _ in range(rng.randrange(4))],
            "sequence": rng.choice([0, 1, 2**64 - 1]),
            "ms": rng.choice([0, 1, 2**64 - 1]),
            "id": {"ms": self.number(), "seq": 0},
            "wait_ms": rng.choice([0, 1, 60_000]),
            "bytes_max": rng.choice([1, 10_000, 2**40]),
            "group": self.data()[:30],
            "offset": self.id(),
            "partitions": rng.choice([1, 2, 1000, 1001]),
            "timestamps": [None],
            "match": rng.choice([0, 1]),
        }
        given = ["stream", "topic", "bodies", "group", "offset"]
        given += rng.sample(sorted(fields), rng.choice([0, 0, 1, 3]))
        body = msgspec.msgpack.encode({name: fields[name] for name in given})
        operation = rng.choice([*Operation, Operation.APPEND, Operation.READ, 0, 99])
        return p.stream(self.number(), operation, body)

    def ask_jobs(self) -> bytes:
        """A request about jobs, mostly one that can be read."""
        rng = self.rng
        operation = rng.choice([*JobOperation, JobOperation.PUT, 0, 99])
        own: dict[str, object] = {"id": self.id()}
        match operation:
            case JobOperation.PUT:
                own = {"key": rng.randrange(40), "data": self.data(), "due": self.number()}
                own["unique"] = rng.choice([b"", b"a", bytes(64), bytes(65)])
            case JobOperation.LIST:
                own = {"state": rng.choice([None, "dead", "ready", "delayed", "leased", "?"])}
            case JobOperation.RETRY_DEAD | JobOperation.PURGE_DEAD:
                own = rng.choice([{"all": True}, {"ids": [self.id()]}, {}])
        body = msgspec.msgpack.encode(own)
        return bytes((0x96,)) + p.u32(self.number()) + bytes((operation,)) + body

    def mutated(self, data: bytes) -> bytes:
        """The same with a few bytes changed, removed or put in."""
        changed = bytearray(data)
        for _ in range(self.rng.randrange(1, 4)):
            at = self.rng.randrange(len(changed) + 1)
            length = self.rng.randrange(3)
            changed[at : at + length] = self.rng.randbytes(self.rng.randrange(3))
        return bytes(changed)

    def frame(self, data: bytes) -> bytes:
        """A WebSocket frame, mostly a good one; a mask of zeros leaves the data as it is."""
        first = 0x82 if self.rng.random() < 0.97 else self.rng.randrange(256)
        size = len(data)
        length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + p.u16(size)
        return bytes((first,)) + length + bytes(4) + data

    def stream(self, *, websocket: bool) -> bytes:
        rng = self.rng
        count = 700 if rng.random() < 0.02 else rng.choice([1, 2, 5, 10, 20, 40])
        packets = [self.packet() for _ in range(count)]
        if rng.random() < 0.8:
            packets.insert(0, self.hello())
        if rng.random() < 0.1:
            packets += [rng.choice([p.get(self.ids[-1]), self.packet()])] * 200
        if rng.random() < 0.4:
            at = rng.randrange(len(packets))
            packets[at] = self.mutated(packets[at])
        if websocket:
            head = HEAD % (rng.choice(CHANNELS), rng.choice([b"", b".hello"]))
            data = head + b"".join(map(self.frame, packets))
        else:
            data = p.framed(*packets)
        return self.mutated(data) if rng.random() < 0.2 else data


class Session:
    """One connection and its input."""

    def __init__(self, rig: Rig, fuzzer: Fuzzer) -> None:
        rng = fuzzer.rng
        websocket = rng.random() < 0.3
        self._fuzzer = fuzzer
        self._rest = fuzzer.stream(websocket=websocket)
        # A head comes alone: frames before the 101 are refused.
        self._first = self._rest.find(b"\r\n\r\n") + 4 if websocket else 0
        self.line: RecordedConnection = rig.connect_websocket() if websocket else rig.connect()
        self.line.wire.reads = rng.random() < 0.5
        self.line.wire.high_water_bytes = UNREAD_BYTES // 2

    def step(self) -> bool:
        """One read's worth, or one look from the other end. False: the connection is over."""
        rng, line = self._fuzzer.rng, self.line
        if line.wire.is_over or not self._rest:
            if rng.random() < 0.5:
                line.eof()
            line.end()
            return False
        if rng.random() < 0.01:
            line.connection.start_drain()
        if line.wire.paused or rng.random() < 0.05:
            line.read()
        else:
            size = self._first or rng.choice([1, 7, 100, 4096, 65_536])
            self._first = 0
            line.feed(self._rest[:size])
            self._rest = self._rest[size:]
        self.judge()
        return True

    def judge(self) -> None:
        """The output is within the limits and makes sense."""
        assert self.line.wire.unsent_bytes_peak <= UNSENT_MAX
        for packet in self.line.take_packets():
            assert 0 < len(packet) <= PACKET_MAX or packet[0] == 0x91, packet[:20].hex()
            try:
                DECODERS[packet[0]](packet)
            except MalformedPacket as exc:
                raise AssertionError(packet.hex()) from exc
            if packet[0] in (2, 7):
                number = packet[1:9] if packet[0] == 2 else packet[9:]
                self._fuzzer.ids.append(int.from_bytes(number, "big"))
                del self._fuzzer.ids[3:-20]


def _run(seed: int, inputs: int) -> None:
    fuzzer = Fuzzer(seed)
    rig = Rig(
        packet_bytes_max=PACKET_MAX,
        channels=(
            ChannelRule.parse("queue/*=queue,attempts=2,ttl=604800"),
            ChannelRule.parse("all/*=fanout"),
        ),
        channel_messages_max=30,
        keys_max=50,
        mailbox_bytes_max=20_000,
        window_bytes=30_000,
        empty_put=fuzzer.rng.choice(list(EmptyPolicy)),
    )
    reception = rig.node.services
    reception.settings = structs.replace(reception.settings, unread_bytes_max=UNREAD_BYTES)
    sessions: list[Session] = []
    while inputs or sessions:
        while inputs and len(sessions) < LINES:
            inputs -= 1
            sessions.append(Session(rig, fuzzer))
        sessions = [session for session in sessions if session.step()]
        if fuzzer.rng.random() < 0.1:
            rig.advance(fuzzer.rng.choice([0.01, 0.3, 6, 35, 700]))
    _settle(rig)


def _settle(rig: Rig) -> None:
    """Nothing crashed, no connection is left over, and nothing is kept beyond its deadline.

    A message lives for a week, and its dead letter for another one. A message put into a queue
    without a ttl has no deadline.
    """
    node = rig.node
    assert node.scheduler.counters.crashes == 0
    assert not node.registry.connections
    rig.advance(16 * 86_400)
    kept = [row for each in node._store._partitions.values() for row in each.snapshot().rows]
    assert all(row.ttl == TTL_UNLIMITED for row in kept)
    usage = node._store.usage
    assert (usage.messages, usage.keys) == (len(kept), 0)
    assert usage.bytes == sum(len(row.data) for row in kept)
    cells = node.scheduler.cells
    queues = {name for name, each in node._store._partitions.items() if each.snapshot().rows}
    assert {name for name in cells if not name.startswith(RESERVED)} == queues
    # Streams stay until they are deleted; at rest, which they are not while a read waits.
    assert all(cell.behaviour is None for cell in cells.values())


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LARGE_REPLIES_BYTES_MAX", HEAVY_BYTES)


@pytest.mark.parametrize(
    "seed", [pytest.param(each, marks=pytest.mark.full if each >= 16 else ()) for each in range(40)]
)
def test_10_000_hostile_streams_harm_nothing(seed: int) -> None:
    _run(seed, INPUTS_PER_RIG)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_100_000_hostile_streams_harm_nothing(seed: int) -> None:
    for part in range(10):
        _run(seed * 10 + part, INPUTS_PER_RIG)
