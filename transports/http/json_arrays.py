"""The limit of a JSON array's length, checked before the elements are decoded.

To decode `[1,1,1...]` of 15 MB takes seconds of the loop, and its length is known only then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec


class ArrayTooLong(Exception):
    """The array has more elements than are accepted."""


def check_array_length(text: bytes, length_max: int) -> None:
    """Check the length of an array, with the work that `length_max` elements take.

    Raises ArrayTooLong; msgspec.DecodeError for an array that is broken before its length is known.
    """
    # Commas inside of elements count here as well, so this tells only that there are few.
    if text.count(b",") < length_max:
        return
    try:
        _array_up_to(length_max)(text)
    except msgspec.ValidationError:
        raise ArrayTooLong from None


@lru_cache(maxsize=4)
def _array_up_to(length_max: int) -> Callable[[bytes], object]:
    """A decoder of arrays that stops at the first element too many; that of a list does not."""
    fields = [(f"_{number}", msgspec.Raw, msgspec.Raw(b"")) for number in range(length_max)]
    row = msgspec.defstruct("_Row", fields, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(row).decode
