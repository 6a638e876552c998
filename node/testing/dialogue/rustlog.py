"""RustLog as text: each line is the JSON of a request or a response.

`"{offset}"` as a value stands for any value, and from then on for that one; `"..."` as a value is
anything, as the last item of a list the rest of it, and `"...": "..."` are any other fields.
"""

from __future__ import annotations

import json
from typing import Any

from millpond.node.testing.dialogue.protocol import (
    ANYTHING,
    PLACEHOLDER,
    REST,
    Captures,
    DialogueProtocol,
    known,
)
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.rustlog.messages import FRAME_BYTES_MAX

PORT = 7403


def write_request(text: str, captures: Captures) -> bytes:
    """A frame. Raises ValueError for what is no JSON."""
    data = json.dumps(_filled(json.loads(text), captures), separators=(",", ":")).encode()
    return LengthPrefixed(FRAME_BYTES_MAX).frame([data])


def match_response(text: str, frame: bytes, captures: Captures) -> dict[str, Any] | None:
    """See `DialogueProtocol.match`."""
    found: dict[str, Any] = {}
    does = _matches(json.loads(text), json.loads(frame), captures, found)
    return found if does else None


def show_response(frame: bytes) -> str:
    """As it could stand in a dialogue."""
    return frame.decode(errors="backslashreplace")


def _filled(value: Any, captures: Captures) -> Any:
    match value:
        case dict():
            return {key: _filled(each, captures) for key, each in value.items()}
        case list():
            return [_filled(each, captures) for each in value]
        case str() if (placeholder := PLACEHOLDER.fullmatch(value)) is not None:
            return known(captures, placeholder["name"])
        case _:
            return value


def _matches(wanted: Any, value: Any, captures: Captures, found: dict[str, Any]) -> bool:
    match wanted:
        case str() if wanted == REST:
            return True
        case str() if (placeholder := PLACEHOLDER.fullmatch(wanted)) is not None:
            return _fits(placeholder["name"], value, captures, found)
        case dict():
            return isinstance(value, dict) and _fields_match(wanted, value, captures, found)
        case list():
            return isinstance(value, list) and _items_match(wanted, value, captures, found)
        case _:
            return bool(wanted == value) and type(wanted) is type(value)


def _fits(name: str, value: Any, captures: Captures, found: dict[str, Any]) -> bool:
    if name == ANYTHING:
        return True
    given = captures.get(name, found.setdefault(name, value))
    return bool(given == value)


def _fields_match(
    wanted: dict[str, Any], value: dict[str, Any], captures: Captures, found: dict[str, Any]
) -> bool:
    names = wanted.keys() - {REST}
    if not names <= value.keys() or (REST not in wanted and names != value.keys()):
        return False
    return all(_matches(wanted[name], value[name], captures, found) for name in names)


def _items_match(
    wanted: list[Any], value: list[Any], captures: Captures, found: dict[str, Any]
) -> bool:
    items = wanted[:-1] if wanted[-1:] == [REST] else wanted
    if len(items) > len(value) or (items is wanted and len(wanted) != len(value)):
        return False
    return all(_matches(*pair, captures, found) for pair in zip(items, value, strict=False))


def _framing() -> LengthPrefixed:
    return LengthPrefixed(FRAME_BYTES_MAX)


RUSTLOG: DialogueProtocol[bytes] = DialogueProtocol(
    PORT, _framing, write_request, match_response, show_response
)
