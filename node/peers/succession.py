"""Key succession: the old key of a node signs its new one, so contacts can follow it.

statement  old key[32] | new key[32] | made_at u64 (ms since 1970) | signature[64] | signature[64]
signature  Ed25519("millpond succession v1\\0" | old key | new key | made_at), by the old key, then
           by the new one

The statements of a node are in the file `successions` of its data folder, the oldest first, one a
line in base64url without padding. Its contact card carries them.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from millpond.node.atomic_files import UnsafeFile, read_private, replace
from millpond.node.peers.data_key import DataKey
from millpond.node.peers.identity import (
    FILE_NAME as IDENTITY_FILE,
)
from millpond.node.peers.identity import (
    Identity,
    IdentityError,
    load_identity,
    replace_identity,
    verify,
)

FILE_NAME = "successions"
SUCCESSIONS_MAX = 4
"""The statements in a card; a contact that missed more sees a break."""
_FILE_BYTES_MAX = 2**16
_LABEL = b"millpond succession v1\0"
_SIGNED = struct.Struct(">32s32sQ")
_SIGNATURE_BYTES = 64
STATEMENT_BYTES = _SIGNED.size + 2 * _SIGNATURE_BYTES


class BadSuccession(ValueError):
    """Bytes that are no statement, or that one of the two keys did not sign."""


class Succession(msgspec.Struct, frozen=True):
    """The step from one key to the next. `made_at`: seconds since 1970, in whole milliseconds."""

    old: bytes
    new: bytes
    made_at: float


def sign_succession(old: Identity, new: Identity, made_at: float) -> bytes:
    """The statement that `new` takes the place of `old`."""
    signed = _SIGNED.pack(old.public, new.public, round(made_at * 1000))
    return signed + old.sign(_LABEL + signed) + new.sign(_LABEL + signed)


def read_succession(statement: bytes) -> Succession:
    """The step that a statement is about, signed by both keys. Raises BadSuccession."""
    if len(statement) != STATEMENT_BYTES:
        raise BadSuccession(f"a statement has {STATEMENT_BYTES} bytes")
    signed, signatures = statement[: _SIGNED.size], statement[_SIGNED.size :]
    old, new, made_ms = _SIGNED.unpack(signed)
    by_old, by_new = signatures[:_SIGNATURE_BYTES], signatures[_SIGNATURE_BYTES:]
    is_signed = verify(old, by_old, _LABEL + signed) and verify(new, by_new, _LABEL + signed)
    if not is_signed or old == new:
        raise BadSuccession("a statement that its two keys did not sign")
    return Succession(old, new, made_ms / 1000)


def predecessors(statements: Sequence[bytes], public: bytes) -> list[bytes]:
    """The keys that a key took the place of, the latest first. Raises BadSuccession.

    Every statement has to lead to the next one, and the last to `public`.
    """
    found: list[bytes] = []
    for step in reversed([read_succession(each) for each in statements]):
        if step.new != (found[-1] if found else public):
            raise BadSuccession("statements that do not lead to this key")
        found.append(step.old)
    return found


def read_successions(folder: Path, public: bytes) -> tuple[bytes, ...]:
    """The latest statements of the node with this key. Raises IdentityError for a damaged file.

    A rotation that was interrupted has left one for a key that was never used: it is passed over.
    """
    path = folder / FILE_NAME
    try:
        lines = read_private(path, _FILE_BYTES_MAX).decode("ascii").split()
        statements = [urlsafe_b64decode(each + "=" * (-len(each) % 4)) for each in lines]
        return _chain_to(public, {read_succession(each).new: each for each in statements})
    except FileNotFoundError:
        return ()
    except UnsafeFile as exc:
        raise IdentityError(str(exc)) from exc
    except (ValueError, OSError) as exc:
        raise IdentityError(f"{path}: damaged: {exc}") from exc


def rotate_identity(
    folder: Path, now: float, entropy: Callable[[int], bytes], key: DataKey | None = None
) -> Identity:
    """Give a node that does not run a new identity, signed by the old one.

    The old key is gone when this returns. Raises IdentityError and OSError.
    """
    old = load_identity(folder / IDENTITY_FILE, key)
    new = Identity.new(entropy)
    statements = (*read_successions(folder, old.public), sign_succession(old, new, now))
    lines = (urlsafe_b64encode(each).rstrip(b"=") + b"\n" for each in statements)
    replace(folder / FILE_NAME, b"".join(lines))
    replace_identity(folder / IDENTITY_FILE, new, key)
    return new


def _chain_to(public: bytes, by_new: dict[bytes, bytes]) -> tuple[bytes, ...]:
    found: list[bytes] = []
    while public in by_new and len(found) < SUCCESSIONS_MAX:
        found.append(by_new.pop(public))
        public = read_succession(found[-1]).old
    return tuple(reversed(found))
