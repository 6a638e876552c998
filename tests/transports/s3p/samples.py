"""S3P as its specification prints it, and every hostile input of docs/reference/wire-protocol.md,
for tests of the codec.

In these words `~` is CRLF. A malformed sample ends with the byte that makes it so.
"""

from __future__ import annotations

from itertools import pairwise

BAD_FORMAT = "ERR_BAD_FORMAT"
LIMITS = "ERR_LIMITS"


def w(text: str) -> bytes:
    """The bytes of a line of docs/reference/wire-protocol.md."""
    return text.encode("latin-1").replace(b"~", b"\r\n")


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    edges = [0, *sorted(places), len(wire)]
    return [wire[start:end] for start, end in pairwise(edges)]


CREATE = "*3~$6~CREATE~$6~orders~"
APPEND = "*4~$6~APPEND~$6~orders~"
READ = "*3~$4~READ~$6~orders~"
TRIM = "*3~$4~TRIM~$6~orders~"
DELETE = "*3~$6~DELETE~$6~orders~"

FRAMING = [
    ("S3P-01 LF alone, top", "*3\n", BAD_FORMAT),
    ("S3P-01 LF alone, bulk header", "*3~$6\n", BAD_FORMAT),
    ("S3P-01 LF alone, bulk end", "*3~$6~CREATE\n", BAD_FORMAT),
    ("S3P-01 CR alone", "*3\rx", BAD_FORMAT),
    ("S3P-01 CR CR", "*3\r\r", BAD_FORMAT),
    ("S3P-01 CR alone, bulk end", "*3~$6~CREATE\rx", BAD_FORMAT),
    ("S3P-01 LF alone, options", CREATE + "*0\n", BAD_FORMAT),
    ("S3P-01 LF alone, record", APPEND + "*0~*1~$1\n", BAD_FORMAT),
    ("S3A-23 LF instead of the last digit", "*3~$66\n", BAD_FORMAT),
    ("S3P-04 empty command name", "*3~$0~", BAD_FORMAT),
    ("S3P-04 S3A-03 empty stream name", "*3~$6~CREATE~$0~", BAD_FORMAT),
    ("S3P-04 empty key", APPEND + "*2~$0~", BAD_FORMAT),
    ("S3P-04 S3P-27 empty value", APPEND + "*2~$2~ID~$0~", BAD_FORMAT),
    ("S3P-04 S3P-25 empty record", APPEND + "*0~*2~$5~hello~$0~", BAD_FORMAT),
    ("S3P-04 S3A-16 many zeros", APPEND + "*0~*1~$000~", BAD_FORMAT),
    ("S3P-05 $-1", "*3~$-", BAD_FORMAT),
    ("S3P-05 $-1 as a record", APPEND + "*0~*1~$-", BAD_FORMAT),
    ("S3P-05 *-1", "*-", BAD_FORMAT),
    ("S3P-05 * without a number", "*\r", BAD_FORMAT),
    ("S3P-05 $ without a number", "*3~$\r", BAD_FORMAT),
    ("S3P-05 *abc", "*a", BAD_FORMAT),
    ("S3P-05 $ 6", "*3~$ ", BAD_FORMAT),
    ("S3P-05 $6 and a space", "*3~$6 ", BAD_FORMAT),
    ("S3P-05 *0x3", "*0x", BAD_FORMAT),
    ("S3P-05 *3.0", "*3.", BAD_FORMAT),
    ("S3P-05 $-0", "*3~$6~CREATE~$-", BAD_FORMAT),
    ("S3P-05 S3A-17 $+6", "*3~$+", BAD_FORMAT),
    ("S3P-05 S3A-17 digits apart", "*3~$1_", BAD_FORMAT),
    ("S3P-05 fullwidth digit", "*3~$\xef", BAD_FORMAT),
    ("S3P-05 superscript digit", "*3~$\xb2", BAD_FORMAT),
    ("S3P-06 integer", ":", BAD_FORMAT),
    ("S3P-06 null", "_", BAD_FORMAT),
    ("S3P-06 integer as element", "*3~:", BAD_FORMAT),
    ("S3P-06 null as record", APPEND + "*0~*1~_", BAD_FORMAT),
    ("S3P-07 simple string", "+", BAD_FORMAT),
    ("S3P-07 error", "-", BAD_FORMAT),
    ("S3P-07 bulk string", "$", BAD_FORMAT),
    ("S3P-07 HTTP", "G", BAD_FORMAT),
    ("S3P-07 inline command", "C", BAD_FORMAT),
    ("S3P-07 empty line", "\r", BAD_FORMAT),
    ("S3P-08 simple string as name", "*3~$6~CREATE~+", BAD_FORMAT),
    ("S3P-08 error as name", "*3~$6~CREATE~-", BAD_FORMAT),
    ("S3P-08 array as name", "*3~$6~CREATE~*", BAD_FORMAT),
    ("S3P-08 array as command name", "*3~*", BAD_FORMAT),
    ("S3A-01 arrays in arrays", "*1~", BAD_FORMAT),
    ("S3P-08 bulk string as options", CREATE + "$", BAD_FORMAT),
    ("S3P-08 bulk string as records", APPEND + "*0~$", BAD_FORMAT),
    ("S3P-09 array as key", APPEND + "*2~*", BAD_FORMAT),
    ("S3P-09 array as value", APPEND + "*2~$2~ID~*", BAD_FORMAT),
    ("S3P-09 mixed options", APPEND + "*2~$2~ID~+", BAD_FORMAT),
    ("S3P-09 S3P-25 mixed records", APPEND + "*0~*2~$5~hello~+", BAD_FORMAT),
    ("S3P-09 S3P-25 array as record", APPEND + "*0~*1~*", BAD_FORMAT),
    ("S3P-10 longer than declared", "*3~$6~CREATEX", BAD_FORMAT),
    ("S3P-10 shorter than declared", "*3~$6~CREA~$", BAD_FORMAT),
    ("S3P-10 record longer than declared", APPEND + "*0~*1~$5~hello!", BAD_FORMAT),
    ("S3A-23 digits without an end, array", "*" + "0" * 21, BAD_FORMAT),
    ("S3A-23 digits without an end, bulk", "*3~$" + "0" * 21, BAD_FORMAT),
]

COMMANDS = [
    ("S3P-14 unknown command", "*3~$4~PING~", BAD_FORMAT),
    ("S3P-14 unknown command of 4 elements", "*4~$5~XREAD~", BAD_FORMAT),
    ("S3P-14 S3A-22 longer than any command", "*3~$33~", BAD_FORMAT),
    ("S3P-14 no elements", "*0~", BAD_FORMAT),
    ("S3P-14 2 elements", "*2~", BAD_FORMAT),
    ("S3P-14 S3A-22 5 elements", "*5~", BAD_FORMAT),
    ("S3P-14 S3A-22 very many elements", "*400000000~", BAD_FORMAT),
    ("S3P-14 CREATE of 4", "*4~$6~CREATE~", BAD_FORMAT),
    ("S3P-14 READ of 4", "*4~$4~READ~", BAD_FORMAT),
    ("S3P-14 TRIM of 4", "*4~$4~TRIM~", BAD_FORMAT),
    ("S3P-14 DELETE of 4", "*4~$6~DELETE~", BAD_FORMAT),
    ("S3P-14 APPEND of 3", "*3~$6~APPEND~", BAD_FORMAT),
    ("S3P-15 odd options", READ + "*1~", BAD_FORMAT),
    ("S3P-15 more odd options than there may be", READ + "*17~", BAD_FORMAT),
    ("S3A-22 more options than there may be", READ + "*18~", LIMITS),
    ("S3A-22 very many options", READ + "*99999999999999999998~", LIMITS),
    ("S3P-16 CREATE MAX_SIZE", CREATE + "*2~$8~MAX_SIZE~", BAD_FORMAT),
    ("S3P-16 READ ID", READ + "*2~$2~ID~", BAD_FORMAT),
    ("S3P-16 APPEND COUNT", APPEND + "*2~$5~COUNT~", BAD_FORMAT),
    ("S3P-16 TRIM BLOCK", TRIM + "*2~$5~BLOCK~", BAD_FORMAT),
    ("S3P-16 DELETE MIN_ID", DELETE + "*2~$6~MIN_ID~", BAD_FORMAT),
    ("S3P-16 S3A-22 a key longer than any", READ + "*2~$65~", BAD_FORMAT),
    ("S3P-18 name one too long", "*3~$6~CREATE~$257~", LIMITS),
    ("S3P-18 name far too long", "*3~$4~READ~$18446744073709551616~", LIMITS),
    ("S3P-24 S3A-04 no records", APPEND + "*0~*0~", BAD_FORMAT),
    ("S3P-26 one record too many", APPEND + "*0~*1001~", LIMITS),
    ("S3P-26 very many records", APPEND + "*0~*99999999999999999999~", LIMITS),
    ("S3P-26 record one too large", APPEND + "*0~*1~$1048577~", LIMITS),
    ("S3P-26 record far too large", APPEND + "*0~*1~$99999999999999999999~", LIMITS),
    ("S3P-41 TRIM without MIN_ID", TRIM + "*0~", BAD_FORMAT),
]


def option(opening: str, key: str, value: str, end: str = "~") -> str:
    """A command up to its only option."""
    return f"{opening}*2~${len(key)}~{key}~${len(value)}~{value}{end}"


BAD_IDS = ["-1", "+1", "1-0", "1.0", "18446744073709551616", "9" * 40, " 1", "1 ", "0x1", "1_0"]
BAD_POSITIONS = [
    *("1", "1-", "-1", "-", "1-2-3", "--", "+1-0", "1-+0", "1- 0", "1_0-0", "0x1-0", "a-b"),
    *("18446744073709551616-0", "0-18446744073709551616", "99999999999999999999-0"),
]
NO_NUMBERS = ["x", "1.0", "+1", " 1", "1 ", "-", "--1", "1_0", "0x1", "-1x", "1e3"]

VALUES = [
    *((f"S3P-27 ID {value}", option(APPEND, "ID", value), BAD_FORMAT) for value in BAD_IDS),
    *(
        (f"S3P-36 S3A-09 MIN_ID {value}", option(READ, "MIN_ID", value), BAD_FORMAT)
        for value in BAD_POSITIONS
    ),
    *(
        (f"S3P-41 MIN_ID {value}", option(TRIM, "MIN_ID", value), BAD_FORMAT)
        for value in BAD_POSITIONS
    ),
    *(
        (f"{row} {key} {value}", option(READ, key, value), BAD_FORMAT)
        for row, key in (("S3P-34", "COUNT"), ("S3P-38", "BLOCK"))
        for value in NO_NUMBERS
    ),
    *(
        (f"S3P-34 S3A-18 COUNT {value}", option(READ, "COUNT", value), LIMITS)
        for value in ("0", "00", "1001", "-1", "-0", "-99999999999999999999", "9" * 64)
    ),
    *(
        (f"S3P-38 S3A-18 S3A-19 BLOCK {value}", option(READ, "BLOCK", value), LIMITS)
        for value in ("60001", "-1", "-0", "18446744073709552", "9" * 64)
    ),
    ("S3P-27 S3A-22 ID too long", APPEND + "*2~$2~ID~$65~", BAD_FORMAT),
    ("S3P-36 S3A-22 MIN_ID too long", READ + "*2~$6~MIN_ID~$65~", BAD_FORMAT),
    ("S3P-34 S3A-22 COUNT too long", READ + "*2~$5~COUNT~$65~", LIMITS),
    ("S3P-38 S3A-22 BLOCK too long", READ + "*2~$5~BLOCK~$65~", LIMITS),
    ("S3A-20 first value bad", APPEND + "*4~$2~ID~$1~x~", BAD_FORMAT),
    ("S3A-20 last value bad", APPEND + "*4~$2~ID~$1~1~$2~ID~$1~x~", BAD_FORMAT),
]

HOSTILE = [*FRAMING, *COMMANDS, *VALUES]
