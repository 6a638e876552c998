"""The task of a write, which stages rows in the node, and its driver, which publishes them.

Rows come as Arrow batches; this module does not use Spark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any
from urllib.parse import quote
from uuid import uuid4
from zlib import crc32

import pyarrow as pa

from millpond.pipeline.client.http_client import NodeClient
from millpond.pipeline.client.s2_codec import Headers, encode_records
from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.options import SinkOptions
from millpond.pipeline.spark.arrow import KEY, TOMBSTONE

log = logging.getLogger(__name__)

ROWS_MAX = 1000
METERED_BYTES_MAX = 2**20
"""Metered bytes of one request, as S2 counts: 8 a record, 2 a header, and their content."""
COLUMNS = ("key", "value", "headers", "topic", "partition")
READ_ONLY = ("offset", "timestamp", "timestampType")

Row = tuple[bytes, Headers, int | None]


@dataclass(frozen=True)
class StagedPart:
    """A part of a batch that a task has staged in the node."""

    stream: str
    writer: str
    batch: int
    part: str
    rows: int


@dataclass
class _Part:
    """The rows of one stream to be staged as a part."""

    stream: str
    id: str = field(default_factory=lambda: uuid4().hex)
    staged: int = 0
    rows: list[Row] = field(default_factory=list)
    size: int = 0


class Stager:
    """A stager of the rows of one task, as (writer, batch)."""

    def __init__(self, options: SinkOptions, writer: str, batch: int) -> None:
        self._client = NodeClient(options.nodes, 0)
        self._topic = options.topic
        self._writer = writer
        self._batch = batch
        self._parts: dict[str, _Part] = {}
        self._names: dict[tuple[str, int | None], str] = {}
        self._partitions: dict[str, list[int]] = {}
        self._turn = 0

    def stage(self, batches: Iterable[pa.RecordBatch]) -> list[StagedPart]:
        """Stage all rows; the staged parts. Raises PipelineError."""
        try:
            for batch in batches:
                self._add(batch)
            for part in self._parts.values():
                self._flush(part)
        finally:
            self._client.close()
        return [
            StagedPart(each.stream, self._writer, self._batch, each.id, each.staged)
            for each in self._parts.values()
        ]

    def _add(self, batch: pa.RecordBatch) -> None:
        for topic, partition, row in rows_of(batch, self._topic):
            if partition is None:
                partition = self._partition_for(topic, row)
            name = self._names.get((topic, partition))
            if name is None:
                name = self._names[topic, partition] = self._stream(topic, partition)
            part = self._parts.setdefault(name, _Part(name))
            size = metered(row)
            if size > METERED_BYTES_MAX:
                text = (
                    f"a row of {size} bytes for {name!r}: at most {METERED_BYTES_MAX} are allowed"
                )
                raise PipelineError("row_too_large", text)
            if len(part.rows) == ROWS_MAX or part.size + size > METERED_BYTES_MAX:
                self._flush(part)
            part.rows.append(row)
            part.size += size

    def _partition_for(self, topic: str, row: Row) -> int | None:
        """The partition of a row that names none: by the CRC-32 of its key, as RustLog producers
        do, or in turn without a key. None: the topic is a stream by itself, or does not exist."""
        numbers = self._partitions.get(topic)
        if numbers is None:
            names = self._client.names(topic)
            ends = (each.removeprefix(f"{topic}/") for each in names if topic not in names)
            numbers = self._partitions[topic] = sorted(int(end) for end in ends if end.isdecimal())
        if not numbers:
            return None
        key = next((value for name, value in row[1] if name == KEY), None)
        self._turn += key is None
        return numbers[(self._turn if key is None else crc32(key)) % len(numbers)]

    def _stream(self, topic: str, partition: int | None) -> str:
        """The stream of a topic, or of one of its partitions."""
        names = self._client.names(topic)
        if topic in names and not partition:
            return topic
        if partition is not None and topic not in names:
            return f"{topic}/{partition}"
        name = f"{topic}/{partition}" if partition else topic
        text = f"no stream {name!r} at {self._client.address}"
        raise PipelineError("no_stream", text, "create it first")

    def _flush(self, part: _Part) -> None:
        if part.rows:
            path = path_of(part.stream, self._writer, self._batch, part.id)
            path = f"{path}?at={part.staged}"
            body, media = encode_records(part.rows), "application/protobuf"
            self._client.request_bytes("POST", path, body, media=media, stream=part.stream)
            part.staged += len(part.rows)
            part.rows, part.size = [], 0


def publish(options: SinkOptions, staged: Sequence[StagedPart], *, once: bool) -> dict[str, str]:
    """Publish the staged parts of a batch; the outcome in each stream.

    `once`: there is no other batch of this writer.
    """
    found: dict[str, str] = {}
    client = NodeClient(options.nodes, 0)
    try:
        for stream, parts in _by_stream(staged).items():
            writer, batch = parts[0].writer, parts[0].batch
            unnamed = once and options.writer is None
            found[stream] = publish_parts(
                client, stream, writer, batch, parts, once=once, unnamed=unnamed
            )
    finally:
        client.close()
    return found


def publish_parts(
    client: NodeClient,
    stream: str,
    writer: str,
    batch: int,
    parts: Sequence[StagedPart],
    *,
    once: bool = False,
    unnamed: bool = False,
) -> str:
    """Publish the parts of a batch in one stream, or count a batch without parts; the outcome.

    `unnamed`: the writer's name was made for this batch.
    """
    rows = [{"id": each.part, "rows": each.rows} for each in parts]
    plan = json.dumps({"parts": rows, "once": once, "unnamed": unnamed}).encode()
    return _publish(client, stream, path_of(stream, writer, batch), plan)


def writer_last(client: NodeClient, stream: str, writer: str) -> int | None:
    """The last batch that a writer published, or the node has decided to publish; None: none."""
    found: int | None = _status(client, stream, path_of(stream, writer, 0))["last"]
    return found


def _publish(client: NodeClient, stream: str, path: str, plan: bytes) -> str:
    """The outcome of a publication, which may take longer than the node's answers do."""
    rows = -1
    while True:
        try:
            outcome: str = client.request_json("POST", path, plan, stream)["outcome"]
            return outcome
        except PipelineError as error:
            if error.code != "node_away":
                raise
            status = _status(client, stream, path)
            if status["outcome"] == "published":
                return "published"
            if status["outcome"] != "publishing" or status["rows"] <= rows:
                raise
            rows = status["rows"]


def _status(client: NodeClient, stream: str, path: str) -> dict[str, Any]:
    """The status of a batch, as the node has it. Raises PipelineError, which names what is not
    known."""
    try:
        found: dict[str, Any] = client.request_json("GET", path, stream=stream)
    except PipelineError as error:
        if error.code != "node_away":
            raise
        text = f"{error.text}; whether the batch is written to {stream!r} is not known"
        raise PipelineError(
            error.code, text, "a streaming query or writerId repeats it safely"
        ) from None
    return found


def abandon(options: SinkOptions, staged: Sequence[StagedPart]) -> None:
    """Drop parts that will not be published; otherwise they expire. Raises PipelineError.

    The parts of a batch that the node has decided to publish, or that it may still decide for, are
    left to it.
    """
    client = NodeClient(options.nodes, 0)
    try:
        for stream, parts in _by_stream(staged).items():
            path = path_of(stream, parts[0].writer, parts[0].batch)
            outcome = client.request_json("GET", path, stream=stream)["outcome"]
            if outcome != "none":
                log.warning("batch is %s, and not abandoned: stream=%s", outcome, stream)
                continue
            for each in parts:
                client.request_bytes("DELETE", f"{path}/{each.part}", stream=stream)
    finally:
        client.close()


def path_of(stream: str, writer: str, batch: int, part: str = "") -> str:
    """The path of a batch, or of a part of it."""
    suffix = f"/{part}" if part else ""
    return f"/millpond/v1/transactions/{quote(stream, safe='')}/{quote(writer)}/{batch}{suffix}"


def check_columns(names: Sequence[str], topic: str | None, *, is_view: bool = False) -> None:
    """Raise BadOption for a frame that cannot be written.

    An INSERT has all columns of its view; those that only a stream can fill are ignored.
    """
    known = (*COLUMNS, *READ_ONLY) if is_view else COLUMNS
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadOption(f"a stream has no column {unknown[0]!r}", f"there are {', '.join(COLUMNS)}")
    if "value" not in names:
        raise BadOption("a column `value` is needed")
    if topic is None and "topic" not in names:
        raise BadOption("no topic", "set the option topic, or add a column `topic`")


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, int | None, Row]]:
    """Each row: its topic, its partition, and the record."""
    columns: Mapping[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    values = _bytes(columns["value"])
    keys = _bytes(columns["key"]) if "key" in columns else repeat(None)
    headers = columns["headers"].to_pylist() if "headers" in columns else repeat(None)
    topics = repeat(topic) if topic is not None else columns["topic"].to_pylist()
    partitions = columns["partition"].to_pylist() if "partition" in columns else repeat(None)
    for value, key, pairs, name, partition in zip(
        values, keys, headers, topics, partitions, strict=False
    ):
        if name is None:
            raise PipelineError("no_topic", "a row whose topic is null")
        found = _headers(key, pairs)
        if value is None:
            found.append((TOMBSTONE, b""))
        yield name, partition, (value or b"", found, None)


def _bytes(column: Any) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found


def _headers(key: bytes | None, pairs: Any) -> Headers:
    found: Headers = [] if key is None else [(KEY, key)]
    for pair in pairs or ():
        name = (pair["key"] or "").encode()
        if not name:
            raise PipelineError("bad_header", "a header of a row has no name")
        # Those of a record that was read stand for its key and its null value.
        if name != TOMBSTONE and (key is None or name != KEY):
            found.append((name, pair["value"] or b""))
    return found


def metered(row: Row) -> int:
    """The metered bytes of a record, as S2 counts them."""
    body, headers, _ = row
    return 8 + len(body) + sum(2 + len(name) + len(value) for name, value in headers)


def _by_stream(staged: Sequence[StagedPart]) -> dict[str, list[StagedPart]]:
    found: dict[str, list[StagedPart]] = {}
    for each in sorted(staged, key=lambda each: (each.stream, each.part)):
        if each.rows:
            found.setdefault(each.stream, []).append(each)
    return found
