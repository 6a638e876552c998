"""Encryption of the folder of a stopped node: nothing that is secret is left in it, and nothing is
lost or changed, whenever it is killed."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.actors.store.changes import LogTrimmed
from millpond.node.folder_encryption import CannotConvert, FolderConversion
from millpond.node.peers.data_key import (
    DataKeyError,
    FolderState,
    WrongPassphrase,
    open_folder,
    read_data_key,
)
from millpond.node.peers.identity import load_identity, load_public
from millpond.node.peers.local_envelope import LocalKeyError, load_or_create_local_key
from millpond.node.peers.peer_store import PeerStore, PeerStoreError
from millpond.node.peers.prekeys import Prekeys
from tests.node import encrypted_folders as folders
from tests.node.encrypted_folders import (
    HISTORY,
    LARGE,
    OTHER_LOG,
    OTHER_PASSPHRASE,
    PASSPHRASE,
    PEER,
    SMALL,
    TEXT,
    TIME,
    chunks,
    history,
    killed_at,
    needles_of,
    restore,
    used_folder,
)
from tests.node.folders import flip, partition_of, segments, stopped


@pytest.mark.parametrize(
    ("count", "trimmed"),
    [(SMALL, 0), (SMALL, 1), (SMALL, 4), (LARGE, 0), (LARGE, 51), (LARGE, 800)],
)
def test_a_history_is_encrypted_and_decrypted_as_it_was(
    tmp_path: Path, count: int, trimmed: int
) -> None:
    folder = used_folder(tmp_path, count=count, trimmed=trimmed)
    before, other = history(folder), history(folder, name=OTHER_LOG)
    assert partition_of(folder, HISTORY).exists() is (count == LARGE)
    folders.encrypt(folder)
    assert history(folder, open_folder(folder, folders.passphrase_file(tmp_path))) == before
    assert history(folder, name=OTHER_LOG) == other
    folders.decrypt(folder)
    assert history(folder) == before
    assert not (folder / "data.key").exists()


@pytest.mark.parametrize(("count", "trimmed"), [(SMALL, 0), (SMALL, 4), (LARGE, 2)])
def test_no_file_has_a_secret_after_that(tmp_path: Path, count: int, trimmed: int) -> None:
    folder = used_folder(tmp_path, count=count, trimmed=trimmed)
    needles = needles_of(folder)
    assert len(needles) == 8
    assert {"identity.key", "local.key", "peers.db"} < set(folders.files_with(folder, needles))
    assert folders.files_with(folder, [TEXT])
    folders.encrypt(folder)
    assert folders.files_with(folder, needles) == []


def test_nor_where_sqlite_leaves_removed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does unless it was built with SECURE_DELETE, as Debian's is."""
    connect = sqlite3.connect

    def careless(*words: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*words, **options)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", careless)
    folder = used_folder(tmp_path, count=LARGE)
    with stopped(folder) as store:
        store.write(HISTORY, [LogTrimmed(LARGE - 10)])
    needles = needles_of(folder)
    folders.encrypt(folder)
    assert folders.files_with(folder, needles) == []


def test_a_folder_that_was_left_by_a_kill_has_no_secret_after_that(tmp_path: Path) -> None:
    folder, left = used_folder(tmp_path), tmp_path / "left"
    needles = needles_of(folder)
    peers = PeerStore(folder / "peers.db")
    peers.make_key(PEER, 2000, 1000, os.urandom)
    peers._commit([peers.stored(PEER)])
    with stopped(folder) as store:
        store.write(HISTORY, chunks(SMALL + 2)[-1:])
        shutil.copytree(folder, left)  # with write-ahead logs, and an open segment
    needles += [each.private for each in peers.state(PEER).keys.keys]
    peers.close()
    (left / "identity.key.new").write_bytes((folder / "identity.key").read_bytes())
    (left / ".local.key.12ab").write_bytes((folder / "local.key").read_bytes())
    (left / "prekeys" / "12ab.key.new").write_bytes(needles[-1])
    folders.encrypt(left)
    assert folders.files_with(left, needles) == []


def test_keys_are_the_same_after_that(tmp_path: Path) -> None:
    folder = used_folder(tmp_path)
    identity = load_identity(folder / "identity.key")
    prekey = Prekeys(folder / "prekeys", identity, lambda: TIME, os.urandom).current()
    sealed = load_or_create_local_key(folder, os.urandom).seal(PEER, bytes(16), b"hi", b"a")
    folders.encrypt(folder)
    key = open_folder(folder, folders.passphrase_file(tmp_path))
    assert load_identity(folder / "identity.key", key).seed == identity.seed
    assert load_public(folder / "identity.key") == identity.public
    prekeys = Prekeys(folder / "prekeys", identity, lambda: TIME, os.urandom, key=key)
    assert prekeys.current() == prekey and prekeys.private(prekey.kid) is not None
    local = load_or_create_local_key(folder, os.urandom, key)
    assert local.open(sealed, b"a").plaintext == b"hi"
    peers = PeerStore(folder / "peers.db", 0, key)
    assert [each.number for each in peers.state(PEER).keys.keys] == [1000]
    peers.close()


def test_another_passphrase_opens_the_sameused_folder(tmp_path: Path) -> None:
    folder = used_folder(tmp_path)
    before = history(folder)
    folders.encrypt(folder)
    others = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    folders.converted(folder, lambda each: each.change_passphrase(OTHER_PASSPHRASE))
    with pytest.raises(WrongPassphrase):
        open_folder(folder, folders.passphrase_file(tmp_path))
    key = open_folder(folder, folders.passphrase_file(tmp_path, OTHER_PASSPHRASE))
    changed = {path.name for path, data in others.items() if path.read_bytes() != data}
    assert changed == {"data.key"}, "nothing else is written"
    assert history(folder, key) == before


def test_a_clear_file_is_refused_in_an_encryptedused_folder(tmp_path: Path) -> None:
    """Else somebody who can write to the disk could give a node keys of his own."""
    folder, clear = used_folder(tmp_path), tmp_path / "clear"
    shutil.copytree(folder, clear)
    folders.encrypt(folder)
    key = open_folder(folder, folders.passphrase_file(tmp_path))
    identity = load_identity(folder / "identity.key", key)
    for name in ("identity.key", "local.key", "peers.db"):
        shutil.copy(clear / name, folder / name)
    shutil.rmtree(folder / "prekeys")
    shutil.copytree(clear / "prekeys", folder / "prekeys")
    with pytest.raises(Exception, match="not encrypted"):
        load_identity(folder / "identity.key", key)
    with pytest.raises(LocalKeyError):
        load_or_create_local_key(folder, os.urandom, key)
    with pytest.raises(PeerStoreError):
        PeerStore(folder / "peers.db", 0, key)
    kid = bytes.fromhex(next((clear / "prekeys").iterdir()).stem)
    assert (
        Prekeys(folder / "prekeys", identity, lambda: TIME, os.urandom, key=key).private(kid)
        is None
    )


def test_a_value_opens_in_its_own_place_only(tmp_path: Path) -> None:
    folder = used_folder(tmp_path)
    folders.encrypt(folder)
    key = open_folder(folder, folders.passphrase_file(tmp_path))
    text = (folder / "identity.key").read_text().replace("millpond identity 2", "")
    digits = text.split()[-1]
    (folder / "local.key").write_text(f"millpond local key 2\nsealed {digits}\n")
    with pytest.raises(LocalKeyError):
        load_or_create_local_key(folder, os.urandom, key)


def test_a_damaged_history_is_repaired_first(tmp_path: Path) -> None:
    folder = used_folder(tmp_path)
    flip(segments(folder)[0], TEXT)
    with pytest.raises(CannotConvert, match="doctor"):
        folders.encrypt(folder)
    assert not (folder / "data.key").exists(), "it is as it was"


def _in_full(*cases: tuple[int, int]) -> list[Any]:
    return [pytest.param(*each, marks=pytest.mark.full) for each in cases]


def _kills(work: Callable[[], object], again: Callable[[], None], step: int) -> Iterator[int]:
    """Kill it at every `step`-th moment in turn, until one comes after its end; `again` begins
    anew."""
    number = 1
    while killed_at(number, work):
        yield number
        again()
        number += step
    assert number > 30


@pytest.mark.crash
@pytest.mark.parametrize(
    ("count", "step"),
    [
        (SMALL, 9),
        (LARGE, 17),
        *(pytest.param(*each, marks=pytest.mark.full) for each in ((SMALL, 5), (LARGE, 7))),
    ],
)
def test_a_kill_at_any_moment_of_encrypting_loses_nothing(
    tmp_path: Path, count: int, step: int
) -> None:
    folder, kept = used_folder(tmp_path, count=count), tmp_path / "kept"
    needles, before, file = needles_of(folder), history(folder), folders.passphrase_file(tmp_path)
    shutil.copytree(folder, kept)
    for _ in _kills(lambda: folders.encrypt(folder), lambda: restore(kept, folder), step):
        if not (folder / "data.key").exists():
            assert history(folder) == before and load_identity(folder / "identity.key")
        elif read_data_key(folder, PASSPHRASE)[1] is FolderState.ENCRYPTING:
            with pytest.raises(DataKeyError, match="keys passphrase set"):
                open_folder(folder, file)
        _finished_by(folder, FolderConversion.encrypt)
        assert history(folder, open_folder(folder, file)) == before
        assert folders.files_with(folder, needles) == []


@pytest.mark.crash
@pytest.mark.parametrize(
    ("count", "step"),
    [
        (SMALL, 17),
        (LARGE, 29),
        *(pytest.param(*each, marks=pytest.mark.full) for each in ((SMALL, 9), (LARGE, 13))),
    ],
)
def test_a_kill_at_any_moment_of_decrypting_loses_nothing(
    tmp_path: Path, count: int, step: int
) -> None:
    folder, kept = used_folder(tmp_path, count=count), tmp_path / "kept"
    before, seed = history(folder), load_identity(folder / "identity.key").seed
    folders.encrypt(folder)
    shutil.copytree(folder, kept)
    for number in _kills(lambda: folders.decrypt(folder), lambda: restore(kept, folder), step):
        if (folder / "data.key").exists() and number % 2:
            folders.encrypt(folder) if _is_begun(folder) else None  # changed his mind
        if (folder / "data.key").exists():
            folders.decrypt(folder)
        assert history(folder) == before
        assert load_identity(folder / "identity.key").seed == seed


@pytest.mark.crash
def test_a_kill_while_the_passphrase_changes_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    folder, kept = used_folder(tmp_path), tmp_path / "kept"
    before = history(folder)
    folders.encrypt(folder)
    shutil.copytree(folder, kept)

    def change() -> None:
        folders.converted(folder, lambda each: each.change_passphrase(OTHER_PASSPHRASE))

    opened_by: set[bytes] = set()
    number = 1
    while killed_at(number, change):
        number += 1
        for passphrase in (PASSPHRASE, OTHER_PASSPHRASE):
            try:
                key, _ = read_data_key(folder, passphrase)
            except WrongPassphrase:
                continue
            opened_by.add(passphrase)
            assert history(folder, key) == before
        restore(kept, folder)
    assert opened_by == {PASSPHRASE, OTHER_PASSPHRASE}


def _is_begun(folder: Path) -> bool:
    return read_data_key(folder, PASSPHRASE)[1] is not FolderState.ENCRYPTED


def _finished_by(folder: Path, work: Callable[[FolderConversion], None]) -> None:
    if not (folder / "data.key").exists() or _is_begun(folder):
        folders.converted(folder, work)
