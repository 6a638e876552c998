"""The shortest way of the S3P parser: a client mostly appends to the stream it appended to last.

What stands before the records is then the same bytes once more: to compare them is to read them.
"""

from __future__ import annotations

from millpond.transports.s3p.commands import AppendRecords, Command, S3pLimits
from millpond.transports.s3p.scanner import CRLF

_SIZES = {b"%d" % size: size for size in range(1, 1025)}
_DIGITS_MAX = 20


class LastAppend:
    """How APPENDs without options to one stream begin: `opening` ends before the records.

    As long as `name` is empty there was none, and `opening` means nothing.
    """

    __slots__ = ("_alike", "_single", "_size", "_size_max", "name", "opening")

    def __init__(self, limits: S3pLimits) -> None:
        self._size_max = min(limits.record_bytes_max, limits.append_bytes_max)
        self._alike = self._single = self.opening = b""
        self._size = 0
        self.name = b""

    def remember(self, command: Command) -> None:
        """The command was read, so that the name in it is within the limits."""
        if type(command) is not AppendRecords or command.name == self.name:
            return
        self.name = name = command.name
        self.opening = b"*4\r\n$6\r\nAPPEND\r\n$%d\r\n%b\r\n*0\r\n" % (len(name), name)
        self._single = self.opening + b"*1\r\n$"
        self._alike = self._single + b"1\r\n"
        self._size = 1

    def take(self, data: bytes, found: list[Command]) -> int:
        """Put APPENDs of one record each into `found`; gives where the first one begins that is
        none, or is not all there, or not plainly right."""
        name, alike, size = self.name, self._alike, self._size
        at = 0
        while name:
            start = at + len(alike)
            if data[at:start] != alike:
                # Not as long as the last one. Mostly they are, and that is seen at once.
                if (start := self._find_record(data, at)) == at:
                    break
                alike, size = self._alike, self._size
            stop = start + size
            if data[stop : stop + 2] != CRLF:
                break
            found.append(AppendRecords(name, None, [data[start:stop]]))
            at = stop + 2
        return at

    def _find_record(self, data: bytes, at: int) -> int:
        """Where the record begins of the APPEND at `at`; `at` itself if it is no such APPEND."""
        start = at + len(self._single)
        if data[at:start] != self._single:
            return at
        stop = data.find(CRLF, start, start + _DIGITS_MAX + 2)
        digits = data[start : max(start, stop)]
        size = _SIZES.get(digits) or (int(digits) if digits.isdigit() else 0)
        if not 0 < size <= self._size_max:
            return at
        self._alike = data[at : stop + 2]
        self._size = size
        return stop + 2
