"""What came over a connection and was not read yet."""

from __future__ import annotations

from collections import deque


class InputBuffer:
    """Bytes in the pieces in which they came: however many wait, none is copied to be joined."""

    __slots__ = ("_at", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._at = 0
        """How much of the first piece was taken."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, data: bytes) -> None:
        """More of them; `data` is not empty."""
        self._pieces.append(data)

    def take(self, size: int) -> bytes:
        """The next ones, at most so many, from one piece; there have to be some."""
        piece, at = self._pieces[0], self._at
        if at + size < len(piece):
            self._at = at + size
            return piece[at : self._at]
        self._pieces.popleft()
        self._at = 0
        return piece[at:] if at else piece

    def put_back(self, data: bytes) -> None:
        """What was taken last, or its end, comes first again."""
        if not data:
            return
        if self._at:
            self._pieces[0] = self._pieces[0][self._at :]
            self._at = 0
        self._pieces.appendleft(data)

    def clear(self) -> None:
        """Nobody reads them any more."""
        self._pieces.clear()
        self._at = 0
