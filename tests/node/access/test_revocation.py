"""A client that lost a right does not go on with it (docs/guides/access.md, "Changes")."""

from __future__ import annotations

import anyio

from millpond.node.peers.address_book import Peer as Known
from millpond.node.peers.address_book import Trust
from tests.conformance import packets as p
from tests.conformance.served import serve
from tests.transports.p2p.identity_packets import ALICE, NODE, auth, hello


async def test_a_peer_that_is_revoked_is_sent_away_within_seconds() -> None:
    async with serve("tcp-trio") as server:
        server.node.services.signer = NODE
        book = server.node.peer_services.keyring.book
        book.add(Known("alice", ALICE.public, Trust.ADDED, (), (), 0.0))
        peer = await server.dial(b"chat/1")
        greeting = hello(ALICE, b"chat/1")
        p.read_ready(await peer.ask(auth(greeting, await peer.ask(greeting), ALICE)))
        book.block("alice")
        with anyio.fail_after(60):
            await peer.rest()
        refused = await server.dial(b"chat/1")
        answer = await refused.ask(greeting)
        await refused.send(auth(greeting, answer, ALICE))
        await refused.ends_with(p.AUTHENTICATION_FAILED, p.ABORT)
