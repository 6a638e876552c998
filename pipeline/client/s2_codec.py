"""Records as a node sends and takes them: S2's protobuf, and the frames of its sessions.

The messages are described here instead of generated, so that an executor needs nothing but this
package and protobuf. `headers` of the quick form is undecoded: most records have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from millpond.pipeline.errors import PipelineError

FRAME_BYTES_MAX = 2**21
HEAD_BYTES = 4
TERMINAL = 0x80
COMPRESSED = 0x60

Headers = list[tuple[bytes, bytes]]
_Field = descriptor_pb2.FieldDescriptorProto


def _messages() -> tuple[Any, Any, Any]:
    """The classes of a batch as it is read, of the same in the quick form, and of an append."""
    file = descriptor_pb2.FileDescriptorProto(
        name="millpond_pipeline.proto", package="millpond.pipeline", syntax="proto3"
    )
    header = file.message_type.add(name="Header")
    _add(header, "name", 1, _Field.TYPE_BYTES)
    _add(header, "value", 2, _Field.TYPE_BYTES)
    for kind, headers in (("Full", ".millpond.pipeline.Header"), ("Quick", "")):
        record = file.message_type.add(name=f"{kind}Record")
        _add(record, "seq_num", 1, _Field.TYPE_UINT64)
        _add(record, "timestamp", 2, _Field.TYPE_UINT64)
        if headers:
            _add(record, "headers", 3, _Field.TYPE_MESSAGE, headers)
        else:
            _add(record, "headers", 3, _Field.TYPE_BYTES)
        _add(record, "body", 4, _Field.TYPE_BYTES)
        batch = file.message_type.add(name=f"{kind}Batch")
        _add(batch, "records", 1, _Field.TYPE_MESSAGE, f".millpond.pipeline.{kind}Record")
    record = file.message_type.add(name="NewRecord")
    _add(record, "timestamp", 1, _Field.TYPE_UINT64)
    _add(record, "headers", 2, _Field.TYPE_MESSAGE, ".millpond.pipeline.Header")
    _add(record, "body", 3, _Field.TYPE_BYTES)
    append = file.message_type.add(name="NewBatch")
    _add(append, "records", 1, _Field.TYPE_MESSAGE, ".millpond.pipeline.NewRecord")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    full, quick, new = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"millpond.pipeline.{name}"))
        for name in ("FullBatch", "QuickBatch", "NewBatch")
    )
    return full, quick, new


def _add(message: Any, name: str, number: int, kind: Any, of: str = "") -> None:
    label = _Field.LABEL_REPEATED if of else _Field.LABEL_OPTIONAL
    message.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)


_FULL, _QUICK, _NEW = _messages()


def decode_records(data: bytes) -> tuple[list[int], list[int], list[bytes], list[Headers] | None]:
    """The records of a batch by columns; headers None: no record has any. Raises ValueError."""
    try:
        found = _QUICK.FromString(data).records
    except DecodeError as error:
        raise ValueError(str(error)) from None
    rows = [(each.seq_num, each.timestamp, each.body, each.headers) for each in found]
    if not rows:
        return [], [], [], None
    sequences, timestamps, bodies, marks = map(list, zip(*rows, strict=True))
    return sequences, timestamps, bodies, _headers(data) if any(marks) else None


def _headers(data: bytes) -> list[Headers]:
    try:
        found = _FULL.FromString(data).records
    except DecodeError as error:
        raise ValueError(str(error)) from None
    return [[(pair.name, pair.value) for pair in each.headers] for each in found]


def encode_records(records: list[tuple[bytes, Headers, int | None]]) -> bytes:
    """A body, headers and milliseconds each, as an append has them."""
    batch = _NEW()
    for body, headers, timestamp in records:
        record = batch.records.add(body=body)
        if timestamp is not None:
            record.timestamp = timestamp
        for name, value in headers:
            record.headers.add(name=name, value=value)
    encoded: bytes = batch.SerializeToString()
    return encoded


def next_frame(read: Callable[[int], bytes]) -> tuple[int, bytes] | None:
    """The flag and the body of a session's next frame; None at the end.

    `read` returns fewer bytes than requested only at the end. Raises PipelineError, and EOFError
    for half a frame.
    """
    head = read(HEAD_BYTES)
    if not head:
        return None
    if len(head) < HEAD_BYTES:
        raise EOFError
    size = int.from_bytes(head[:3], "big")
    if not 0 < size <= FRAME_BYTES_MAX or head[3] & COMPRESSED:
        raise PipelineError("bad_answer", f"a frame of {size} bytes that is none of a node's")
    body = read(size - 1)
    if len(body) < size - 1:
        raise EOFError
    return head[3], body
