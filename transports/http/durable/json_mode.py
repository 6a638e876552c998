"""JSON mode: an append's messages, each byte for byte, and messages as an array (B.4 21)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

import msgspec

from millpond.actors.streams.messages import RecordColumns, RecordFormat, RecordSlice
from millpond.transports.http.json_arrays import ArrayTooLong, check_array_length

_SPACE = b" \t\n\r"
_SPACES = tuple(" \t\n\r")
_value = msgspec.json.Decoder(msgspec.Raw).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class NotJson(Exception):
    """The body is not JSON."""


def messages_of(body: bytes, messages_max: int) -> list[bytes]:
    """The messages of an append: the elements of an array, or the one value.

    Raises NotJson; ArrayTooLong, after the work that `messages_max` messages take.
    """
    text = _text(body).strip(_SPACE)
    try:
        if text[:1] == b"[":
            check_array_length(text, messages_max)
            return [bytes(each) for each in _array(text)]
        return [bytes(_value(text))]
    except RecursionError:
        raise NotJson("too deeply nested") from None
    except msgspec.DecodeError as error:
        if b"\\u" not in text:
            raise NotJson(str(error)) from None
    return _slowly(text, messages_max)


def _text(body: bytes) -> bytes:
    try:
        body.decode()
    except UnicodeDecodeError:
        raise NotJson("it is not UTF-8") from None
    return body


def _slowly(text: bytes, messages_max: int) -> list[bytes]:
    """The messages, by a slower parser that accepts lone surrogates, which JSON allows."""
    try:
        if text[:1] != b"[":
            if not _is_value_slowly(text):
                raise NotJson("extra data after the value")
            return [text]
        found = list(islice(_elements(text.decode()), messages_max + 1))
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None
    if len(found) > messages_max:
        raise ArrayTooLong
    return found


def _is_value_slowly(text: bytes) -> bool:
    """True for one JSON value and nothing after it. Raises ValueError, RecursionError."""
    scanned = text.decode()
    return bool(_scan(scanned, 0)[1] == len(scanned))


def _elements(text: str) -> Iterator[bytes]:
    """The elements of an array, which is the whole text. Raises NotJson, ValueError."""
    at = _skip(text, 1)
    if text[at : at + 1] == "]":
        _check_end(text, at + 1)
        return
    while True:
        begin = at
        _, at = _scan(text, at)
        yield text[begin:at].encode()
        at = _skip(text, at)
        match text[at : at + 1]:
            case ",":
                at = _skip(text, at + 1)
            case "]":
                _check_end(text, at + 1)
                return
            case _:
                raise NotJson(f"the array has no comma and no end at character {at}")


def _check_end(text: str, at: int) -> None:
    if at != len(text):
        raise NotJson(f"extra data after the value (character {at})")


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] in _SPACES:
        at += 1
    return at


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")


_scan = json.JSONDecoder(parse_constant=_refuse).raw_decode
"""Parses the value at an index of a text. Gives it, and the index behind it."""


def is_message(body: bytes) -> bool:
    """True for one JSON value; a record that another API appended may be something else."""
    try:
        found = _value(_text(body))
    except (NotJson, RecursionError):
        return False
    except msgspec.DecodeError:
        try:
            return b"\\u" in body and _is_value_slowly(body.strip(_SPACE))
        except (ValueError, RecursionError):
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
