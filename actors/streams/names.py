"""How streams are named in the store and among the cells, apart from channels.

A stream's name is bytes, any of them. Its cell and its partition have the name behind a prefix that
no channel can have: names of channels do not begin with a NUL.
"""

from __future__ import annotations

RESERVED = b"\0"
"""Names of cells that begin so are not channels."""

TOPICS = b"\0topics"
"""The cell of the catalogue of topics."""

_STREAM = b"\0stream\0"


def stream_cell(name: bytes) -> bytes:
    """The cell of a stream, and its partition."""
    return _STREAM + name


def stream_of(cell: bytes) -> bytes | None:
    """The stream's name, if the cell is a stream's."""
    return cell[len(_STREAM) :] if cell.startswith(_STREAM) else None
