"""Events of the State Protocol as JSON: a change of one value, or a control event.

`headers.control` makes an event a control event, also beside `headers.operation` (C.1.1); without
either it is none, and becomes an `InvalidRecord` with the reason, no exception: a reader has to
survive
whatever stands in a stream.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

V = TypeVar("V")


class Operation(Enum):
    """The operation on a value. All but DELETE set it, whether there was one or not."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    UPSERT = "upsert"
    """No operation of the protocol, but some producers send it: it sets, and is never written."""


class Control(Enum):
    """The kind of a control event. UP_TO_DATE is read, but never written (C.1.4)."""

    SNAPSHOT_START = "snapshot-start"
    SNAPSHOT_END = "snapshot-end"
    UP_TO_DATE = "up-to-date"
    RESET = "reset"


class InvalidReason(Enum):
    """The reason why a record changes nothing."""

    NOT_JSON = "not JSON"
    NO_EVENT = "neither a change nor a control event"
    UNKNOWN_OPERATION = "an unknown operation"
    UNKNOWN_CONTROL = "an unknown control event"
    NO_NAME = "type or key is missing or is no string"
    NO_VALUE = "an insert or update without a value"
    UNKNOWN_TYPE = "a type that the definition does not have"
    BAD_VALUE = "a value that does not fit the schema of its type"


class ChangeHeaders(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The headers of a change. `timestamp` and `txid` are carried along (S8, S9)."""

    operation: Operation
    timestamp: str | UnsetType = UNSET
    txid: str | UnsetType = UNSET
    control: Literal["\0"] | UnsetType = UNSET
    """Always UNSET: an event that has it is no change."""


class ChangeEvent(msgspec.Struct, Generic[V], frozen=True, omit_defaults=True):
    """The value of `(type, key)` is set or removed. `value` UNSET is none at all; None is null.

    `old_value` is for people: nothing depends on it (S7).
    """

    type: str
    key: str
    headers: ChangeHeaders
    value: V | UnsetType = UNSET
    old_value: V | UnsetType = UNSET


class ControlHeaders(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The headers of a control event. `offset` is a note of the producer for people (C7)."""

    control: Control
    offset: str | UnsetType = UNSET


class ControlEvent(msgspec.Struct, frozen=True, gc=False):
    """A control event: it changes no value by itself."""

    headers: ControlHeaders


class InvalidRecord(msgspec.Struct, frozen=True, gc=False):
    """A record that is no valid event, and changes nothing."""

    reason: InvalidReason
    text: str = ""


Event = ChangeEvent[V] | ControlEvent
Read = ChangeEvent[V] | ControlEvent | InvalidRecord

_values = msgspec.json.Decoder(ChangeEvent[Any])
_raws = msgspec.json.Decoder(ChangeEvent[Raw])
_anything = msgspec.json.Decoder()
_encode = msgspec.json.Encoder().encode
_OPERATIONS = {each.value: each for each in Operation}
_CONTROLS = {each.value: each for each in Control}


def decode(data: bytes) -> Read[Any]:
    """The event in a record, its value as Python objects."""
    try:
        event = _values.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_slowly(data, is_raw=False)
    if event.value is UNSET:
        return _checked(event)
    return event


def decode_raw(data: bytes) -> Read[Raw]:
    """The same, with its value as the JSON that was written."""
    try:
        event = _raws.decode(data)
        if not data.isascii():
            data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_slowly(data, is_raw=True)
    if event.value is UNSET:
        return _checked(event)
    return event


def _checked(event: ChangeEvent[V]) -> ChangeEvent[V] | InvalidRecord:
    if event.value is UNSET and event.headers.operation is not Operation.DELETE:
        return InvalidRecord(InvalidReason.NO_VALUE)
    return event


class _Parts(msgspec.Struct):
    type: Raw | UnsetType = UNSET
    key: Raw | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    old_value: Raw | UnsetType = UNSET


_parts = msgspec.json.Decoder(_Parts)


def _decode_slowly(data: bytes, *, is_raw: bool) -> Read[Any]:
    """Decode a record that is no plain change event, which is rare."""
    try:
        content = _anything.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        return InvalidRecord(InvalidReason.NOT_JSON, str(exc))
    headers = content.get("headers") if isinstance(content, dict) else None
    if not isinstance(headers, dict):
        return InvalidRecord(InvalidReason.NO_EVENT)
    if "control" in headers:
        return _control(headers)
    if "operation" not in headers:
        return InvalidRecord(InvalidReason.NO_EVENT)
    operation = headers["operation"]
    found = _OPERATIONS.get(operation) if isinstance(operation, str) else None
    if found is None:
        return InvalidRecord(InvalidReason.UNKNOWN_OPERATION, repr(operation)[:80])
    kind, key = content.get("type"), content.get("key")
    if not isinstance(kind, str) or not isinstance(key, str):
        return InvalidRecord(InvalidReason.NO_NAME)
    parts: Any = _parts.decode(data) if is_raw else None
    value = parts.value if is_raw else content.get("value", UNSET)
    old_value = parts.old_value if is_raw else content.get("old_value", UNSET)
    change_headers = ChangeHeaders(
        found, _text_header(headers, "timestamp"), _text_header(headers, "txid")
    )
    return _checked(ChangeEvent(kind, key, change_headers, value, old_value))


def _control(headers: dict[str, Any]) -> ControlEvent | InvalidRecord:
    control = headers["control"]
    found = _CONTROLS.get(control) if isinstance(control, str) else None
    if found is None:
        return InvalidRecord(InvalidReason.UNKNOWN_CONTROL, repr(control)[:80])
    return ControlEvent(ControlHeaders(found, _text_header(headers, "offset")))


def _text_header(headers: dict[str, Any], name: str) -> str | UnsetType:
    """A header that is for people; UNSET where it is no text."""
    found = headers.get(name)
    return found if isinstance(found, str) else UNSET


def encode(event: Event[object]) -> bytes:
    """The event as one JSON value. Raises TypeError for a value that JSON does not have."""
    return _encode(event)


def validation_error(data: bytes) -> str | None:
    """The reason why a producer should not write this; None: it is valid. Readers only skip it."""
    event = decode_raw(data)
    if isinstance(event, InvalidRecord):
        return event.reason.value if event.reason is not InvalidReason.NOT_JSON else event.text
    if isinstance(event, ControlEvent) and "operation" in _anything.decode(data)["headers"]:
        return "both a change and a control event"
    return None


def change(
    operation: Operation,
    kind: str,
    key: str,
    value: object = UNSET,
    *,
    old_value: object = UNSET,
    timestamp: str | None = None,
    txid: str | None = None,
) -> ChangeEvent[object]:
    """A change event; an upsert is written as an insert, which does the same for every reader."""
    written = Operation.INSERT if operation is Operation.UPSERT else operation
    headers = ChangeHeaders(
        written,
        UNSET if timestamp is None else timestamp,
        UNSET if txid is None else txid,
    )
    return ChangeEvent(kind, key, headers, value, old_value)


def control(kind: Control, offset: str | None = None) -> ControlEvent:
    """A control event."""
    return ControlEvent(ControlHeaders(kind, UNSET if offset is None else offset))
