"""`millpond backup` and `restore`: a whole node at one moment, while it serves, and nothing that
looks whole and is not."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

import millpond
from millpond import Config, Node
from millpond.node.backup import service
from millpond.node.cli.main import main
from millpond.node.data_folder import FolderLock
from millpond.sync import connect
from tests.node.folders import empty_wal, flip, partition_of, rows, stopped
from tests.node.processes import ROOT, command, environment, serving

JOBS, CHAT, STREAM = "jobs/mail", "chat/1", "orders"
BOX = b"box"
LIMIT_S = 60.0


def quiet(folder: Path, **more: object) -> Config:
    off = dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off")
    return Config(data=str(folder), p2p="127.0.0.1:0", drain_timeout_s=0.5, **off, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, that of a node with an identity and a channel in a file of its own, and
    with `backup`, its backup. The node is stopped."""
    folder = tmp_path_factory.mktemp("original")
    with stopped(folder / "data") as store:
        store.write(BOX, rows(600))
    empty_wal(partition_of(folder / "data", BOX))
    with serving("--data", str(folder / "data")) as node:
        made = backed_up(node.urls["tcp"], folder / "backup")
        assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy of the data folder."""
    shutil.copytree(original / "data", tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def backup(original: Path, tmp_path: Path) -> Path:
    """A copy of the backup."""
    shutil.copytree(original / "backup", tmp_path / "backup")
    return tmp_path / "backup"


def backed_up(url: str, to: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return command("backup", "--to", str(to), "--connect", url, *words)


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end, "it never came about"
        time.sleep(0.01)


class Traffic:
    """Producers and a consumer of channels, and a writer of a stream, with what each was told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.put: list[bytes] = []
        self.consumed: set[bytes] = set()
        self.appended = 0
        self.is_over = False
        self.is_busy = anyio.Event()

    async def produce(self) -> None:
        async with millpond.connect(self.url, channel=JOBS, role="producer") as channel:
            while not self.is_over:
                data = b"%06d %s" % (len(self.put), b"." * 500)
                await channel.put(data, ttl=3600)
                self.put.append(data)
                if len(self.put) > 300 and len(self.consumed) > 100:
                    self.is_busy.set()

    async def consume(self) -> None:
        async with millpond.connect(self.url, channel=JOBS, role="consumer", window=1) as channel:
            async for message in channel:
                if len(self.consumed) % 2 and len(self.put) < len(self.consumed) + 20:
                    await anyio.sleep(0.01)
                await message.ack()
                self.consumed.add(bytes(message.data))
                if self.is_over:
                    return

    async def append(self) -> None:
        async with millpond.connect(self.url, channel="any") as channel:
            stream = channel.streams.stream(STREAM)
            await stream.create()
            while not self.is_over:
                await stream.append(b"%06d" % self.appended)
                self.appended += 1


async def test_a_backup_beside_writers_and_consumers_is_one_moment_after_its_start(
    tmp_path: Path,
) -> None:
    """Every message acknowledged before is there, none consumed before comes back, and the rest is
    a beginning of what was written later."""
    small = environment(MILLPOND_JOURNAL_BYTES_MAX=str(2**20), MILLPOND_SEGMENT_BYTES=str(2**18))
    with serving("--data", str(tmp_path / "data"), env=small) as node:
        traffic = Traffic(node.urls["tcp"])
        async with anyio.create_task_group() as tasks:
            for work in (traffic.produce, traffic.consume, traffic.append):
                tasks.start_soon(work)
            with anyio.fail_after(LIMIT_S):
                await traffic.is_busy.wait()
            put, consumed, appended = len(traffic.put), set(traffic.consumed), traffic.appended
            made = await anyio.to_thread.run_sync(
                lambda: backed_up(node.urls["tcp"], tmp_path / "backup", "--json")
            )
            assert made.returncode == 0, made.stderr
            assert len(traffic.put) > put, "the node went on"
            traffic.is_over = True
        assert json.loads(made.stdout)["damages"] == []
    restored = command("restore", "--from", str(tmp_path / "backup"), "--data", str(tmp_path / "r"))
    assert restored.returncode == 0, restored.stderr
    assert main(["doctor", "--data", str(tmp_path / "r")]) in (0, 1)  # 1: no node answers
    with serving("--data", str(tmp_path / "r")) as node:
        async with millpond.connect(node.urls["tcp"], channel=JOBS, role="consumer") as channel:
            ids = await channel.list()
            kept = [bytes(await channel.get(each)) for each in ids]
            records: list[bytes] = []
            while some := await channel.streams.stream(STREAM).read(len(records), 1000):
                records += (bytes(each.data) for each in some)
    assert kept == sorted(kept) and not consumed & set(kept)
    last = max([*kept, *traffic.put[:put]])
    there = traffic.put[: traffic.put.index(last) + 1]
    missing = set(there) - set(kept)
    assert missing <= traffic.consumed, "what is missing was consumed"
    assert set(traffic.put[:put]) - traffic.consumed <= set(kept)
    assert records == [b"%06d" % number for number in range(len(records))]
    assert len(records) >= appended


def test_doctor_finds_a_restored_folder_sound(
    original: Path, backup: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = files(backup)
    assert main(["restore", "--from", str(backup), "--check"]) == 0
    assert files(backup) == before, "a check writes nothing"
    assert main(["restore", "--from", str(backup), "--data", str(tmp_path / "new")]) == 0
    said = capfd.readouterr().out
    assert "600 messages" in said and "never start the original again beside it" in said
    main(["doctor", "--data", str(tmp_path / "new"), "--json"])
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    levels = {each["check"]: each["level"] for each in lines}
    assert [levels[name] for name in ("journal", "catalogue", "partitions", "damage")] == ["ok"] * 4
    for name in ("identity.key", "local.key"):
        assert (tmp_path / "new" / name).read_bytes() == (original / "data" / name).read_bytes()
        assert (tmp_path / "new" / name).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "new" / "operator.cookie").exists()
    with (
        serving("--data", str(tmp_path / "new")) as node,
        connect(node.urls["tcp"], channel="box", role="consumer", window=0) as channel,
    ):
        assert len(channel.list()) == 600


def test_the_original_that_runs_keeps_its_identity_for_itself(
    original: Path, backup: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, new = original / "data", tmp_path / "new"
    words = ["restore", "--from", str(backup), "--data", str(new)]
    lock = FolderLock(folder)
    try:
        assert main(words) == 1
        assert "two nodes must not have one identity" in capfd.readouterr().err
        assert not new.exists()
        assert main([*words, "--new-identity"]) == 0
    finally:
        lock.release()
    assert not {name for name in files(new) if "key" in name or name == "peers.db"}
    with (
        serving("--data", str(new)) as copy,
        connect(copy.urls["tcp"], channel="box", role="both", window=0) as channel,
    ):
        assert len(channel.list()) == 600
        assert channel.put(b"x").id
    assert (new / "identity.key").read_bytes() != (folder / "identity.key").read_bytes()
    shutil.rmtree(new)
    assert main(words) == 0, "it has ended"


@pytest.mark.parametrize("name", ["partitions", "journal", "identity.key", "manifest.json"])
def test_a_damaged_backup_is_named_and_not_restored(
    name: str, backup: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if name == "manifest.json":
        victim = backup / name
        victim.write_text(victim.read_text().replace('"messages": 600', '"messages": 601'))
    else:
        found = backup / "data" / name
        victim = found if found.is_file() else next(p for p in found.rglob("*") if p.is_file())
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    for more in (["--check"], ["--data", str(tmp_path / "new")]):
        assert main(["restore", "--from", str(backup), *more]) == 1
        assert str(victim) in (said := capfd.readouterr().err) and "damaged" in said
    assert not (tmp_path / "new").exists()
    victim.unlink()
    assert main(["restore", "--from", str(backup), "--check"]) == 1


def test_damage_of_the_node_is_told_and_kept(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup"
    flip(partition_of(folder, BOX), b"message 77 ")
    with serving("--data", str(folder)) as node:
        made = backed_up(node.urls["tcp"], backup)
    assert made.returncode == 1
    assert b"damaged in the node and in the backup: channel 'box'" in made.stderr
    assert main(["restore", "--from", str(backup), "--data", str(tmp_path / "new")]) == 1
    assert "damaged: channel 'box'" in capfd.readouterr().err
    words = ["doctor", "--data", str(tmp_path / "new"), "--repair", "box"]
    assert main(words) == 1  # one message is lost
    assert "599" in capfd.readouterr().out


def test_folders_that_a_backup_does_not_go_to(
    folder: Path, backup: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with serving("--data", str(folder)) as node:
        url = node.urls["tcp"]
        for to, reason in (
            (tmp_path / "full", b"is not empty"),
            (tmp_path / "file", b"is a file"),
            (folder / "backup", b"within one another"),
            (tmp_path, b"within one another"),
            (backup, b"holds a backup"),
        ):
            made = backed_up(url, to)
            assert made.returncode == 1 and reason in made.stderr, made.stderr
    assert files(tmp_path / "full") == {"file"}
    with serving() as node:
        made = backed_up(node.urls["tcp"], tmp_path / "none")
        assert made.returncode == 1 and b"not its data folder" in made.stderr
    for target in ("full", "file", "backup/data"):
        words = ["restore", "--from", str(tmp_path / "backup"), "--data", str(tmp_path / target)]
        assert main(words) == 1
    assert main(["restore", "--from", str(tmp_path / "full"), "--check"]) == 1
    assert "there is no backup" in capfd.readouterr().err
    assert (tmp_path / "full" / "file").read_text() == "mine"


@pytest.mark.parametrize(("rights", "code"), [("all", 5), ("all,operator", 0)])
def test_only_the_operator_gets_a_backup(
    rights: str, code: int, folder: Path, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    words = ("token", "new", "--rights", rights, "--data", str(folder))
    token.write_bytes(command(*words, env=environment()).stdout)
    token.chmod(0o600)
    with serving("--data", str(folder)) as node:
        made = backed_up(node.urls["tcp"], tmp_path / "backup", "--token-file", str(token))
        assert made.returncode == code, made.stderr
    assert (tmp_path / "backup").exists() is (code == 0)


@contextmanager
def hung_node(tmp_path: Path, after: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A node whose `fsync` does not return, after so many that did, while the file `hang` is there:
    what it syncs so are backups and small files, not its journal."""
    words = ("serve", "--p2p", "127.0.0.1:0", "--ws", "off", "--json", "--drain-timeout", "0.2")
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.node.hung_disk",
            "fsync",
            *words,
            "--data",
            tmp_path / "data",
        ],
        cwd=ROOT,
        env=environment(HANG=str(tmp_path / "hang"), HANG_AFTER=str(after)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            listeners = json.loads(process.stdout.readline())["listeners"]
            yield process, f"tcp://{listeners['p2p']}"
        finally:
            process.kill()


@pytest.mark.crash
@pytest.mark.parametrize("victim", ["node", "command"])
@pytest.mark.parametrize(
    ("after", "there"), [(0, "manifest.json.unfinished.new"), (8, "data/journal")]
)
def test_a_kill_in_the_middle_leaves_nothing_that_looks_whole(
    victim: str,
    after: int,
    there: str,
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    backup = tmp_path / "backup"
    with hung_node(tmp_path, after) as (node, url):
        (tmp_path / "hang").touch()
        with subprocess.Popen(
            [sys.executable, "-m", "millpond", "backup", "--to", backup, "--connect", url],
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                wait_until(lambda: (backup / there).exists())
                (node if victim == "node" else process).send_signal(signal.SIGKILL)
                (tmp_path / "hang").unlink()
                assert process.wait(LIMIT_S) != 0
            finally:
                process.kill()
        if victim == "command":
            with connect(url, channel="box", role="consumer", window=0) as channel:
                assert len(channel.list()) == 600, "the node goes on"
            # The node may write the rest meanwhile: nobody verifies it.
        assert not (backup / "manifest.json").exists()
        assert main(["restore", "--from", str(backup), "--data", str(tmp_path / "new")]) == 1
        assert "backup" in capfd.readouterr().err and not (tmp_path / "new").exists()
        if victim == "command":
            end = time.monotonic() + LIMIT_S
            while (made := backed_up(url, backup)).returncode != 0:
                assert b"another backup" in made.stderr and time.monotonic() < end, made.stderr
    if victim == "node":
        with serving("--data", str(folder)) as again:
            made = backed_up(again.urls["tcp"], backup)
            assert made.returncode == 0, made.stderr
    assert main(["restore", "--from", str(backup), "--check"]) == 0


async def test_a_full_disk_of_the_backup_ends_it_and_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    async with Node(quiet(folder)) as node:
        url = f"tcp://{node.listeners['p2p']}"
        system, count = os.fsync, 0

        def full(fd: int) -> None:
            nonlocal count
            if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(backup / "data"):
                count += 1
                if count > 4:
                    raise OSError(errno.ENOSPC, "No space left on device")
            system(fd)

        monkeypatch.setattr(os, "fsync", full)
        made = await anyio.to_thread.run_sync(backed_up, url, backup)
        assert made.returncode == 1 and b"No space left" in made.stderr
        assert count > 4 and not backup.exists()
        monkeypatch.setattr(os, "fsync", system)
        made = await anyio.to_thread.run_sync(backed_up, url, backup)
        assert made.returncode == 0, made.stderr


async def test_a_backup_that_nobody_asks_for_is_cancelled(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    monkeypatch.setattr(service, "ASKED_S_MAX", 0.0)
    monkeypatch.setattr(service, "WATCH_S", 0.01)
    system = os.fsync

    def slow(fd: int) -> None:
        time.sleep(0.1)
        system(fd)

    async with Node(quiet(folder)) as node:
        monkeypatch.setattr(os, "fsync", slow)
        start = {"action": "start", "to": str(backup), "nonce": "1"}
        url = f"tcp://{node.listeners['p2p']}"
        async with millpond.connect(url, channel="box", window=0) as channel:
            answer = await channel.admin(16, start)
            with anyio.fail_after(LIMIT_S):
                while answer["state"] == "copying":
                    await anyio.sleep(0.1)
                    answer = await channel.admin(16, {"nonce": "another"})
        assert answer["state"] == "failed" and "cancelled" in answer["error"]
        assert not backup.exists()


def test_a_restoration_that_did_not_end_is_not_served(
    backup: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    words = ["restore", "--from", str(backup), "--data", str(new)]
    assert main(words) == 0
    (new / "restore.unfinished").touch()  # as a kill leaves it
    (new / "journal" / "half").write_text("x")
    served = command("serve", "--data", str(new), "--p2p", "127.0.0.1:0")
    assert served.returncode == 1 and b"did not end" in served.stderr
    assert main(["doctor", "--data", str(new)]) == 1
    assert "did not end" in capfd.readouterr().out
    assert main(words) == 0
    assert not (new / "journal" / "half").exists()
