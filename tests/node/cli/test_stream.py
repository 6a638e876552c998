"""`millpond stream`: output, JSON shapes, exit codes; over TCP and WebSocket."""

from __future__ import annotations

import os
import time

import pytest

from millpond.node.cli.main import main
from tests.node.stream_commands import Run, bodies, objects


def test_create_append_read(run: Run, name: str) -> None:
    assert run("stream", "create", name) == (0, b"", "")
    assert run("stream", "append", name, "one", "two") == (0, b"0\n1\n", "")
    assert run("stream", "append", name, "three").out == b"2\n"
    assert run("stream", "read", name) == (0, b"one\ntwo\nthree\n", "")
    assert bodies(run, name, "--from", "1") == [b"two", b"three"]
    assert bodies(run, name, "--from", "1", "-n", "1") == [b"two"]
    assert bodies(run, name, "--from", "99") == []
    assert run("stream", "read", name, "--format", "raw").out == b"onetwothree"
    assert run("stream", "read", name, "--format", "base64", "-n", "1").out == b"b25l\n"


def test_json_has_numbers_as_strings_and_bytes_as_text_or_base64(run: Run, name: str) -> None:
    assert objects(run("stream", "create", name, "--json")) == [{"stream": name, "created": True}]
    [kept] = objects(
        run("stream", "append", name, "hé", os.fsdecode(b"\xff"), "--ms", "7", "--json")
    )
    assert kept == {
        "first": "0",
        "count": 2,
        "tail": "2",
        "id": "7-1",
        "timestamp": kept["timestamp"],
    }
    assert abs(int(kept["timestamp"]) / 1000 - time.time()) < 30
    text, binary = objects(run("stream", "read", name, "--json"))
    shared = {"timestamp": kept["timestamp"], "headers": []}
    assert text == {"sequence": "0", "id": "7-0", "data": "hé", **shared}
    assert binary == {"sequence": "1", "id": "7-1", "data_base64": "/w==", **shared}
    [trimmed] = objects(run("stream", "trim", name, "1", "--json"))
    assert int(trimmed.pop("removed_bytes")) > 0
    assert trimmed == {"stream": name, "trim_point": "1", "removed": "1"}
    [info] = objects(run("stream", "info", name, "--json"))
    assert (info["stream"], info["tail"], info["trim_point"], info["records"]) == (
        name,
        "2",
        "1",
        "1",
    )
    assert info["last_id"] == "7-1" and info["age_s"] is None and info["groups"] == {}
    [deleted] = objects(run("stream", "delete", name, "--json"))
    assert deleted.pop("removed_bytes") == info["bytes"]
    assert deleted == {"stream": name, "deleted": True, "removed": "1"}


def test_a_stream_has_a_content_type(run: Run, name: str) -> None:
    assert run("stream", "create", name, "--content-type", "application/json") == (0, b"", "")
    [info] = objects(run("stream", "info", name, "--json"))
    assert info["content_type"] == "application/json"
    assert b"content type application/json" in run("stream", "info", name).out
    told = run("stream", "create", f"{name}2", "--content-type", "text/plain\r\nx: y")
    assert told.code == 2 and "is not a content type" in told.err


def test_a_read_begins_at_an_id_or_a_time(run: Run, name: str) -> None:
    run("stream", "create", name)
    run("stream", "append", name, "a", "b", "--ms", "5")
    run("stream", "append", name, "c")
    assert bodies(run, name, "--id", "5-1") == [b"b", b"c"]
    assert bodies(run, name, "--id", "6-0") == [b"c"]
    assert bodies(run, name, "--time", "-10m") == [b"a", b"b", b"c"]
    assert bodies(run, name, "--time", "1h30m") == [b"a", b"b", b"c"]
    assert bodies(run, name, "--time", "2020-01-01T00:00:00Z") == [b"a", b"b", b"c"]
    assert bodies(run, name, "--time", "2999-01-01T00:00:00+01:00") == []
    [first, *_] = objects(run("stream", "read", name, "--json"))
    assert bodies(run, name, "--time", first["timestamp"]) == [b"a", b"b", b"c"]


def test_tail_shows_the_last_ones(run: Run, name: str) -> None:
    run("stream", "create", name)
    assert run("stream", "tail", name) == (0, b"", "")
    run("stream", "append", name, *(str(number) for number in range(12)))
    assert run("stream", "tail", name).out.split() == [b"%d" % each for each in range(2, 12)]
    assert run("stream", "tail", name, "-n", "3").out == b"9\n10\n11\n"
    assert run("stream", "tail", name, "-n", "0") == (0, b"", "")


def test_trim_delete_ls_info(run: Run, name: str) -> None:
    first, second = f"{name}/a", f"{name}/b"
    for each in (first, second):
        run("stream", "create", each, "--age", "3600", "--bytes", "1M")
        run("stream", "append", each, "one", "two", "three")
    assert run("stream", "ls", name).out.decode().split() == [first, second]
    assert run("stream", "ls", name, "--limit", "1").out.decode().split() == [first]
    assert objects(run("stream", "ls", name, "--json")) == [{"stream": first}, {"stream": second}]
    [long, _] = run("stream", "ls", name, "-l").out.decode().splitlines()
    assert (long.split()[0], long.split()[-1]) == ("3", first)
    told = run("stream", "trim", first, "1")
    assert (told.code, told.out) == (0, b"") and "1 record (" in told.err
    assert told.err.endswith(f" bytes) of stream {first!r} removed, 2 left\n")
    [record] = objects(run("stream", "read", first, "--from", "2", "--json"))
    assert run("stream", "trim", first, record["id"]).code == 0
    assert bodies(run, first) == [b"three"]
    page = run("stream", "info", first).out.decode()
    assert "2 to before 3" in page and "3600 s, 1048576 bytes at most" in page
    told = run("stream", "delete", first, second)
    assert (told.code, told.out) == (0, b"")
    one, three = told.err.splitlines()
    assert one.startswith(f"stream {first!r} deleted with 1 record (")
    assert three.startswith(f"stream {second!r} deleted with 3 records (")
    assert run("stream", "ls", name) == (0, b"", "")


def test_a_trim_beyond_the_tail_is_refused_without_force(run: Run, name: str) -> None:
    run("stream", "create", name)
    run("stream", "append", name, "one", "two", "three")
    [last] = objects(run("stream", "read", name, "--from", "2", "--json"))
    ms, seq = map(int, last["id"].split("-"))
    for place in ("4", "99999", f"{ms}-{seq + 2}", f"{ms + 1}-0"):
        told = run("stream", "trim", name, place)
        assert (told.code, told.out) == (1, b"") and "beyond" in told.err and "--force" in told.err
        assert run("stream", "trim", name, place, "--json").code == 1
    assert bodies(run, name) == [b"one", b"two", b"three"]
    [done] = objects(run("stream", "trim", name, "2", "--json"))
    assert (done["trim_point"], done["removed"]) == ("2", "2")
    [done] = objects(run("stream", "trim", name, f"{ms}-{seq + 1}", "--json"))
    assert (done["trim_point"], done["removed"]) == ("3", "1")
    [done] = objects(run("stream", "trim", name, "3", "--json"))
    assert (done["trim_point"], done["removed"], done["removed_bytes"]) == ("3", "0", "0")
    run("stream", "append", name, "four")
    assert "1 record" in run("stream", "trim", name, "99999", "--force").err
    assert bodies(run, name) == []
    [done] = objects(run("stream", "delete", name, "--json"))
    assert done == {"stream": name, "deleted": True, "removed": "0", "removed_bytes": "0"}


def test_what_is_not_there_exits_4(run: Run, name: str) -> None:
    for words in (
        ("read",),
        ("tail",),
        ("tail", "-f"),
        ("info",),
        ("trim", "1"),
        ("append", "x"),
        ("delete",),
    ):
        action, *rest = words
        told = run("stream", action, name, *rest)
        assert (told.code, told.out) == (4, b""), words
        assert told.err.count("\n") == 1 and name in told.err and "no stream" in told.err


def test_what_is_there_already_exits_1(run: Run, name: str) -> None:
    run("stream", "create", name)
    told = run("stream", "create", name)
    assert told.code == 1 and name in told.err and "exists" in told.err
    assert run("stream", "create", name, "--if-missing") == (0, b"", "")
    assert objects(run("stream", "create", name, "--if-missing", "--json")) == [
        {"stream": name, "created": False}
    ]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("frobnicate",),
        ("read",),
        ("read", ""),
        ("read", "s", "--from", "-1"),
        ("read", "s", "--from", "x"),
        ("read", "s", "--from", str(2**64)),
        ("read", "s", "--id", "5"),
        ("read", "s", "--id", "5-x"),
        ("read", "s", "--time", "soon"),
        ("read", "s", "--time", "9" * 30),
        ("read", "s", "--from", "1", "--id", "1-1"),
        ("read", "s", "-n", "0"),
        ("read", "s", "--format", "xml"),
        ("trim", "s"),
        ("trim", "s", "1-2-3"),
        ("create", "s", "--bytes", "many"),
        ("create", "s", "--age", "0"),
        ("append", "s", "x", "--jsonl"),
        ("append", "s", "x", "--file", "/dev/null"),
        ("append", "s", "x", "--timestamps"),
        ("append", "s", "x", "--batch", "1001"),
        ("append", "s", "x", "--header", "novalue"),
        ("read", "x" * 1025),
    ],
)
def test_what_cannot_be_meant_exits_2(
    words: tuple[str, ...], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["stream", *words]) == 2
    out, err = capfdbinary.readouterr()
    assert out == b"" and err


def test_append_is_bound_to_conditions(run: Run, name: str) -> None:
    told = run("stream", "append", name, "x", "--create", "--match", "0")
    assert told == (0, b"0\n", "")
    told = run("stream", "append", name, "x", "--match", "0")
    assert told.code == 1 and "the tail of the stream" in told.err
    told = run("stream", "append", name, "x", "--fence", "mine")
    assert told.code == 1 and "another fencing token" in told.err
    run("stream", "append", name, "x", "--ms", "99999999999999")
    told = run("stream", "append", name, "x", "--ms", "99999999999998")
    assert told.code == 1 and "below the last one" in told.err
    assert run("stream", "append", name, "--quiet", "x") == (0, b"", "")
