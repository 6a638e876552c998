"""Random and signed tokens (P2P-24): their bytes, their ids, and what is none of ours."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from hashlib import sha256

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.messages import Rights
from millpond.node.access.tokens import (
    TOKEN_BYTES_MAX,
    SignedToken,
    digest_of,
    id_of,
    new_signed,
    new_token,
    read_signed,
)
from millpond.node.peers.identity import Identity

US, OTHER = (Identity.from_seed(bytes([each]) * 32) for each in (1, 2))


def counted(count: int) -> bytes:
    return bytes(range(count))


def test_a_random_token_is_256_bits_and_the_file_keeps_their_digest() -> None:
    token = new_token(counted)
    assert token == "mpr1.AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"
    assert digest_of(token) == sha256(token.encode()).hexdigest()
    assert id_of(token) == digest_of(token)[:12]


def test_a_signed_token_to_the_byte() -> None:
    """docs/guides/access.md: what another program needs to make or to check one."""
    token, token_id = new_signed(US, Rights.PUT | Rights.GET, ["jobs/*"], 1_800_000_000.0, counted)
    prefix, payload, signature = (part.encode() for part in token.split("."))
    body = urlsafe_b64decode(payload + b"=" * (-len(payload) % 4))
    assert prefix == b"mpt1" and token_id == "0001020304050607" == id_of(token)
    assert msgspec.msgpack.decode(body) == {
        "id": token_id,
        "rights": 3,
        "patterns": ["jobs/*"],
        "not_after": 1_800_000_000.0,
    }
    Ed25519PublicKey.from_public_bytes(US.public).verify(
        urlsafe_b64decode(signature + b"=" * (-len(signature) % 4)), b"millpond token 1\0" + body
    )


@given(
    st.integers(0, 63),
    st.lists(st.text(max_size=20), max_size=5),
    st.none() | st.floats(0, 1e10),
)
def test_what_was_signed_is_read_by_its_node_and_by_no_other(
    rights: int, patterns: list[str], until: float | None
) -> None:
    token, token_id = new_signed(US, Rights(rights), patterns, until, counted)
    wanted = SignedToken(token_id, rights, patterns, until)
    assert read_signed(token.encode(), US.public) == wanted
    assert read_signed(token.encode(), OTHER.public) is None


@given(st.binary(max_size=200))
def test_anything_else_is_no_token(data: bytes) -> None:
    for token in (data, b"mpt1." + data, b"mpt1." + data + b"." + data):
        assert read_signed(token, US.public) is None
        id_of(token.decode("latin-1"))


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x80", b"\x81\xa2id\xa1\xff", b"\x90"])
def test_our_own_signature_under_something_else_is_no_token(body: bytes) -> None:
    from millpond.node.access.tokens import _base64url

    signature = US.sign(b"millpond token 1\0" + body)
    token = f"mpt1.{_base64url(body)}.{_base64url(signature)}"
    assert read_signed(token.encode(), US.public) is None


def test_a_token_that_no_hello_could_carry_is_not_made() -> None:
    with pytest.raises(ValueError, match=str(TOKEN_BYTES_MAX)):
        new_signed(US, Rights.GET, ["x" * 3000], None, counted)


def test_a_token_is_verified_once_and_not_for_each_of_thousands_of_streams() -> None:
    token, _ = new_signed(US, Rights.GET, ["stream:logs/*"], None, counted)
    first = read_signed(token.encode(), US.public)
    assert first is not None and read_signed(token.encode(), US.public) is first
    assert read_signed(token.encode()[:-1] + b"_", US.public) is None
