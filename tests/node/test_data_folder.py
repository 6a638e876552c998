"""The lock of a data folder, and the names that a folder may have."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millpond.actors.store.filesystem import OsDisk
from millpond.node.data_folder import FolderInUse, FolderLock
from tests.node.processes import command, serving

NOT_UTF8 = os.fsdecode(b"pond-\xff")


@contextmanager
def held(folder: Path, written: bytes) -> Iterator[None]:
    """A process has the lock, and has not written its number yet: another one's is there."""
    folder.mkdir(exist_ok=True)
    (folder / "lock").write_bytes(written)
    fd = os.open(folder / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield
    os.close(fd)


def refusal(folder: Path) -> FolderInUse:
    with pytest.raises(FolderInUse) as caught:
        FolderLock(folder)
    return caught.value


def test_the_holder_of_the_folder_is_named(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path)) as node:
        told = refusal(tmp_path)
        assert told.holder == f"process {node.process.pid}"
        assert str(told).startswith(f"{tmp_path} is in use by process {node.process.pid}: stop")


@pytest.mark.parametrize("whose", ["one that is gone", "one that lives"])
def test_the_number_of_a_former_process_is_never_shown(tmp_path: Path, whose: str) -> None:
    """A number may have been given to somebody else by now, who must not be stopped for it."""
    with serving("--data", str(tmp_path)) as node:
        node.process.kill()
    assert (tmp_path / "lock").read_bytes().strip() == b"%d" % node.process.pid
    number = node.process.pid if whose == "one that is gone" else os.getppid()
    with held(tmp_path, b"%-15d\n" % number):
        told = refusal(tmp_path)
        assert told.holder == "another process" and str(number) not in str(told)
    FolderLock(tmp_path).release()


@pytest.mark.parametrize("written", [b"", b"no number\n", b"\xff" * 16])
def test_a_lock_file_of_any_content_is_no_obstacle(tmp_path: Path, written: bytes) -> None:
    with held(tmp_path, written):
        assert refusal(tmp_path).holder == "another process"
    lock = FolderLock(tmp_path)
    assert refusal(tmp_path).holder == f"process {os.getpid()}"
    lock.release()


def test_a_folder_whose_name_is_not_utf8_is_refused_in_one_line(tmp_path: Path) -> None:
    done = command("serve", "--data", str(tmp_path / NOT_UTF8), "--p2p", "127.0.0.1:0")
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert "data folder" in line and "its name is not UTF-8; rename it" in line
    assert not (tmp_path / NOT_UTF8).exists()


@pytest.mark.parametrize("name", ["a b?c#d%41", "\u00fc", NOT_UTF8])
def test_sqlite_opens_the_file_of_exactly_that_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"")
    connection = OsDisk().connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert list(tmp_path.iterdir()) == [path] and path.stat().st_size > 0
