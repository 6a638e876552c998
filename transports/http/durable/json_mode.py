"""JSON mode: an append's messages, each byte for byte, and messages as an array (B.4 21)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate

import msgspec

from millpond.actors.streams.messages import RecordColumns, RecordFormat, RecordSlice

_SPACE = b" \t\n\r"
_value = msgspec.json.Decoder(msgspec.Raw).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class NotJson(Exception):
    """The body is not JSON."""


def messages_of(body: bytes) -> list[bytes]:
    """The messages of an append: the elements of an array, or the one value. Raises NotJson."""
    text = _text(body).strip(_SPACE)
    try:
        if text[:1] == b"[":
            return [bytes(each) for each in _array(text)]
        return [bytes(_value(text))]
    except RecursionError:
        raise NotJson("too deeply nested") from None
    except msgspec.DecodeError as error:
        if b"\\u" not in text:
            raise NotJson(str(error)) from None
    return _slowly(text)


def _text(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError:
        raise NotJson("it is not UTF-8") from None
    return body


def _slowly(text: bytes) -> list[bytes]:
    """The messages, by a slower parser that accepts lone surrogates, which JSON allows."""
    scanned = text.decode()
    scan = json.JSONDecoder(parse_constant=_refuse).raw_decode
    try:
        value, end = scan(scanned)
        if end != len(scanned):
            raise NotJson(f"extra data after the value (byte {end})")
        if not isinstance(value, list):
            return [text]
        return list(_elements(scanned, scan))
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


def _elements(text: str, scan: object) -> Iterator[bytes]:
    at = _skip(text, 1)
    while text[at] != "]":
        begin = at
        _, at = scan(text, at)  # type: ignore[operator]  # raw_decode, whose type is private
        yield text[begin:at].encode()
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\n\r":
        at += 1
    return at


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


def is_message(body: bytes) -> bool:
    """True for one JSON value; a record that another API appended may be something else."""
    try:
        found = _value(_text(body))
    except (NotJson, RecursionError):
        return False
    except msgspec.DecodeError:
        try:
            return b"\\u" in body and bool(_slowly(body.strip(_SPACE)))
        except NotJson:
            return False
    return bool(found)


def checked(bodies: Sequence[bytes]) -> Sequence[bytes]:
    """The bodies that are messages; usually all of them, which one parse tells."""
    joined = b",".join(bodies)
    try:
        joined.decode()
        if [bytes(each) for each in _array(b"[%b]" % joined)] == list(bodies):
            return bodies
    except (UnicodeDecodeError, RecursionError, msgspec.DecodeError):
        pass
    return [body for body in bodies if is_message(body)]


class _Messages:
    """Messages with a comma behind each; what is none is left out."""

    def encode(self, span: RecordColumns) -> bytes:
        found = checked(span.bodies)
        return b",".join(found) + b"," if found else b""

    def ends(self, span: RecordColumns) -> Sequence[int]:
        if len(checked(span.bodies)) == len(span.bodies):
            return list(accumulate(len(body) + 1 for body in span.bodies))
        return list(accumulate(len(body) + 1 if is_message(body) else 0 for body in span.bodies))


MESSAGES: RecordFormat = _Messages()


def array_of(slices: Sequence[RecordSlice]) -> bytes:
    """The messages of what was read, as an array; what is none is left out."""
    return b"[%b]" % b"".join([each.encoded(MESSAGES) for each in slices])[:-1]
