"""Identities: key pairs, their names, their files (PS-01's keys; RFC 8032's vectors)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.identity import (
    BadPeerId,
    Identity,
    IdentityError,
    IdentityExists,
    NoIdentity,
    create_identity,
    is_key,
    load_identity,
    load_or_create,
    peer_id,
    public_key_of,
    verify,
)

SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
SIGNED_EMPTY = bytes.fromhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
    "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)
ID = "25njqamcweflpvkl73j4szahhihoc4xt3ktcgjnpaingr5yhkena"
KEYS = st.binary(min_size=32, max_size=32)
LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
PRIME = 2**255 - 19


def counting() -> object:
    numbers = iter(range(1, 200))
    return lambda size: bytes([next(numbers)] * size)


def test_vectors_of_rfc_8032() -> None:
    identity = Identity.from_seed(SEED)
    assert identity.public == PUBLIC and identity.sign(b"") == SIGNED_EMPTY
    assert verify(PUBLIC, SIGNED_EMPTY, b"")
    assert (identity.id, public_key_of(ID)) == (ID, PUBLIC)


@given(KEYS)
def test_a_peer_id_is_a_key_and_back(public: bytes) -> None:
    text = peer_id(public)
    assert len(text) == 52 and set(text) <= set(LETTERS)
    assert public_key_of(text) == public


@given(KEYS, st.integers(0, 51), st.sampled_from(LETTERS + LETTERS.upper() + "=01 "))
def test_a_key_has_one_spelling(public: bytes, place: int, letter: str) -> None:
    text = peer_id(public)
    other = text[:place] + letter + text[place + 1 :]
    if other == text:
        return
    try:
        assert public_key_of(other) != public
    except BadPeerId as refused:
        assert "52 letters" in str(refused)


@pytest.mark.parametrize(
    "text", ["", "a", ID[:-1], ID + "a", ID.upper(), ID + "====", "\u00e9" * 52]
)
def test_what_is_no_peer_id(text: str) -> None:
    with pytest.raises(BadPeerId):
        public_key_of(text)


@given(st.binary(max_size=80), st.binary(max_size=80), st.binary(max_size=20))
def test_verify_of_anything_is_no(public: bytes, signature: bytes, data: bytes) -> None:
    assert verify(public, signature, data) is False


@given(st.integers(0, 8 * 64 - 1), st.binary(max_size=40))
def test_a_flipped_bit_is_no_signature(bit: int, data: bytes) -> None:
    identity = Identity.from_seed(SEED)
    signature = bytearray(identity.sign(data))
    assert verify(identity.public, bytes(signature), data)
    signature[bit // 8] ^= 1 << bit % 8
    assert not verify(identity.public, bytes(signature), data)
    assert not verify(identity.public, identity.sign(data), data + b"\0")


def test_a_key_of_low_order_signs_nothing() -> None:
    """With such a key everybody could sign: R = the neutral point, s = 0."""
    neutral = (1).to_bytes(32, "little")
    assert not verify(neutral, neutral + bytes(32), b"anything")
    for y in (0, 1, PRIME - 1, PRIME, PRIME + 1):
        for sign in (0, 1 << 255):
            assert not is_key((y | sign).to_bytes(32, "little"))
    assert is_key(PUBLIC) and not is_key(PUBLIC[:-1])


def test_a_file_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / "identity.key"
    made = create_identity(path, counting())
    assert load_identity(path).public == made.public
    assert load_or_create(path, counting()).seed == made.seed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["identity.key"]
    seed = "01" * 32
    text = f"millpond identity 1\npublic {made.id}\nsecret {seed}\n"
    assert path.read_text() == text


def test_one_that_is_there_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    made = create_identity(path, os.urandom)
    with pytest.raises(IdentityExists):
        create_identity(path, os.urandom)
    path.write_text("damaged")
    with pytest.raises(IdentityExists):
        create_identity(path, os.urandom)
    with pytest.raises(IdentityError, match="damaged"):
        load_or_create(path, os.urandom)
    assert path.read_text() == "damaged" and made.id not in str(path)
    assert [each.name for each in tmp_path.iterdir()] == ["identity.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o666])
def test_a_file_that_others_may_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "identity.key"
    create_identity(path, os.urandom)
    path.chmod(mode)
    with pytest.raises(IdentityError, match="chmod 600"):
        load_identity(path)
    path.chmod(0o400)
    load_identity(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(NoIdentity, match="keys new"):
        load_identity(tmp_path / "identity.key")
    (tmp_path / "identity.key").mkdir(mode=0o700)
    with pytest.raises(IdentityError):
        load_identity(tmp_path / "identity.key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(IdentityError, match="not a file"):
        load_identity(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(IdentityError, match="no folder"):
        create_identity(tmp_path / "file" / "identity.key", os.urandom)


@given(st.data())
def test_a_damaged_file_is_refused_and_tells_no_secret(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    identity = Identity.from_seed(SEED)
    whole = f"millpond identity 1\npublic {identity.id}\nsecret {SEED.hex()}\n".encode()
    place = data.draw(st.integers(0, len(whole) - 1))
    how = data.draw(st.sampled_from(["cut", "flip", "insert"]))
    flipped = bytes([whole[place] ^ (1 << data.draw(st.integers(0, 7)))])
    damaged = {
        "cut": whole[:place],
        "flip": whole[:place] + flipped + whole[place + 1 :],
        "insert": whole[:place] + b"\n" + whole[place:],
    }[how]
    path = tmp_path_factory.mktemp("keys") / "identity.key"
    path.touch(0o600)
    path.write_bytes(damaged)
    with pytest.raises(IdentityError) as refused:
        load_identity(path)
    assert SEED.hex()[:16] not in str(refused.value)


def test_a_later_version_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.touch(0o600)
    path.write_text("millpond identity 3\nanything\n")
    with pytest.raises(IdentityError, match="later version"):
        load_identity(path)


def test_no_secret_in_its_repr() -> None:
    shown = repr(Identity.from_seed(SEED))
    assert ID in shown and SEED.hex() not in shown and repr(SEED) not in shown


def test_without_room_for_it_there_is_no_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    path = tmp_path / "identity.key"
    with pytest.raises(IdentityError, match="No space"):
        create_identity(path, os.urandom)
    assert list(tmp_path.iterdir()) == []
