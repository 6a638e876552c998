"""The data key: what keys and histories in a data folder are encrypted with, if it has one.

It is 32 random bytes in the file `data.key`, sealed under a key that scrypt makes of a passphrase.
So another passphrase is one small file that is replaced, and nothing is encrypted again:

    millpond data key 1
    state encrypted
    kdf scrypt N R P SALT
    sealed HEX

A sealed value is `01 | nonce12 | ChaCha20-Poly1305 of the clear value | tag16`. Authenticated with
it is its location: the name of the file, or of the row or record, that it belongs to. The nonce is
a keyed hash of the location and the clear value, so the same value at the same location is always
sealed to the same bytes. docs/reference/peer-formats.md has vectors.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from enum import Enum
from hashlib import blake2b, sha256
from pathlib import Path
from typing import assert_never

import msgspec

from millpond.node.atomic_files import OTHERS, UnsafeFile, read_private, replace

FILE_NAME = "data.key"
VERSION_LINE = "millpond data key 1"
KEY_BYTES = 32
SALT_BYTES = 16
FILE_BYTES_MAX = 1024
PASSPHRASE_BYTES_MIN, PASSPHRASE_BYTES_MAX = 8, 1024
SCRYPT_BYTES_MAX, SCRYPT_P_MAX = 2**30, 16
"""The most that a file may ask of scrypt."""
SEALED_VERSION = b"\x01"
OVERHEAD_BYTES = 1 + 12 + 16
"""A sealed value is longer than the clear one by so much."""

_NONCE_BYTES = 12
_LABEL = b"millpond at rest v1\0"
_NONCES = b"millpond at rest nonces v1\0"
_FILE = re.compile(
    rb"(?P<head>%s\nstate (?P<state>[a-z]+)\n"
    rb"kdf scrypt (?P<n>[0-9]{1,8}) (?P<r>[0-9]{1,2}) (?P<p>[0-9]{1,2}) (?P<salt>[0-9a-f]{32})\n)"
    rb"sealed (?P<sealed>[0-9a-f]{122})\n" % VERSION_LINE.encode()
)


class DataKeyError(Exception):
    """A data key that cannot be used; the text says why, and never the secret."""


class WrongPassphrase(DataKeyError):
    """The passphrase is not that of the folder, or the file was changed."""


class CannotUnseal(Exception):
    """Bytes that were not sealed with this key for this location."""


class FolderState(Enum):
    """The state of a folder with a data key. In the first and the last a change of all files was
    begun, and some are encrypted."""

    ENCRYPTING = "encrypting"
    ENCRYPTED = "encrypted"
    DECRYPTING = "decrypting"


class ScryptCost(msgspec.Struct, frozen=True):
    """The cost of scrypt: 128 * n * r bytes of memory, and p times the work."""

    n: int = 2**17
    r: int = 8
    p: int = 1

    @property
    def memory_bytes(self) -> int:
        """The memory that it takes."""
        return 128 * self.n * self.r

    @property
    def is_usable(self) -> bool:
        """True: within the limits, so that a changed file does not take all memory."""
        is_power = self.n > 1 and not self.n & (self.n - 1)
        is_bounded = self.memory_bytes <= SCRYPT_BYTES_MAX and self.p <= SCRYPT_P_MAX
        return is_power and is_bounded and self.r >= 1 and self.p >= 1


class DataKey:
    """A key that seals values for their location. `repr` does not show it."""

    __slots__ = ("_cipher", "_nonce_key", "secret")

    def __init__(self, secret: bytes) -> None:
        # To import it takes 20 ms, and most commands use no key.
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        self.secret = secret
        self._cipher = ChaCha20Poly1305(secret)
        self._nonce_key = sha256(_NONCES + secret).digest()

    def seal(self, location: bytes, clear: bytes) -> bytes:
        """The sealed form of a value."""
        hashed = blake2b(len(location).to_bytes(4), key=self._nonce_key, digest_size=_NONCE_BYTES)
        hashed.update(location)
        hashed.update(clear)
        nonce = hashed.digest()
        return SEALED_VERSION + nonce + self._cipher.encrypt(nonce, clear, _LABEL + location)

    def unseal(self, location: bytes, sealed: bytes) -> bytes:
        """The clear value. Raises CannotUnseal."""
        from cryptography.exceptions import InvalidTag

        if len(sealed) < OVERHEAD_BYTES or not sealed.startswith(SEALED_VERSION):
            raise CannotUnseal
        nonce, rest = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, rest, _LABEL + location)
        except InvalidTag:
            raise CannotUnseal from None

    def __repr__(self) -> str:
        return "DataKey()"


def is_encrypted(folder: Path) -> bool:
    """True if a folder has a data key."""
    return (folder / FILE_NAME).exists()


def folder_state(folder: Path) -> FolderState | None:
    """The state in the file of the data key, read without the passphrase; None: there is no file,
    or a damaged one."""
    try:
        found = _FILE.fullmatch(read_private(folder / FILE_NAME, FILE_BYTES_MAX))
    except (UnsafeFile, OSError):
        return None
    states = {each.value.encode(): each for each in FolderState}
    return None if found is None else states.get(found["state"])


def read_passphrase(file: str | Path) -> bytes:
    """The passphrase in a file, which only its owner may read: all but a line end at its end.

    Raises DataKeyError.
    """
    path, refused = Path(file), OTHERS
    if path.parent == Path(os.environ.get("CREDENTIALS_DIRECTORY", "/")):
        refused &= ~stat.S_IRGRP  # systemd gives them to a user by an access list, which shows so
    try:
        text = read_private(path, PASSPHRASE_BYTES_MAX + 2, refused=refused)
    except UnsafeFile as exc:
        raise DataKeyError(f"passphrase file: {exc}") from exc
    except OSError as exc:
        raise DataKeyError(f"passphrase file {file}: {exc.strerror}") from exc
    passphrase = text.removesuffix(b"\n").removesuffix(b"\r")
    if not PASSPHRASE_BYTES_MIN <= len(passphrase) <= PASSPHRASE_BYTES_MAX:
        bounds = f"{PASSPHRASE_BYTES_MIN} to {PASSPHRASE_BYTES_MAX}"
        raise DataKeyError(f"passphrase file {file}: a passphrase has {bounds} bytes")
    return passphrase


def read_data_key(folder: Path, passphrase: bytes) -> tuple[DataKey, FolderState]:
    """The data key of a folder, and its state. Raises DataKeyError, FileNotFoundError."""
    path = folder / FILE_NAME
    try:
        found = _FILE.fullmatch(read_private(path, FILE_BYTES_MAX))
    except UnsafeFile as exc:
        raise DataKeyError(str(exc)) from exc
    if found is None:
        raise DataKeyError(f"{path}: damaged, or of a later version")
    cost = ScryptCost(int(found["n"]), int(found["r"]), int(found["p"]))
    states = {each.value: each for each in FolderState}
    state = states.get(found["state"].decode("ascii"))
    if state is None or not cost.is_usable:
        raise DataKeyError(f"{path}: damaged, or of a later version")
    wrapping = wrapping_key(passphrase, bytes.fromhex(found["salt"].decode("ascii")), cost)
    try:
        sealed = bytes.fromhex(found["sealed"].decode("ascii"))
        return DataKey(wrapping.unseal(_location(found["head"]), sealed)), state
    except CannotUnseal:
        raise WrongPassphrase(
            f"{folder}: the passphrase is wrong (or {FILE_NAME} was changed)"
        ) from None


def write_data_key(
    folder: Path,
    key: DataKey,
    state: FolderState,
    passphrase: bytes,
    entropy: Callable[[int], bytes],
    cost: ScryptCost | None = None,
) -> None:
    """Put the data key under a passphrase into its file: as a whole, or not at all. Raises OSError.

    Each call has another salt.
    """
    replace(folder / FILE_NAME, encode_data_key(key, state, passphrase, entropy(SALT_BYTES), cost))


def encode_data_key(
    key: DataKey, state: FolderState, passphrase: bytes, salt: bytes, cost: ScryptCost | None = None
) -> bytes:
    """The content of the file."""
    cost = cost or ScryptCost()
    head = (
        f"{VERSION_LINE}\nstate {state.value}\nkdf scrypt {cost.n} {cost.r} {cost.p} {salt.hex()}\n"
    ).encode("ascii")
    sealed = wrapping_key(passphrase, salt, cost).seal(_location(head), key.secret)
    return head + f"sealed {sealed.hex()}\n".encode("ascii")


def _location(head: bytes) -> bytes:
    return f"{FILE_NAME}\n".encode("ascii") + head


def wrapping_key(passphrase: bytes, salt: bytes, cost: ScryptCost) -> DataKey:
    """The key that scrypt makes of a passphrase."""
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    scrypt = Scrypt(salt=salt, length=KEY_BYTES, n=cost.n, r=cost.r, p=cost.p)
    return DataKey(scrypt.derive(passphrase))


def open_folder(folder: Path, passphrase_file: str | Path | None) -> DataKey | None:
    """The data key of a folder; None: it has none. Raises DataKeyError, which says what is missing.

    A folder that is neither encrypted nor clear is not opened.
    """
    if not is_encrypted(folder):
        return None
    if not passphrase_file:
        raise DataKeyError(
            f"{folder}: its keys and histories are encrypted; give the file with its passphrase"
            " (serve --passphrase-file, or MILLPOND_PASSPHRASE_FILE)"
        )
    key, state = read_data_key(folder, read_passphrase(passphrase_file))
    match state:
        case FolderState.ENCRYPTED:
            return key
        case FolderState.ENCRYPTING:
            how = "set"
        case FolderState.DECRYPTING:
            how = "remove"
        case _:
            assert_never(state)
    raise DataKeyError(
        f"{folder}: encrypting or decrypting it was interrupted;"
        f" `millpond keys passphrase {how}` goes on with it"
    )


def open_or_begin(
    folder: Path,
    passphrase_file: str | Path | None,
    entropy: Callable[[int], bytes],
    is_new: Callable[[Path], bool],
) -> DataKey | None:
    """The same for a node, which wants a folder to be encrypted if it is given a passphrase.

    A folder in which nothing is yet is encrypted from the start. Raises DataKeyError, OSError.
    """
    if is_encrypted(folder) or not passphrase_file:
        return open_folder(folder, passphrase_file)
    passphrase = read_passphrase(passphrase_file)
    if not is_new(folder):
        raise DataKeyError(
            f"{folder}: it is not encrypted, and a passphrase is given;"
            " `millpond keys passphrase set` encrypts it"
        )
    key = DataKey(entropy(KEY_BYTES))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_data_key(folder, key, FolderState.ENCRYPTED, passphrase, entropy)
    return key
