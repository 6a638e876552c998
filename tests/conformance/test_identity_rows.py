"""Identities in a channel, on the wire (PA-08, PA-18, PS-02, PS-06, PS-10)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.conformance import packets as p
from tests.conformance.peer import Peer
from tests.conformance.served import Serve, Served, virtual_time
from tests.transports.p2p.identity_packets import ALICE, BOB, NODE, Key, auth, hello

ROOM = b"chat/1"
CONSUMING = {p.ROLE: p.CONSUMER}
PRODUCING = {p.ROLE: p.PRODUCER}
FANOUT = {p.MODE: b"\x01"}
WEEK = 604_800


async def known(server: Served, key: Key, tags: p.Tags | None = None) -> Peer:
    """A client that has proved to be `key`, and is past its READY."""
    server.node.services.signer = NODE
    peer = await server.dial(ROOM)
    greeting = hello(key, ROOM, tags)
    challenge = await peer.ask(greeting)
    assert challenge[0] == 0x81, challenge.hex()
    p.read_ready(await peer.ask(auth(greeting, challenge, key)))
    return peer


async def test_pa_08_two_identities_may_use_one_key_for_two_messages(serve: Serve) -> None:
    async with serve() as server:
        alice, bob = await known(server, ALICE, PRODUCING), await known(server, BOB, PRODUCING)
        nobody = await server.hello(ROOM, PRODUCING)
        ids = [
            await alice.put(7, b"of Alice"),
            await bob.put(7, b"of Bob"),
            await nobody.put(7, b"of nobody"),
        ]
        assert len(set(ids)) == 3
        assert await (await known(server, ALICE, PRODUCING)).put(7, b"of Alice") == ids[0]
        assert await bob.put(7, b"of Bob") == ids[1]
        answer = await bob.ask(p.put(7, b"of Alice", 60))
        assert answer == p.nack(6, 0x22, p.u32(7))


async def test_pa_18_an_identity_s_messages_are_pushed_to_none_of_its_connections(
    serve: Serve,
) -> None:
    async with serve() as server:
        alice, early = await known(server, ALICE), await known(server, ALICE, CONSUMING)
        message = await alice.put(1, b"x")
        late = await known(server, ALICE, CONSUMING)
        for peer in (alice, early, late):
            assert await peer.ids() == [message]
            assert await peer.ask(p.get(message)) == p.get_ack(message, b"x")
            await peer.quiet()
        await (await known(server, BOB, CONSUMING)).expect(p.msg(message, b"x"))


@pytest.mark.parametrize("wiring", ["tcp-uvloop", "tcp-trio", "ws-asyncio"])
async def test_pa_18_pa_08_ps_06_messages_for_identities_survive_a_restart(
    serve: Serve, tmp_path: Path
) -> None:
    async with serve(data=str(tmp_path)) as server:
        bob = await known(server, BOB, CONSUMING | FANOUT)
        alice = await known(server, ALICE, FANOUT)
        first, second = await alice.put(1, b"a"), await alice.put(2, b"b")
        await bob.expect(p.msg(first, b"a"), p.msg(second, b"b"))
        await bob.send(p.ack(first))
        await bob.quiet()
    async with serve(data=str(tmp_path)) as server:
        alice, bob = await known(server, ALICE), await known(server, BOB, CONSUMING)
        await bob.expect(p.msg(second, b"b"))
        await bob.quiet(), await alice.quiet()
        assert await alice.put(2, b"b") == second
        await bob.send(p.ack(second))
        await bob.quiet()
        assert second not in await alice.ids()


async def test_ps_02_in_pair_mode_all_other_identities_are_pushed_and_one_ack_ends_it(
    serve: Serve,
) -> None:
    async with serve() as server:
        alice = [await known(server, ALICE) for _ in range(2)]
        bob = [await known(server, BOB) for _ in range(2)]
        message = await alice[0].put(1, b"x")
        for peer in bob:
            await peer.expect(p.msg(message, b"x"))
        await alice[1].quiet()
        await bob[0].send(p.ack(message))
        await bob[0].quiet()
        assert await bob[1].ids() == []


async def test_ps_06_a_known_subscriber_gets_the_messages_put_while_it_was_away(
    serve: Serve,
) -> None:
    async with serve() as server:
        alice = await known(server, ALICE, PRODUCING | FANOUT)
        bob = await known(server, BOB, CONSUMING)
        await bob.aclose()
        message = await alice.put(1, b"x")
        anonymous = await server.hello(ROOM, CONSUMING)
        await anonymous.quiet()
        bob = await known(server, BOB, CONSUMING)
        await bob.expect(p.msg(message, b"x"))
        assert await bob.ids() == [message]
        await bob.send(p.ack(message))
        assert await bob.ids() == [] == await (await known(server, ALICE)).ids()


@virtual_time
async def test_ps_06_a_subscriber_is_known_until_idle_for_the_longest_ttl(serve: Serve) -> None:
    async with serve(ttl_max_s=3600, ttl_default_s=3600) as server:
        bob = await known(server, BOB, CONSUMING | FANOUT)
        for away_s, is_remembered in ((3500, True), (3600 * 1.3, False)):
            await bob.aclose()
            await anyio.sleep(away_s)
            message = await (await known(server, ALICE, PRODUCING | FANOUT)).put(int(away_s), b"x")
            bob = await known(server, BOB, CONSUMING)
            if is_remembered:
                await bob.expect(p.msg(message, b"x"))
            await bob.quiet()


async def test_ps_10_an_identity_s_ack_of_its_own_message_is_ignored(serve: Serve) -> None:
    async with serve() as server:
        alice, again = await known(server, ALICE), await known(server, ALICE)
        message = await alice.put(1, b"x")
        await alice.send(p.ack(message))
        await again.send(p.ack(message))
        assert await alice.ids() == await again.ids() == [message]
        bob = await known(server, BOB)
        await bob.expect(p.msg(message, b"x"))
        await bob.send(p.ack(message))
        assert await bob.ids() == []
