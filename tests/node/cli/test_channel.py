"""`millpond channel`: output, JSON shapes, exit codes."""

from __future__ import annotations

import pytest

from millpond.node.cli.main import main
from tests.node.stream_commands import Run, objects


def test_channels(run: Run, name: str) -> None:
    channel = f"{name}/mail"
    assert run("channel", "create", channel, "--mode", "queue") == (0, b"", "")
    told = run("channel", "create", channel, "--mode", "queue")
    assert told.code == 1 and "exists, in" in told.err
    again = ("channel", "create", channel, "--if-missing", "--json")
    assert objects(run(*again, "--mode", "queue")) == [{"channel": channel, "mode": "queue"}]
    assert run(*again, "--mode", "fanout").code == 1
    for data in ("one", "two"):
        assert run("put", channel, data).code == 0
    [shown] = objects(run("channel", "show", channel, "--json"))
    assert shown == {
        "channel": channel,
        "mode": "queue",
        "created": True,
        "messages": "2",
        "bytes": "6",
        "leased": 0,
        "connections": 0,
        "receivers": 0,
        "subscribers": 0,
    }
    page = run("channel", "show", channel).out.decode()
    assert "queue, created with it" in page and "2, 6 bytes" in page
    assert run("channel", "ls", f"{name}/*").out == f"{channel}\n".encode()
    [row] = run("channel", "ls", f"{name}/*", "-l").out.decode().splitlines()
    assert row.split() == ["queue", "2", "6", "0", channel]
    assert objects(run("channel", "ls", f"{name}/*", "--json")) == [shown]
    told = run("channel", "purge", channel)
    assert (told.code, told.out) == (0, b"")
    assert told.err == f"channel {channel!r} purged with 2 messages\n"
    assert objects(run("channel", "purge", channel, "--json")) == [
        {"channel": channel, "purged": True, "removed": "0"}
    ]
    told = run("channel", "rm", channel, f"{name}/none")
    assert told.code == 4 and f"there is no channel '{name}/none'" in told.err
    assert f"channel {channel!r} deleted with 0 messages" in told.err
    for words in (("show",), ("rm",)):
        told = run("channel", *words, f"{name}/none")
        assert told.code == 4 and f"{name}/none" in told.err
    assert run("channel", "create", "x" * 300).code == 2


def test_messages_of_several_channels_are_received(run: Run, name: str) -> None:
    for channel in ("a/1", "a/2", "b"):
        assert run("put", f"{name}/{channel}", channel).code == 0
    told = run("recv", f"{name}/a/*", "-n", "2", "--timeout", "60")
    assert told.code == 0 and sorted(told.out.splitlines()) == [b"a/1", b"a/2"]
    assert run("put", f"{name}/a/1", "again").code == 0
    found = objects(run("recv", f"{name}/a/1", f"{name}/b", "-n", "2", "--json"))
    assert {(each["channel"], each["data"]) for each in found} == {
        (f"{name}/a/1", "again"),
        (f"{name}/b", "b"),
    }
    assert run("recv", f"{name}/*", "--timeout", "0.1").code == 3
    assert run("recv", f"{name}/*", "--no-ack").code == 2


def test_help_is_there_for_every_command(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["channel", "--help"]) == 0
    assert "a first channel" in capfdbinary.readouterr().out.decode()
    for name in ("create", "ls", "show", "purge", "rm"):
        assert main(["channel", name, "--help"]) == 0
        assert "example" in capfdbinary.readouterr().out.decode()
