"""P2P-24, P2P-25, PA-39, PS-08: tokens and their rights, and refusals that disclose nothing."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.conformance import packets as p
from tests.conformance.peer import Peer
from tests.conformance.served import Serve, Served, virtual_time
from tests.transports.p2p.identity_packets import ALICE, BOB, NODE, Key, auth, hello

TOKENS = """
all-of-it       all
chat-only       put,get,push,ack,list       chat/*  talk/?
putting         put
getting         get
pushing         push
acking          ack
listing         list
# where bare clients are
in-the-lobby    put,list                    lobby
"""


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "tokens"
    path.write_text(TOKENS)
    path.chmod(0o600)
    return str(path)


async def _enter(server: Served, token: bytes, channel: bytes = b"chat/1") -> Peer:
    return await server.hello(channel, {p.TOKEN: token})


async def test_p2p_24_each_right_allows_its_packets_and_no_others(
    serve: Serve, token_file: str
) -> None:
    async with serve(token_file=token_file) as server:
        owner = await _enter(server, b"all-of-it")
        message_id = await owner.put(1, b"x")
        putting = await _enter(server, b"putting")
        await putting.put(2, b"y")
        await putting.quiet()
        for token, allowed in ((b"putting", 6), (b"getting", 4), (b"listing", 8), (b"acking", 3)):
            peer = await _enter(server, token)
            answers = {
                6: (p.put(7, b"x"), p.nack(6, 0xF6, p.u32(7))),
                4: (p.get(message_id), p.nack(4, 0xF6, p.u64(message_id))),
                8: (p.list_(), p.nack(8, 0xF6)),
            }
            for kind, (request, refusal) in answers.items():
                answer = await peer.ask(request)
                assert answer[0] == kind + 1 if kind == allowed else answer == refusal
            await peer.quiet()


async def test_p2p_24_acks_and_pushes_need_their_rights(serve: Serve, token_file: str) -> None:
    async with serve(token_file=token_file) as server:
        owner = await _enter(server, b"all-of-it")
        getting, listing = await _enter(server, b"getting"), await _enter(server, b"listing")
        message_id = await owner.put(1, b"x")
        await getting.send(p.ack(message_id), p.nack(2, 0x31, p.u64(message_id)))
        await getting.quiet()
        assert await listing.ids() == [message_id]
        pushing = await _enter(server, b"pushing")
        await pushing.expect(p.msg(message_id, b"x"))
        await pushing.send(p.ack(message_id))
        await pushing.quiet()
        assert await listing.ids() == [message_id]
        acking = await _enter(server, b"acking")
        await acking.send(p.ack(message_id))
        await acking.quiet()
        assert await listing.ids() == []


async def test_ps_14_a_client_that_may_only_put_may_not_put_dead_letters(
    serve: Serve, token_file: str
) -> None:
    async with serve(token_file=token_file) as server:
        refused = await server.greet(b"chat/1!dead", {p.TOKEN: b"putting"})
        await refused.ends_with(p.AUTHENTICATION_FAILED, p.ABORT)
        getting = await _enter(server, b"getting", b"chat/1!dead")
        assert await getting.ask(p.put(1, b"x")) == p.nack(6, 0xF6, p.u32(1))


async def test_p2p_24_patterns_name_the_channels_of_a_token(serve: Serve, token_file: str) -> None:
    async with serve(token_file=token_file) as server:
        for channel in (b"chat/", b"chat/1", b"chat/a/b", b"talk/x"):
            await (await _enter(server, b"chat-only", channel)).put(1, b"x")
        others = (b"chat", b"xchat/1", b"talk/xy", b"Chat/1", b"lobby")
        refused = [await server.greet(channel, {p.TOKEN: b"chat-only"}) for channel in others]
        for peer in refused:
            await peer.ends_with(p.AUTHENTICATION_FAILED, p.ABORT)


async def test_p2p_24_administration_needs_its_right(serve: Serve, token_file: str) -> None:
    async with serve(token_file=token_file) as server:
        tags = {p.EXTENSIONS: b"\x90\x91"}
        owner = await server.hello(b"chat/1", tags | {p.TOKEN: b"all-of-it"})
        assert (await owner.ask(p.admin(7, 1, b"\x80")))[:6] == b"\x91" + p.u32(7) + b"\x01"
        chat = await server.hello(b"chat/1", tags | {p.TOKEN: b"chat-only"})
        assert await chat.ask(p.admin(7, 1, b"\x80")) == p.nack(0x90, 0xF6, p.u32(7))
    async with serve() as server:
        anonymous = await server.hello(b"chat/1", tags)
        assert (await anonymous.ask(p.admin(7, 1, b"\x80")))[0] == 0x91
        not_negotiated = await server.hello(b"chat/1")
        await not_negotiated.send(p.admin(7, 1, b"\x80"))
        await not_negotiated.quiet()


@virtual_time
async def test_p2p_25_pa_39_refusals_are_the_same_bytes_after_the_same_delay(
    serve: Serve, token_file: str
) -> None:
    async with serve(token_file=token_file) as server:
        delays = set()
        for channel, tags in (
            (b"chat/1", {p.TOKEN: b"wrong"}),
            (b"chat/1", {}),
            (b"chat/1", {p.TOKEN: b""}),
            (b"other", {p.TOKEN: b"chat-only"}),
            (b"other!dead", {p.TOKEN: b"chat-only"}),
        ):
            start = anyio.current_time()
            peer = await server.greet(channel, tags)
            await peer.expect(p.AUTHENTICATION_FAILED, p.ABORT)
            delays.add(round(anyio.current_time() - start, 6))
            await peer.ends_with()
        assert delays == {0.2}


async def test_p2p_25_ps_08_a_refused_client_gets_f5_and_is_closed(
    serve: Serve, token_file: str
) -> None:
    async with serve(token_file=token_file) as server:
        tokens = (b"wrong", b"", b"all-of-it ", b"ALL-OF-IT")
        refused = [await server.greet(b"chat/1", {p.TOKEN: token}) for token in tokens]
        for peer in refused:
            await peer.send(p.put(1, b"smuggled"))
        for peer in refused:
            await peer.ends_with(p.AUTHENTICATION_FAILED, p.ABORT)
        assert await (await _enter(server, b"all-of-it")).ids() == []


@pytest.mark.parametrize("wiring", ["memory", "tcp-uvloop"])
async def test_p2p_24_a_bare_client_has_no_token_to_show(serve: Serve, token_file: str) -> None:
    async with serve(token_file=token_file) as server:
        peer = await server.dial()
        await peer.send(p.put(1, b"x"))
        await peer.ends_with(p.nack(6, 0xF6), p.ABORT)


@pytest.mark.parametrize("wiring", ["memory", "tcp-uvloop", "tcp-trio"])
async def test_p2p_25_too_many_connections_get_f7(serve: Serve) -> None:
    async with serve(connections_max=2) as server:
        peers = [await server.hello(), await server.hello()]
        third = await server.dial()
        await third.ends_with(bytes.fromhex("ff80f7"), p.ABORT)
        await peers[0].send(p.GOODBYE)
        await peers[0].ends_with()
        await peers[1].quiet()
        await third.aclose()
        await peers[0].aclose()
        await anyio.sleep(0.1)
        await (await server.hello()).quiet()


async def test_p2p_25_one_key_has_so_many_connections_and_no_more(serve: Serve) -> None:
    async with serve(connections_per_peer_max=2) as server:
        first, _ = [await _proved(server, ALICE) for _ in range(2)]
        third = await _proved(server, ALICE)
        await third.ends_with(bytes.fromhex("ff80f7"), p.ABORT)
        p.read_ready(await (await _proved(server, BOB)).packet())
        await first.packet()
        await first.send(p.GOODBYE)
        await first.ends_with()
        await first.aclose()
        await anyio.sleep(0.1)
        p.read_ready(await (await _proved(server, ALICE)).packet())
        assert server.node.services.counters.reasons == {"too many connections": 1}


@virtual_time
async def test_p2p_24_rights_that_end_end_connections_that_are_open(
    serve: Serve, tmp_path: Path
) -> None:
    """A rule that ends, within 30 s; a file that changed, when the node reloads it."""
    rules = tmp_path / "access.conf"
    rules.write_text("anyone put,list a until=2025-11-21T00:00:40Z\nanyone put,list b\n")
    rules.chmod(0o600)
    async with serve(access_file=str(rules), keep_alive_s=300) as server:
        ending, staying = await server.hello(b"a"), await server.hello(b"b")
        await anyio.sleep(39)
        await ending.put(1, b"x")
        await anyio.sleep(32)
        await ending.rest()
        await staying.put(2, b"x")
        rules.write_text("anyone list b\n")
        server.node.reload()
        await staying.rest()
        back = await server.hello(b"b")
        assert await back.ask(p.put(3, b"x")) == p.nack(6, 0xF6, p.u32(3))
        assert await back.ids() != []


async def _proved(server: Served, key: Key) -> Peer:
    """A client that has sent its AUTH."""
    server.node.services.signer = NODE
    peer = await server.dial(b"chat/1")
    greeting = hello(key, b"chat/1")
    challenge = await peer.ask(greeting)
    await peer.send(auth(greeting, challenge, key))
    return peer
