"""The life of an S3P connection, row by row (docs/reference/compatibility.md)."""

from __future__ import annotations

from pathlib import Path

import anyio

from tests.conformance.s3p_peer import (
    BAD_FORMAT,
    LIMITS,
    MIB,
    NOTHING,
    OK,
    PATIENCE_S,
    UNKNOWN,
    S3pServer,
    append,
    bulk,
    create,
    delete,
    id_of,
    is_error,
    over_sockets,
    pairs,
    read,
    s3p_server,
    trim,
)

pytestmark = over_sockets

FIVE = {
    "ERR_BAD_FORMAT": b":1\r\n",
    "ERR_LIMITS": read(COUNT=0),
    "ERR_STREAM_EXISTS": create(),
    "ERR_UNKNOWN_STREAM": delete(b"nowhere"),
    "ERR_NON_MONOTONIC_ID": append(b"x", ID=4),
}


async def until_alone(server: S3pServer, connections: int) -> None:
    """The node has so many connections left."""
    for _ in range(2000):
        if len(server.node.registry.connections) <= connections:
            return
        await anyio.sleep(0.005)
    raise AssertionError("connections stay open")


async def test_s3p_43_an_error_is_a_code_and_a_text() -> None:
    async with s3p_server() as server:
        await server.with_stream(b"x")
        for code, command in FIVE.items():
            client = await server.dial()
            assert is_error(await client.ask(command), code)


async def test_s3p_44_s3p_45_which_errors_end_the_connection() -> None:
    async with s3p_server() as server:
        await server.with_stream(b"x")
        for code, command in FIVE.items():
            client = await server.dial()
            await client.send(command, append(b"behind", ID=5))
            assert is_error(await client.reply(), code)
            if code in (BAD_FORMAT, LIMITS):
                assert await client.rest() == b""
            else:
                assert (await client.reply()).startswith(b"$3\r\n5-")
        witness = await server.dial()
        assert len(await witness.records()) == 4, "three behind soft errors"


async def test_s3p_44_everything_before_a_fatal_error_is_done_and_answered() -> None:
    async with s3p_server() as server:
        client = await server.dial()
        await client.send(
            *(create(), append(b"x", ID=5), read(BLOCK=60_000), append(b"y", ID=6), create(b"o")),
            *(b"*3\r\n$4\r\nPING\r\n", append(b"never", ID=7)),
        )
        await client.ends(BAD_FORMAT, OK, bulk(b"5-0"), pairs(("5-0", b"x")), bulk(b"6-0"), OK)
        witness = await server.dial()
        assert [body for _, body in await witness.records()] == [b"x", b"y"]


async def test_s3p_44_an_error_waits_for_the_answers_before_it() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        await client.send(read(BLOCK=100), append(b"y", ID=6), b"nonsense\r\n")
        await client.silent_for(0.05)
        await client.ends(BAD_FORMAT, NOTHING, bulk(b"6-0"))


async def test_s3p_46_s3a_26_commands_behind_a_waiting_read_wait() -> None:
    async with s3p_server() as server:
        client, other = await server.with_stream(), await server.dial()
        await client.send(create(b"o"), read(BLOCK=60_000), append(b"mine", ID=6), read(), delete())
        await client.expect(OK)
        await client.silent_for(0.05)
        assert await other.append(b"woken", ID=5) == (5, 0)
        await client.expect(
            pairs(("5-0", b"woken")), bulk(b"6-0"), pairs(("5-0", b"woken"), ("6-0", b"mine")), OK
        )


async def test_s3p_46_replies_of_many_streams_come_in_order(tmp_path: Path, wiring: str) -> None:
    async with s3p_server(tmp_path if wiring == "tcp-uvloop" else None) as server:
        client = await server.dial()
        names = [b"stream %d" % (each % 7) for each in range(200)]
        await client.send(*map(create, names[:7]))
        await client.expect(*[OK] * 7)
        await client.send(
            *(append(b"%d" % each, name=name, ID=each) for each, name in enumerate(names))
        )
        for each in range(200):
            await client.expect(bulk(b"%d-0" % each))


async def test_s3p_46_two_waiting_reads_wait_one_after_the_other() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        began_at = anyio.current_time()
        await client.send(read(BLOCK=60), read(BLOCK=60), read(BLOCK=60))
        await client.expect(NOTHING, NOTHING, NOTHING)
        assert 0.17 <= anyio.current_time() - began_at < 5


async def test_s3p_47_hostile_numbers_smuggle_nothing() -> None:
    async with s3p_server() as server:
        hidden = append(b"smuggled", name=b"after it")
        await server.refuses(
            BAD_FORMAT,
            append(hidden).replace(b"$%d\r\n" % len(hidden), b"$-1\r\n"),
            append(hidden).replace(b"$%d\r\n" % len(hidden), b"$1\r\n"),
            append(hidden).replace(b"$%d\r\n" % len(hidden), b"$+%d\r\n" % len(hidden)),
            append(hidden).replace(b"$%d\r\n" % len(hidden), b"$%d,0\r\n" % len(hidden)),
            append(hidden).replace(b"*1\r\n$", b"*-1\r\n$"),
            append(hidden).replace(b"*1\r\n$", b"*1e0\r\n$"),
        )
        await server.refuses(
            LIMITS, append(hidden).replace(b"$%d\r\n" % len(hidden), b"$%d\r\n" % 2**64)
        )


async def test_s3p_47_s3a_29_a_client_that_reads_nothing_costs_no_memory() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        for each in range(4):
            await client.append(bytes(MIB - 1) + b"%d" % each, ID=5)
        greedy = await server.dial()
        with anyio.move_on_after(0.5):
            for _ in range(20):
                await greedy.send(*[read()] * 100)
        (connection,) = [
            each
            for each in server.node.registry.connections
            if each.peer == _name_of(greedy.stream)
        ]
        assert connection._wire.unsent_bytes < 16 * MIB  # type: ignore[attr-defined]
        assert len(await client.records(COUNT=1)) == 1, "others are served"


def _name_of(stream: anyio.abc.SocketStream) -> str:
    host, port = stream.extra(anyio.abc.SocketAttribute.local_address)[:2]
    return f"{host}:{port}"


async def test_s3p_48_limits_are_settings() -> None:
    limits = {
        "s3p_count_default": 2,
        "s3p_count_max": 3,
        "s3p_block_ms_max": 50,
        "s3p_records_max": 4,
        "s3p_record_bytes_max": 5,
        "s3p_append_bytes_max": 10,
        "s3p_name_bytes_max": 6,
    }
    async with s3p_server(**limits) as server:
        client = await server.with_stream(*b"a b c d".split())
        assert len(await client.records()) == 2
        assert len(await client.records(COUNT=3)) == 3
        assert await client.ask(read(BLOCK=50, MIN_ID="6-0")) == NOTHING
        assert await client.append(b"aaaaa", b"bbbbb", ID=6) == (6, 1)
        beyond = [
            read(COUNT=4),
            read(BLOCK=51),
            append(*b"a b c d e".split()),
            append(b"aaaaaa"),
            append(b"aaaaa", b"bbbb", b"cc"),
            create(b"n" * 7),
        ]
        await client.aclose()
        for each in beyond:
            breaker = await server.dial()
            await breaker.send(each)
            await breaker.ends(LIMITS)


async def test_s3p_48_connections_are_bounded() -> None:
    async with s3p_server(connections_max=2) as server:
        first = await server.with_stream()
        second = await server.dial()
        assert await second.ask(read()) == NOTHING
        third = await server.dial()
        await third.ends(LIMITS)
        await second.aclose()
        await until_alone(server, 1)
        fourth = await server.dial()
        assert await fourth.ask(read()) == NOTHING and await first.ask(read()) == NOTHING


async def test_s3p_48_s3a_31_an_idle_connection_ends_without_a_word() -> None:
    async with s3p_server(stream_idle_s=0.1) as server:
        quiet, midway, waiting = [await server.dial() for _ in range(3)]
        await waiting.send(create(), read(BLOCK=400))
        await midway.send(create()[:-3])
        assert await quiet.rest() == b"" and await midway.rest() == b""
        await waiting.expect(OK)
        await waiting.silent_for(0.1)
        assert await waiting.rest() == NOTHING


async def test_s3p_49_an_end_within_a_command_executes_nothing() -> None:
    said = append(b"never", ID=7)
    async with s3p_server() as server:
        witness = await server.with_stream(b"x")
        for cut in range(1, len(said), 5):
            client = await server.dial()
            await client.send(append(b"y", ID=6), said[:cut])
            await client.stream.send_eof()
            assert id_of(await client.rest())[0] == 6
        assert [body for _, body in await witness.records(MIN_ID="7-0")] == []


async def test_s3p_49_s3a_26_a_reader_that_leaves_while_it_waits_harms_nothing() -> None:
    async with s3p_server() as server:
        writer = await server.with_stream()
        for _ in range(10):
            reader = await server.dial()
            await reader.send(read(BLOCK=60_000), append(b"behind"))
            await anyio.lowlevel.checkpoint()
            await reader.aclose()
        await until_alone(server, 1)
        assert await writer.ask(trim(MIN_ID=f"{2**63}-0")) == OK
        await writer.append(b"x", ID=2**63)
        assert await writer.records() == [((2**63, 0), b"x")]


async def test_s3a_26_an_end_while_a_read_waits_is_noticed_at_once() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        await client.send(
            read(BLOCK=60_000), append(b"behind", ID=5), read(BLOCK=60_000, MIN_ID="9-0")
        )
        await client.stream.send_eof()
        await client.expect(NOTHING, bulk(b"5-0"), NOTHING)
        assert await client.rest() == b""


async def test_s3p_40_s3a_30_an_end_behind_a_read_that_may_wait_takes_nothing_from_it(
    tmp_path: Path,
) -> None:
    async with s3p_server(tmp_path) as server:
        client = await server.dial()
        await client.send(create(), append(b"x", ID=5), read(BLOCK=60_000))
        await client.stream.send_eof()
        await client.expect(OK, bulk(b"5-0"), pairs(("5-0", b"x")))
        assert await client.rest() == b""


async def test_s3a_26_reading_ahead_is_bounded() -> None:
    async with s3p_server() as server:
        client, other = await server.with_stream(), await server.dial()
        await client.send(read(BLOCK=60_000))
        commands = [append(bytes(16_000), name=b"nowhere")] * 2000
        sent = 0
        with anyio.move_on_after(0.5):
            for each in commands:
                await client.send(each)
                sent += 1
        assert sent < len(commands), "TCP carries the pressure"
        await other.append(b"x", ID=5)
        await client.expect(pairs(("5-0", b"x")))
        await client.refused(b"", UNKNOWN)


async def test_s3a_25_the_error_arrives_although_more_is_sent() -> None:
    async with s3p_server() as server:
        for size in (10, 60_000):
            client = await server.dial()
            await client.send(b"nonsense\r\n", bytes(size))
            await anyio.sleep(0.02)
            await client.ends(BAD_FORMAT)


async def test_s3a_25_a_client_that_never_stops_is_cut_off() -> None:
    async with s3p_server() as server:
        client = await server.dial()
        await client.send(b"nonsense\r\n")
        try:
            with anyio.fail_after(PATIENCE_S):
                while True:
                    await client.send(bytes(65_536))
        except (anyio.BrokenResourceError, OSError):
            pass
        await until_alone(server, 0)


async def test_s3a_30_an_end_right_behind_a_command_is_answered(tmp_path: Path) -> None:
    async with s3p_server(tmp_path) as server:
        client = await server.dial()
        await client.send(create(), append(b"x", ID=5), read())
        await client.stream.send_eof()
        assert await client.rest() == OK + bulk(b"5-0") + pairs(("5-0", b"x"))


async def test_s3a_36_a_stream_that_is_full() -> None:
    async with s3p_server(stream_bytes_max=3 * MIB) as server:
        client, witness = await server.with_stream(), await server.dial()
        count = 0
        while (reply := await client.ask(append(bytes(MIB), ID=5)))[:1] == b"$":
            count += 1
        assert is_error(reply, LIMITS) and count in (2, 3)
        assert await client.rest() == b""
        assert len(await witness.records()) == count
        assert await witness.ask(create(b"other")) == OK


async def test_s3a_36_access_that_is_refused(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret all\n")
    tokens.chmod(0o600)
    async with s3p_server(token_file=str(tokens)) as server:
        client = await server.dial()
        await client.send(create())
        assert await client.rest() == b"-ERR_LIMITS access refused\r\n"


async def test_s3a_36_a_store_that_cannot_write(tmp_path: Path) -> None:
    async with s3p_server(tmp_path) as server:
        client = await server.with_stream(b"x")
        server.node._store.health.is_writable = False
        assert len(await client.records()) == 1
        await client.send(append(b"y"))
        assert await client.rest() == b"-ERR_LIMITS storage failed\r\n"
        server.node._store.health.is_writable = True


async def test_s3a_36_a_node_that_stops() -> None:
    async with s3p_server() as server:
        waiting, quiet = await server.with_stream(), await server.dial()
        await waiting.send(read(BLOCK=60_000))
        await waiting.silent_for(0.05)
        began_at = anyio.current_time()
        await server.node.drain()
        assert anyio.current_time() - began_at < 2
        assert await waiting.rest() == NOTHING and await quiet.rest() == b""
