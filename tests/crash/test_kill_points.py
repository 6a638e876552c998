"""The traps of the victim: they spring in the call that they were told, and as far into it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.crash.kill_points import DIED
from tests.crash.plan import INSIDE, OUTSIDE_EVERY, Death, Phase, ends
from tests.node.processes import LIMIT_S, ROOT

PROGRAM = """
import sqlite3, sys
from pathlib import Path
from millpond.actors.store.filesystem import OsDisk
from tests.crash.kill_points import CountedDisk, KillPoint
from tests.crash.plan import Death
folder = Path(sys.argv[1])
sqlite3.connect(folder / "partitions" / "p").execute("CREATE TABLE t (n)").connection.close()
disk = CountedDisk(OsDisk(), KillPoint(folder, Death.parse(sys.argv[2])))
file = disk.create(folder / "journal" / "1", 64)
for at in range(3):
    file.write(b"0123456789", at * 10)
    file.sync()
disk.install(folder / "journal" / "2", b"abcdefgh")
rows = disk.connect(folder / "partitions" / "p")
rows.execute("BEGIN")
rows.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(10)])
rows.execute("COMMIT")
disk.unlink(folder / "journal" / "1")
print("alive")
"""


def die(folder: Path, death: str) -> Path:
    """Run the program into its death, and give the folder of its journal."""
    for name in ("journal", "partitions"):
        (folder / name).mkdir()
    words = [sys.executable, "-c", PROGRAM, str(folder), death]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert f"{DIED}{death} ".encode() in done.stderr and not done.stdout
    return folder / "journal"


def test_a_write_comes_half_way(tmp_path: Path) -> None:
    journal = die(tmp_path, "write:journal:2:middle")
    assert (journal / "1").read_bytes() == b"012345678901234" + bytes(49)


@pytest.mark.parametrize(("phase", "written"), [("before", 10), ("during", 10), ("after", 10)])
def test_a_sync_is_met_in_each_phase(tmp_path: Path, phase: str, written: int) -> None:
    journal = die(tmp_path, f"sync:journal:1:{phase}")
    assert (journal / "1").read_bytes().rstrip(b"\0") == b"0123456789"[:written]


def test_a_new_file_is_there_and_empty(tmp_path: Path) -> None:
    assert (die(tmp_path, "create:journal:1:middle") / "1").read_bytes() == b""


def test_an_installed_file_is_there_only_under_its_other_name(tmp_path: Path) -> None:
    journal = die(tmp_path, "install:journal:1:middle")
    assert (journal / "2.new").read_bytes() == b"abcd" and not (journal / "2").exists()


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_file_is_unlinked_or_not(tmp_path: Path, phase: str) -> None:
    assert (die(tmp_path, f"unlink:any:1:{phase}") / "1").exists() is (phase == "before")


@pytest.mark.parametrize(
    ("death", "count"),
    [
        ("executemany:partitions:1:middle", 0),
        ("commit:partitions:1:before", 0),
        ("commit:partitions:1:after", 10),
    ],
)
def test_a_transaction_is_there_or_not(tmp_path: Path, death: str, count: int) -> None:
    die(tmp_path, death)
    with sqlite3.connect(tmp_path / "partitions" / "p") as rows:
        assert rows.execute("SELECT count(*) FROM t").fetchone() == (count,)
    rows.close()


def test_a_plan_holds_every_kind_and_is_the_same_for_the_same_seed() -> None:
    """A third of the kills or more are meant to hit inside; one round of kinds takes 15 kills."""
    kills = OUTSIDE_EVERY * len(INSIDE) // (OUTSIDE_EVERY - 1)
    planned = list(ends(7, kills))
    assert planned == list(islice(ends(7, 10 * kills), kills))
    deaths = [end.death for end in planned if end.death is not None]
    assert len(deaths) >= kills / 2
    assert {(each.kind, each.place) for each in deaths} == {(kind[0], kind[1]) for kind in INSIDE}
    assert [Death.parse(str(each)) for each in deaths] == deaths


def test_what_is_no_death_is_refused() -> None:
    with pytest.raises(ValueError):
        Death.parse("write:journal:1:never")
    assert Death.parse("write:any:1:during").phase is Phase.DURING
