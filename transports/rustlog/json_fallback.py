"""The decoder of RustLog payloads that the fast path rejects: a request, an error, or not JSON.

Nothing is built of what is ignored, so a frame of ten megabytes costs no more than reading it.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, get_args

import msgspec

from millpond.transports.errors import WireError
from millpond.transports.rustlog.messages import INVALID_REQUEST, Error, PackedProduce, Request

CHECKED_BYTES_MAX = 2**18
"""Objects in unknown fields are searched for duplicate keys, up to this size."""
FIELDS_MAX = 10_000
"""Of objects with more fields it is not known whether a key comes twice."""


DecodedJson = Request | PackedProduce | Error

_TYPES: dict[str, type[Request]] = {kind.__name__: kind for kind in get_args(Request)}
_FIELDS: dict[type[Request], list[tuple[str, bool, msgspec.json.Decoder[Any]]]] = {
    kind: [
        (field.name, field.required, msgspec.json.Decoder(field.type))
        for field in msgspec.structs.fields(kind)
    ]
    for kind in _TYPES.values()
}
_KNOWN = sorted({name for fields in _FIELDS.values() for name, _, _ in fields} | {"type"})
_known = msgspec.json.Decoder(
    msgspec.defstruct("_Known", [(name, msgspec.Raw, msgspec.Raw(b"")) for name in _KNOWN])
)
_syntax = msgspec.json.Decoder(msgspec.Raw)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str)


class MalformedJson(WireError):
    """The payload is not JSON in UTF-8 (RL-05, RL-06)."""


class MalformedRequest(WireError):
    """The payload is JSON, and no request with the fields that it takes (RL-07 to RL-10)."""

    @property
    def answer(self) -> Error:
        """The answer to it; the connection goes on."""
        return _invalid(str(self))


def decode_fallback(payload: bytes, records_max: int) -> DecodedJson:
    """The request in `payload`, or the answer if its values are refused. Raises MalformedJson,
    MalformedRequest (RL-04 to RL-10)."""
    try:
        if not payload.isascii():
            payload.decode()
        _syntax.decode(payload)
    except UnicodeDecodeError:
        raise MalformedJson("payload is not UTF-8") from None
    except RecursionError:  # RLA-16
        raise MalformedJson("payload is nested too deeply") from None
    except msgspec.DecodeError as error:
        if _has_lone_surrogate(payload):
            raise MalformedRequest("a string has half of a surrogate pair") from None
        raise MalformedJson(str(error)) from None
    if payload.count(b":") > FIELDS_MAX and _has_many_fields(payload):
        raise MalformedRequest("duplicate key")
    try:
        fields = _object.decode(payload)
    except msgspec.ValidationError:
        raise MalformedRequest("a request is an object") from None
    if _repeats_key(payload, fields):
        raise MalformedRequest("duplicate key")
    return _read(fields, records_max)


def _has_many_fields(payload: bytes) -> bool:
    """There may be more than FIELDS_MAX fields, not counting what is in the values of known ones.
    Each has a colon, and two quotes."""
    try:
        known = msgspec.structs.astuple(_known.decode(payload))
    except msgspec.ValidationError:
        return False  # no object
    colons = payload.count(b":") - sum([bytes(each).count(b":") for each in known])
    quotes = payload.count(b'"') - sum([bytes(each).count(b'"') for each in known])
    return min(colons, quotes // 2) > FIELDS_MAX


def _read(fields: dict[str, msgspec.Raw], records_max: int) -> DecodedJson:
    if "type" not in fields:
        raise MalformedRequest("missing field 'type'")
    try:
        name = _string.decode(fields.pop("type"))
    except msgspec.ValidationError as error:
        raise MalformedRequest(f"field 'type': {error}") from None
    kind = _TYPES.get(name)
    if kind is None:
        raise MalformedRequest(f"unknown request type {name[:64]!r}")
    values = {}
    for field, is_required, decoder in _FIELDS[kind]:
        raw = fields.pop(field, None)
        if field == "records" and raw and bytes(raw).count(b'"') > 2 * records_max:
            return _invalid(f"records: at most {records_max}")  # RLA-22, before they are built
        if raw is not None:
            try:
                values[field] = decoder.decode(raw)
            except msgspec.ValidationError as error:
                raise MalformedRequest(f"field {field!r}: {error}") from None
        elif is_required:
            raise MalformedRequest(f"missing field {field!r}")
    for raw in fields.values():
        if _is_doubtful(bytes(raw)):
            raise MalformedRequest("duplicate key")
    return kind(**values)


def _repeats_key(payload: bytes, fields: dict[str, msgspec.Raw]) -> bool:
    """RLA-15: two readers might see two requests. Each key and each string costs two quotes."""
    if any('"' in key for key in fields):
        return _is_doubtful(payload)
    quotes = 2 * len(fields) + sum(bytes(raw).count(b'"') for raw in fields.values())
    return payload.count(b'"') != quotes


def _is_doubtful(text: bytes) -> bool:
    """There is an object with a duplicate key, or what there is to look at is too much."""
    if b"{" not in text:
        return False
    if len(text) > CHECKED_BYTES_MAX:
        return True
    try:
        json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return True
    return False


def _has_lone_surrogate(payload: bytes) -> bool:
    # JSON's grammar allows it although no text has it, so the connection need not end.
    if len(payload) > CHECKED_BYTES_MAX or b"\\u" not in payload:
        return False
    try:
        json.loads(payload, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _unique(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("duplicate key")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _invalid(message: str) -> Error:
    return Error(INVALID_REQUEST, message)
