"""`millpond doctor --data` and `--repair`: damage is found, named, and costs no other channel."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from millpond import Config, Node
from millpond.actors.messages import Mode
from millpond.actors.store.changes import MessageRemoved, ModeSet
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.repair.salvage import read_partition
from millpond.node.cli.main import main
from millpond.sync import connect
from tests.node.folders import (
    FIRST_ID,
    empty_wal,
    flip,
    partition_of,
    row,
    rows,
    segments,
    stopped,
)
from tests.node.processes import command, serving

pytestmark = pytest.mark.crash

ANY = "127.0.0.1:0"
COUNT = 1000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two channels in files, two in the journal."""
    folder = tmp_path_factory.mktemp("whole") / "data"
    with stopped(folder) as store:
        store.write(b"in/file", rows(COUNT))
        store.write(b"other/file", rows(COUNT, 10_000))
        store.write(b"in/journal", rows(29, 20_000))
        store.write(b"other/journal", rows(29, 30_000))
    for name in (b"in/file", b"other/file"):
        empty_wal(partition_of(folder, name))
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return shutil.copytree(whole, tmp_path / "data")


@pytest.fixture
def damaged(folder: Path) -> Path:
    """A byte of a message is wrong in a file, and one in the midst of the journal."""
    flip(partition_of(folder, b"in/file"), b"message 777 ")
    [segment] = [each for each in segments(folder) if b"message 20012 " in each.read_bytes()]
    flip(segment, b"message 20012 ")
    return folder


class Told:
    def __init__(self, code: int, out: str) -> None:
        self.code = code
        self.findings = [json.loads(line) for line in out.splitlines()]

    def of(self, check: str) -> list[dict[str, str]]:
        return [each for each in self.findings if each["check"] == check]

    def text(self, check: str) -> str:
        [finding] = self.of(check)
        return finding["text"]

    def level(self, check: str) -> str:
        [finding] = self.of(check)
        return finding["level"]


@pytest.fixture
def doctor(capfd: pytest.CaptureFixture[str]) -> Iterator[object]:
    def doctor(folder: Path) -> Told:
        capfd.readouterr()
        code = main(["doctor", "--json", "--data", str(folder)])
        return Told(code, capfd.readouterr().out)

    return doctor


def contents(folder: Path) -> dict[str, str]:
    files = (each for each in folder.rglob("*") if each.is_file() and each.name != "lock")
    return {
        str(each.relative_to(folder)): sha256(each.read_bytes()).hexdigest()
        for each in files
        if not each.name.endswith("-shm")
    }


def served(folder: Path, name: str) -> list[bytes]:
    """The messages that a node on the folder has of a channel."""
    with serving("--data", str(folder)) as node:
        with connect(node.urls["tcp"], channel=name, role="consumer", window=0) as channel:
            return [channel.get(each) for each in channel.ids()]


def test_a_folder_that_is_well(folder: Path, doctor):
    before = contents(folder)
    told = doctor(folder)
    assert told.code == 0
    assert {each["level"] for each in told.findings} == {"ok"}
    assert "p50" in told.text("disk sync") and "GiB free" in told.text("disk space")
    assert told.text("partitions").startswith("2 files read")
    assert "segments" in told.text("journal")
    assert contents(folder) == before


def test_looking_changes_nothing_after_a_kill(tmp_path: Path, doctor):
    """A copy of a folder in use is what a killed node leaves: nothing is tidied up by looking."""
    used, left = tmp_path / "used", tmp_path / "left"
    with stopped(used) as store:
        store.write(b"box", rows(COUNT))
        shutil.copytree(used, left)
    before = contents(left)
    assert any(name.endswith("-wal") for name in before)
    assert doctor(left).code == 0
    assert contents(left) == before


def test_damage_is_a_failure_that_names_the_channel_and_what_to_do(damaged: Path, doctor):
    before = contents(damaged)
    told = doctor(damaged)
    assert told.code == 1
    texts = sorted(each["text"] for each in told.of("damage"))
    assert [each["level"] for each in told.of("damage")] == ["fail", "fail"]
    assert "'in/file'" in texts[0] and str(FIRST_ID + 777) in texts[0]
    assert f"--data {damaged} --repair in/file" in texts[0]
    assert "'in/journal'" in texts[1] and ".journal at byte" in texts[1]
    assert contents(damaged) == before


def test_the_other_channels_of_a_damaged_folder_are_served(damaged: Path):
    with serving("--data", str(damaged)) as node:
        assert node.ready["damaged"] == 1  # that of the file is seen when it is read
        for name, count in (("other/file", COUNT), ("other/journal", 29)):
            with connect(node.urls["tcp"], channel=name, window=0) as channel:
                assert len(list(channel.ids())) == count
                channel.put(b"one more")
        for name in ("in/file", "in/journal"):
            for words in (["list", name], ["put", name, "x"], ["export", name]):
                assert main([*words, "--connect", node.urls["tcp"]]) == 1
        with connect(node.urls["tcp"], channel="asking", window=0) as asking:
            store = asking.admin(1, {})["store"]
        assert store["counters"]["damaged"] == 2
    with serving("--data", str(damaged)) as node:
        assert node.ready["damaged"] == 2


def test_what_a_node_loads_from_files_and_journal_can_be_exported(folder: Path, tmp_path: Path):
    from_node, from_folder = tmp_path / "node.jsonl", tmp_path / "folder.jsonl"
    for name in ("other/file", "other/journal"):
        with serving("--data", str(folder)) as node:
            assert main(["export", name, "-o", str(from_node), "--connect", node.urls["tcp"]]) == 0
        assert main(["export", name, "-o", str(from_folder), "--data", str(folder)]) == 0
        assert from_node.read_bytes() == from_folder.read_bytes()
        assert from_node.read_bytes().count(b"\n") == (COUNT if name == "other/file" else 29)


def test_a_piece_of_the_journal_whose_name_is_lost(damaged: Path, doctor):
    """The channels that had messages in that segment are refused: any of them may miss one."""
    [segment] = [each for each in segments(damaged) if b"message 30012 " in each.read_bytes()]
    content = segment.read_bytes()
    at = content.rindex(b"other/journal", 0, content.index(b"message 30012 "))
    segment.write_bytes(content[:at] + b"X" + content[at + 1 :])
    texts = [each["text"] for each in doctor(damaged).of("damage")]
    assert any("'other/journal' is not served" in text for text in texts)
    with serving("--data", str(damaged)) as node:
        with connect(node.urls["tcp"], channel="other/file", window=0) as channel:
            assert channel.list()
        assert main(["list", "other/journal", "--connect", node.urls["tcp"]]) == 1


def test_a_repair_keeps_what_is_good(damaged: Path, doctor, capfd: pytest.CaptureFixture[str]):
    assert main(["doctor", "--data", str(damaged), "--repair", "in/file", "--json"]) == 1
    told = json.loads(capfd.readouterr().out)
    lost = [str(FIRST_ID + 777)]
    assert (told["channel"], told["messages"], told["lost"]) == ("in/file", COUNT - 1, lost)
    assert b"message 776 " in Path(told["moved_to"]).read_bytes()
    assert [each["text"].split("'")[1] for each in doctor(damaged).of("damage")] == ["in/journal"]
    assert main(["doctor", "--data", str(damaged), "--repair", "in/journal"]) == 1
    told_of_journal = capfd.readouterr()
    assert "has 19 messages" in told_of_journal.out and told_of_journal.err == ""
    assert re.search(r"damaged +\d+\.journal at byte", told_of_journal.out)
    assert "lost        what was in that part of the journal" in told_of_journal.out
    assert doctor(damaged).code == 0
    good = [row(number).data for number in range(COUNT) if number != 777]
    assert served(damaged, "in/file") == good
    assert doctor(damaged).code == 0
    # A record of ten is lost as a whole.
    left = [*range(20_000, 20_009), *range(20_019, 20_029)]
    assert served(damaged, "in/journal") == [row(number).data for number in left]
    assert len(served(damaged, "other/file")) == COUNT


def test_a_repair_shows_its_progress_on_a_terminal(
    damaged: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """The pages that were read, of those of the file; nothing of it is left beside the report."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("millpond.node.cli.progress.FIRST_S", 0)
    monkeypatch.setattr("millpond.node.cli.progress.EVERY_S", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    pages = partition_of(damaged, b"in/file").stat().st_size // 4096
    assert main(["doctor", "--data", str(damaged), "--repair", "in/file"]) == 1
    told = capfd.readouterr()
    counts = re.findall(rf"([\d,]+) pages? of {pages:,} read, [\d.]+ MiB", told.err)
    numbers = [int(each.replace(",", "")) for each in counts]
    assert len(numbers) > 10 and numbers == sorted(numbers) and numbers[-1] > pages // 2
    assert told.err.endswith("\r\x1b[K") and "pages" not in told.out


def test_a_node_runs_well_on_a_repaired_folder(damaged: Path):
    with serving("--data", str(damaged)):
        pass  # it finds the damage of the journal, and makes a note of it
    for name in ("in/file", "in/journal"):
        assert command("doctor", "--data", str(damaged), "--repair", name).returncode == 1
    with serving("--data", str(damaged)) as node:
        assert node.ready["damaged"] == 0
        with connect(node.urls["tcp"], channel="in/file", window=0) as channel:
            first = channel.list(limit=1)[0]
            channel.ack(first)
            kept = channel.put(b"new", ttl=3600)
        node.process.kill()
    with serving("--data", str(damaged)) as node:
        assert node.ready["damaged"] == 0
        with connect(node.urls["tcp"], channel="in/file", window=0) as channel:
            ids = list(channel.ids())
    assert len(ids) == COUNT - 1 and ids[-1] == kept.id and ids[0] == first + 1


def test_what_the_journal_has_over_a_damaged_file_is_kept(folder: Path):
    """Acks and puts after the last flush are in neither the old file nor lost."""
    with stopped(folder) as store:
        gone = row(5)
        store.write(
            b"in/file", [MessageRemoved(gone.id, gone.key, None, len(gone.data)), row(40_000)]
        )
    flip(partition_of(folder, b"in/file"), b"message 777 ")
    assert main(["doctor", "--data", str(folder), "--repair", "in/file"]) == 1
    data = served(folder, "in/file")
    assert len(data) == COUNT - 1
    assert data[-1] == row(40_000).data and row(5).data not in data


def test_pages_that_cannot_be_read_cost_what_is_in_them(folder: Path, tmp_path: Path):
    path, random = partition_of(folder, b"in/file"), Random(1)
    content = bytearray(path.read_bytes())
    pages = [12, 13, 25, 38]
    for page in pages:
        start = (page - 1) * 4096
        content[start : start + 4096] = random.randbytes(4096)
    path.write_bytes(content)
    found = read_partition(path, OsDisk(), b"in/file").queue().snapshot.rows
    assert COUNT - 4 * 40 <= len(found) < COUNT
    good = {each.id: each for each in (row(number) for number in range(COUNT))}
    assert all(good[each.id] == each for each in found)


@pytest.mark.parametrize("content", [b"", b"no database at all", os.urandom(20_000)])
def test_a_file_that_is_no_database_is_replaced(folder: Path, content: bytes, doctor):
    path = partition_of(folder, b"in/file")
    path.write_bytes(content)
    told = doctor(folder)
    assert told.code == 1 and "'in/file'" in told.text("damage")
    assert main(["doctor", "--data", str(folder), "--repair", "in/file"]) == 1
    assert doctor(folder).code == 0
    assert served(folder, "in/file") == []


def test_the_mode_and_dead_letters_survive_a_repair(tmp_path: Path):
    folder = tmp_path / "data"
    with stopped(folder) as store:
        store.write(b"jobs", [ModeSet(Mode.QUEUE), *rows(COUNT)[1:]])
    empty_wal(partition_of(folder, b"jobs"))
    flip(partition_of(folder, b"jobs"), b"message 3 ")
    assert main(["doctor", "--data", str(folder), "--repair", "jobs"]) == 1
    with serving("--data", str(folder)) as node:
        with connect(node.urls["tcp"], channel="jobs", role="consumer", window=0) as jobs:
            assert jobs.mode is Mode.QUEUE


def test_a_catalog_that_is_damaged_is_reported_until_everything_is_repaired(folder: Path, doctor):
    """Without it nothing proves that no channel is missing. Of what is there nothing is lost."""
    (folder / "catalogue.copy").unlink()
    (folder / "catalogue.sqlite3").write_bytes(b"nothing")
    for _ in range(2):
        told = doctor(folder)
        assert (told.code, told.level("catalogue")) == (1, "fail")
        assert "--repair-all" in told.text("damage")
    assert main(["doctor", "--data", str(folder), "--repair-all"]) == 1
    assert doctor(folder).code == 0
    assert len(served(folder, "in/file")) == COUNT
    assert doctor(folder).level("catalogue") == "ok"


def test_a_catalog_that_is_lost_after_a_clean_stop_costs_nothing(folder: Path, doctor):
    """The next start has the copy of that stop, and reports that it had to."""
    (folder / "catalogue.sqlite3").unlink()
    for _ in range(2):
        told = doctor(folder)
        assert (told.code, told.level("catalogue"), told.level("damage")) == (1, "fail", "ok")
        assert "the copy of the last clean stop" in told.text("catalogue")
    assert len(served(folder, "in/file")) == COUNT
    told = doctor(folder)
    assert (told.level("catalogue"), told.level("damage")) == ("ok", "fail")
    assert "--repair-all" in told.text("damage")
    main(["doctor", "--data", str(folder), "--repair-all"])
    assert doctor(folder).code == 0


def test_others_who_may_enter_are_a_warning(folder: Path, doctor):
    folder.chmod(0o755)
    told = doctor(folder)
    assert (told.code, told.level("data folder")) == (0, "warn")
    assert f"chmod 700 {folder}" in told.text("data folder")


def test_a_folder_in_use_is_left_to_its_node(folder: Path, doctor):
    with serving("--data", str(folder)) as node:
        told = doctor(folder)
        assert told.code == 0 and not told.of("journal")
        assert str(node.process.pid) in told.text("lock")
        assert main(["doctor", "--data", str(folder), "--repair", "in/file"]) == 1


def test_a_node_that_runs_tells_of_its_folder_and_of_damage(
    damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    """Without --data, on a machine where the node was given its folder by a flag."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    with serving("--data", str(damaged)) as node:
        words = ["doctor", "--json", "--connect", node.urls["tcp"]]
        told = Told(main(words), capfd.readouterr().out)
        assert told.code == 1
        assert str(damaged) in told.text("store") and told.text("data folder") == str(damaged)
        texts = [each["text"] for each in told.of("damage")]
        assert len(texts) == 3
        assert all(f"millpond doctor --data {damaged}`" in each for each in texts)
        assert "2 damages in the data folder; 2 channels are not served" in texts[0]
        assert "'in/file'" in texts[1] and "'in/journal'" in texts[2]
        assert main(["list", "in/journal", "--connect", node.urls["tcp"]]) == 1
        assert (
            "channel 'in/journal' cannot be read; see `millpond doctor`" in capfd.readouterr().err
        )


def test_a_node_that_cannot_write_says_why(tmp_path: Path, capfd):
    with serving("--data", str(tmp_path)):
        pass
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
    with serving("--data", str(tmp_path), preexec_fn=limit) as node:
        assert main(["put", "box", "x", "--connect", node.urls["tcp"]]) == 1
        assert "see `millpond doctor`" in capfd.readouterr().err
        words = ["doctor", "--json", "--connect", node.urls["tcp"]]
        told = Told(main(words), capfd.readouterr().out)
    assert (told.code, told.level("store")) == (1, "fail")
    assert "File too large; free space" in told.text("store")


def _doctor_with_files_of(bytes_max: int, folder: Path) -> Told:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (bytes_max, resource.RLIM_INFINITY))
    done = command("doctor", "--data", str(folder), "--json", preexec_fn=limit)
    return Told(done.returncode, done.stdout.decode())


def test_a_full_disk_does_not_keep_the_files_from_being_verified(tmp_path: Path):
    with stopped(tmp_path / "data") as store:
        store.write(b"box", rows(600))
    told = _doctor_with_files_of(150_000, tmp_path / "data")
    assert told.level("disk sync") == "fail" and "File too large" in told.text("disk sync")
    assert told.text("partitions").startswith("1 files read")
    assert told.level("damage") == "ok"


def test_no_room_for_copies_is_no_damage(folder: Path):
    told = _doctor_with_files_of(50_000, folder)
    assert told.code == 1 and not told.of("damage")
    assert "free space in" in told.of("data folder")[-1]["text"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_folder_of_somebody_else_is_one_line(damaged: Path, capfd):
    for words in (["doctor"], ["export", "in/file"]):
        # Another user may not be able to read the interpreter's own modules: load them before.
        main([*words, "--data", str(damaged)])
        capfd.readouterr()
        os.seteuid(65534)
        try:
            assert main([*words, "--data", str(damaged)]) == 1
        finally:
            os.seteuid(0)
        assert "no permission; run this as its owner" in capfd.readouterr().err


def test_what_cannot_be_repaired_is_told(folder: Path, tmp_path: Path, capfd):
    assert main(["doctor", "--data", str(folder), "--repair", "nobody"]) == 4
    assert "keeps nothing of this name" in capfd.readouterr().err
    assert main(["doctor", "--repair", "nobody"]) == 2
    assert main(["doctor", "--data", str(tmp_path / "absent")]) == 4
    assert main(["doctor", "--data", str(tmp_path)]) == 4
    assert "not the data folder of a node" in capfd.readouterr().err


def test_doctor_looks_at_the_usual_folder(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    monkeypatch.setenv("MILLPOND_CONNECT", "tcp://127.0.0.1:9")
    monkeypatch.setenv("MILLPOND_DATA", str(folder))
    assert main(["doctor"]) == 1  # no node
    assert "2 files read" in capfd.readouterr().out
    monkeypatch.setenv("MILLPOND_DATA", str(tmp_path / "absent"))
    main(["doctor"])
    assert "is created by `millpond serve`" in capfd.readouterr().out
    monkeypatch.setenv("MILLPOND_DURABILITY", "memory")
    main(["doctor"])
    assert "messages are in memory" in capfd.readouterr().out


async def test_info_tells_of_the_store_on_disk(tmp_path: Path) -> None:
    from millpond import connect as connect_async

    for data in (str(tmp_path), ""):
        async with Node(
            Config(p2p=ANY, ws="off", s3p="off", rustlog="off", http="off", data=data),
            rng=Random(1),
        ) as node:
            url = f"tcp://{node.listeners['p2p']}"
            async with connect_async(url, channel="box", window=0) as box:
                await box.put(b"kept")
                store = (await box.admin(1, {}))["store"]
        if not data:
            assert store is None
            continue
        assert store["folder"] == data
        assert store["health"] == {"is_writable": True, "reason": "", "failures": 0}
        counters = store["counters"]
        assert (counters["segments"], counters["files"], counters["damaged"]) == (1, 0, 0)
        assert counters["groups"] >= 1 and counters["syncs"] >= 1 and counters["journal_bytes"] > 0
