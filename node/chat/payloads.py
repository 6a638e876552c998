"""What two chats say to each other inside envelopes: texts, and receipts for them. JSON.

    {"kind":"text","line":"5f3a9c01","n":1,"at":1763683200000,"text":"hi"}
    {"kind":"receipt","state":"delivered","of":["00112233445566778899aabbccddeeff"]}

The uuid of a text is that of its envelope.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from millpond.node.chat.records import COUNT_MAX, State

TEXT_BYTES_MAX = 32 * 1024
"""UTF-8 of a message; every node's packets have room for it, sealed."""
RECEIPTS_MAX = 64
"""So many uuids are in one receipt."""
LINE_DIGITS = 8

Uuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class Text(msgspec.Struct, frozen=True, tag_field="kind", tag="text"):
    """The `n`-th message of its sender in this line, written at `at` by the sender's clock (ms)."""

    line: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
    n: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
    at: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
    text: str


class Receipt(msgspec.Struct, frozen=True, tag_field="kind", tag="receipt"):
    """These messages of the other are delivered, or read."""

    state: Literal["delivered", "read"]
    of: Annotated[list[Uuid], msgspec.Meta(max_length=RECEIPTS_MAX)]

    @classmethod
    def of_state(cls, state: State, uuids: list[str]) -> Receipt:
        """`state` is delivered or read."""
        assert state in (State.DELIVERED, State.READ)
        return cls("read" if state is State.READ else "delivered", uuids)

    @property
    def fate(self) -> State:
        """What became of them."""
        return State(self.state)


Payload = Text | Receipt


class UnknownPayload(ValueError):
    """A peer says something that this version does not know."""


_decoder: msgspec.json.Decoder[Payload] = msgspec.json.Decoder(Payload)
_encoder = msgspec.json.Encoder()


def encode_payload(words: Payload) -> bytes:
    """What is sealed."""
    return _encoder.encode(words)


def decode_payload(clear: bytes) -> Payload:
    """Raises NotUnderstood."""
    try:
        words = _decoder.decode(clear)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownPayload(str(error)) from error
    if isinstance(words, Text) and not 0 < len(words.text.encode()) <= TEXT_BYTES_MAX:
        raise UnknownPayload("a text without words, or with too many")
    return words
