"""The bytes of a job and of its result (docs/reference/wire-protocol.md, "The bytes of a job"):
MessagePack maps with short keys. Questions to a channel and their answers have the same bytes.

Any other message is a job as well, without a name: `millpond put jobs/mail '{...}'`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from millpond.actors.jobs.options import LIMIT_KEY_BYTES_MAX, PRIORITY, PRIORITY_MAX

NAME_BYTES_MAX = 250 - len("jobs/") - len("/r/") - 32
"""A queue's name is within a channel's, and so is that of the mailbox of results beside it."""
ATTEMPTS_MAX = 2**16 - 1
MAILBOX_BYTES = 16
QUEUE_PREFIX = b"jobs/"
"""The channel of a queue is this, and the name of the queue."""
SCHEDULE_HEADER, MOMENT_HEADER = "schedule", "scheduled-at"
_RESULT_MAILBOX = re.compile(rb".+/r/[0-9a-f]{%d}" % (2 * MAILBOX_BYTES), re.DOTALL)
UNREADABLE = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
    TypeError,
    ValueError,
    OverflowError,
)

Headers = dict[str, str]
Kind = Literal["progress", "result", "failed", "cancelled"]


class ReplyTo(msgspec.Struct, frozen=True):
    """The address of a result: a mailbox, and a number in it."""

    mailbox: bytes
    number: int


class JobMessage(msgspec.Struct, frozen=True):
    """A job as its message has it. `attempts` None: those of the task. `enqueued_ms` 0: unknown.
    `start_by_ms`, in ms since 1970: it starts by then; 0: it has time."""

    payload: Any
    name: str | None = None
    reply_to: ReplyTo | None = None
    attempts: int | None = None
    headers: Headers = {}
    enqueued_ms: int = 0
    priority: int = PRIORITY
    limit_key: bytes = b""
    start_by_ms: int = 0
    keep_s: int | None = None
    """How long the node keeps the result; None: as the task says."""
    results: list[Any] | None = None
    """Of a job in a flow: the records of the jobs that it waited for. None: it is in no flow."""


class _Wire(msgspec.Struct, omit_defaults=True):
    # The node reads r, l and s, in front of the payload (`actors.jobs.options`).
    v: Literal[1]
    r: Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_MAX)] = PRIORITY
    l: Annotated[bytes, msgspec.Meta(max_length=LIMIT_KEY_BYTES_MAX)] = b""  # noqa: E741
    s: Annotated[int, msgspec.Meta(ge=0)] = 0
    p: Any = None
    n: str | None = None
    q: Annotated[bytes, msgspec.Meta(min_length=MAILBOX_BYTES, max_length=MAILBOX_BYTES)] | None = (
        None
    )
    w: Annotated[int, msgspec.Meta(ge=0)] = 0
    a: Annotated[int, msgspec.Meta(ge=1, le=ATTEMPTS_MAX)] | None = None
    h: Headers = {}
    e: Annotated[int, msgspec.Meta(ge=0)] = 0
    k: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None
    f: list[Any] | None = None


class _WireHeaders(msgspec.Struct):
    v: Literal[1]
    h: Headers = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Wire)
_headers_decoder = msgspec.msgpack.Decoder(_WireHeaders)


def channel_of(queue: str) -> bytes:
    """The channel of a queue. Raises ValueError for a name that no queue can have."""
    name = queue.encode()
    if not 0 < len(name) <= NAME_BYTES_MAX or b"!" in name:
        text = f"a queue's name has 1 to {NAME_BYTES_MAX} bytes and no `!`, and is not {queue!r}"
        raise ValueError(text)
    return QUEUE_PREFIX + name


def mailbox_of(channel: bytes, mailbox: bytes) -> bytes:
    """The channel of a mailbox for the answers to what is put into a channel."""
    return channel + b"/r/" + mailbox.hex().encode()


def mailbox_name(queue: str, mailbox: bytes) -> bytes:
    """The channel of a producer's mailbox."""
    return mailbox_of(channel_of(queue), mailbox)


def is_result_mailbox(channel: bytes) -> bool:
    """Is this the channel of a client that waits for results or answers?"""
    return _RESULT_MAILBOX.fullmatch(channel) is not None


def encode_job(body: JobMessage) -> bytes:
    """The bytes. Raises TypeError for a payload that MessagePack cannot encode."""
    if body.attempts is not None and not 1 <= body.attempts <= ATTEMPTS_MAX:
        raise ValueError(f"attempts must be within 1..{ATTEMPTS_MAX}, not {body.attempts}")
    if not 0 <= body.priority <= PRIORITY_MAX:
        raise ValueError(f"a priority is within 0..{PRIORITY_MAX}, not {body.priority}")
    if len(body.limit_key) > LIMIT_KEY_BYTES_MAX:
        size = len(body.limit_key)
        raise ValueError(f"a limit key has up to {LIMIT_KEY_BYTES_MAX} bytes, not {size}")
    reply_to = body.reply_to
    return _encoder.encode(
        _Wire(
            1,
            body.priority,
            body.limit_key,
            body.start_by_ms,
            body.payload,
            body.name,
            None if reply_to is None else reply_to.mailbox,
            0 if reply_to is None else reply_to.number,
            body.attempts,
            body.headers,
            body.enqueued_ms,
            body.keep_s,
            body.results,
        )
    )


def encode_jobs(payloads: Iterable[object], body: JobMessage) -> list[bytes]:
    """The bytes of many jobs, which differ by their payloads alone; else as `encode_job`."""
    encode_job(msgspec.structs.replace(body, payload=None))
    name, attempts, headers, at = body.name, body.attempts, body.headers, body.enqueued_ms
    options, encode = (body.priority, body.limit_key, body.start_by_ms), _encoder.encode
    keep_s = body.keep_s
    return [
        encode(_Wire(1, *options, payload, name, None, 0, attempts, headers, at, keep_s))
        for payload in payloads
    ]


def encode_scheduled(data: bytes, schedule: bytes, at_ms: int, now_ms: int) -> bytes:
    """The bytes of a job that a schedule puts for the moment `at_ms`: those of the schedule with
    the time of the put, and headers that name the schedule and the moment.

    Raises ValueError for data that MessagePack cannot have: of JSON, a number above 64 bits.
    """
    body = decode_job(data)
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
        name = schedule.decode("utf-8", "replace")
        headers = {**body.headers, SCHEDULE_HEADER: name, MOMENT_HEADER: at}
        return encode_job(msgspec.structs.replace(body, headers=headers, enqueued_ms=now_ms))
    except (TypeError, OverflowError, RecursionError, OSError) as exc:
        raise ValueError(f"no payload or moment of a job: {exc}") from exc


def decode_job(data: bytes) -> JobMessage:
    """The job. Never raises: other bytes are the payload, decoded if they are JSON."""
    try:
        wire = _decoder.decode(data)
    except UNREADABLE:
        return JobMessage(_foreign(data))
    reply_to = None if wire.q is None else ReplyTo(wire.q, wire.w)
    options = (wire.r, wire.l, wire.s)
    return JobMessage(wire.p, wire.n, reply_to, wire.a, wire.h, wire.e, *options, wire.k, wire.f)


def job_headers(data: bytes) -> Headers:
    """The headers of a job, without its payload in memory. Never raises: other bytes have none."""
    try:
        return _headers_decoder.decode(data).h
    except UNREADABLE:
        return {}


class JobUpdate(msgspec.Struct, frozen=True):
    """A result, or progress. `value`: of a failure a map of `reason` and `error`."""

    number: int = msgspec.field(name="w")
    kind: Kind = msgspec.field(name="k")
    value: Any = msgspec.field(name="v", default=None)


_update_decoder = msgspec.msgpack.Decoder(JobUpdate)


def encode_update(news: JobUpdate) -> bytes:
    """The bytes. Raises TypeError for a value that MessagePack cannot encode."""
    return _encoder.encode(news)


def decode_update(data: bytes) -> JobUpdate | None:
    """None: these bytes are something else."""
    try:
        return _update_decoder.decode(data)
    except UNREADABLE:
        return None


def _foreign(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except UNREADABLE:
        return data


def encode_flow_job(
    data: bytes, found: Sequence[tuple[bytes, str]], feeds: bool, now_ms: int
) -> bytes:
    """The bytes of the job of a step: those of the step with the time of the put, and the records
    of the steps that it waited for. `feeds`: their results are its payload, of one step alone or a
    list of several.

    Raises ValueError for what MessagePack cannot have.
    """
    body = decode_job(data)
    try:
        records = [_record(*each) for each in found]
        if feeds:
            values = [each.get("v") if each["k"] == "result" else None for each in records]
            body = msgspec.structs.replace(body, payload=values[0] if len(values) == 1 else values)
        return encode_job(msgspec.structs.replace(body, results=records, enqueued_ms=now_ms))
    except (TypeError, OverflowError, RecursionError, *UNREADABLE) as exc:
        raise ValueError(f"no payload of a job: {exc}") from exc


def _record(data: bytes, reason: str) -> dict[str, Any]:
    """The result or failure of a step, without its progress and log."""
    if reason:
        return {"k": "failed", "v": {"reason": reason, "error": ""}}
    found = msgspec.msgpack.decode(data, type=dict[str, Any]) if data else {"k": "result"}
    return {name: found[name] for name in ("k", "v") if name in found}
