"""`millpond top`: what a node does now, for people and for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

import millpond
from millpond import Config, Node, connect
from millpond.node import activity
from millpond.node.activity import LIST_BYTES_MAX, ROW_BYTES, ROWS_MAX
from millpond.node.cli.chat.line_editor import text_width
from millpond.node.cli.commands import top
from millpond.sync import connect as connect_blocking
from millpond.sync import connect_streams
from tests.node.cli.terminals import in_terminal
from tests.node.processes import Serving, command_here, environment, serving


@pytest.fixture(scope="module")
def node() -> Iterator[Serving]:
    with serving("--ws", "off", "--channel", "jobs/*=queue", "--channel", "news=fanout") as opened:
        url = opened.urls["tcp"]
        with connect_blocking(url, "jobs/mail", role="producer") as queue:
            for _ in range(3):
                queue.put(b"x")
        with connect_streams(url) as streams:
            streams.stream("weather").create()
            for body in (b"sun", b"rain"):
                streams.stream("weather").append(body)
        yield opened


def run(node: Serving, *words: str) -> str:
    done = command_here("top", *words, env=environment(MILLPOND_CONNECT=node.urls["tcp"]))
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def test_a_script_gets_it_once(node: Serving) -> None:
    text = run(node)
    lines = text.splitlines()
    assert lines[0].startswith("millpond ") and "memory" in lines[0]
    assert "\x1b" not in text
    heads = {line.split()[0] for line in lines if line}
    assert {"protocol", "queue", "stream", "connection"} <= heads
    queue = next(line.split() for line in lines if line.startswith("jobs/mail"))
    assert queue == ["jobs/mail", "0", "0", "3", "0", "0", "0", "0"]


def test_json_has_one_object_each_time(node: Serving) -> None:
    told = run(node, "-n", "2", "--interval", "0", "--json")
    answers = [json.loads(line) for line in told.splitlines()]
    assert len(answers) == 2
    (stream,) = answers[0]["streams"]
    assert stream == {
        "name": "weather",
        "in_s": 0.0,
        "out_s": 0.0,
        "records": 2,
        "bytes": stream["bytes"],
        "waiting": 0,
        "groups": 0,
        "lag": 0,
    }
    assert answers[0]["window_s"] >= 0.5
    assert [each["channel"] for each in answers[0]["connections"]] == ["millpond!probe"]
    assert answers[0]["totals"]["messages"] == 3


def test_a_terminal_is_drawn_until_ctrl_c_and_left_as_it_was(node: Serving) -> None:
    words = ("top", "--interval", "0.2", "--connect", node.urls["tcp"])
    with in_terminal(*words, columns=50, rows=12) as shown:
        shown.wait_for("jobs/mail")
        screens = shown.written.count(top.HOME)
        while shown.written.count(top.HOME) < screens + 3:
            shown.wait_for(top.TO_END)
            shown._read(1.0)
        assert shown.interrupt() == 0
    assert shown.written.startswith(top.BEGIN) and shown.written.endswith(top.END)
    for screen in shown.written.split(top.HOME)[1:]:
        assert screen.count("\n") < 12


def test_a_node_that_is_away_is_an_error_and_the_terminal_is_left() -> None:
    with in_terminal("top", "--connect", "tcp://127.0.0.1:1") as shown:
        assert shown.end() == 1
    assert "no node at 127.0.0.1:1" in shown.written.rpartition(top.END)[2]


def answer(**lists: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("kept", "pushes", "acks", "redeliveries", "expired", "appended")
    totals = ("connections", "channels", "streams", "messages", "message_bytes", "stream_bytes")
    return {
        "version": "1.2.3",
        "durability": "disk",
        "uptime_s": 90061.0,
        "window_s": 1.0,
        "rss_bytes": 2**20,
        "cpu": 0.5,
        "totals": dict.fromkeys((*totals, "dead_letters", "crashes", "refused"), 1),
        "rates": dict.fromkeys(names, 1.5),
        "store": {"is_writable": False, "reason": "disk full", "failures": 1},
        "protocols": [],
        "channels": [],
        "queues": [],
        "streams": [],
        "connections": [],
    } | lists


CHANNEL = {
    "mode": "pair",
    "in_s": 12345.6,
    "out_s": 0.0,
    "messages": 123456,
    "bytes": 2**30,
    "leased": 7,
    "connections": 2,
    "lag": 0,
}


@pytest.mark.parametrize("columns", [1, 8, 20, 40, 80, 200])
@pytest.mark.parametrize(
    "name", ["a", "orders/" + "x" * 100, "注文/日本語のとても長い名前" * 5], ids=len
)
def test_no_line_is_wider_than_the_terminal(columns: int, name: str) -> None:
    shown = top.page(answer(channels=[CHANNEL | {"name": name}]), columns, has_styles=False)
    assert all(text_width(line) <= columns for line in shown)
    assert len(shown) == 7
    if columns >= 40:
        assert name[:5] in shown[-1]


def test_a_name_cannot_control_the_terminal() -> None:
    shown = top.page(answer(channels=[CHANNEL | {"name": "a\x1b[2J"}]), None, has_styles=False)
    assert "\x1b" not in "".join(shown)


def test_a_store_that_takes_nothing_is_red_on_a_terminal_with_colours() -> None:
    shown = top.page(answer(), 80, has_styles=True)
    assert "\x1b[31mNOT WRITABLE: disk full\x1b[0m" in shown
    assert "\x1b[31m" not in "".join(top.page(answer(), 80, has_styles=False))


async def test_rates_are_those_between_two_samples_and_lists_have_the_busiest() -> None:
    config = Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    async with Node(config) as node:
        url = f"tcp://{node.listeners['p2p']}"
        async with (
            connect(url, "quiet") as quiet,
            connect(url, "busy", role="producer") as busy,
            connect(url, "busy", role="consumer") as reader,
            connect(url, "asking", window=0) as asking,
        ):
            await quiet.put(b"x")
            first = await asking.admin(11, {})
            assert first["window_s"] == 0 and first["rates"]["kept"] == 0
            for _ in range(20):
                await busy.put(b"y")
            for _ in range(5):
                await (await reader.receive()).ack()
            await anyio.sleep(0.6)
            found = await asking.admin(11, {"limit": 1})
    (channel,) = found["channels"]
    seconds = found["window_s"]
    assert channel["name"] == b"busy" and channel["messages"] == 15
    assert channel["in_s"] * seconds == pytest.approx(20, abs=0.1)
    assert channel["out_s"] * seconds == pytest.approx(5, abs=0.1)
    assert found["rates"]["kept"] * seconds == pytest.approx(20, abs=0.1)
    assert len(found["connections"]) == 1


async def test_reads_of_a_stream_that_got_records_are_counted() -> None:
    config = Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    async with Node(config) as node:
        url = f"tcp://{node.listeners['p2p']}"
        async with millpond.connect_streams(url) as streams, connect(url, "x", window=0) as asking:
            stream = streams.stream("weather")
            await stream.create()
            await stream.append(b"sun")
            assert (await asking.admin(11, {}))["window_s"] == 0
            for _ in range(4):
                assert len(await stream.read(0)) == 1
            assert not await stream.read(1)
            await anyio.sleep(0.6)
            found = await asking.admin(11, {})
    (row,) = found["streams"]
    assert row["out_s"] * found["window_s"] == pytest.approx(4, abs=0.1)
    assert row["in_s"] == 0


async def test_many_cells_are_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are those of the time before, and the busiest are found all the same."""
    monkeypatch.setattr(activity, "CELLS_PER_TURN", 3)
    config = Config(
        p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off", passivate_after_s=0
    )
    async with Node(config) as node:
        url = f"tcp://{node.listeners['p2p']}"
        for number in range(20):
            async with connect(url, b"%02d" % number, role="producer") as channel:
                await channel.put(b"x")
        async with (
            connect(url, "busy", role="producer") as busy,
            connect(url, "asking", window=0) as asking,
        ):
            first = await asking.admin(11, {"limit": 2})
            assert first["window_s"] == 0 and first["channels"] == []
            await anyio.sleep(0.2)  # the first look is over
            for _ in range(10):
                await busy.put(b"y")
            found = {}
            for _ in range(50):
                await anyio.sleep(0.2)
                found = await asking.admin(11, {"limit": 2})
                if found["window_s"] and found["channels"][0]["in_s"]:
                    break
    assert found["channels"][0]["name"] == b"busy"
    assert found["channels"][0]["in_s"] * found["window_s"] == pytest.approx(10, abs=0.1)
    assert found["totals"]["channels"] == 22
    assert found["totals"]["passivated"] == 20


def test_passivated_channels_are_counted_on_the_page() -> None:
    told = answer()
    assert "passivated" not in "".join(top.page(told, None, has_styles=False))
    told["totals"] = {**told["totals"], "channels": 5, "passivated": 4}
    assert "channels 5 (4 passivated)" in top.page(told, None, has_styles=False)[1]


async def test_lists_have_fifty_rows_and_end_before_they_are_too_large() -> None:
    config = Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    async with Node(config) as node:
        url = f"tcp://{node.listeners['p2p']}"
        for number in range(ROWS_MAX + 5):
            async with connect(url, b"%02d" % number, role="producer") as channel:
                await channel.put(b"x")
        async with connect(url, "asking", window=0) as asking:
            found = await asking.admin(11, {"limit": 1000})
            assert len(cast("list[object]", found["channels"])) == ROWS_MAX
            for number in range(ROWS_MAX):
                name = b"%02d" % number + b"n" * 240
                async with connect(url, name, role="producer") as channel:
                    await channel.put(b"x")
                    await channel.put(b"y")
            found = await asking.admin(11, {"limit": 1000})
    names = [each["name"] for each in cast("list[dict[str, bytes]]", found["channels"])]
    assert len(names) == LIST_BYTES_MAX // (242 + ROW_BYTES)


@pytest.mark.parametrize("word", ["top", "events"])
def test_they_need_the_right_admin(word: str, tmp_path: Path) -> None:
    access = tmp_path / "access"
    access.write_text("anyone put,get,push,ack,list\n")
    access.chmod(0o600)
    with serving("--ws", "off", "--access-file", str(access)) as opened:
        done = command_here(word, env=environment(MILLPOND_CONNECT=opened.urls["tcp"]))
    assert done.returncode == 5 and b"--token-file" in done.stderr
