"""A parser of State Protocol events: a record is a change, a control event, or rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from millpond.pipeline.state.schemas import Check

SETS = frozenset(("insert", "update", "upsert"))
"""`upsert` is not in the protocol, but real producers send it."""
IGNORED_CONTROLS = frozenset(("up-to-date", "snapshot-start", "snapshot-end"))


class Change(NamedTuple):
    """The new value of an entity as JSON; None deletes it."""

    type: str
    key: str
    value: bytes | None


class Control(NamedTuple):
    """A control event: `reset` clears earlier state, others change nothing."""

    name: str


class Rejected(NamedTuple):
    """A record that is no event, or that its schema does not allow."""

    reason: str


class _Headers(msgspec.Struct):
    operation: str | None = None
    control: str | None = None


class _Event(msgspec.Struct):
    headers: _Headers
    type: str | None = None
    key: str | None = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_NOT_JSON = (msgspec.DecodeError, ValueError, RecursionError)
"""Errors of a decoder: those of text that is no UTF-8 are ValueErrors."""
_decode = msgspec.json.Decoder(_Event).decode
_decode_any = msgspec.json.Decoder().decode


def read_event(body: bytes | None, checks: Mapping[str, Check]) -> Change | Control | Rejected:
    """The event of a record. A record with a control is a control event."""
    try:
        event = _decode(body or b"")
    except _NOT_JSON as error:
        return Rejected(f"no event: {error}")
    headers = event.headers
    if headers.control is not None:
        if headers.control == "reset" or headers.control in IGNORED_CONTROLS:
            return Control(headers.control)
        return Rejected("unknown control")
    if headers.operation is None:
        return Rejected("neither operation nor control")
    if not event.type or not event.key:
        return Rejected("no type or no key")
    if headers.operation == "delete":
        return Change(event.type, event.key, None)
    if headers.operation not in SETS:
        return Rejected("unknown operation")
    if event.value is msgspec.UNSET:
        return Rejected("no value")
    value = bytes(event.value)
    return _checked(Change(event.type, event.key, value), checks.get(event.type))


def _checked(change: Change, check: Check | None) -> Change | Rejected:
    """Parse and check the value of a change, of which only the brackets were checked before."""
    try:
        value = _decode_any(change.value or b"")
    except _NOT_JSON as error:
        return Rejected(f"value: {error}")
    try:
        wrong = check(value) if check is not None else None
    except Exception as error:  # whatever a validator stumbles over: one value stops no job
        wrong = f"{type(error).__name__}: {error}"
    return change if wrong is None else Rejected(f"schema: {wrong}")
