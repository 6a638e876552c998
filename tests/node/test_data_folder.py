"""The lock of a data folder, and the names that a folder may have."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.actors.messages import Durability
from millpond.actors.store.changes import Snapshot, StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.settings import StoreSettings
from millpond.node.cli.main import main
from millpond.node.clock import ClockReading
from millpond.node.clock_file import store_reading
from millpond.node.data_folder import (
    FolderInUse,
    FolderLock,
    OfflineRuntime,
    finish_in_thread,
    offline_store,
    was_used,
)
from tests.node.processes import ANY_PORT, command, command_here, environment, serving

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


def _delete(lock: Path) -> None:
    lock.unlink()


def _create_again(lock: Path) -> None:
    lock.unlink()
    lock.write_bytes(b"%-15d\n" % os.getppid())


def _replace_by_a_copy(lock: Path) -> None:
    lock.with_name("copy").write_bytes(lock.read_bytes())
    lock.with_name("copy").replace(lock)


TAMPERINGS = pytest.mark.parametrize("tamper", [_delete, _create_again, _replace_by_a_copy])


@TAMPERINGS
def test_a_folder_whose_lock_file_was_deleted_stays_locked(
    tmp_path: Path, tamper: Callable[[Path], None]
) -> None:
    """Two nodes on one folder destroy it, so no file decides that can be deleted."""
    with serving("--data", str(tmp_path)) as node:
        tamper(tmp_path / "lock")
        before = sorted(tmp_path.iterdir())
        assert refusal(tmp_path).holder == f"process {node.process.pid}"
        env = environment()
        for words in (
            ("serve", "--data", str(tmp_path), "--p2p", "127.0.0.1:0", "--ws", "off"),
            ("doctor", "--data", str(tmp_path), "--repair", "lobby"),
            ("export", "--data", str(tmp_path), "lobby"),
        ):
            done = command_here(*words, env=env)
            assert done.returncode not in (0, 2), done
            assert b"is in use by process %d" % node.process.pid in done.stderr, done
        assert sorted(tmp_path.iterdir()) == before
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(60) == 0
    FolderLock(tmp_path).release()


@TAMPERINGS
def test_a_node_is_refused_while_a_command_has_the_folder(
    tmp_path: Path, tamper: Callable[[Path], None]
) -> None:
    """The other order: `doctor --repair` and `import` hold the same lock."""
    lock = FolderLock(tmp_path)
    tamper(tmp_path / "lock")
    done = command("serve", "--data", str(tmp_path), *ANY_PORT)
    assert done.returncode == 1
    assert f"is in use by process {os.getpid()}" in done.stderr.decode()
    lock.release()
    FolderLock(tmp_path).release()


def test_a_lock_file_that_was_deleted_meanwhile_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that locks no folders; the file is deleted between open and lock."""
    flock, deletions = fcntl.flock, [tmp_path / "lock"] * 2

    def without_folders(fd: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, "a file system like NFS")
        if deletions:
            deletions.pop().unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", without_folders)
    lock = FolderLock(tmp_path)
    assert not deletions
    assert refusal(tmp_path).holder == f"process {os.getpid()}"
    lock.release()
    FolderLock(tmp_path).release()


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


def test_what_was_written_in_the_last_moment_is_there_after_a_close(tmp_path: Path) -> None:
    """A group of several writes waits for others, unless the store ends."""
    runtime = OfflineRuntime(Random(1), lambda: 0.0)
    store = DurableStore(tmp_path, OsDisk(), StoreSettings(), runtime, lambda name: Durability.DISK)
    store.open()
    for name in (b"a", b"b", b"c"):
        store.write(name, [StoredMessage(1, 1, 60, 60.0, b"late")])
    store.close()
    with offline_store(tmp_path) as again:
        for name in (b"a", b"b", b"c"):
            found = again.load(name)
            assert isinstance(found, Snapshot)
            assert [row.data for row in found.rows] == [b"late"]


BEGUN = ["clock.json", "journal", "partitions", "damaged", "catalogue.sqlite3.new"]
"""The order in which earlier versions made what is in a folder before its catalog."""


def begin(folder: Path, count: int, ids_until: float = 0.0) -> None:
    """The first `count` steps of a first start."""
    folder.mkdir()
    FolderLock(folder).release()
    store_reading(folder, ClockReading(time.time(), ids_until=ids_until))
    for name in BEGUN[1:count]:
        if "." in name:
            (folder / name).write_bytes(b"half")
        else:
            (folder / name).mkdir()


@pytest.mark.parametrize("count", range(1, len(BEGUN) + 1))
def test_a_first_start_that_was_interrupted_lost_nothing(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "data"
    begin(folder, count)
    assert main(["doctor", "--data", str(folder)]) == 0
    with serving("--data", str(folder)) as node:
        assert node.ready["damaged"] == 0
        assert main(["put", "chat", "x", "--connect", node.urls["tcp"]]) == 0


@pytest.mark.parametrize("left", ["identity.key", "journal/x", "partitions/ab", "ids"])
def test_a_folder_in_which_more_is_left_lost_its_catalog(tmp_path: Path, left: str) -> None:
    folder = tmp_path / "data"
    begin(folder, 4, ids_until=time.time() if left == "ids" else 0.0)
    if left != "ids":
        (folder / left).write_bytes(b"")
    assert was_used(folder)


async def test_an_error_after_the_time_is_over_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_over = threading.Event()

    def work() -> None:
        is_over.wait(60)
        raise OSError("disk gone")

    assert not await finish_in_thread(work, 0.01)
    (thread,) = (each for each in threading.enumerate() if each.name == "millpond-close")
    is_over.set()
    await anyio.to_thread.run_sync(thread.join, 60)
    assert "disk gone" in caplog.text
