"""Local envelopes: messages of verified senders, sealed for this node's own disk.

    e2 03 | uuid16 | nonce12 | ChaCha20-Poly1305 of: sender's Ed25519 public32 | clear | tag16

Authenticated with it: the first 18 bytes and the name under which it is stored. The nonce is a
keyed hash of all of that, so the same message is always sealed to the same bytes. The key is in the
file `local.key` of the data folder (mode 0600): a message in a local channel was sealed by this
node, which had verified its sender, and by nobody else. Others may put it into that channel again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b, sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from millpond.node.atomic_files import UnsafeFile, read_private, replace, write_new
from millpond.node.peers.data_key import CannotUnseal, DataKey
from millpond.node.peers.envelope import KEY_BYTES, UUID_BYTES, CannotOpen, OpenedEnvelope, Reason

VERSION = b"\xe2\x03"
FILE_NAME = "local.key"
VERSION_LINE = "millpond local key 1"
FILE_BYTES_MAX = 1024
_NONCE_BYTES = 12
_NONCES = b"millpond local nonces v1\0"
_HEAD_BYTES = len(VERSION) + UUID_BYTES
_SEALED_MIN = _HEAD_BYTES + _NONCE_BYTES + KEY_BYTES + 16
SEALED_LINE = "millpond local key 2"
_FILE = re.compile(rb"%s\nsecret ([0-9a-f]{64})\n" % VERSION_LINE.encode())
_SEALED_FILE = re.compile(rb"%s\nsealed ([0-9a-f]{122})\n" % SEALED_LINE.encode())
_LOCATION = FILE_NAME.encode()


class LocalKeyError(Exception):
    """An unusable key file; the text names the file and the reason, never the secret."""


class LocalKey:
    """The key of the local envelopes of one node."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = ChaCha20Poly1305(secret)
        self._nonce_key = sha256(_NONCES + secret).digest()

    def seal(self, sender: bytes, uuid: bytes, clear: bytes, name: bytes) -> bytes:
        """The local envelope of a message of `sender`, to be stored under `name`."""
        head = VERSION + uuid
        hashed = len(name).to_bytes(4, "big") + name + head + sender + clear
        nonce = blake2b(hashed, key=self._nonce_key, digest_size=_NONCE_BYTES).digest()
        return head + nonce + self._cipher.encrypt(nonce, sender + clear, head + name)

    def open(self, envelope: bytes, name: bytes) -> OpenedEnvelope:
        """The message in a local envelope that is stored under `name`. Raises CannotOpen."""
        uuid = local_uuid(envelope)
        nonce = envelope[_HEAD_BYTES : _HEAD_BYTES + _NONCE_BYTES]
        sealed, bound = envelope[_HEAD_BYTES + _NONCE_BYTES :], envelope[:_HEAD_BYTES] + name
        try:
            clear = self._cipher.decrypt(nonce, sealed, bound)
        except InvalidTag:
            raise CannotOpen(Reason.NOT_AUTHENTIC) from None
        return OpenedEnvelope(clear[:KEY_BYTES], uuid, clear[KEY_BYTES:])


def is_local(envelope: bytes) -> bool:
    """True for bytes that begin like a local envelope."""
    return envelope.startswith(VERSION)


def local_uuid(envelope: bytes) -> bytes:
    """The uuid of the message in a local envelope. Raises CannotOpen."""
    if not is_local(envelope):
        raise CannotOpen(Reason.WRONG_VERSION)
    if len(envelope) < _SEALED_MIN:
        raise CannotOpen(Reason.WRONG_SIZE)
    return envelope[len(VERSION) : _HEAD_BYTES]


def load_or_create_local_key(
    folder: Path | None, entropy: Callable[[int], bytes], key: DataKey | None = None
) -> LocalKey:
    """The key in a data folder, a new one if there is none; its file is sealed with `key` if there
    is one. Raises LocalKeyError and OSError."""
    if folder is None:
        return LocalKey(entropy(KEY_BYTES))
    path = folder / FILE_NAME
    if not path.exists():
        text = _text(entropy(KEY_BYTES), key)
        try:
            write_new(path, text, f".{FILE_NAME}.{entropy(8).hex()}")
        except FileExistsError:
            pass  # made in between, by another process
    return LocalKey(read_local_key(path, key))


def read_local_key(path: Path, key: DataKey | None) -> bytes:
    """The secret in a file, which is sealed with `key` if there is one. Raises LocalKeyError."""
    try:
        text = read_private(path, FILE_BYTES_MAX)
    except UnsafeFile as exc:
        raise LocalKeyError(str(exc)) from exc
    found = (_FILE if key is None else _SEALED_FILE).fullmatch(text)
    if found is None:
        raise LocalKeyError(f"{path}: damaged, or not encrypted as the folder is")
    secret = bytes.fromhex(found[1].decode("ascii"))
    try:
        return secret if key is None else key.unseal(_LOCATION, secret)
    except CannotUnseal:
        raise LocalKeyError(f"{path}: damaged") from None


def replace_local_key(path: Path, secret: bytes, key: DataKey | None) -> None:
    """Write the file anew, sealed with `key` if there is one. Raises OSError."""
    replace(path, _text(secret, key))


def _text(secret: bytes, key: DataKey | None) -> bytes:
    if key is None:
        return f"{VERSION_LINE}\nsecret {secret.hex()}\n".encode("ascii")
    return f"{SEALED_LINE}\nsealed {key.seal(_LOCATION, secret).hex()}\n".encode("ascii")
