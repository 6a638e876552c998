"""The client proves who it is, to a node that proves its own identity first (PS-01, 3b)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.from_thread import start_blocking_portal

from millpond import ConnectionLost, HandshakeRefused, connect
from millpond.node.client.errors import PeerMismatch
from millpond.node.client.events import Retrying
from millpond.node.client.settings import ConnectSettings
from millpond.node.client.sync import channel as sync
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.node.peers.address_book import AddressBook, KeyChanged, PeerBlocked
from millpond.node.peers.identity import Identity
from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.handshake import Signer, decode_hello, encode_ready
from millpond.transports.p2p.nacks import HelloCode
from millpond.transports.websocket.framing import ServerFraming
from tests.conformance import packets as wire
from tests.node.client.scripted_node import READY, Line, Peer, take_settings
from tests.transports.p2p.identity_packets import ALICE, BOB, CERTIFICATE_HASH, NODE, challenge

CONFIG = Config(
    p2p="127.0.0.1:0", ws="127.0.0.1:0", s3p="off", rustlog="off", http="off", drain_timeout_s=0.5
)
SOON_S = 5
Answer = Callable[[bytes], bytes]


@asynccontextmanager
async def serving(identity: Signer | None = NODE, **settings: Any) -> AsyncIterator[Node]:
    """A node with the test's identity, in the place of its own."""
    async with Node(replace(CONFIG, **settings), rng=Random(1)) as node:
        node.services.signer = identity
        yield node


@pytest.fixture(params=["p2p", "ws"])
def listener(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def url_of(node: Node, listener: str) -> str:
    scheme = "tcp" if listener == "p2p" else "ws"
    return f"{scheme}://{node.listeners[listener]}"


async def test_both_know_each_other_then(listener: str) -> None:
    received: list[bytes] = []
    async with serving() as node:
        url = url_of(node, listener)
        known = {"identity": ALICE, "peer": NODE.public, "on_peer": received.append}
        async with connect(url, "chat/1", **known) as alice:
            receipt = await alice.put(b"x")
            assert await alice.get(receipt.id) == b"x"
        assert node.services.counters.identified == 1
    assert received == [NODE.public]


async def test_an_identity_from_its_file_is_what_both_use(tmp_path: Path) -> None:
    keys = [Identity.from_seed(bytes((seed,)) * 32) for seed in (7, 8)]
    async with serving(keys[0]) as node:
        url = url_of(node, "p2p")
        async with connect(url, "chat/1", identity=keys[1], peer=keys[0].public) as channel:
            assert await channel.ping() >= 0


@pytest.fixture
def served() -> Iterator[Node]:
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(serving()) as node:
            yield node


def test_the_blocking_client_does_the_same(served: Node, listener: str) -> None:
    url = url_of(served, listener)
    with sync.connect(url, "chat/1", identity=ALICE, peer=NODE.public) as alice:
        assert alice.get(alice.put(b"x").id) == b"x"
    with pytest.raises(PeerMismatch):
        with sync.connect(url, "chat/1", identity=ALICE, peer=BOB.public, wait_s=SOON_S):
            pass
    assert served.services.counters.identified == 1


async def test_another_node_than_the_expected_one_is_final(listener: str) -> None:
    """Nothing is proved to it, and it is not asked again."""
    events: list[object] = []
    async with serving() as node:
        asked = {"identity": ALICE, "peer": BOB.public, "wait_s": 60, "on_event": events.append}
        with pytest.raises(PeerMismatch, match=r"the node is [a-z2-7]{52}, not ") as wrong:
            async with connect(url_of(node, listener), "chat/1", **asked):
                pass
        assert node.services.counters.identified == 0
        assert node.services.protocol_stats[listener].connections == 1
    assert wrong.value.public == NODE.public
    assert not any(isinstance(event, Retrying) for event in events)


async def test_a_node_without_an_identity_refuses() -> None:
    async with serving(None) as node:
        with pytest.raises(HandshakeRefused) as refused:
            async with connect(url_of(node, "p2p"), "chat/1", identity=ALICE, wait_s=SOON_S):
                pass
    assert refused.value.code == HelloCode.AUTHENTICATION_FAILED


def book(tmp_path: Path) -> AddressBook:
    return AddressBook(tmp_path / "peers.toml")


async def test_a_key_is_pinned_at_first_and_a_change_of_it_is_loud(tmp_path: Path) -> None:
    peers = book(tmp_path)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving())
        url = url_of(first, "p2p")

        def pin(public: bytes) -> None:
            peers.pin(public, url)

        for _ in range(2):
            async with connect(url, "chat/1", identity=ALICE, on_peer=pin):
                pass
        first.services.signer = BOB
        with pytest.raises(PeerMismatch) as changed:
            async with connect(url, "chat/1", identity=ALICE, on_peer=pin, wait_s=60):
                pass
        assert isinstance(changed.value.__cause__, KeyChanged)
        peers.block(str(next(iter(peers.peers)).name))
        first.services.signer = NODE
        with pytest.raises(PeerMismatch) as revoked:
            async with connect(url, "chat/1", identity=ALICE, on_peer=pin, wait_s=60):
                pass
        assert isinstance(revoked.value.__cause__, PeerBlocked)
        assert first.services.counters.identified == 2


class Impostor:
    """A peer that answers HELLO as a test says, and AUTH with READY unless it is `slow`."""

    def __init__(self, *answers: Answer, slow: bool = False) -> None:
        self.peer = Peer(self._answer)
        self._answers = answers
        self._slow = slow

    def _answer(self, line: Line, packet: p.Packet) -> None:
        match packet:
            case p.Handshake(packet_type=p.HELLO, raw=raw):
                line.say(*[answer(raw) for answer in self._answers])
            case p.Handshake(packet_type=p.AUTH) if not self._slow:
                line.say(encode_ready(READY))
            case _:
                pass

    def connect(self, **how: Any) -> Any:
        known = {"identity": ALICE, "peer": NODE.public, "wait_s": 100} | how
        return connect(
            "tcp://peer:1", "chat/1", settings=take_settings(known, dialer=self.peer.dial), **known
        )

    @property
    def proofs(self) -> list[bytes]:
        """The proof of the client's identity that it received."""
        received = [each for line in self.peer.lines for each in line.of(p.Handshake)]
        return [each.raw for each in received if each.packet_type == p.AUTH]


def told_ready(hello: bytes) -> bytes:
    return encode_ready(READY)


def own_key(hello: bytes) -> bytes:
    return challenge(hello, ALICE)


def own_words(hello: bytes) -> bytes:
    """The client's signature, as it makes it of its own challenge."""
    return challenge(hello, ALICE, role=b"C")


def swapped_roles(hello: bytes) -> bytes:
    return challenge(hello, NODE, role=b"C")


def a_key_without_its_secret(hello: bytes) -> bytes:
    return challenge(hello, BOB, shown=NODE.public)


def a_replayed_challenge(hello: bytes) -> bytes:
    """It was signed for another HELLO: the nonces differ."""
    return challenge(hello.replace(decode_hello(hello).nonce or b"", bytes(32)))


def a_low_order_key(hello: bytes) -> bytes:
    """Anybody can sign for it: R is the neutral element, S is 0."""
    genuine, signature = challenge(hello, NODE, shown=b"\x01" + bytes(31)), b"\x01" + bytes(63)
    at = genuine.index(wire.tlv(0x0A, b"")[:1] + b"\x00\x40") + 3
    return genuine[:at] + signature + genuine[at + 64 :]


def a_certificate_that_was_not_shown(hello: bytes) -> bytes:
    return challenge(hello, tags={CERTIFICATE_HASH: b"h" * 32})


IMPOSTORS = [
    told_ready,
    own_key,
    own_words,
    swapped_roles,
    a_key_without_its_secret,
    a_replayed_challenge,
    a_low_order_key,
    a_certificate_that_was_not_shown,
]


@pytest.mark.parametrize("answer", IMPOSTORS)
async def test_an_impostor_gets_no_proof_and_no_second_call(answer: Answer) -> None:
    """It is not served either: what it pushes is nobody's."""
    impostor = Impostor(answer, told_ready, lambda _: wire.msg(1, b"forged"))
    with pytest.raises(PeerMismatch):
        async with impostor.connect():
            pass
    assert impostor.proofs == [] and len(impostor.peer.lines) == 1


async def test_a_node_that_is_ready_before_it_was_greeted_has_proved_nothing() -> None:
    """A WebSocket is upgraded, and told READY, in one piece: no HELLO was sent yet."""

    async def serve(stream: ByteStream) -> None:
        framing = ServerFraming(2**20, BrowserPolicy())
        framing.feed(await stream.receive())
        upgraded = framing.take_output()
        await stream.send(upgraded + framing.frame([encode_ready(READY)]))
        async with stream:
            await _read_to_end(stream)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            url = f"ws://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
            with pytest.raises(PeerMismatch, match="did not prove"):
                async with connect(url, "chat/1", identity=ALICE, peer=NODE.public, wait_s=SOON_S):
                    pass
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("answer", [own_key, a_key_without_its_secret, told_ready])
async def test_also_who_expects_nobody_in_particular_wants_a_proof(answer: Answer) -> None:
    received: list[bytes] = []
    impostor = Impostor(answer, told_ready)
    with pytest.raises(PeerMismatch):
        async with impostor.connect(peer=None, on_peer=received.append):
            pass
    assert impostor.proofs == [] and received == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda hello: challenge(hello, version=2),
        lambda hello: challenge(hello)[:-1],
        lambda hello: challenge(hello) + wire.tlv(0x0A, bytes(64)),
        lambda hello: b"\x81",
    ],
)
async def test_a_challenge_that_cannot_be_read_is_not_answered(answer: Answer) -> None:
    impostor = Impostor(answer, told_ready)
    with pytest.raises(ConnectionLost):
        async with impostor.connect(wait_s=0):
            pass
    assert impostor.proofs == []


async def test_a_second_challenge_is_not_answered() -> None:
    impostor = Impostor(challenge, partial(challenge, nonce=bytes(32)))
    async with impostor.connect():
        pass
    assert len(impostor.proofs) == 1


async def test_nothing_but_the_proof_is_said_before_ready() -> None:
    """3b: READY comes late, and requests wait for it."""
    impostor = Impostor(challenge, slow=True)

    async def put() -> None:
        async with impostor.connect() as channel:
            channel.post(b"x")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put)
        await impostor.peer.until(lambda: impostor.proofs)
        await anyio.sleep(0.05)
        assert [type(each) for each in impostor.peer.line.packets] == [p.Handshake] * 2
        tasks.cancel_scope.cancel()


async def test_whom_the_listener_does_not_like_is_not_told_who_we_are() -> None:
    def refuse(public: bytes) -> None:
        raise PeerMismatch("not today", public)

    impostor = Impostor(challenge, told_ready)
    with pytest.raises(PeerMismatch, match="not today"):
        async with impostor.connect(on_peer=refuse):
            pass
    assert impostor.proofs == []


async def test_after_a_loss_it_is_proved_again_with_another_nonce() -> None:
    impostor = Impostor(challenge)
    async with impostor.connect(rng=Random(1)):
        impostor.peer.line.cut()
        await impostor.peer.until(lambda: len(impostor.proofs) == 2)
    hellos = [decode_hello(line.of(p.Handshake)[0].raw) for line in impostor.peer.lines]
    assert len({hello.nonce for hello in hellos}) == 2
    assert {hello.public_key for hello in hellos} == {ALICE.public}


async def test_a_change_of_keys_after_a_loss_ends_it() -> None:
    """An impostor of the node does not get the requests that wait for the node."""
    keys = iter([NODE, BOB])
    impostor = Impostor(lambda hello: challenge(hello, next(keys)))
    async with impostor.connect(rng=Random(1)) as channel:
        impostor.peer.line.cut()
        with pytest.raises(PeerMismatch):
            await channel.put(b"for the node")
    assert len(impostor.proofs) == 1 and len(impostor.peer.lines) == 2


async def test_who_has_no_identity_is_not_asked_twice_for_one() -> None:
    impostor = Impostor(lambda hello: b"\x81\x01" + bytes(100))
    with pytest.raises(HandshakeRefused, match="wants an identity"):
        async with impostor.connect(identity=None, peer=None):
            pass


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"peer": NODE.public}, "need an `identity`"),
        ({"on_peer": print}, "need an `identity`"),
        ({"identity": ALICE, "settings": ConnectSettings(bare=True)}, "without a handshake"),
        ({"identity": ALICE, "peer": b"short"}, "32 bytes, not 5"),
        ({"identity": ALICE, "token": b"t" * 4000}, "at most 4096"),
    ],
)
async def test_arguments_that_cannot_be_meant(how: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        async with connect("tcp://127.0.0.1:1", "chat/1", **how):
            pass


HALF_OPEN = 1000


async def test_a_thousand_half_open_handshakes_keep_nobody_else_waiting() -> None:
    """3h: they end after their 5 seconds, here fewer, or when there are too many; who is in, is
    served meanwhile, and who comes gets in."""
    limits = {"handshake_s": 1.0}
    greeting = wire.framed(wire.hello(b"chat/1", {2: BOB.public, 3: bytes(32)}))
    async with serving(**limits) as node, AsyncExitStack() as stack:
        url = url_of(node, "p2p")
        host, port = node.listeners["p2p"].rsplit(":", 1)
        alice = await stack.enter_async_context(connect(url, "chat/1", identity=ALICE))
        halves: list[ByteStream] = []
        for number in range(HALF_OPEN):
            half = await stack.enter_async_context(await anyio.connect_tcp(host, int(port)))
            await half.send(greeting[: 1 + number % len(greeting)] if number % 2 else greeting)
            halves.append(half)
            if number % 100 == 0:
                with anyio.fail_after(SOON_S):
                    await alice.put(b"served")
        counters = node.services.counters
        assert counters.challenged <= 1 + 200 * 20 and counters.identified == 1
        with anyio.fail_after(SOON_S):
            async with connect(url, "chat/1", wait_s=SOON_S) as newcomer:
                await newcomer.put(b"let in")
        with anyio.fail_after(SOON_S):
            for half in halves:
                await _read_to_end(half)
            async with connect(url, "chat/1", identity=BOB, peer=NODE.public, wait_s=SOON_S) as bob:
                assert await bob.ping() >= 0
        assert counters.identified == 2


async def _read_to_end(stream: ByteStream) -> None:
    while True:
        try:
            await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return
