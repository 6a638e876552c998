"""A node whose data folder lost a file or a segment.

Protocols refuse what is lost, in their own form, and serve the rest; `/ready`, `/metrics` and
`doctor` tell of it in the same way.
"""

from __future__ import annotations

import json
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.node.cli.main import main
from tests.node.processes import Serving, serving

pytestmark = pytest.mark.crash

RECORDS = 120


def call(node: Serving, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and body of an HTTP answer."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "s2-basin": "millpond"}
    url = f"http://127.0.0.1:{node.port('http')}{path}"
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def append(node: Serving, stream: str, count: int) -> tuple[int, str]:
    records = [{"body": "x" * 500} for _ in range(count)]
    return call(node, "POST", f"/v1/streams/{stream}/records", {"records": records})


def written(data: Path, *, is_stopped: bool) -> Path:
    """A folder with one segment for what is old, and one for what came last."""
    for stream in ("old", "new"):
        with serving("--data", str(data), "--http", "127.0.0.1:0") as node:
            assert main(["stream", "create", stream, "--connect", node.urls["tcp"]]) == 0
            status, answer = append(node, stream, RECORDS)
            assert status == 200 and json.loads(answer)["tail"]["seq_num"] == RECORDS, answer
            assert main(["put", f"channel/{stream}", "x", "--connect", node.urls["tcp"]]) == 0
            if is_stopped:
                node.process.send_signal(signal.SIGTERM)
                assert node.process.wait(60) == 0
    return data


def last_segment_removed(folder: Path) -> None:
    max((folder / "journal").glob("*.journal")).unlink()


def last_segment_zeroed(folder: Path) -> None:
    path = max((folder / "journal").glob("*.journal"))
    path.write_bytes(bytes(path.stat().st_size))


def last_segment_cut_off(folder: Path) -> None:
    path = max((folder / "journal").glob("*.journal"))
    path.write_bytes(path.read_bytes()[:20_000])


@pytest.mark.parametrize(
    ("damage", "is_stopped"),
    [
        pytest.param(last_segment_removed, True, id="removed-stopped"),
        pytest.param(last_segment_zeroed, False, id="zeroed-killed"),
        pytest.param(last_segment_cut_off, True, id="cut off-stopped"),
        pytest.param(last_segment_removed, False, id="removed-killed", marks=pytest.mark.full),
        pytest.param(last_segment_zeroed, True, id="zeroed-stopped", marks=pytest.mark.full),
        pytest.param(last_segment_cut_off, False, id="cut off-killed", marks=pytest.mark.full),
    ],
)
def test_what_was_acknowledged_is_refused_and_not_forgotten(
    tmp_path: Path,
    damage: Callable[[Path], None],
    is_stopped: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """After a kill the names in the last segment are unknown, so that nothing is served."""
    folder = written(tmp_path / "data", is_stopped=is_stopped)
    damage(folder)
    assert main(["doctor", "--data", str(folder)]) == 1
    for _ in range(2):
        with serving("--data", str(folder), "--http", "127.0.0.1:0") as node:
            where = ["--connect", node.urls["tcp"]]
            assert node.ready["damaged"] == (2 if is_stopped else 1)
            status, answer = call(node, "GET", "/ready")
            assert status == 503 and "damage: " in answer
            told = call(node, "GET", "/metrics")[1].splitlines()
            count = next(x for x in told if x.startswith("millpond_damages "))
            assert float(count.split()[1]) == node.ready["damaged"]
            status, answer = call(node, "GET", "/v1/streams/new/records?seq_num=0")
            assert status in (500, 503) and "storage" in answer.lower()
            status, answer = append(node, "new", 1)
            assert status in (500, 503), "no sequence is given out again"
            status, answer = call(node, "GET", "/v1/streams?start_after=m&limit=1")
            listed = "the stream 'new'" if is_stopped else "storage"
            assert status in (500, 503) and listed in answer, "no list leaves one out"
            assert main(["stream", "read", "new", *where]) == 1
            assert main(["list", "channel/new", *where]) == 1
            assert main(["put", "channel/new", "y", *where]) == 1
            status, answer = call(node, "GET", "/v1/streams/old/records?seq_num=119")
            assert (status == 200) is is_stopped
            assert main(["list", "channel/old", *where]) == (0 if is_stopped else 1)
            assert main(["doctor", "--data", str(folder)]) == 1
        capfd.readouterr()
    assert main(["doctor", "--data", str(folder)]) == 1


def catalog_removed(folder: Path) -> None:
    """With its copy, which a clean stop leaves."""
    for path in folder.glob("catalogue.*"):
        path.unlink()


def store_removed(folder: Path) -> None:
    """Remove the store; the other files of a node are left."""
    catalog_removed(folder)
    for part in ("journal", "partitions", "damaged"):
        shutil.rmtree(folder / part)
    assert (folder / "clock.json").exists()


def catalog_and_journal_removed(folder: Path) -> None:
    catalog_removed(folder)
    shutil.rmtree(folder / "journal")


def catalog_and_last_segment_removed(folder: Path) -> None:
    catalog_removed(folder)
    last_segment_removed(folder)


@pytest.mark.parametrize(
    "damage",
    [
        catalog_removed,
        store_removed,
        catalog_and_journal_removed,
        catalog_and_last_segment_removed,
    ],
)
def test_without_the_catalog_nothing_is_served_before_a_repair_of_everything(
    tmp_path: Path, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Commands that look at the node work, and no list is shorter. After the repair no sequence
    comes again."""
    folder = written(tmp_path / "data", is_stopped=False)
    damage(folder)
    doctor = ["doctor", "--data", str(folder)]
    assert main(doctor) == 1
    with serving("--data", str(folder), "--http", "127.0.0.1:0") as node:
        where = ["--connect", node.urls["tcp"]]
        status, answer = call(node, "GET", "/ready")
        assert status == 503 and "catalogue.sqlite3" in answer
        assert "millpond_damages 1" in call(node, "GET", "/metrics")[1]
        capfd.readouterr()
        assert main(["info", *where]) == 0 and main(["ping", *where]) == 0
        assert "damaged      1 damage, " in capfd.readouterr().out
        assert main(["doctor", "--json", *where]) == 1
        findings = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
        texts = [each["text"] for each in findings if each["level"] == "fail"]
        assert any("1 damage in the data folder" in text for text in texts)
        assert any("catalogue.sqlite3: " in text for text in texts)
        for name in ("new", "old", "never"):
            assert call(node, "GET", f"/v1/streams/{name}/records?seq_num=0")[0] in (500, 503)
            assert main(["put", f"channel/{name}", "y", *where]) == 1
            assert main(["stream", "create", name, *where]) == 1
        for path in ("/v1/streams", "/v1/basins", "/v1/access-tokens"):
            assert call(node, "GET", path)[0] in (500, 503), path
        assert main(["stream", "ls", *where]) == 1 and main(["topic", "ls", *where]) == 1
    assert main([*doctor, "--repair-all"]) == 1
    assert main(doctor) == 0
    with serving("--data", str(folder), "--http", "127.0.0.1:0") as node:
        where = ["--connect", node.urls["tcp"]]
        assert node.ready["damaged"] == 0 and call(node, "GET", "/ready")[0] == 200
        main(["stream", "create", "new", *where])
        status, answer = append(node, "new", 1)
        assert status == 200 and json.loads(answer)["start"]["seq_num"] >= 2**40
        assert main(["put", "channel/new", "y", *where]) == 0


def test_a_stream_that_only_the_lost_segment_had_begins_above_its_records(tmp_path: Path) -> None:
    folder = written(tmp_path / "data", is_stopped=False)
    last_segment_removed(folder)
    assert main(["doctor", "--data", str(folder), "--repair-all"]) == 1
    with serving("--data", str(folder), "--http", "127.0.0.1:0") as node:
        main(["stream", "create", "new", "--connect", node.urls["tcp"]])
        status, answer = append(node, "new", 1)
        assert status == 200 and json.loads(answer)["start"]["seq_num"] >= RECORDS
