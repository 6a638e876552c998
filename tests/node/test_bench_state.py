"""`millpond bench state`: every row, every value right."""

from __future__ import annotations

import json

import pytest

import millpond
from millpond.node.bench.state import event, expected
from millpond.node.cli.main import main
from millpond.testing import run_node
from tests.node.processes import command


def test_every_row_is_measured_and_right() -> None:
    done = command("bench", "state", "--events", "3000", "--keys", "200", "--json")
    assert done.returncode == 0, done.stderr.decode()
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    names = ["node", "follower", "state", "fold", "fold, schema", "node's form"]
    assert [each["row"] for each in rows] == names
    for each in rows:
        assert (each["events"], each["keys"], each["faults"]) == (3000, 200, 0)
        assert each["rate"] > 0


def test_its_events_are_what_it_expects_of_them() -> None:
    found: dict[str, int | None] = {}
    for number in range(500):
        told = json.loads(event(number, 30))
        is_gone = told["headers"]["operation"] == "delete"
        found[told["key"]] = None if is_gone else told["value"]["age"]
    assert found == expected(500, 30) and None in found.values()


@pytest.mark.parametrize("words", [("--events", "0"), ("--keys", "-1"), ("--rows", "x")])
def test_what_cannot_be_meant_exits_2(words: tuple[str, ...]) -> None:
    assert main(("bench", "state", *words)) == 2


def test_a_running_node_is_measured_and_left_as_it_was() -> None:
    with run_node() as node:
        words = ("--events", "500", "--keys", "50", "--json", "--connect", node.url)
        done = command("bench", "state", *words)
        assert done.returncode == 0, done.stderr.decode()
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(each["row"], each["faults"]) for each in rows] == [("node", 0), ("follower", 0)]
        assert {each["bytes_each"] for each in rows} == {None}
        with millpond.sync.connect(node.url, "any") as channel:
            assert list(channel.streams.names()) == []
