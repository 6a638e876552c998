"""Compressed bodies and messages: zstd (RFC 8878) and gzip (RFC 1952), A.1 and A.7.

Decompressed data has a limit, and no more than the limit is ever decompressed.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from enum import IntEnum

import zstandard

from millpond.transports.http.s2.errors import CodedError, bad_header, invalid

COMPRESSED_BYTES_MIN = 1024
"""Less than that is not worth it."""
ZSTD_LEVEL = 1
GZIP_LEVEL = 4
_WINDOW_BYTES_MAX = 2**23
_GZIP = 31
"""zlib's number for gzip's header and checksum."""


class Compression(IntEnum):
    """The compression of a body; the number is S2S's (A.7)."""

    NONE = 0
    ZSTD = 1
    GZIP = 2


_BY_NAME = {
    "identity": Compression.NONE,
    "zstd": Compression.ZSTD,
    "gzip": Compression.GZIP,
    "x-gzip": Compression.GZIP,
}


class NotCompressed(Exception):
    """The bytes are not whole and compressed in the way that they are said to be."""


class DecompressedTooLarge(Exception):
    """The decompressed data has more than `size_max` bytes."""

    def __init__(self, size_max: int) -> None:
        super().__init__(f"more than {size_max} bytes when decompressed")
        self.size_max = size_max


class _Tools(threading.local):
    """zstandard's objects are of one thread at a time, and expensive to make."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)


_tools = _Tools()


def compress(data: bytes, how: Compression) -> bytes:
    """The bytes compressed."""
    match how:
        case Compression.NONE:
            return data
        case Compression.ZSTD:
            return _tools.compressor.compress(data)
        case Compression.GZIP:
            return gzip.compress(data, GZIP_LEVEL, mtime=0)


def decompress(data: bytes, how: Compression, size_max: int) -> bytes:
    """The bytes as they were. Raises NotCompressed, DecompressedTooLarge."""
    match how:
        case Compression.NONE:
            if len(data) > size_max:
                raise DecompressedTooLarge(size_max)
            return data
        case Compression.ZSTD:
            return _unzstd(data, size_max)
        case Compression.GZIP:
            return _ungzip(data, size_max)


def _unzstd(data: bytes, size_max: int) -> bytes:
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            return _unzstd_unknown(data, size_max)
        if size > size_max:
            raise DecompressedTooLarge(size_max)
        return _tools.decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise NotCompressed(str(error)) from error


def _unzstd_unknown(data: bytes, size_max: int) -> bytes:
    """A frame that does not tell its size."""
    try:
        return _tools.decompressor.decompress(
            data, max_output_size=max(size_max, 1), allow_extra_data=False
        )
    except zstandard.ZstdError:
        # The one error is for frames that are too large and for those that are cut off.
        if len(_tools.decompressor.stream_reader(data).read(size_max + 1)) > size_max:
            raise DecompressedTooLarge(size_max) from None
        raise


def _ungzip(data: bytes, size_max: int) -> bytes:
    """One member, and nothing behind it."""
    member = zlib.decompressobj(_GZIP)
    try:
        found = member.decompress(data, size_max + 1)
    except zlib.error as error:
        raise NotCompressed(str(error)) from error
    if len(found) > size_max:
        raise DecompressedTooLarge(size_max)
    if not member.eof or member.unused_data:
        raise NotCompressed("gzip data is cut off, or has something behind it")
    return found


def accepted(accept_encoding: str | None) -> Compression:
    """The compression that the client accepts: zstd before gzip, whatever it prefers (A.7)."""
    found = Compression.NONE
    for part in (accept_encoding or "").lower().split(","):
        name, _, rest = part.partition(";")
        how = _BY_NAME.get(name.strip(), Compression.NONE)
        if how is Compression.NONE or _is_nothing(rest):
            continue
        if how is Compression.ZSTD:
            return how
        found = how
    return found


def _is_nothing(parameters: str) -> bool:
    """`q=0`: the peer does not want it."""
    name, _, value = parameters.replace(" ", "").partition("=")
    return name == "q" and value.rstrip("0") in ("", ".", "0.")


def read_body(data: bytes, content_encoding: str | None, size_max: int) -> bytes:
    """A request's body as it was before the client compressed it.

    Raises CodedError: bad_header for an encoding that is unknown or that the body does not have,
    invalid for a body of more than `size_max` bytes.
    """
    name = (content_encoding or "identity").strip().lower()
    how = _BY_NAME.get(name)
    if how is None:
        raise bad_header(f"content-encoding: zstd and gzip are supported, not {name[:40]!r}")
    try:
        return decompress(data, how, size_max)
    except NotCompressed as error:
        raise bad_header(f"content-encoding: the body is not {name}: {error}") from None
    except DecompressedTooLarge as error:
        raise _too_large(error) from None


def _too_large(error: DecompressedTooLarge) -> CodedError:
    return invalid(f"the body has {error}")


def write_body(data: bytes, accept_encoding: str | None) -> tuple[bytes, bytes | None]:
    """A response's body, and the `content-encoding` to send with it, if there is one."""
    if len(data) < COMPRESSED_BYTES_MIN:
        return data, None
    how = accepted(accept_encoding)
    match how:
        case Compression.NONE:
            return data, None
        case Compression.ZSTD | Compression.GZIP:
            return compress(data, how), how.name.lower().encode()
