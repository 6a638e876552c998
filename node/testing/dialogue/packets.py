"""Packets as text: `PUT 1:4 60:4 "hello"` is type 06, 1 and 60 in four bytes each, and five more.

A word in capitals is a packet's type, `NUMBER:SIZE` a big-endian number, pairs of digits are hex, a
text in quotes is UTF-8. `{id:8}` captures eight bytes, and stands for them from then on; `{rest}`
without a size captures the remaining bytes, and `...` matches them. `JOIN CHANNEL [ROLE]` is HELLO.
"""

from __future__ import annotations

import json
import re
from typing import Any

from millpond.actors.messages import Role
from millpond.node.testing.dialogue.protocol import (
    PLACEHOLDER,
    REST,
    Captures,
    DialogueProtocol,
    known,
    without_anything,
)
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.handshake import Hello, encode_hello

PORT = 7400
FRAME_BYTES_MAX = 2**24 - 1
NAMES = (
    *("PING", "PONG", "MSG", "MSG_ACK", "GET", "GET_ACK", "PUT", "PUT_ACK", "LIST", "LIST_ACK"),
    *("HELLO", "CHALLENGE", "AUTH", "READY", "CREDIT", "TOUCH", "TOUCH_ACK", "MSGX"),
    *("ADMIN", "ADMIN_REPLY", "STREAM", "STREAM_REPLY", "PEERS", "PEERS_REPLY", "NACK"),
)
TYPES: dict[str, int] = {name: getattr(p, name) for name in NAMES}
_BY_TYPE = {number: name for name, number in TYPES.items()}
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\S+')
_NUMBER = re.compile(r"(\d+):(\d+)")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2})+")
JOIN = "JOIN"


def write_packet(text: str, captures: Captures) -> bytes:
    """A packet with its length in front. Raises ValueError."""
    words = _WORD.findall(text)
    if words and words[0] == JOIN:
        packet = _hello(words[1:])
    else:
        packet = b"".join(_bytes(word, captures) for word in words)
    if not packet:
        raise ValueError("a packet has at least one byte")
    return LengthPrefixed(FRAME_BYTES_MAX).frame([packet])


def match_packet(text: str, packet: bytes, captures: Captures) -> dict[str, Any] | None:
    """See `DialogueProtocol.match`."""
    pattern = b"".join(_pattern(word, captures) for word in _WORD.findall(text))
    found = re.fullmatch(pattern, packet, re.DOTALL)
    return None if found is None else without_anything(found.groupdict())


def show_packet(packet: bytes) -> str:
    """A packet as text of a dialogue, with its readable parts."""
    name = _BY_TYPE.get(packet[0], f"{packet[0]:02x}")
    body = packet[1:]
    readable = re.findall(rb"[ -~]{3,}", body)
    comment = f"   # {b' '.join(readable).decode()!r}" if readable else ""
    return f"{name} {body.hex()}{comment}".rstrip()


def _hello(words: list[str]) -> bytes:
    match words:
        case [channel]:
            role = Role.BOTH
        case [channel, name] if name.upper() in Role.__members__:
            role = Role[name.upper()]
        case _:
            raise ValueError("JOIN CHANNEL [producer | consumer | both | worker]")
    hello = Hello(
        channel=channel.encode(),
        role=role,
        want_push=role is not Role.PRODUCER,
        extensions=p.DEFAULT_EXTENSIONS,
    )
    return encode_hello(hello)


def _bytes(word: str, captures: Captures) -> bytes:
    placeholder = PLACEHOLDER.fullmatch(word)
    if placeholder is not None:
        taken: bytes = known(captures, placeholder["name"])
        return taken
    if word in TYPES:
        return bytes((TYPES[word],))
    if word.startswith('"'):
        text: str = json.loads(word)
        return text.encode()
    number = _NUMBER.fullmatch(word)
    if number is not None:
        value, size = int(number[1]), int(number[2])
        if value >= 256**size:
            raise ValueError(f"{value} does not fit into {size} bytes")
        return value.to_bytes(size, "big")
    if _HEX.fullmatch(word):
        return bytes.fromhex(word)
    raise ValueError(f"{word!r} is no type, text, hex, NUMBER:SIZE or {{placeholder}}")


def _pattern(word: str, captures: Captures) -> bytes:
    placeholder = PLACEHOLDER.fullmatch(word)
    if word == REST:
        return b".*"
    if placeholder is None or placeholder["name"] in captures:
        return re.escape(_bytes(word, captures))
    size = placeholder["size"]
    many = b".*" if size is None else b".{%d}" % int(size)
    return b"(?P<%b>%b)" % (placeholder["name"].encode(), many)


def _framing() -> LengthPrefixed:
    return LengthPrefixed(FRAME_BYTES_MAX)


PACKETS: DialogueProtocol[bytes] = DialogueProtocol(
    PORT, _framing, write_packet, match_packet, show_packet
)
