"""What millpond/_speedups.c builds; optional."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Value = TypeVar("Value")

REVISION: int
"""Goes up with each change of a function's arguments or results."""

def split_packets(
    data: bytes, size_max: int, count_max: int = ..., /
) -> tuple[list[bytes], int]: ...
def frame_packets(packets: list[bytes], /) -> bytes: ...
def read_puts(
    packets: list[bytes], shape: Callable[[int, int, bytes], Value], /
) -> list[Value]: ...
def read_acks(packets: list[bytes], shape: Callable[[int], Value], /) -> list[Value]: ...
def read_packet_run(
    put_shape: Callable[[int, int, bytes], Any],
    ack_shape: Callable[[int], Any],
    data: bytes,
    size_max: int,
    count_max: int,
    /,
) -> tuple[list[Any], int]: ...
def unmask_frames(data: bytes, size_max: int, /) -> bytes: ...
def write_put_acks(
    shape: type, names: tuple[str, ...], replies: Sequence[object], packets: list[bytes], /
) -> int: ...
def read_appends(
    data: bytes,
    opening: bytes,
    name: bytes,
    shape: Callable[[bytes, None, Any], Any],
    packed_shape: Callable[[int, int, bytes], Any],
    found: list[Any],
    limits: tuple[int, ...],
    /,
) -> int: ...
def read_append_run(
    data: bytes,
    opening: bytes,
    number: int,
    shape: Callable[[int, Any], Value],
    packed_shape: Callable[[int, int, bytes], Any],
    limits: tuple[int, ...],
    /,
) -> list[Value] | None: ...
def write_records(ms: int, seq: int, bodies: list[bytes], /) -> bytes: ...
def measure_bodies(
    record_bytes: int, data: bytes, count: int, begin: int, end: int, size_max: int, /
) -> tuple[int, int, int] | None: ...
def write_packed_records(data: bytes, offset: int, count: int, seq: int, ms: int, /) -> bytes: ...
def write_packed_batch(
    data: bytes, offset: int, count: int, first: int, timestamp: int, /
) -> bytes: ...
def write_packed_rows(
    data: bytes, offset: int, count: int, first: int, timestamp: int, /
) -> bytes: ...
def read_append_input(
    data: bytes, records_max: int, packed_shape: Callable[[int, int, bytes], Value], /
) -> tuple[Value, list[int | None] | None] | None: ...
def read_json_input(
    data: bytes,
    is_base64: bool,
    records_max: int,
    packed_shape: Callable[[int, int, bytes], Value],
    /,
) -> list[bytes] | Value | None: ...
def write_batch(
    first: int, timestamp: int, timestamps: list[int] | None, bodies: list[bytes], /
) -> bytes: ...
def read_base64_records(
    data: bytes,
    start: int,
    end: int,
    records_max: int,
    packed_shape: Callable[[int, int, bytes], Value],
    /,
) -> Value | None: ...
def read_sized_records(
    data: bytes,
    start: int,
    count: int,
    size_max: int,
    packed_shape: Callable[[int, int, bytes], Value],
    /,
) -> Value | None: ...
def write_sized_records(data: bytes, offset: int, count: int, /) -> bytes: ...
def write_rows(first: int, timestamp: int, bodies: list[bytes], /) -> bytes: ...
