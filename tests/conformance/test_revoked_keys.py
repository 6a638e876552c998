"""Keys that a whole node does not let in: unknown ones, revoked ones, tokens of other channels."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from millpond.actors.messages import Rights
from millpond.node.access.tokens import new_signed
from millpond.node.peers.address_book import FILE_NAME as BOOK_FILE
from millpond.node.peers.address_book import AddressBook, Trust
from millpond.node.peers.address_book import Peer as Known
from millpond.node.peers.identity import FILE_NAME, load_identity
from tests.conformance import packets as p
from tests.conformance.peer import Peer
from tests.conformance.served import Serve, Served, virtual_time
from tests.transports.p2p.identity_packets import ALICE, BOB, NODE, auth, hello

CHANNEL = b"chat/1"
WIRED = pytest.mark.parametrize("wiring", ["tcp-uvloop", "ws-trio"])


@pytest.fixture
def access_file(tmp_path: Path) -> str:
    """Only named identities are admitted by it, on this machine, too."""
    path = tmp_path / "access.conf"
    path.write_text("key:alice all chat/*\n")
    path.chmod(0o600)
    return str(path)


def book_of(server: Served) -> AddressBook:
    server.node.services.signer = NODE
    return server.node.peer_services.keyring.book


def alice(trust: Trust = Trust.ADDED) -> Known:
    return Known("alice", ALICE.public, trust, (), (), 0.0)


async def asked(server: Served) -> tuple[Peer, bytes]:
    """A connection that has only to prove that it is Alice's, and the proof."""
    peer = await server.dial(CHANNEL)
    first = hello(ALICE, CHANNEL)
    return peer, auth(first, await peer.ask(first), ALICE)


@virtual_time
async def test_pa_39_unknown_pinned_and_revoked_keys_are_refused_alike(
    serve: Serve, access_file: str
) -> None:
    async with serve(access_file=access_file) as server:
        book = book_of(server)
        delays = []
        for trust in (None, Trust.PINNED, Trust.BLOCKED):
            if trust is not None:
                book.add(alice(trust))
            peer, proof = await asked(server)
            start = anyio.current_time()
            await peer.send(proof)
            await peer.expect(p.AUTHENTICATION_FAILED, p.ABORT)
            delays.append(round(anyio.current_time() - start, 6))
            await peer.ends_with()
            if trust is not None:
                book.remove("alice")
        assert delays == [0.2, 0.2, 0.2]
        book.add(alice())
        peer, proof = await asked(server)
        p.read_ready(await peer.ask(proof))


@WIRED
async def test_a_key_that_is_revoked_between_challenge_and_proof_stays_outside(
    serve: Serve,
) -> None:
    async with serve() as server:
        book = book_of(server)
        book.add(alice())
        peer, proof = await asked(server)
        book.block("alice")
        await peer.send(proof)
        await peer.ends_with(p.AUTHENTICATION_FAILED, p.ABORT)


@WIRED
async def test_a_key_that_a_command_revokes_loses_the_connection_it_has(
    serve: Serve, tmp_path: Path
) -> None:
    """The node notices it by the file, also when it changes the book itself just then."""
    data = tmp_path / "data"
    async with serve(data=str(data)) as server:
        book = book_of(server)
        book.add(alice())
        peer, proof = await asked(server)
        p.read_ready(await peer.ask(proof))
        AddressBook(data / BOOK_FILE).block("alice")
        book.add(Known("bob", BOB.public, Trust.ADDED, (), (), 0.0))
        with anyio.fail_after(60):
            await peer.rest()
        assert not AddressBook(data / BOOK_FILE).is_contact(ALICE.public)


@WIRED
async def test_a_signed_token_opens_its_own_channels_at_its_own_node(
    serve: Serve, access_file: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    async with serve(access_file=access_file, data=str(data)) as server:
        own = load_identity(data / FILE_NAME)
        right, _ = new_signed(own, Rights.PUT, ["chat/*"], None, bytes)
        elsewhere = type(own).from_seed(bytes(32))
        foreign, _ = new_signed(elsewhere, Rights.PUT, ["chat/*"], None, bytes)
        await server.hello(CHANNEL, {p.TOKEN: right.encode()})
        for channel, token in (
            (b"chat", right),
            (b"talk/1", right),
            (CHANNEL, foreign),
            (CHANNEL, right[:-1]),
        ):
            peer = await server.greet(channel, {p.TOKEN: token.encode()})
            await peer.ends_with(p.AUTHENTICATION_FAILED, p.ABORT)
