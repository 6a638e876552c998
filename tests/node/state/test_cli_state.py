"""`millpond state`: output, JSON shapes, exit codes; over TCP and WebSocket."""

from __future__ import annotations

import json

import pytest

from millpond.node.cli.main import main
from tests.node.conftest import name, node, run, scheme  # noqa: F401  fixtures
from tests.node.processes import Serving, environment, started
from tests.node.state.node_clients import RESET, put
from tests.node.stream_commands import Run, objects


@pytest.fixture
def filled(run: Run, name: str) -> str:  # noqa: F811
    run("stream", "create", name)
    events = [put("b", {"n": 1}), put("a", [1, None]), put("t", "x", "team"), b"no event"]
    run("stream", "append", name, *(each.decode() for each in events))
    return name


def test_get(run: Run, filled: str) -> None:  # noqa: F811
    assert run("state", "get", filled, "user", "b") == (0, b'{"n": 1}\n', "")
    [row] = objects(run("state", "get", filled, "user", "a", "--json"))
    assert row == {"type": "user", "key": "a", "value": [1, None]}
    told = run("state", "get", filled, "user", "nobody")
    assert told.code == 4 and told.out == b"" and told.err.count("\n") == 1


def test_show(run: Run, filled: str) -> None:  # noqa: F811
    told = run("state", "show", filled)
    assert told.out == b'team\tt\t"x"\nuser\ta\t[1, null]\nuser\tb\t{"n": 1}\n' and told.code == 0
    assert run("state", "show", filled, "team").out == b'team\tt\t"x"\n'
    assert [each["key"] for each in objects(run("state", "show", filled, "--json"))] == [
        *("t", "a", "b")
    ]
    [counts] = objects(run("state", "show", filled, "--counts", "--json"))
    assert counts["types"] == {"user": 2, "team": 1} and counts["rejected"] == {"not_json": 1}
    assert (counts["stream"], counts["position"], counts["changes"]) == (filled, "4", "3")
    plain = run("state", "show", filled, "--counts").out.decode()
    assert "changes      3" in plain and "not_json" in plain
    assert run("state", "show", "nothing-of-this-name").code == 4


def test_follow(run: Run, filled: str) -> None:  # noqa: F811
    told = run("state", "follow", filled, "--timeout", "0.5")
    assert told.code == 3 and told.out.splitlines()[-1] == b"= 4"
    assert len(told.out.splitlines()) == 4


def test_follow_shows_what_changes(run: Run, node: Serving, filled: str) -> None:  # noqa: F811
    gone = json.dumps({"type": "user", "key": "a", "headers": {"operation": "delete"}})
    changes = [put("b", 2).decode(), gone, put("t", "y", "team").decode(), RESET.decode()]
    words = ("state", "follow", filled, "user", "-n", "3")
    with started(*words, env=environment(MILLPOND_CONNECT=node.urls["tcp"])) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[-1] == b"= 4\n"
        run("stream", "append", filled, *changes)
        assert process.stdout.read() == b"+ user\tb\t2\n- user\ta\nreset\n"
        assert process.wait() == 0
    words = ("state", "follow", filled, "-n", "2", "--json")
    with started(*words, env=environment(MILLPOND_CONNECT=node.urls["tcp"])) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"live": "8"}
        run("stream", "append", filled, *changes[:2])
        assert [json.loads(each) for each in process.stdout] == [
            {"put": {"type": "user", "key": "b", "value": 2}},
            {"delete": {"type": "user", "key": "a"}},
        ]


@pytest.mark.parametrize("words", [("get", "s"), ("show",), ("follow", "s", "-n", "0"), ("set",)])
def test_what_cannot_be_meant_exits_2(words: tuple[str, ...]) -> None:
    assert main(("state", *words)) == 2


@pytest.mark.parametrize(
    "words", [("get", "\udcff", "k"), ("get", "t", "\udcff"), ("show", "\udcff")]
)
def test_a_word_that_is_no_text_is_no_type_and_no_key(
    run: Run,  # noqa: F811
    filled: str,
    words: tuple[str, ...],
) -> None:
    told = run("state", words[0], filled, *words[1:])
    assert told.code == 2 and told.out == b"" and "not UTF-8" in told.err
