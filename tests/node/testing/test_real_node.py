"""Nodes on real ports, in threads and processes, as the fixture gives them."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from millpond import sync
from millpond.node.testing import plugin
from millpond.testing import NotReady, RealNode, run_node

LONG_S = 60
millpond_node = plugin.millpond_node


def test_a_blocking_client_and_a_program_share_a_node(millpond_node: RealNode) -> None:
    with sync.connect(millpond_node.url, "notes") as notes:
        notes.put(b"of the test")
        command = [sys.executable, "-m", "millpond", "list", "notes"]
        command += ["--connect", millpond_node.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 1
    with urllib.request.urlopen(f"{millpond_node.http_url}/health", timeout=LONG_S) as health:
        assert health.status == 200
    with sync.connect(millpond_node.ws_url, "notes") as notes:
        assert len(notes.list()) == 1


def test_workers_under_multiprocessing(millpond_node: RealNode) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=put, args=(millpond_node.url,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(LONG_S)
    with sync.connect(millpond_node.url, "notes") as notes:
        assert len(notes.list()) == 2


def put(url: str) -> None:
    with sync.connect(url, "notes") as notes:
        notes.put(b"of a worker")


@pytest.mark.millpond_node(disk=True, ws="off")
def test_a_node_on_disk_is_restarted_at_its_address(millpond_node: RealNode) -> None:
    url = millpond_node.url
    assert "ws" not in millpond_node.listeners
    with sync.connect(url, "notes") as notes:
        kept = notes.put(b"kept")
        millpond_node.restart()
        assert millpond_node.url == url
        assert notes.get(kept.id) == b"kept"


@pytest.mark.millpond_node(disk=True, process=True)
def test_a_process_is_killed_and_loses_nothing(millpond_node: RealNode) -> None:
    with sync.connect(millpond_node.url, "notes") as notes:
        kept = notes.put(b"kept")
        millpond_node.kill()
        with pytest.raises(RuntimeError, match="not running"):
            _ = millpond_node.url
        millpond_node.start()
        assert notes.get(kept.id) == b"kept"


def test_a_thread_cannot_be_killed(millpond_node: RealNode) -> None:
    with pytest.raises(ValueError, match="process=True"):
        millpond_node.kill()
    with pytest.raises(RuntimeError, match="already"):
        millpond_node.start()


def test_what_keeps_a_process_from_starting_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(NotReady, match="file"):
        run_node(process=True, folder=tmp_path / "file").start()


def test_a_node_of_a_parent_is_reached_by_its_children(millpond_node: RealNode) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("there is no fork here")
    program = f"""
import os
from millpond import sync
channel = sync.connect({millpond_node.url!r}, "notes").open()
pid = os.fork()
channel.put(b"x")
if pid:
    os.waitpid(pid, 0)
    print(len(channel.list()))
else:
    os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.stdout == "2\n", done.stderr
