"""Headers and bulk strings out of S3P's bytes, each byte checked as soon as it has come (3).

The first byte that cannot be right decides which error it is, so that the same bytes give the same
error however they come.
"""

from __future__ import annotations

from collections.abc import Callable

from millpond.transports.s3p.commands import S3pError, bad_format, printable

CRLF = b"\r\n"
ARRAY, BULK, SIMPLE, ERROR = b"*$+-"
_KINDS = {ARRAY: "an array", BULK: "a bulk string"}
_DIGITS_MAX = 20
_HEADER_BYTES_MAX = 1 + _DIGITS_MAX + 2
_CR = 0x0D
_SIZES = {b"$%d\r\n" % size: size for size in range(1, 1025)}
BLOCK_BYTES = 2**16


class PartialString:
    """The beginning of a string whose end has not come, in blocks. One buffer that grows has an
    eighth more memory than bytes, and leaves a gap in the heap each time that it is moved."""

    __slots__ = ("_blocks", "_tail", "missing")

    def __init__(self, data: bytes | memoryview, missing: int) -> None:
        self.missing = missing
        """The bytes that have to come before it is worth a look."""
        self._blocks: list[bytes] = []
        self._tail = bytearray()
        """The bytes behind the blocks, fewer than one block."""
        self._append(data)

    def __len__(self) -> int:
        return sum(map(len, self._blocks)) + len(self._tail)

    def add(self, data: bytes) -> None:
        """More came."""
        self.missing -= len(data)
        self._append(data)

    def whole(self) -> bytes:
        """All that came."""
        return b"".join([*self._blocks, self._tail])

    def _append(self, data: bytes | memoryview) -> None:
        tail = self._tail
        if len(tail) + len(data) < BLOCK_BYTES:
            tail += data
            return
        if tail:
            self._blocks.append(bytes(tail))
            tail.clear()
        self._blocks.append(bytes(data))


class InputBuffer:
    """Received bytes that are not used yet. A string that is not complete is kept apart, so that
    its cost does not depend on the number of its pieces."""

    __slots__ = ("_at", "_data", "_kept", "_size")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0
        self._size = 0
        self._kept: PartialString | None = None

    @property
    def is_empty(self) -> bool:
        """Everything that came was used."""
        return self._at == len(self._data) and self._kept is None

    def feed(self, data: bytes) -> bool:
        """More came, after `compact` or `take_unused`. False: not enough to look at it."""
        kept = self._kept
        if kept is not None:
            kept.add(data)
            if kept.missing > 0:
                return False
            self._data = kept.whole()
            self._kept = None
        else:
            self._data = self._data + data if self._data else data
        return True

    @property
    def unused_bytes(self) -> int:
        """The bytes that were not used yet."""
        return len(self._data) - self._at

    @property
    def type_byte(self) -> int:
        """The first byte that is not used; there must be one."""
        return self._data[self._at]

    def compact(self) -> None:
        """Drop the bytes that were used."""
        if self._at:
            self._data = self._data[self._at :]
            self._at = 0

    def take_unused(self) -> bytes:
        """The bytes that are not used; they are the caller's from here on."""
        rest = self._data[self._at :]
        self._data = b""
        self._at = 0
        return rest

    def skip(self, text: bytes) -> bool:
        """Pass over `text` if it is what comes next, and all of it is there."""
        end = self._at + len(text)
        if self._data[self._at : end] != text:
            return False
        self._at = end
        return True

    def line(self, size_max: int) -> bytes | None:
        """The text of a simple string or an error, at most `size_max` bytes; None: it is not
        all there yet."""
        data, at = self._data, self._at
        text = data[at + 1 : at + 1 + size_max + 2]
        size = len(text.partition(b"\r")[0].partition(b"\n")[0])
        if size > size_max:
            raise bad_format(f"a line of more than {size_max} bytes")
        ending = text[size : size + 2]
        if ending != CRLF[: len(ending)]:
            raise bad_format("a line does not end in CRLF")
        if len(ending) < 2:
            return None
        self._at = at + 1 + size + 2
        return text[:size]

    def number(self, type_byte: int, what: str) -> int:
        """The header of an array or a bulk string, as its number; -1: it is not there yet."""
        data, at = self._data, self._at
        end = data.find(CRLF, at + 2, at + _HEADER_BYTES_MAX)
        if end > 0 and data[at] == type_byte:
            digits = data[at + 1 : end]
            if digits.isdigit():
                self._at = end + 2
                return int(digits)
        _check_header(data[at : at + _HEADER_BYTES_MAX], type_byte, what)
        return -1

    def bulk(
        self, what: str, size_max: int, too_long: Callable[[int, int], S3pError]
    ) -> bytes | None:
        """A bulk string with its header; None: it is not all there yet."""
        if not (size := self._size):
            if (size := self.number(BULK, what)) < 0:
                return None
            if not size:
                raise bad_format(f"invalid {what} bulk string (length < 1)")
            if size > size_max:
                raise too_long(size, size_max)
        data, at = self._data, self._at
        end = at + size
        if data[end : end + 2] == CRLF:
            self._size = 0
            self._at = end + 2
            return data[at:end]
        beyond = len(data) - end
        if beyond > 1 or (beyond == 1 and data[end] != _CR):
            raise bad_format(f"{what} bulk string does not end in CRLF")
        self._size = size
        self._keep(1 if beyond > 0 else 1 - beyond)
        return None

    def whole_records(self, records: list[bytes], count: int, size_max: int, left: int) -> int:
        """Take records up to `count` while they are there and plainly right, at most `left` bytes;
        gives what is left of those. Other records are left to `bulk`."""
        if self._size:
            return left
        data, at = self._data, self._at
        head: bytes | None = None
        skip = size = 0
        for _ in range(count - len(records)):
            if data[at : at + skip] != head:
                skip = max(0, data.find(CRLF, at + 2, at + _HEADER_BYTES_MAX) + 2 - at)
                head = data[at : at + skip]
                size = _SIZES.get(head) or _size_of(head)
                if not 0 < size <= size_max:
                    break
            start = at + skip
            end = start + size
            if size > left or data[end : end + 2] != CRLF:
                break
            records.append(data[start:end])
            left -= size
            at = end + 2
        self._at = at
        return left

    def _keep(self, missing: int) -> None:
        self._kept = PartialString(memoryview(self._data)[self._at :], missing)
        self._data = b""
        self._at = 0


def _size_of(header: bytes) -> int:
    digits = header[1:-2]
    return int(digits) if header[:1] == b"$" and digits.isdigit() else 0


def _check_header(head: bytes, type_byte: int, what: str) -> None:
    """Raise what is wrong with the beginning of a header; nothing is, if it may still become one.

    The first byte that is wrong decides, so that it does not matter what came with it.
    """
    if not head:
        return
    if head[0] != type_byte:
        raise bad_format(f"expected {_KINDS[type_byte]} for {what}, got {printable(head[:1])}")
    tail = head[1:].lstrip(b"0123456789")
    digits = len(head) - 1 - len(tail)
    if digits > _DIGITS_MAX:
        raise bad_format(f"length of {what} has more than {_DIGITS_MAX} digits")
    if not tail:
        return
    if not digits or tail[0] != _CR:
        raise bad_format(f"length of {what} is not decimal digits and CRLF")
    if len(tail) > 1:
        raise bad_format(f"header of {what} does not end in CRLF")
