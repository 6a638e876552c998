"""Files between peers: sealed in chunks, and named by the root of a hash tree over them.

    chunk    ChaCha20-Poly1305(key, nonce, 65,536 bytes of the file, "millpond file v1\\0")
    nonce    number of the chunk[11] | 01 for the last one, else 00
    leaf     SHA-256(00 | chunk)
    node     SHA-256(01 | left | right)
    root     SHA-256("millpond file v1\\0" | size of the file u64 | top of the tree)

The last chunk has the rest of the file: fewer bytes, none if the file is empty. The tree is that of
RFC 6962: left of a node are as many leaves as the largest power of two below all. A node that
stores the chunks for others knows the root, so it keeps no chunk that is not of the file, and it
can read nothing. The key is random and for one file alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

CHUNK_BYTES = 64 * 1024
TAG_BYTES = 16
KEY_BYTES = 32
ROOT_BYTES = 32
LEAF_BYTES = 32
FILE_BYTES_MAX = 512 * 2**20
"""The largest file of this format: its leaves fit into a packet."""
NAME_BYTES_MAX = 200
"""The longest name of a file in bytes of UTF-8."""
SUFFIX_CHARS_MAX = 16
NAMELESS = "file"

_LABEL = b"millpond file v1\0"
_SEPARATORS = re.compile(r'[/\\:*?"<>|]')
_DEVICE = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")

Hex32 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class BadFile(ValueError):
    """A chunk, or a list of leaves, that is not of the file."""


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a file: all that it takes to fetch and to read it.

    `root` and `key` are hexadecimal digits. `name` and `type` (a media type) are what the sender
    says. The sender offers the file `until` (ms since 1970; 0: as long as it has it).
    """

    root: Hex32
    size: Annotated[int, msgspec.Meta(ge=0, le=FILE_BYTES_MAX)]
    key: Hex32
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]
    type: Annotated[str, msgspec.Meta(pattern=r"^([a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64})?$")] = ""
    chunk: Annotated[int, msgspec.Meta(ge=CHUNK_BYTES, le=CHUNK_BYTES)] = CHUNK_BYTES
    until: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0

    def __repr__(self) -> str:
        """Without the key: this may end up in a log."""
        return f"<File {self.name!r} of {self.size} bytes>"

    @property
    def root_bytes(self) -> bytes:
        """The root."""
        return bytes.fromhex(self.root)

    @property
    def key_bytes(self) -> bytes:
        """The key."""
        return bytes.fromhex(self.key)

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return chunk_count(self.size)


def chunk_count(size: int) -> int:
    """The number of chunks of a file of so many bytes."""
    return max(1, -(-size // CHUNK_BYTES))


def sealed_size(size: int) -> int:
    """The bytes of all sealed chunks of a file."""
    return size + TAG_BYTES * chunk_count(size)


def sealed_chunk_size(size: int, index: int) -> int:
    """The bytes of one sealed chunk of a file."""
    is_last = index == chunk_count(size) - 1
    return (size - index * CHUNK_BYTES if is_last else CHUNK_BYTES) + TAG_BYTES


def seal_chunk(key: bytes, index: int, clear: bytes, *, is_last: bool) -> bytes:
    """The sealed chunk `index` of the file with this key."""
    return ChaCha20Poly1305(key).encrypt(_nonce(index, is_last=is_last), clear, _LABEL)


def open_chunk(key: bytes, index: int, sealed: bytes, *, is_last: bool) -> bytes:
    """The bytes in a sealed chunk. Raises BadFile."""
    try:
        return ChaCha20Poly1305(key).decrypt(_nonce(index, is_last=is_last), sealed, _LABEL)
    except InvalidTag as error:
        raise BadFile(f"chunk {index} was not sealed with the key of the file") from error


def _nonce(index: int, *, is_last: bool) -> bytes:
    return index.to_bytes(11, "big") + (b"\1" if is_last else b"\0")


def leaf_of(sealed: bytes) -> bytes:
    """The leaf of a sealed chunk."""
    return sha256(b"\0" + sealed).digest()


def root_of(size: int, leaves: Sequence[bytes]) -> bytes:
    """The root of a file of so many bytes with these leaves. Raises BadFile if there are too many
    or too few."""
    if not 0 <= size <= FILE_BYTES_MAX or len(leaves) != chunk_count(size):
        raise BadFile(f"{len(leaves)} chunks are not those of {size} bytes")
    return sha256(_LABEL + size.to_bytes(8, "big") + _top(leaves)).digest()


def _top(leaves: Sequence[bytes]) -> bytes:
    """The top of the tree. Below a power of two, a level at a time is the tree of RFC 6962."""
    level = list(leaves)
    while len(level) > 1:
        paired = [
            sha256(b"\1" + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)
        ]
        level = paired + level[len(paired) * 2 :]
    return level[0]


def split_leaves(data: bytes, size: int, root: bytes) -> list[bytes]:
    """The leaves of a file in a row. Raises BadFile unless they give the root."""
    leaves = [data[at : at + LEAF_BYTES] for at in range(0, len(data), LEAF_BYTES)]
    if len(data) % LEAF_BYTES or root_of(size, leaves) != root:
        raise BadFile("these leaves are not those of the root")
    return leaves


def check_chunk(sealed: bytes, index: int, size: int, leaves: Sequence[bytes]) -> None:
    """Raises BadFile unless this is chunk `index` of the file."""
    if not 0 <= index < len(leaves):
        raise BadFile(f"the file has no chunk {index}")
    if len(sealed) != sealed_chunk_size(size, index) or leaf_of(sealed) != leaves[index]:
        raise BadFile(f"this is not chunk {index} of the file")


def clean_name(name: str) -> str:
    """A name for a file in any folder: without separators, control and invisible characters, and
    names of devices; never hidden, and never empty."""
    text = unicodedata.normalize("NFC", name.encode("utf-8", "replace").decode())
    text = "".join(each for each in text if not unicodedata.category(each).startswith("C"))
    text = _SEPARATORS.sub("_", " ".join(text.split())).strip(" .")
    if _DEVICE.fullmatch(text):
        text = f"_{text}"
    return _shortened(text) or NAMELESS


def with_clean_name(file: File) -> File:
    """The description of a file with a clean name."""
    return msgspec.structs.replace(file, name=clean_name(file.name))


def _shortened(name: str) -> str:
    """The name with a shorter stem, if it is too long."""
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    stem, dot, suffix = name.rpartition(".")
    if not stem or len(suffix) > SUFFIX_CHARS_MAX:
        stem, dot, suffix = name, "", ""
    left = NAME_BYTES_MAX - len((dot + suffix).encode())
    return stem.encode()[:left].decode("utf-8", "ignore").rstrip(" .") + dot + suffix
