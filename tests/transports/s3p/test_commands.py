"""S3P commands: what the specification shows, what is malformed, and every limit at its edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.store.changes import Position
from millpond.transports.s3p.client_codec import (
    encode_append,
    encode_create,
    encode_delete,
    encode_read,
    encode_trim,
)
from millpond.transports.s3p.commands import (
    AppendRecords,
    Command,
    CreateStream,
    DeleteStream,
    ReadRecords,
    S3pError,
    S3pLimits,
    TrimBelow,
)
from millpond.transports.s3p.decoder import Decoder
from tests.transports.s3p.samples import APPEND, CREATE, HOSTILE, READ, TRIM, cut, option, w

pytestmark = pytest.mark.wire

LIMITS = S3pLimits()
U64_MAX = 2**64 - 1
ORDERS = b"orders"

EXAMPLES: list[tuple[str, str, Command, bytes]] = [
    ("8.1 CREATE", "*3~$6~CREATE~$6~orders~*0~", CreateStream(ORDERS), encode_create(ORDERS)),
    (
        "8.2 APPEND",
        "*4~$6~APPEND~$6~orders~*0~*2~$5~hello~$5~world~",
        AppendRecords(ORDERS, None, [b"hello", b"world"]),
        encode_append(ORDERS, [b"hello", b"world"]),
    ),
    (
        "8.2 APPEND with an ID",
        "*4~$6~APPEND~$6~orders~*2~$2~ID~$13~1700000001000~*1~$7~payload~",
        AppendRecords(ORDERS, 1700000001000, [b"payload"]),
        encode_append(ORDERS, [b"payload"], 1700000001000),
    ),
    (
        "8.3 READ",
        "*3~$4~READ~$6~orders~*4~$5~COUNT~$2~10~$6~MIN_ID~$3~0-1~",
        ReadRecords(ORDERS, 10, 0, Position(0, 1)),
        encode_read(ORDERS, 10, min_id=Position(0, 1)),
    ),
    (
        "8.4 TRIM",
        "*3~$4~TRIM~$6~orders~*2~$6~MIN_ID~$15~1700000001235-0~",
        TrimBelow(ORDERS, Position(1700000001235, 0)),
        encode_trim(ORDERS, Position(1700000001235, 0)),
    ),
    ("8.5 DELETE", "*3~$6~DELETE~$6~orders~*0~", DeleteStream(ORDERS), encode_delete(ORDERS)),
    (
        "S3P-35 S3P-37 READ, defaults",
        READ + "*0~",
        ReadRecords(ORDERS, LIMITS.count_default, 0, Position(0, 0)),
        encode_read(ORDERS),
    ),
    (
        "READ with all there is",
        READ + "*6~$5~COUNT~$4~1000~$5~BLOCK~$5~60000~$6~MIN_ID~$3~7-8~",
        ReadRecords(ORDERS, 1000, 60_000, Position(7, 8)),
        encode_read(ORDERS, 1000, 60_000, Position(7, 8)),
    ),
]

ACCEPTED: list[tuple[str, str, Command]] = [
    (
        "8.3 READ, the example",
        READ + "*4~$5~COUNT~$2~10~$6~MIN_ID~$3~0-0~",
        ReadRecords(ORDERS, 10, 0, Position(0, 0)),
    ),
    ("S3P-12 create", "*3~$6~create~$6~orders~*0~", CreateStream(ORDERS)),
    ("S3P-12 aPPend", "*4~$6~aPPend~$1~s~*0~*1~$1~x~", AppendRecords(b"s", None, [b"x"])),
    ("S3P-12 id", option(APPEND, "iD", "5") + "*1~$1~x~", AppendRecords(ORDERS, 5, [b"x"])),
    (
        "S3P-12 min_id",
        option(TRIM.lower(), "min_id", "5-6"),
        TrimBelow(ORDERS, Position(5, 6)),
    ),
    ("S3P-13 names keep their case", "*3~$6~CREATE~$6~OrDeRs~*0~", CreateStream(b"OrDeRs")),
    (
        "S3P-03 S3A-35 any byte in a name",
        "*3~$6~DELETE~$8~\0~/../\xff~*0~",
        DeleteStream(b"\0\r\n/../\xff"),
    ),
    (
        "S3P-03 framing in a record",
        APPEND + "*0~*2~$6~$5~~~$10~*1~~\n\r$5~",
        AppendRecords(ORDERS, None, [b"$5\r\n\r\n", b"*1\r\n\r\n\n\r$5"]),
    ),
    (
        "S3P-17 the last value counts",
        APPEND + "*4~$2~ID~$2~50~$2~id~$2~60~*1~$1~x~",
        AppendRecords(ORDERS, 60, [b"x"]),
    ),
    (
        "S3P-27 S3A-09 the greatest ID",
        option(APPEND, "ID", str(U64_MAX)) + "*1~$1~x~",
        AppendRecords(ORDERS, U64_MAX, [b"x"]),
    ),
    (
        "S3P-31 S3P-36 the greatest MIN_ID",
        option(READ, "MIN_ID", f"{U64_MAX}-{U64_MAX}"),
        ReadRecords(ORDERS, 100, 0, Position(U64_MAX, U64_MAX)),
    ),
    (
        "S3A-16 zeros before an id",
        option(TRIM, "MIN_ID", "007-00"),
        TrimBelow(ORDERS, Position(7, 0)),
    ),
    (
        "S3A-16 zeros before lengths",
        "*0003~$06~CREATE~$00000000000000000006~orders~*00~",
        CreateStream(ORDERS),
    ),
    (
        "S3A-16 zeros before a record's length",
        APPEND + "*0~*01~$01~x~",
        AppendRecords(ORDERS, None, [b"x"]),
    ),
    (
        "S3P-34 COUNT 1",
        option(READ, "COUNT", "1"),
        ReadRecords(ORDERS, 1, 0, Position(0, 0)),
    ),
    (
        "S3P-34 zeros before COUNT",
        option(READ, "COUNT", "0" * 63 + "7"),
        ReadRecords(ORDERS, 7, 0, Position(0, 0)),
    ),
    (
        "S3P-37 BLOCK 0",
        option(READ, "BLOCK", "0"),
        ReadRecords(ORDERS, 100, 0, Position(0, 0)),
    ),
]


def read(wire: bytes, limits: S3pLimits = LIMITS) -> tuple[list[Command], S3pError | None]:
    """The commands in the bytes in one piece; byte by byte they are the same."""
    whole, single = Decoder(limits), Decoder(limits)
    found = whole.feed(wire)
    pieces = [command for byte in wire for command in single.feed(bytes((byte,)))]
    assert pieces == found
    assert str(single.error) == str(whole.error)
    assert single.error is not None or single.is_midway == whole.is_midway
    return found, whole.error


@pytest.mark.parametrize(
    ("text", "command", "encoded"),
    [pytest.param(text, command, encoded, id=name) for name, text, command, encoded in EXAMPLES],
)
def test_commands_both_ways(text: str, command: Command, encoded: bytes) -> None:
    assert read(w(text)) == ([command], None)
    assert encoded == w(text)


@pytest.mark.parametrize(
    ("text", "command"), [pytest.param(text, command, id=name) for name, text, command in ACCEPTED]
)
def test_other_valid_input(text: str, command: Command) -> None:
    assert read(w(text)) == ([command], None)


@given(st.lists(st.integers(0, 1000)), st.integers(1, 3))
def test_s3p_11_any_split_gives_the_same_commands(places: list[int], times: int) -> None:
    every = [*ACCEPTED, *((name, text, command) for name, text, command, _ in EXAMPLES)]
    wire = w("".join(text for _, text, _ in every)) * times
    expected = [command for *_, command in every] * times
    decoder = Decoder(LIMITS)
    pieces = cut(wire, [place * len(wire) // 1000 for place in places])
    assert [command for piece in pieces for command in decoder.feed(piece)] == expected
    assert decoder.error is None
    assert not decoder.is_midway


@pytest.mark.parametrize(
    ("text", "code"), [pytest.param(text, code, id=name) for name, text, code in HOSTILE]
)
def test_malformed_input_ends_the_stream_at_its_first_wrong_byte(text: str, code: str) -> None:
    """S3P-01 to S3P-10, S3P-14 to S3P-18, S3P-24 to S3P-27, S3P-34, S3P-36, S3P-38, S3P-41, S3A-16
    to S3A-23: nothing that is declared is waited for."""
    decoder = Decoder(LIMITS)
    wire = w(text)
    assert read(wire[:-1]) == ([], None)
    decoder.feed(wire[:-1])
    assert decoder.feed(wire[-1:]) == []
    assert decoder.error is not None
    assert decoder.error.code == code
    assert decoder.error.text.isascii() and decoder.error.text.isprintable()
    _, alike = read(wire)
    assert str(alike) == str(decoder.error)


@pytest.mark.parametrize(
    ("text", "code"), [pytest.param(text, code, id=name) for name, text, code in HOSTILE]
)
def test_commands_before_an_error_are_given_out_and_none_after_it(text: str, code: str) -> None:
    """S3P-44, S3A-21."""
    before = w("".join(text for _, text, *_ in EXAMPLES))
    expected = [command for _, _, command, _ in EXAMPLES]
    for behind in (before, b"\r\n" * 100, b""):
        decoder = Decoder(LIMITS)
        assert decoder.feed(before + w(text) + behind) == expected
        assert decoder.error is not None and decoder.error.code == code
        assert decoder.feed(before) == []


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (CREATE + "*2~$8~MAX_SIZE~$4~1000~", "unknown option MAX_SIZE"),
        (APPEND + "*0~*2~$5~hello~$0~~", "invalid record bulk string (length < 1)"),
    ],
)
def test_texts_are_those_of_the_specification(text: str, error: str) -> None:
    """8.1 example 2, 8.2 example 2; S3P-16, S3A-02."""
    _, found = read(w(text))
    assert found is not None
    assert (found.code, found.text) == ("ERR_BAD_FORMAT", error)


@pytest.mark.parametrize(
    "text",
    [
        "*3~~~~orders~*0~",
        "*3~$6~CREATE~~~*0~",
        "*3~$6~CREATE~$6~orders~~",
        APPEND + "*2~~~$1~1~*1~$1~x~",
        APPEND + "*2~$2~ID~~~*1~$1~x~",
        APPEND + "*0~*1~~~",
        APPEND + "*0~*2~$1~x~~~",
    ],
)
def test_s3p_04_empty_lines_are_no_empty_strings(text: str) -> None:
    """S3P-05 to S3P-08, in one piece and complete otherwise."""
    found, error = read(w(text))
    assert found == [] and error is not None and error.code == "ERR_BAD_FORMAT"


def test_s3a_06_bytes_of_the_client_are_escaped_in_the_error() -> None:
    _, error = read(w("*3~$6~CREATE~$6~orders~*2~$7~x~+O\xff\0~"))
    assert error is not None
    assert error.text == r"unknown option x\x0d\x0a+O\xff\x00"


def records(*sizes: int) -> bytes:
    return encode_append(ORDERS, [b"x" * size for size in sizes])


SMALL = S3pLimits(
    name_bytes_max=6,
    records_max=3,
    record_bytes_max=10,
    append_bytes_max=20,
    count_default=2,
    count_max=5,
    block_ms_max=100,
)


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        pytest.param(encode_create(b"n" * 6), encode_create(b"n" * 7), id="S3P-18 name"),
        pytest.param(records(1, 1, 1), records(1, 1, 1, 1), id="S3P-26 records"),
        pytest.param(records(10), records(11), id="S3P-26 record"),
        pytest.param(records(1, 10), records(1, 11), id="S3P-26 second record"),
        pytest.param(records(10, 9, 1), records(10, 9, 2), id="S3P-26 aggregate"),
        pytest.param(records(10, 10), records(10, 10, 1), id="S3P-26 nothing is left"),
        pytest.param(encode_read(b"s", 5), encode_read(b"s", 6), id="S3P-34 COUNT"),
        pytest.param(
            encode_read(b"s", block_ms=100), encode_read(b"s", block_ms=101), id="S3P-38 BLOCK"
        ),
        pytest.param(
            w("*3~$4~READ~$1~s~*16~" + "$5~COUNT~$1~1~" * 8),
            w("*3~$4~READ~$1~s~*18~" + "$5~COUNT~$1~1~" * 9),
            id="S3A-22 options",
        ),
    ],
)
def test_every_limit_at_its_edge_and_one_beyond(within: bytes, beyond: bytes) -> None:
    """S3P-48. A stream that was within the limits once has no rights beyond them."""
    found, error = read(within, SMALL)
    assert len(found) == 1 and error is None
    for wire, complete in ((beyond, 0), (within + beyond, 1), (within * 2 + beyond, 2)):
        found, error = read(wire, SMALL)
        assert len(found) == complete
        assert error is not None and error.code == "ERR_LIMITS"


def test_limits_of_records_differ_from_those_of_others() -> None:
    """S3P-48: of two connections with other limits each has its own."""
    wire = records(100)
    assert read(wire)[1] is None
    assert read(wire, S3pLimits(record_bytes_max=99))[1] is not None
    assert read(wire)[1] is None


def read_whole(wire: bytes) -> list[Command]:
    decoder = Decoder(LIMITS)
    found = decoder.feed(wire)
    assert decoder.error is None and not decoder.is_midway
    return found


def test_s3p_26_the_greatest_append_of_the_defaults() -> None:
    whole = [b"\n" * 2**20] * 8
    assert read_whole(encode_append(ORDERS, whole)) == [AppendRecords(ORDERS, None, whole)]
    decoder = Decoder(LIMITS)
    assert decoder.feed(encode_append(ORDERS, [*whole, b"x"])) == []
    assert decoder.error is not None and decoder.error.code == "ERR_LIMITS"


@pytest.mark.parametrize("size", [1, 9, 10, 100, 512, 513, 1024, 1025, 8388])
def test_s3p_26_a_thousand_records_of_any_size(size: int) -> None:
    many = [b"x" * size] * 1000
    assert read_whole(encode_append(ORDERS, many)) == [AppendRecords(ORDERS, None, many)]


@pytest.mark.parametrize("size", [1, 9, 10, 100, 512, 513, 1024, 1025, 8388])
def test_one_record_after_the_other_to_one_stream_or_several(size: int) -> None:
    one = [AppendRecords(ORDERS, None, [b"x" * size])] * 5
    wires = [encode_append(command.name, command.records) for command in one]
    assert read_whole(b"".join(wires)) == one
    decoder = Decoder(LIMITS)
    assert [command for wire in wires for command in decoder.feed(wire)] == one
    several = [AppendRecords(b"%d" % (n % 3), None, [b"y" * (size + n)]) for n in range(9)]
    wires = [encode_append(command.name, command.records) for command in several]
    assert read_whole(b"".join(wires)) == several
    assert [command for wire in wires for command in decoder.feed(wire)] == several


def test_s3p_49_a_command_without_its_last_byte_is_not_given_out() -> None:
    every = [*ACCEPTED, *((name, text, command) for name, text, command, _ in EXAMPLES)]
    for _, text, command in every:
        decoder = Decoder(LIMITS)
        assert decoder.feed(w(text)[:-1]) == []
        assert decoder.is_midway
        assert decoder.feed(b"\n") == [command]
        assert not decoder.is_midway
