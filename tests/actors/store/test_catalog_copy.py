"""The copy of the catalog that a clean stop leaves: a catalog that is lost, damaged or old after it
costs nothing, and a copy that may be old itself is not believed."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.store.catalog_copy import (
    COPY,
    CatalogCopy,
    decode_copy,
    encode_copy,
    write_copy,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.partitions.catalog import CATALOG, Catalog
from tests.actors.store.harness import LAZY, SMALL, Run, copied, run
from tests.actors.store.test_lost_catalogs import (
    LOG,
    QUEUE,
    UNKNOWN,
    check_all_refused,
    chunk,
    row,
    written,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node that was stopped, with one start before that."""
    with run(tmp_path / "data", SMALL) as opened:
        written(opened)
    with run(tmp_path / "data", SMALL) as opened:
        opened.write(LOG, chunk(410))
    return tmp_path / "data"


def removed(folder: Path) -> None:
    (folder / CATALOG).unlink()


def emptied(folder: Path) -> None:
    (folder / CATALOG).write_bytes(b"")


def torn(folder: Path) -> None:
    path = folder / CATALOG
    path.write_bytes(path.read_bytes()[:4096])


def garbled(folder: Path) -> None:
    path = folder / CATALOG
    path.write_bytes(b"nothing" * (path.stat().st_size // 7))


LOSSES = [removed, emptied, torn, garbled]


def check_served(opened: Run) -> None:
    assert opened.log_snapshot(LOG).tail == 420
    assert len(opened.load(QUEUE).rows) == 61
    assert opened.log_snapshot(UNKNOWN).tail == 0, "no name begins above 0"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_catalog_that_is_lost_after_a_clean_stop_costs_nothing(
    folder: Path, loss: Callable[[Path], None]
) -> None:
    with run(folder, LAZY) as opened:
        last_id = opened.store.last_id
    loss(folder)
    with run(folder, LAZY) as opened:
        check_served(opened)
        (damage,) = opened.store.damages
        assert (damage.where, damage.name, damage.is_all) == (CATALOG, None, False)
        assert opened.store.last_id == last_id, "no id is skipped"
        opened.write(QUEUE, row(1000))
    with run(folder, LAZY) as opened:
        assert len(opened.load(QUEUE).rows) == 62


def test_an_older_catalog_is_found_and_replaced(tmp_path: Path, folder: Path) -> None:
    """Also where no segment was begun after it."""
    shutil.copy(folder / CATALOG, tmp_path / "old")
    with run(folder, SMALL) as opened:
        opened.store.save_facts({"instance": 7})
    shutil.copy(tmp_path / "old", folder / CATALOG)
    with run(folder, LAZY) as opened:
        check_served(opened)
        assert [each.where for each in opened.store.damages] == [CATALOG]
        assert opened.store.facts == {"instance": 7}


def test_the_list_in_the_copy_still_proves_what_is_missing(folder: Path) -> None:
    removed(folder)
    file = next((folder / "partitions").glob("*/*.sqlite3"))
    file.unlink()
    with run(folder, LAZY) as opened:
        names = {each.name for each in opened.store.damages}
        assert len(names) == 2 and None in names
        assert not any(each.is_all for each in opened.store.damages)


def test_after_a_kill_there_is_no_copy(folder: Path) -> None:
    """Its start removed that of the stop before."""
    with run(folder, LAZY) as opened:
        assert not (folder / COPY).exists()
        killed = copied(folder, "killed")
        opened.write(LOG, chunk(420))
    (killed / CATALOG).unlink()
    opened = Run(killed, LAZY)
    check_all_refused(opened)
    opened.close()


def test_a_copy_that_is_back_is_not_believed(tmp_path: Path, folder: Path) -> None:
    """Segments that it does not list show that it is old."""
    shutil.copy(folder / COPY, tmp_path / "old")
    with run(folder, LAZY) as opened:
        opened.write(LOG, chunk(420))
        killed = copied(folder, "killed")
    shutil.copy(tmp_path / "old", killed / COPY)
    (killed / CATALOG).unlink()
    for _ in range(2):
        opened = Run(killed, LAZY)
        check_all_refused(opened)
        opened.close()


def test_beside_a_sound_catalog_an_old_copy_counts_for_nothing(
    tmp_path: Path, folder: Path
) -> None:
    shutil.copy(folder / COPY, tmp_path / "old")
    with run(folder, LAZY) as opened:
        opened.write(LOG, chunk(420))
    shutil.copy(tmp_path / "old", folder / COPY)
    with run(folder, LAZY) as opened:
        assert opened.store.damages == [] and opened.log_snapshot(LOG).tail == 430


def test_a_damaged_copy_is_no_copy(folder: Path) -> None:
    data = bytearray((folder / COPY).read_bytes())
    data[5000] ^= 1
    (folder / COPY).write_bytes(data)
    removed(folder)
    opened = Run(folder, LAZY)
    check_all_refused(opened)
    opened.close()


class UnreadableCopy(OsDisk):
    """A disk on which the copy has a bad sector."""

    def read(self, path: Path) -> bytes:
        if path.name == COPY:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return super().read(path)


def test_a_copy_that_cannot_be_read_stops_no_start_with_a_sound_catalog(folder: Path) -> None:
    with run(folder, LAZY, disk=UnreadableCopy()) as opened:
        check_served(opened)
        assert opened.store.damages == []


def test_a_copy_that_is_needed_and_cannot_be_read_now_is_waited_for(folder: Path) -> None:
    """Nothing is made anew meanwhile, which would refuse every name."""
    removed(folder)
    with pytest.raises(OSError, match=COPY):
        Run(folder, LAZY, disk=UnreadableCopy())
    with run(folder, LAZY) as opened:
        check_served(opened)


def test_a_large_catalog_is_not_copied(folder: Path) -> None:
    with closing(Catalog(folder / CATALOG, OsDisk())) as catalog:
        size = (folder / CATALOG).stat().st_size
        assert catalog.copy(size - 1) is None
        copy = catalog.copy(size)
        assert copy is not None and len(copy.data) == size


def test_where_the_disk_is_full_a_stop_leaves_no_part_of_a_copy(tmp_path: Path) -> None:
    old, usual = encode_copy(CatalogCopy(1, b"old")), getrlimit(RLIMIT_FSIZE)
    (tmp_path / COPY).write_bytes(old)
    setrlimit(RLIMIT_FSIZE, (4096, usual[1]))
    try:
        with pytest.raises(OSError):
            write_copy(tmp_path, OsDisk(), CatalogCopy(2, bytes(10_000)))
    finally:
        setrlimit(RLIMIT_FSIZE, usual)
    assert [path.name for path in tmp_path.iterdir()] == [COPY]
    assert (tmp_path / COPY).read_bytes() == old


def test_a_copy_alone_is_no_new_folder(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != COPY:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with run(folder, LAZY) as opened:
        assert {each.name for each in opened.store.damages} >= {LOG, QUEUE}


@given(st.integers(0, 2**64 - 1), st.binary(max_size=100), st.data())
def test_every_copy_is_read_back_and_no_other_bytes(
    generation: int, data: bytes, drawn: st.DataObject
) -> None:
    copy = CatalogCopy(generation, data)
    encoded = encode_copy(copy)
    assert decode_copy(encoded) == copy
    at = drawn.draw(st.integers(0, 8 * len(encoded) - 1))
    flipped = bytearray(encoded)
    flipped[at // 8] ^= 1 << at % 8
    assert decode_copy(bytes(flipped)) is None
    assert decode_copy(encoded[: drawn.draw(st.integers(0, len(encoded) - 1))]) is None


def test_the_bytes_of_a_copy() -> None:
    head = b"MILLPOND CATALOG" + bytes.fromhex("07000000 00000000 9f03fa83")
    assert encode_copy(CatalogCopy(7, b"data")) == head + b"data"
