"""The payload of messages and records: bytes, of any object that has them."""

from __future__ import annotations

from collections.abc import Sequence

Data = bytes | bytearray | memoryview


def as_bytes(data: Data) -> bytes:
    """A copy of the data, unless it is immutable. Raises TypeError where there are no bytes."""
    if isinstance(data, bytes):
        return data
    try:
        return memoryview(data).tobytes()
    except TypeError:
        kind = type(data).__name__
        hint = ": encode the text, as in text.encode()" if kind == "str" else ""
        raise TypeError(f"the data must be bytes, not {kind}{hint}") from None


def as_bodies(records: Data | Sequence[Data]) -> list[bytes]:
    """The bodies of one record or several. Raises TypeError where there are no bytes."""
    if isinstance(records, bytes | bytearray | memoryview | str):
        return [as_bytes(records)]
    return [as_bytes(record) for record in records]
