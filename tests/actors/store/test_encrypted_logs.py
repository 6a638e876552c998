"""A store with a cipher: what it covers is encrypted in the journal and in files, reads see what
was written, and what does not open is damage."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Chunk, LogTrimmed, MetadataSet, Position
from millpond.actors.store.interface import Fault, Seek
from millpond.actors.store.settings import StoreSettings
from tests.actors.store.harness import LAZY, SMALL, Run

SECRET, OPEN = b"secret/log", b"open/log"
FROM_START = Seek(SeekBy.SEQUENCE)
CLEAR = b"nobody else may read this"


class ReversingCipher:
    """Turns data round, behind a byte of its own."""

    def __init__(self, mark: bytes = b"#") -> None:
        self._mark = mark

    def covers(self, name: bytes) -> bool:
        return name.startswith(b"secret/")

    def encrypted(self, name: bytes, chunk: Chunk) -> Chunk:
        return msgspec.structs.replace(chunk, data=self._mark + chunk.data[::-1])

    def decrypted(self, name: bytes, chunk: Chunk) -> Chunk | None:
        if not chunk.data.startswith(self._mark):
            return None
        return msgspec.structs.replace(chunk, data=chunk.data[1:][::-1])


def _chunks(count: int) -> list[Chunk]:
    return [
        Chunk(n, 1, n, n, Position(n, 0), Position(n, 0), b"%d %b" % (n, CLEAR))
        for n in range(count)
    ]


def _opened(folder: Path, settings: StoreSettings, mark: bytes = b"#") -> Run:
    run = Run(folder, settings)
    run.store.cipher = ReversingCipher(mark)
    return run


@pytest.mark.parametrize(("settings", "count"), [(LAZY, 5), (SMALL, 300)])
def test_reads_see_what_was_written_and_the_disk_does_not(
    tmp_path: Path, settings: StoreSettings, count: int
) -> None:
    run = _opened(tmp_path, settings)
    for chunk in _chunks(count):
        run.write(SECRET, chunk)
    run.write(SECRET, LogTrimmed(1), MetadataSet(b"a", b"b"))
    assert run.read_all(SECRET) == _chunks(count)[1:]
    assert not _files_with(tmp_path, CLEAR)
    run.close()
    again = _opened(tmp_path, settings)
    assert again.read_all(SECRET) == _chunks(count)[1:]
    assert again.log_snapshot(SECRET).metadata == {b"a": b"b"}
    again.close()
    assert not _files_with(tmp_path, CLEAR) and _files_with(tmp_path, CLEAR[::-1])


@pytest.mark.parametrize(("settings", "count"), [(LAZY, 5), (SMALL, 300)])
def test_what_does_not_open_is_not_served(
    tmp_path: Path, settings: StoreSettings, count: int
) -> None:
    run = _opened(tmp_path, settings)
    for chunk in _chunks(count):
        run.write(SECRET, chunk)
    run.write(OPEN, *_chunks(3))
    run.close()
    other = _opened(tmp_path, settings, mark=b"!")
    assert other.finish(other.store.read(SECRET, FROM_START)) is Fault.DAMAGED
    assert other.read_all(OPEN) == _chunks(3)
    other.close()
    right = _opened(tmp_path, settings)
    assert right.read_all(SECRET) == _chunks(count), "nothing was reported or changed"
    right.close()


def _files_with(folder: Path, needle: bytes) -> list[str]:
    return [
        path.name for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()
    ]
