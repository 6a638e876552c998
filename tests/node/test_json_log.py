"""The log as lines of JSON."""

from __future__ import annotations

import json
import logging
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from millpond.node.json_log import RESERVED, JsonFormatter
from tests.node.processes import command, environment, serving

FOLDERS = ("node", "transports", "actors")


def line(text: str, *args: object, error: BaseException | None = None) -> dict[str, Any]:
    """The object of one record."""
    raised = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("millpond.x", logging.WARNING, "", 0, text, args, raised)
    record.created = 1_700_000_000.125
    found: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return found


def test_a_record_has_its_event_and_its_fields() -> None:
    assert line("cell crashed: cell=%r crashes=%d: %s", b"c/1", 3, OSError("no")) == {
        "time": "2023-11-14T22:13:20.125+00:00",
        "level": "warning",
        "logger": "millpond.x",
        "event": "cell crashed",
        "message": "cell crashed: cell=b'c/1' crashes=3: no",
        "cell": "c/1",
        "crashes": 3,
    }


def test_an_event_is_the_same_whatever_its_values_are() -> None:
    text = "chat with %s is interrupted: %s"
    events = {line(text, name, error)["event"] for name in "ab" for error in (1, "x: y")}
    assert events == {"chat with is interrupted"}


@pytest.mark.parametrize(
    ("text", "args", "event", "fields"),
    [
        ("store opened", (), "store opened", {}),
        ("prekey_refused error=%s", (ValueError("x"),), "prekey_refused", {"error": "x"}),
        ("%d entries are lost: %s", (2, "x"), "entries are lost", {}),
        ("full: 90%% of bytes=%d", (7,), "full", {"bytes": 7}),
        ("slow: s=%.3f at=%g", (float("inf"), 0.5), "slow", {"s": "inf", "at": 0.5}),
        ("told: level=%s", ("high",), "told", {"level_": "high"}),
        ("", (), "log", {}),
    ],
)
def test_texts_of_all_kinds(
    text: str, args: tuple[object, ...], event: str, fields: dict[str, object]
) -> None:
    found = line(text, *args)
    assert found["event"] == event
    assert {name: found[name] for name in found.keys() - RESERVED} == fields


def test_an_error_has_its_traceback_in_the_same_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        found = line("cell crashed", error=error)
    assert found["traceback"].endswith("ValueError: two\nlines")


def test_every_text_of_the_source_has_an_event_of_words() -> None:
    """A value at its beginning would be all that tells one kind from another."""
    root = Path(__file__).parents[2]
    source = "\n".join(
        path.read_text("utf-8") for name in FOLDERS for path in (root / name).rglob("*.py")
    )
    texts = re.findall(r'\blog\.(?:info|warning|error|exception)\(\s*f?"([^"]*)"', source)
    assert len(texts) > 60
    assert [text for text in texts if len(line(text)["event"]) < 3] == []


def test_a_node_logs_json(tmp_path: Path) -> None:
    with serving(
        "--data", str(tmp_path / "d"), "--log-format", "json", "--log-level", "debug"
    ) as node:
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait() == 0
        assert node.process.stderr is not None
        told = [json.loads(text) for text in node.process.stderr.read().splitlines()]
    (opened,) = (each for each in told if each["event"] == "store opened")
    assert (opened["level"], opened["messages"], opened["folder"]) == (
        "debug",
        0,
        str(tmp_path / "d"),
    )


def test_a_worker_logs_json(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def run(job):\n    raise ValueError('no')\n")
    here = environment(PYTHONPATH=str(tmp_path))
    with serving("--memory") as node:
        url = node.urls["tcp"]
        assert command("jobs", "put", "q", "1", "--connect", url).returncode == 0
        words = ("work", "mine:run", "--queue", "q", "--burst", "--attempts", "1")
        done = command(*words, "--log-format", "json", "--connect", url, env=here)
    lines = [text for text in done.stderr.splitlines() if text.startswith(b"{")]
    assert any("ValueError: no" in json.loads(text).get("traceback", "") for text in lines), (
        done.stderr
    )
