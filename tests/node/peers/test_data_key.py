"""The file of the data key: what is refused, and what it says without the passphrase."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millpond.node.peers.data_key import (
    CannotUnseal,
    DataKey,
    DataKeyError,
    FolderState,
    ScryptCost,
    WrongPassphrase,
    folder_state,
    read_data_key,
    write_data_key,
)

PASSPHRASE = b"three hedgehogs"
CHEAP = ScryptCost(2**4, 1, 1)
KEY = DataKey(bytes(range(32)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_data_key(tmp_path, KEY, FolderState.ENCRYPTED, PASSPHRASE, os.urandom, CHEAP)
    return tmp_path


def test_it_is_read_as_it_was_written(folder: Path) -> None:
    key, state = read_data_key(folder, PASSPHRASE)
    assert (key.secret, state) == (KEY.secret, FolderState.ENCRYPTED)
    assert folder_state(folder) is FolderState.ENCRYPTED
    assert (folder / "data.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(WrongPassphrase):
        read_data_key(folder, PASSPHRASE + b"!")


def test_each_file_has_a_salt_of_its_own(folder: Path) -> None:
    before = (folder / "data.key").read_bytes()
    write_data_key(folder, KEY, FolderState.ENCRYPTED, PASSPHRASE, os.urandom, CHEAP)
    lines = zip(before.splitlines(), (folder / "data.key").read_bytes().splitlines(), strict=True)
    assert [one == other for one, other in lines] == [True, True, False, False]


def test_nothing_in_it_can_be_changed(folder: Path) -> None:
    """Not the state either: else a node could be made to take clear files."""
    path = folder / "data.key"
    text = path.read_bytes()
    path.write_bytes(text.replace(b"state encrypted", b"state encrypting"))
    with pytest.raises(DataKeyError):
        read_data_key(folder, PASSPHRASE)
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DataKeyError):
            read_data_key(folder, PASSPHRASE)


@pytest.mark.parametrize("cost", ["1048576 16 1", "16 1 17", "15 8 1", "1 8 1", "16 0 1", "16 1 0"])
def test_a_file_that_asks_for_much_is_refused(folder: Path, cost: str) -> None:
    path = folder / "data.key"
    path.write_bytes(path.read_bytes().replace(b"scrypt 16 1 1", f"scrypt {cost}".encode()))
    with pytest.raises(DataKeyError, match="damaged"):
        read_data_key(folder, PASSPHRASE)


def test_values_open_in_their_place_only() -> None:
    sealed = KEY.seal(b"a", b"value")
    assert KEY.unseal(b"a", sealed) == b"value"
    assert b"value" not in sealed
    assert sealed != KEY.seal(b"b", b"value") != KEY.seal(b"b", b"other")
    others = [DataKey(bytes(32)).seal(b"a", b"value"), sealed[:-1], sealed[1:], b"", b"\x01"]
    for place, bad in [(b"b", sealed), *((b"a", each) for each in others)]:
        with pytest.raises(CannotUnseal):
            KEY.unseal(place, bad)


def test_no_text_of_it_shows_the_key() -> None:
    assert repr(KEY) == str(KEY) == "DataKey()"
