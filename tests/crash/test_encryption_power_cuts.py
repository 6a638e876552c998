"""A data folder whose passphrase is set, changed or removed while the power goes: nothing is lost,
and what is finished is finished. On a volume of its own (`volume.py`)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.node.folder_encryption import FolderConversion
from millpond.node.peers.data_key import FolderState, WrongPassphrase, open_folder, read_data_key
from tests.crash.volume import NoVolume, Volume
from tests.node import encrypted_folders as folders
from tests.node.encrypted_folders import LARGE, OTHER_PASSPHRASE, PASSPHRASE, SMALL, history

SMALL_ONE, LARGE_ONE = (SMALL, 11), (LARGE, 59)


def sizes(usual: tuple[int, int], *more: tuple[int, int]) -> pytest.MarkDecorator:
    """The number of records and the step from cut to cut; `more` are for the full run."""
    rest = (pytest.param(*each, marks=pytest.mark.full) for each in (*more, (LARGE, 29)))
    return pytest.mark.parametrize(("count", "step"), [usual, *rest])


class Machine:
    """A folder on a volume, and its copy elsewhere."""

    def __init__(self, parent: Path) -> None:
        self.folder, self.kept = parent / "volume" / "data", parent / "kept"
        self.volume = Volume(parent)
        self.cuts = 0

    def keep(self) -> None:
        """Keep the folder as it is: `cut` begins with it each time."""
        shutil.copytree(self.folder, self.kept)
        self._sync()

    def cut(self, work: Callable[[], object], step: int) -> Iterator[int]:
        """Lose the power at every `step`-th moment of some work, until one comes after its end.
        Then it is lost right after that."""
        number = 1
        while folders.killed_at(number, work, self.volume.cut_power):
            self.volume.power_up()
            self.cuts += 1
            yield number
            folders.restore(self.kept, self.folder)
            self._sync()
            number += step
        self.volume.cut_power()
        self.volume.power_up()
        self.cuts += 1
        yield 0

    def _sync(self) -> None:
        subprocess.run(["sync", "-f", self.folder], check=True)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    try:
        machine = Machine(tmp_path)
    except NoVolume as error:
        pytest.skip(str(error))
    yield machine
    machine.volume.close()


def _state(folder: Path) -> FolderState | None:
    """None: in clear text."""
    return read_data_key(folder, PASSPHRASE)[1] if (folder / "data.key").exists() else None


@sizes(LARGE_ONE, SMALL_ONE)
def test_no_cut_of_the_power_while_a_passphrase_is_set_loses_anything(
    machine: Machine, tmp_path: Path, count: int, step: int
) -> None:
    folder = folders.used_folder(machine.volume.at, count=count)
    needles, before, file = folders.needles_of(folder), history(folder), _file(tmp_path)
    machine.keep()
    found: set[FolderState | None] = set()
    for number in machine.cut(lambda: folders.encrypt(folder), step):
        found.add(state := _state(folder))
        if state is None:
            assert folders.needles_of(folder) == needles
        if state is not FolderState.ENCRYPTED:
            assert number, "it was finished"
            folders.encrypt(folder)
        assert folders.files_with(folder, needles) == []
        assert history(folder, open_folder(folder, file)) == before
        folders.decrypt(folder)
        assert (folders.needles_of(folder), history(folder)) == (needles, before)
    assert found == {None, FolderState.ENCRYPTING, FolderState.ENCRYPTED}
    assert machine.cuts > 5


@sizes(SMALL_ONE, LARGE_ONE)
def test_no_cut_of_the_power_while_a_passphrase_is_removed_loses_anything(
    machine: Machine, count: int, step: int
) -> None:
    folder = folders.used_folder(machine.volume.at, count=count)
    needles, before = folders.needles_of(folder), history(folder)
    folders.encrypt(folder)
    machine.keep()
    found: set[FolderState | None] = set()
    for number in machine.cut(lambda: folders.decrypt(folder), step):
        found.add(state := _state(folder))
        if state is FolderState.DECRYPTING and number % 2:
            folders.encrypt(folder)  # another decision
        if _state(folder) is not None:
            assert number, "it was finished"
            folders.decrypt(folder)
        assert (folders.needles_of(folder), history(folder)) == (needles, before)
    assert found == {None, FolderState.DECRYPTING, FolderState.ENCRYPTED}
    assert machine.cuts > 5


def test_a_cut_of_the_power_while_a_passphrase_changes_leaves_the_old_or_the_new_one(
    machine: Machine,
) -> None:
    folder = folders.used_folder(machine.volume.at)
    before = history(folder)
    folders.encrypt(folder)
    machine.keep()

    def change() -> None:
        folders.converted(folder, _changed)

    opened_by: list[bytes] = []
    for _ in machine.cut(change, 1):
        for passphrase in (PASSPHRASE, OTHER_PASSPHRASE):
            try:
                key, state = read_data_key(folder, passphrase)
            except WrongPassphrase:
                continue
            opened_by.append(passphrase)
            assert state is FolderState.ENCRYPTED and history(folder, key) == before
    assert len(opened_by) == machine.cuts, "one of them, and not the other"
    assert opened_by[-1] == OTHER_PASSPHRASE and PASSPHRASE in opened_by


def _changed(conversion: FolderConversion) -> None:
    conversion.change_passphrase(OTHER_PASSPHRASE)


def _file(tmp_path: Path) -> str:
    return folders.passphrase_file(tmp_path)
