"""Jobs keep their due times and unique names through `export` and `import`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.node.cli.main import main
from millpond.node.jobs.requests import JobInfo
from millpond.sync import Queue
from tests.node.processes import Serving, serving

HOUR_S = 3600.0


@pytest.fixture
def node() -> Iterator[Serving]:
    with serving() as ready:
        yield ready


def run(*words: str | Path) -> int:
    return main([os.fsdecode(word) for word in words])


def exported(node: Serving, file: Path) -> list[dict[str, Any]]:
    assert run("export", "jobs/mail", "-o", file, "--connect", node.urls["tcp"]) == 0
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def jobs(url: str) -> list[JobInfo]:
    with Queue(url, "mail") as queue:
        return list(queue.jobs())


def put_some(node: Serving) -> None:
    with Queue(node.urls["tcp"], "mail") as queue:
        queue.put(1)
        queue.put(2, due=HOUR_S, ttl=600)
        queue.put(3, unique="three")
        queue.put(4, due=2 * HOUR_S, unique=b"\xff")


def shape(rows: list[JobInfo]) -> list[tuple[str, int, int]]:
    """The fields that are the same in another node: state, due and deadline in seconds."""
    return [(row.state, row.due // 1000, row.expires // 1000) for row in rows]


def near(one: list[tuple[str, int, int]], other: list[tuple[str, int, int]]) -> bool:
    return len(one) == len(other) and all(
        a[0] == b[0] and abs(a[1] - b[1]) <= 1 and abs(a[2] - b[2]) <= 2
        for a, b in zip(one, other, strict=True)
    )


def test_from_one_node_into_another(node: Serving, tmp_path: Path) -> None:
    put_some(node)
    file = tmp_path / "jobs.jsonl"
    told = exported(node, file)
    assert [("due" in line, line.get("unique"), line.get("unique_base64")) for line in told] == [
        (False, None, None),
        (True, None, None),
        (False, "three", None),
        (True, None, "/w=="),
    ]
    assert told[1]["due"] == pytest.approx(time.time() + HOUR_S, abs=30)
    assert told[1]["expires_at"] == pytest.approx(told[1]["due"] + 600)
    with serving() as other:
        url = other.urls["tcp"]
        for _ in range(2):  # the second time changes nothing
            assert run("import", file, "--connect", url) == 0
            assert near(sorted(shape(jobs(url))), sorted(shape(jobs(node.urls["tcp"]))))
        with Queue(url, "mail") as queue:
            assert queue.put(5, unique="three").existing


def test_from_a_node_into_a_folder_and_out_of_it(node: Serving, tmp_path: Path) -> None:
    put_some(node)
    file, again, folder = tmp_path / "jobs.jsonl", tmp_path / "again.jsonl", tmp_path / "data"
    told = exported(node, file)
    for _ in range(2):
        assert run("import", file, "--data", folder) == 0
    assert run("export", "jobs/mail", "--data", folder, "-o", again) == 0
    assert again.read_bytes() == file.read_bytes()
    twin = told[2] | {"id": str(int(told[2]["id"]) + 1), "key": "77"}
    file.write_text(json.dumps(twin) + "\n")
    assert run("import", file, "--data", folder) == 0  # its name is taken: left out
    with serving("--data", str(folder)) as other:
        url = other.urls["tcp"]
        assert shape(jobs(url)) == shape(jobs(node.urls["tcp"]))
        with Queue(url, "mail") as queue:
            assert queue.put(5, unique="three").existing


@pytest.mark.parametrize(
    ("fields", "told"),
    [({"due": -1}, "due"), ({"unique": ""}, "unique"), ({"unique": 65 * "x"}, "unique")],
)
def test_a_line_with_terms_that_no_job_has_is_named(
    fields: dict[str, Any], told: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "jobs.jsonl"
    line = {"channel": "jobs/mail", "id": "1", "key": "1", "ttl": 60, "data": "x"}
    file.write_text(json.dumps(line | {"expires_at": time.time() + 60} | fields) + "\n")
    assert run("import", file, "--data", tmp_path / "data") == 1
    assert told in capfd.readouterr().err
