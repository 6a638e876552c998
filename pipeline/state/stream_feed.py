"""A change feed as a stream of a node: State Protocol events, the changes of each batch once.

The node keeps the number of the last batch with the records. A batch that runs again is recognized
there, so its changes are not in the stream twice; a batch without changes is only counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from urllib.parse import quote

import pyarrow as pa

from millpond.pipeline.client.http_client import NodeClient
from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.options import sink_options
from millpond.pipeline.spark.write_task import (
    METERED_BYTES_MAX,
    Stager,
    metered,
    publish_parts,
    writer_last,
)
from millpond.pipeline.state.change_feed import check_owner
from millpond.pipeline.state.changes import CHANGES
from millpond.pipeline.state.location import STREAM, Location

ROWS_PER_PIECE = 10_000
_EVENT = pa.schema([("value", pa.binary())])
_COLUMNS = tuple(CHANGES.names)


class StreamFeed:
    """A change feed as a stream, which may not exist yet.

    `location`: `stream://NAME`. `source`: the options of the source, whose first node has it.
    """

    def __init__(self, location: str, source: Mapping[str, str]) -> None:
        self.folder: Location = location
        self._stream = location.removeprefix(STREAM)
        given = {**source, "topic": self._stream}
        options = sink_options({name: given[name] for name in given if name.lower() != "writerid"})
        first = replace(options.nodes, addresses=options.nodes.addresses[:1])
        self._options = replace(options, nodes=first)
        self._writer = ""
        self._last: int | None = None

    def claim(self, query: str) -> None:
        """Make the stream if there is none, and this query's. Raises PipelineError if it has other
        records than this query's changes."""
        self._writer = f"changes-{query}"
        with closing(NodeClient(self._options.nodes, 0)) as client:
            if self._stream not in client.names(self._stream):
                path = f"/v1/streams/{quote(self._stream, safe='')}"
                client.request_bytes("PUT", path, b"{}", stream=self._stream)
            self._last = writer_last(client, self._stream, self._writer)
            if self._last is None and client.tail(self._stream):
                check_owner(self.folder, "", query)

    def add(self, query: str, batch: int, changes: pa.Table) -> None:
        """Publish the changes of a batch, unless they are there. Raises PipelineError."""
        pieces = changes.to_batches(max_chunksize=ROWS_PER_PIECE)
        events = (_events(batch, each) for each in pieces if each.num_rows)
        staged = Stager(self._options, self._writer, batch).stage(events)
        with closing(NodeClient(self._options.nodes, 0)) as client:
            publish_parts(client, self._stream, self._writer, batch, staged)
        self._last = max(batch, -1 if self._last is None else self._last)

    def last(self) -> int | None:
        """The last batch; None before the first."""
        return self._last

    def batches(self, after: int = -1) -> Iterator[tuple[int, pa.Table]]:
        """Refuse it: the changes are read as records of a stream. Raises BadOption."""
        raise BadOption(f"{self.folder}: its changes are events", "read the stream")


def _events(batch: int, changes: pa.RecordBatch) -> pa.RecordBatch:
    """The events of changes, in their order."""
    columns = {name: changes.column(name) for name in _COLUMNS}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    rows = zip(*(columns[name].to_pylist() for name in _COLUMNS), strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array([_event(batch, *row) for row in rows], pa.binary())], schema=_EVENT
    )


def _event(
    batch: int,
    topic: str,
    partition: int,
    type_: str,
    key: str,
    operation: str,
    before: bytes | None,
    after: bytes | None,
    offset: int,
    us: int,
) -> bytes:
    """The event of a change. An old value that does not fit into a record is left out. Raises
    PipelineError for a new one."""
    headers = {
        "operation": operation,
        "txid": str(batch),
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "time": str(us // 1000),
    }
    begin = b'{"type":%b,"key":%b' % (json.dumps(type_).encode(), json.dumps(key).encode())
    end = b',"headers":%b}' % json.dumps(headers, separators=(",", ":")).encode()
    value = b"" if after is None else b',"value":%b' % after
    old = b"" if before is None else b',"old_value":%b' % before
    if metered((begin + value + old + end, [], None)) > METERED_BYTES_MAX:
        old = b""
    if metered((begin + value + end, [], None)) > METERED_BYTES_MAX:
        text = f"the value of {type_!r} {key[:80]!r} in batch {batch} has {len(after or b'')} bytes"
        raise PipelineError("row_too_large", text, "a change feed as a table has no such limit")
    return begin + value + old + end
