"""The system calls of the file layer where a system has no fdatasync or posix_fallocate."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from millpond.actors.store import filesystem
from millpond.actors.store.filesystem import OsDisk, reserve_of, sync_of


def module(**names: object) -> ModuleType:
    made = ModuleType("made")
    vars(made).update(names)
    return made


def test_linux_syncs_the_data_alone() -> None:
    assert sync_of(os, module()) is os.fdatasync
    assert reserve_of(os) is os.posix_fallocate


def test_macos_syncs_through_the_cache_of_the_disk() -> None:
    called: list[tuple[int, int]] = []
    control = module(F_FULLFSYNC=51, fcntl=lambda fd, what: called.append((fd, what)))
    sync_of(module(fsync=os.fsync), control)(7)
    assert called == [(7, 51)]


def test_any_other_system_has_fsync() -> None:
    assert sync_of(module(fsync=os.fsync), module()) is os.fsync


@pytest.mark.parametrize("size", [0, 1, len(filesystem.ZEROS), len(filesystem.ZEROS) * 2 + 3])
def test_without_fallocate_zeros_are_written(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "RESERVE", reserve_of(module()))
    monkeypatch.setattr(filesystem, "SYNC", os.fsync)
    path = tmp_path / "new"
    file = OsDisk().create(path, size)
    file.sync()
    assert path.read_bytes() == bytes(size)
    file.write(b"x", 0)
    file.close()
    assert path.read_bytes()[:1] == b"x"
