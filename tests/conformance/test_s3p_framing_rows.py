"""Framing and schema, row by row (docs/reference/compatibility.md): what is refused, whatever else
it may mean."""

from __future__ import annotations

import anyio
import pytest

from tests.conformance.s3p_peer import (
    BAD_FORMAT,
    LIMITS,
    MIB,
    NOTHING,
    OK,
    U64_MAX,
    UNKNOWN,
    append,
    array,
    bulk,
    create,
    delete,
    id_of,
    over_sockets,
    pairs,
    read,
    s3p_server,
    trim,
)

pytestmark = [over_sockets, pytest.mark.wire]

NAMES = b"$6\r\norders\r\n"


async def test_s3p_01_s3a_23_lines_end_in_crlf() -> None:
    async with s3p_server() as server:
        await server.refuses(
            BAD_FORMAT,
            create().replace(b"\r\n", b"\n"),
            create().replace(b"\r\n", b"\r"),
            b"*3\n$6\r\nCREATE\r\n" + NAMES + NOTHING,
            b"*3\r\r\n$6\r\nCREATE\r\n" + NAMES + NOTHING,
            b"*3\r\n$6\nCREATE\r\n" + NAMES + NOTHING,
            b"*3\r\n$6\r\nCREATE\n" + NAMES + NOTHING,
            b"*3\r\n$6\r\nCREATE\r" + NAMES + NOTHING,
            b"*3\r\n$66\n" + b"x" * 80,
            b"*3\r\n$6\r\nCREATE\r\n" + NAMES + b"*0\n",
            b"*3\n\r$6\r\nCREATE\r\n" + NAMES + NOTHING,
        )


async def test_s3p_02_s3a_06_an_error_line_is_one_line_of_ascii() -> None:
    async with s3p_server() as server:
        client = await server.dial()
        for name in (b"x\r\n+OK", b"\x00\x7f\x80\xff", b"\r", b"\n", b"x" * 256, "ü".encode()):
            await client.refused(read(name), UNKNOWN)
            reply = await client.ask(read(name))
            assert len(reply) <= 256
        await client.send(array(b"CREATE", b"orders", [b"MAX\r\n+OK\r\n", b"\xff"]))
        await client.ends(BAD_FORMAT)
        await server.refuses(
            BAD_FORMAT,
            array(b"\r\n+OK\r\n", b"o", []),
            append(b"x", ID=b"1\r\n"),
            read(MIN_ID=b"\r"),
        )


async def test_s3p_03_s3p_13_any_byte_may_be_in_a_payload_and_a_name() -> None:
    every = bytes(range(256))
    bodies = [b"\r\n", b"\n", b"\r", b"\x00", b"$5\r\n", b"*0\r\n", b"-ERR x\r\n", every, b"x\r"]
    async with s3p_server() as server:
        for name in (b"\r\n", b"$1\r\nx", every, b"\x00"):
            client = await server.with_stream(*bodies, name=name)
            assert [body for _, body in await client.records(name)] == bodies


async def test_s3p_04_s3a_02_s3a_03_nothing_is_empty() -> None:
    empty = b"$0\r\n\r\n"
    async with s3p_server() as server:
        await server.refuses(
            BAD_FORMAT,
            b"*3\r\n" + empty + NAMES + NOTHING,
            b"*3\r\n$6\r\nCREATE\r\n" + empty + NOTHING,
            b"*3\r\n$4\r\nREAD\r\n" + NAMES + b"*2\r\n" + empty + bulk(b"1"),
            b"*3\r\n$4\r\nREAD\r\n" + NAMES + b"*2\r\n" + bulk(b"COUNT") + empty,
            b"*4\r\n$6\r\nAPPEND\r\n" + NAMES + NOTHING + b"*1\r\n" + empty,
            b"*4\r\n$6\r\nAPPEND\r\n" + NAMES + NOTHING + b"*2\r\n" + bulk(b"hello") + empty,
            b"*4\r\n$6\r\nAPPEND\r\n" + NAMES + NOTHING + b"*1\r\n$00\r\n\r\n",
        )


async def test_s3p_05_lengths_are_digits_and_nothing_else() -> None:
    lengths = [b"-1", b"", b"abc", b" 6", b"6 ", b"0x6", b"6.0", b"-0", b"+6", b"6_0", b"1e1"]
    lengths += ["\uff16".encode(), b"\xb2", b"6\x00", b"\t6", b"NaN", b"9" * 21, b"0" * 21]
    async with s3p_server() as server:
        hostile = [b"*3\r\n$" + length + b"\r\nCREATE\r\n" + NAMES + NOTHING for length in lengths]
        hostile += [b"*" + length + b"\r\n" + create()[4:] for length in lengths]
        hostile += [create()[:-4] + b"*" + length + b"\r\n" for length in lengths]
        await server.refuses(BAD_FORMAT, *hostile)


async def test_s3a_16_leading_zeros_are_one_spelling_of_a_number() -> None:
    async with s3p_server() as server:
        client = await server.dial()
        await client.send(b"*03\r\n$06\r\nCREATE\r\n$00000000000000000006\r\norders\r\n*000\r\n")
        await client.expect(OK)
        assert await client.append(b"x", ID=b"007") == (7, 0)
        assert await client.ask(read(MIN_ID=b"0007-000", COUNT=b"0005")) == pairs(("7-0", b"x"))
        assert await client.ask(trim(MIN_ID=b"07-01")) == OK
        assert await client.ask(read()) == NOTHING


async def test_s3p_06_s3p_07_a_command_is_an_array() -> None:
    async with s3p_server() as server:
        await server.refuses(
            BAD_FORMAT,
            *(b":1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n", b"(1\r\n", b"%1\r\n", b"~1\r\n"),
            *(b"+X\r\n", b"-X\r\n", b"$4\r\nPING\r\n", b"GET / HTTP/1.1\r\n", b"PING\r\n"),
            *(b"CREATE orders\r\n", b"\r\n", b"\n", b"\x00", b"\xff" * 40, b" *3\r\n"),
            *(b"\x16\x03\x01\x02\x00\x01", b"*\r\n", b"*-1\r\n", b"*0\r\n"),
        )


async def test_s3p_08_elements_are_those_of_the_schema() -> None:
    async with s3p_server() as server:
        command, records = b"*4\r\n$6\r\nAPPEND\r\n", b"*1\r\n$1\r\nx\r\n"
        hostile = [
            command[:4] + wrong + NAMES + NOTHING + records
            for wrong in (b"+APPEND\r\n", b"-APPEND\r\n", array(b"APPEND"), b":1\r\n")
        ]
        hostile += [
            command + wrong + NOTHING + records
            for wrong in (b"+orders\r\n", b"-orders\r\n", array(b"orders"), b"_\r\n")
        ]
        hostile += [
            command + NAMES + wrong + records for wrong in (bulk(b"x"), b"+OK\r\n", b"-E\r\n")
        ]
        hostile += [
            command + NAMES + NOTHING + wrong for wrong in (bulk(b"x"), b"+OK\r\n", b":0\r\n")
        ]
        await server.refuses(BAD_FORMAT, *hostile)


async def test_s3p_09_s3a_01_options_and_records_hold_bulk_strings_only() -> None:
    wrong = (b"+x\r\n", b"-x\r\n", array(b"x"), b":1\r\n", b"*1\r\n" * 5000)
    head = b"*4\r\n$6\r\nAPPEND\r\n" + NAMES
    async with s3p_server() as server:
        await server.refuses(
            BAD_FORMAT,
            *(head + NOTHING + b"*2\r\n" + bulk(b"x") + each for each in wrong),
            *(head + b"*2\r\n" + bulk(b"ID") + each for each in wrong),
            *(head + b"*2\r\n" + each for each in wrong),
            b"*1\r\n" * 5000,
        )


async def test_s3p_10_a_bulk_string_ends_at_its_length() -> None:
    async with s3p_server() as server:
        good = append(b"hello")
        await server.refuses(
            BAD_FORMAT,
            good.replace(b"$5\r\nhello", b"$4\r\nhello"),
            good.replace(b"$5\r\nhello", b"$6\r\nhello"),
            good.replace(b"hello\r\n", b"helloXX"),
            good.replace(b"hello\r\n", b"hello\n\r"),
            good.replace(b"hello\r\n", b"hello\r\r\n"),
            good.replace(b"$6\r\nAPPEND", b"$5\r\nAPPEND"),
            good.replace(b"$6\r\norders", b"$7\r\norders"),
        )


SESSION = (
    (create(), OK),
    (append(b"hello", b"world", ID=5), bulk(b"5-1")),
    (append(b"\r\n*0\r\n", ID=5), bulk(b"5-2")),
    (read(COUNT=2), pairs(("5-0", b"hello"), ("5-1", b"world"))),
    (append(b"y" * 700, ID=6), bulk(b"6-0")),
    (trim(MIN_ID="5-2"), OK),
    (read(), pairs(("5-2", b"\r\n*0\r\n"), ("6-0", b"y" * 700))),
    (create(), b"-ERR_STREAM_EXISTS stream orders already exists\r\n"),
    (delete(), OK),
    (read(), b"-ERR_UNKNOWN_STREAM stream orders does not exist\r\n"),
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
async def test_s3p_11_framing_does_not_depend_on_segments(size: int) -> None:
    said = b"".join(command for command, _ in SESSION)
    async with s3p_server() as server:
        client = await server.dial()
        for start in range(0, len(said), size):
            await client.send(said[start : start + size])
            if size < 10:
                await anyio.lowlevel.checkpoint()
        await client.expect(*(reply for _, reply in SESSION))


@pytest.mark.parametrize("cut", [1, 3, 20, 200, 400, 900])
async def test_s3p_11_s3a_31_a_pause_within_a_command_loses_nothing(cut: int) -> None:
    said = b"".join(command for command, _ in SESSION)
    async with s3p_server() as server:
        client = await server.dial()
        await client.send(said[:cut])
        await anyio.sleep(0.02)
        await client.send(said[cut:])
        await client.expect(*(reply for _, reply in SESSION))


async def test_s3p_12_commands_and_keys_in_any_case() -> None:
    async with s3p_server() as server:
        client = await server.dial()
        assert await client.ask(array(b"create", b"orders", [])) == OK
        assert id_of(await client.ask(array(b"aPPend", b"orders", [b"Id", b"5"], [b"x"]))) == (5, 0)
        keys = [b"min_id", b"5-0", b"cOuNt", b"1", b"block", b"0"]
        assert await client.ask(array(b"rEAD", b"orders", keys)) == pairs(("5-0", b"x"))
        assert await client.ask(array(b"Trim", b"orders", [b"Min_Id", b"0-0"])) == OK
        assert await client.ask(array(b"dElEtE", b"orders", [])) == OK
        await server.refuses(BAD_FORMAT, array(b"CREATE".replace(b"E", b"\xc9"), b"o", []))


async def test_s3p_13_names_and_values_are_case_sensitive() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(b"HeLLo")
        await client.refused(read(b"Orders"), UNKNOWN)
        assert await client.ask(create(b"Orders")) == OK
        assert await client.ask(read(b"Orders")) == NOTHING
        assert await client.records() == [((5, 0), b"HeLLo")]


async def test_s3p_14_s3a_32_a_command_that_is_not_there_or_has_another_size() -> None:
    async with s3p_server() as server:
        await server.refuses(
            BAD_FORMAT,
            *(array(verb, b"orders", []) for verb in (b"PING", b"HELLO", b"XADD", b"CREATE ")),
            *(array(verb, b"orders") for verb in (b"CREATE", b"READ", b"TRIM", b"DELETE")),
            *(array(verb, b"orders", [], [b"x"]) for verb in (b"CREATE", b"READ", b"DELETE")),
            array(b"TRIM", b"orders", [b"MIN_ID", b"0-0"], [b"x"]),
            array(b"APPEND", b"orders", []),
            array(b"APPEND", b"orders", [b"x"]),
            array(b"CREATE"),
            array(b"A" * 33, b"orders", []),
        )


async def test_s3p_15_options_come_in_pairs() -> None:
    async with s3p_server() as server:
        await server.refuses(
            BAD_FORMAT,
            array(b"READ", b"orders", [b"COUNT"]),
            array(b"READ", b"orders", [b"COUNT", b"1", b"BLOCK"]),
            array(b"APPEND", b"orders", [b"ID"], [b"x"]),
            array(b"CREATE", b"orders", [b"x"]),
        )


async def test_s3p_16_s3a_21_unknown_options_are_fatal_on_unknown_streams_too() -> None:
    async with s3p_server() as server:
        client = await server.dial()
        await client.send(array(b"CREATE", b"orders", [b"MAX_SIZE", b"1000"]))
        assert await client.rest() == b"-ERR_BAD_FORMAT unknown option MAX_SIZE\r\n"
        witness = await server.dial()
        await witness.refused(read(), UNKNOWN)
        await server.refuses(
            BAD_FORMAT,
            read(b"nowhere", FROM=1),
            append(b"x", MIN_ID="0-0"),
            trim(MIN_ID="0-0", COUNT=1),
            delete(ID=1),
            read(ID=1),
            read(**{"COUNT ": 1}),
            read(**{"K" * 64: 1}),
            read(**{"K" * 65: 1}),
        )


async def test_s3p_17_s3a_20_the_last_of_a_key_counts_and_each_must_be_right() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        command = array(b"APPEND", b"orders", [b"ID", b"50", b"id", b"60"], [b"x"])
        assert await client.ask(command) == bulk(b"60-0")
        assert await client.append(b"y", ID=60) == (60, 1)
        keys = [b"COUNT", b"2", b"COUNT", b"1"]
        assert await client.ask(array(b"READ", b"orders", keys)) == pairs(("60-0", b"x"))
        await server.refuses(
            BAD_FORMAT, array(b"APPEND", b"orders", [b"ID", b"x", b"ID", b"60"], [b"x"])
        )
        await server.refuses(LIMITS, array(b"READ", b"orders", [b"COUNT", b"0", b"COUNT", b"1"]))


async def test_s3p_18_s3a_22_a_name_is_refused_by_its_length_before_it_came() -> None:
    async with s3p_server() as server:
        longest = await server.with_stream(b"x", name=b"n" * 256)
        assert await longest.records(b"n" * 256) == [((5, 0), b"x")]
        for verb, size in ((b"CREATE", b"257"), (b"READ", b"9" * 20), (b"DELETE", b"%d" % 2**63)):
            client = await server.dial()
            await client.send(b"*3\r\n" + bulk(verb) + b"$" + size + b"\r\n")
            await client.ends(LIMITS)


async def test_s3a_22_s3p_47_lengths_are_refused_before_their_bytes_came() -> None:
    head = b"*4\r\n$6\r\nAPPEND\r\n" + NAMES
    bad = [
        b"*5\r\n",
        b"*999999999\r\n",
        b"*3\r\n$33\r\n",
    ]
    limit = [
        head + b"*18\r\n",
        head + b"*0\r\n*1001\r\n",
        head + b"*0\r\n*400000000\r\n",
        head + b"*0\r\n*1\r\n$%d\r\n" % (MIB + 1),
        head + b"*0\r\n*1\r\n$" + b"9" * 20 + b"\r\n",
    ]
    async with s3p_server() as server:
        for code, hostile in ((BAD_FORMAT, bad), (LIMITS, limit)):
            for each in hostile:
                client = await server.dial()
                await client.send(each)
                await client.ends(code)
        for each in (head + b"*2\r\n$65\r\n", head + b"*2\r\n$2\r\nID\r\n$65\r\n"):
            client = await server.dial()
            await client.send(each)
            await client.ends(BAD_FORMAT)


async def test_s3p_24_s3a_04_an_append_has_a_record() -> None:
    async with s3p_server() as server:
        await server.refuses(BAD_FORMAT, append())


async def test_s3p_25_a_record_is_a_bulk_string_of_a_byte_at_least() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(b"before")
        await client.send(
            b"*4\r\n$6\r\nAPPEND\r\n$6\r\norders\r\n*0\r\n*2\r\n$5\r\nhello\r\n$0\r\n\r\n"
        )
        assert await client.rest() == (
            b"-ERR_BAD_FORMAT invalid record bulk string (length < 1)\r\n"
        )
        witness = await server.dial()
        assert await witness.records() == [((5, 0), b"before")], "nothing of it is stored"


async def test_s3p_26_limits_of_an_append_at_the_edge_and_one_beyond() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        assert await client.append(*[b"x"] * 1000, ID=1) == (1, 999)
        assert await client.append(bytes(MIB), ID=2) == (2, 0)
        assert await client.append(*[bytes(MIB)] * 8, ID=3) == (3, 7)
        for hostile in (
            append(*[b"x"] * 1001, ID=4),
            append(bytes(MIB + 1), ID=4),
            append(*[bytes(MIB)] * 8, b"x", ID=4),
        ):
            breaker = await server.dial()
            await breaker.send(hostile)
            await breaker.ends(LIMITS)
        assert await client.append(b"last", ID=4) == (4, 0), "nothing was stored"


async def test_s3p_27_s3a_17_an_id_is_the_digits_of_a_u64() -> None:
    wrong = (b"-1", b"+1", b"1-0", b"1.0", b"%d" % 2**64, b" 1", b"1 ", b"0x1", b"1_0", b"-0")
    wrong += ("\uff11".encode(), b"9" * 64, b"\xb2", b"1e3", b"*")
    async with s3p_server() as server:
        await server.with_stream()
        await server.refuses(BAD_FORMAT, *(append(b"x", ID=each) for each in wrong))


async def test_s3p_34_s3a_18_s3a_24_count_is_from_1_to_the_limit() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(*[b"x"] * 1000)
        assert len(await client.records(COUNT=1000)) == 1000
        assert len(await client.records(COUNT=1)) == 1
        assert len(await client.records()) == 100, "the default"
        over = (b"0", b"1001", b"-1", b"-0", b"-5", b"%d" % 2**64, b"9" * 60, b"000")
        await server.refuses(LIMITS, *(read(COUNT=each) for each in over))
        wrong = (b"x", b"1.0", b"+1", b" 1", b"1 ", b"--1", b"-", b"0x1", b"-x", "\uff11".encode())
        await server.refuses(BAD_FORMAT, *(read(COUNT=each) for each in wrong))


async def test_s3p_36_s3a_09_an_id_to_read_from_is_two_u64() -> None:
    wrong = (b"1", b"1-", b"-1", b"1-2-3", b"-", b"--", b"1--2", b"+1-0", b"1-+0", b" 1-0")
    wrong += (b"%d-0" % 2**64, b"0-%d" % 2**64, b"9" * 31 + b"-" + b"9" * 32, b"$", b"a-b")
    async with s3p_server() as server:
        client = await server.with_stream(b"x")
        await server.refuses(BAD_FORMAT, *(read(MIN_ID=each) for each in wrong))
        assert await client.ask(read(MIN_ID=f"{U64_MAX}-{U64_MAX}")) == NOTHING
        assert await client.ask(read(MIN_ID=f"0-{2**63}")) == pairs(("5-0", b"x"))


async def test_s3p_37_s3p_38_s3a_19_block_is_from_0_to_the_limit() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(b"x")
        assert await client.ask(read(BLOCK=0, MIN_ID="6-0")) == NOTHING
        assert await client.ask(read(MIN_ID="6-0")) == NOTHING, "do not wait, if not told to"
        assert len(await client.records(BLOCK=60_000)) == 1
        over = (b"60001", b"-1", b"18446744073709552", b"9" * 60)
        await server.refuses(LIMITS, *(read(BLOCK=each) for each in over))
        wrong = (b"x", b"1.5", b"+1", b"", b" 0", b"0x1", b"-", b"infinity")
        await server.refuses(BAD_FORMAT, *(read(BLOCK=each) for each in wrong if each))


async def test_s3p_41_a_trim_without_an_id_to_trim_to() -> None:
    wrong = (b"1", b"1-", b"-1", b"x-0", b"1-%d" % 2**64)
    async with s3p_server() as server:
        await server.with_stream(b"x")
        await server.refuses(BAD_FORMAT, trim(), *(trim(MIN_ID=each) for each in wrong))
