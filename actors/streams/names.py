"""The names of streams' cells and partitions.

A stream's name is any bytes. Its cell and its partition have the name behind a prefix that no
channel can have: names of channels do not begin with a NUL. Streams of S2's other basins have a
prefix with the basin, so that they are visible in no other.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote_from_bytes

RESERVED = b"\0"
"""Names of cells that begin so are not channels."""

TOPICS = b"\0topics"
"""The cell of the catalog of topics."""

BASINS = b"\0basins"
"""The cell of the catalog of basins."""

TOKENS = b"\0tokens"
"""The cell of the catalog of access tokens that S2 clients were issued."""

SCHEDULES = b"\0schedules"
"""The cell of the schedules of job queues."""

FLOWS = b"\0flows"
"""The cell of the flows of jobs."""

CHANNELS = b"\0channels"
"""The cell of the catalog of channels that were created."""

_RESULTS = b"\0results\0"

STAGE = b"\0stage\0"
"""Cells of parts of batches that are not published yet; whole names of cells are their names."""

_STREAM = b"\0stream\0"
_BASIN = b"\0basin\0"
_STATE = b"\0state\0"
_SUBSCRIPTION = b"\0subscription\0"


def stream_cell(name: bytes) -> bytes:
    """The cell of a stream, and its partition."""
    return _STREAM + name


def stream_of(cell: bytes) -> bytes | None:
    """The stream's name, if the cell is a stream's."""
    return cell[len(_STREAM) :] if cell.startswith(_STREAM) else None


def results_cell(channel: bytes) -> bytes:
    """The cell of the results of a queue's jobs, and its partition."""
    return _RESULTS + channel


def results_channel_of(cell: bytes) -> bytes | None:
    """The channel of the queue, if the cell has its results."""
    return cell[len(_RESULTS) :] if cell.startswith(_RESULTS) else None


def stream_path(name: bytes) -> str:
    """The path of a stream in URLs, relative to the root of all streams. Slashes at the ends are
    escaped: without that they would not be the name's."""
    inner = name.strip(b"/")
    start = name.index(inner) if inner else len(name)
    path = quote_from_bytes(inner, safe="/:@!$&'()*+,;=")
    return "%2F" * start + path + "%2F" * (len(name) - start - len(inner))


def state_cell(name: bytes) -> bytes:
    """The cell of the state of a stream; it has no partition."""
    return _STATE + name


def state_of(cell: bytes) -> bytes | None:
    """The stream's name, if the cell is that of its state."""
    return cell[len(_STATE) :] if cell.startswith(_STATE) else None


def subscription_cell(id_: bytes) -> bytes:
    """The cell of a subscription, and its partition."""
    return _SUBSCRIPTION + id_


def subscription_of(cell: bytes) -> bytes | None:
    """The id of the subscription, if the cell is one's."""
    return cell[len(_SUBSCRIPTION) :] if cell.startswith(_SUBSCRIPTION) else None


def basin_cell(basin: bytes, name: bytes) -> bytes:
    """The cell of a stream of another basin than the node's own, and its partition."""
    return _BASIN + basin + b"\0" + name


def basin_stream_of(cell: bytes) -> tuple[bytes, bytes] | None:
    """The basin and the stream's name, if the cell is that of a stream of another basin."""
    if not cell.startswith(_BASIN):
        return None
    basin, _, name = cell[len(_BASIN) :].partition(b"\0")
    return basin, name


def qualified_name(basin: bytes, name: bytes) -> bytes:
    """The name of a stream of another basin in rights and rules."""
    return basin + b":" + name


def qualified_name_of(cell: bytes) -> bytes | None:
    """The same of a cell; a stream of the node's own basin has its bare name, and a part of a batch
    is like the stream that it is meant for."""
    part = staged_part_of(cell)
    if part is not None:
        cell = part.target
    found = basin_stream_of(cell)
    return stream_of(cell) if found is None else qualified_name(*found)


class StagedPart(NamedTuple):
    """Rows of a writer's batch, staged for the stream that has the cell `target`."""

    target: bytes
    writer: bytes
    batch: int
    id: bytes


def staged_cell(part: StagedPart) -> bytes:
    """The cell of a part. Neither a writer nor an id has a NUL."""
    return STAGE + b"\0".join((part.writer, b"%d" % part.batch, part.id, part.target))


def staged_part_of(cell: bytes) -> StagedPart | None:
    """The part, if the cell is one's."""
    if not cell.startswith(STAGE):
        return None
    writer, batch, id_, target = cell[len(STAGE) :].split(b"\0", 3)
    return StagedPart(target, writer, int(batch), id_)
