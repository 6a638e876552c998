"""Messages as they are stored: only this node makes them, and only for one name."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.envelope import CannotOpen
from millpond.node.peers.local_envelope import (
    FILE_NAME,
    LocalKey,
    LocalKeyError,
    load_or_create_local_key,
    local_uuid,
)

KEY = LocalKey(sha256(b"local").digest())
SENDER, UUID = sha256(b"sender").digest(), bytes(range(16))
SEALED = KEY.seal(SENDER, UUID, b"hello", b"notes")


def test_what_is_sealed_is_opened_under_its_name() -> None:
    assert SEALED[:18] == b"\xe2\x03" + UUID
    assert len(SEALED) == 18 + 12 + 32 + len(b"hello") + 16
    opened = KEY.open(SEALED, b"notes")
    assert (opened.sender, opened.uuid, opened.plaintext) == (SENDER, UUID, b"hello")
    assert local_uuid(SEALED) == UUID
    for key, name in ((KEY, b"other"), (LocalKey(bytes(32)), b"notes")):
        with pytest.raises(CannotOpen):
            key.open(SEALED, name)


def test_the_same_message_has_the_same_bytes_and_no_nonce_is_used_twice() -> None:
    """So a repeated put is the same put; another text, sender, uuid or name has other bytes."""
    assert KEY.seal(SENDER, UUID, b"hello", b"notes") == SEALED
    others = [
        KEY.seal(SENDER, UUID, b"hellp", b"notes"),
        KEY.seal(bytes(32), UUID, b"hello", b"notes"),
        KEY.seal(SENDER, bytes(16), b"hello", b"notes"),
        KEY.seal(SENDER, UUID, b"hello", b"other"),
    ]
    assert len({each[18:30] for each in [SEALED, *others]}) == 5


@given(st.integers(0, len(SEALED) * 8 - 1))
def test_any_flipped_bit_is_refused(bit: int) -> None:
    altered = bytearray(SEALED)
    altered[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CannotOpen):
        KEY.open(bytes(altered), b"notes")


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    for each in (data, b"\xe2\x03" + data, SEALED[: len(data) % len(SEALED)]):
        with pytest.raises(CannotOpen):
            KEY.open(each, b"notes")


def test_the_key_stays_the_same_in_its_folder(tmp_path: Path) -> None:
    first = load_or_create_local_key(tmp_path, os.urandom)
    sealed = first.seal(SENDER, UUID, b"hello", b"notes")
    again = load_or_create_local_key(tmp_path, os.urandom)
    assert again.open(sealed, b"notes").plaintext == b"hello"
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", [b"", b"millpond local key 1\n", b"x" * 2000])
def test_a_damaged_key_is_not_replaced(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(LocalKeyError):
        load_or_create_local_key(tmp_path, os.urandom)
    assert path.read_bytes() == text


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_or_create_local_key(tmp_path, os.urandom)
    (tmp_path / FILE_NAME).chmod(0o644)
    with pytest.raises(LocalKeyError):
        load_or_create_local_key(tmp_path, os.urandom)
