"""`millpond topic`: output, JSON shapes, exit codes."""

from __future__ import annotations

import pytest

from millpond.node.cli.main import main
from tests.node.stream_commands import Run, objects


def test_topics(run: Run, name: str) -> None:
    """RL-26..RL-31, by the node's own packets."""
    assert run("topic", "create", name, "--partitions", "2") == (0, b"", "")
    assert run("topic", "create", name).code == 1
    assert f"{name} 2" in run("topic", "ls").out.decode().splitlines()
    assert {"topic": name, "partitions": 2} in objects(run("topic", "ls", "--json"))
    assert run("topic", "produce", name, "a", "b", "c").out == b"0 0\n0 1\n1 0\n"
    assert run("topic", "produce", name, "-p", "1", "d").out == b"1 1\n"
    keyed = {run("topic", "produce", name, "--key", "bob", "e", "-q").code for _ in range(3)}
    assert keyed == {0}
    [described] = objects(run("topic", "describe", name, "--json"))
    tails = [int(row["high_watermark"]) for row in described["partitions"]]
    assert sorted(tails) in ([2, 5], [3, 4]) or sum(tails) == 7
    assert run("topic", "fetch", name, "-n", "2").out == b"a\nc\n"
    assert run("topic", "fetch", name, "-p", "1", "--offset", "1", "-n", "1").out == b"d\n"
    told = run("topic", "offset", name, "mail")
    assert told.code == 4 and "never committed" in told.err
    assert run("topic", "commit", name, "mail", "1") == (0, b"", "")
    assert run("topic", "offset", name, "mail") == (0, b"1\n", "")
    assert objects(run("topic", "offset", name, "mail", "--json")) == [
        {"topic": name, "partition": 0, "group": "mail", "offset": "1"}
    ]
    assert run("topic", "fetch", name, "--group", "mail", "-n", "1").out == b"c\n"
    assert "mail: 1" in run("topic", "describe", name).out.decode()
    told = run("topic", "fetch", name, "-p", "2")
    assert told.code == 4 and "partitions 0 to 1" in told.err
    told = run("stream", "delete", f"{name}/0")
    assert told.code == 1 and "partition of a topic" in told.err
    told = run("topic", "delete", name)
    assert (told.code, told.out) == (0, b"")
    assert told.err.startswith(f"topic {name!r} deleted with 2 partitions, 7 records (")
    for words in (("describe",), ("delete",), ("fetch",), ("produce", "x"), ("commit", "g", "1")):
        told = run("topic", words[0], name, *words[1:])
        assert told.code == 4 and name in told.err, words


def test_a_stream_is_a_topic_of_one_partition(run: Run, name: str) -> None:
    run("stream", "append", name, "--create", "a")
    assert run("topic", "produce", name, "b").out == b"0 1\n"
    assert run("topic", "fetch", name).out == b"a\nb\n"
    assert run("stream", "read", name).out == b"a\nb\n"
    assert run("topic", "create", name, "--partitions", "3").code == 1
    assert run("topic", "create", "no/topic").code == 2
    assert run("topic", "create", name, "--partitions", "1001").code == 2


@pytest.mark.parametrize("family", ["stream", "topic"])
def test_help_is_there_for_every_command(
    family: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main([family, "--help"]) == 0
    page = capfdbinary.readouterr().out.decode()
    assert "examples" in page or "a first" in page
    names = {
        "stream": "create append read tail trim rm ls show",
        "topic": "create ls show produce fetch commit offset rm",
    }
    for name in names[family].split():
        assert f"    {name}" in page
        assert main([family, name, "--help"]) == 0
        assert "example" in capfdbinary.readouterr().out.decode()
