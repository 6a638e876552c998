"""A node whose data folder lost a file or a segment.

Protocols refuse what is lost, in their own form, and serve the rest; `/ready`, `/metrics` and
`doctor` tell of it in the same way.
"""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    "damage", [last_segment_removed, last_segment_zeroed, last_segment_cut_off]
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
            listed = "the stream 'new'" if is_stopped else "the stream '"
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
