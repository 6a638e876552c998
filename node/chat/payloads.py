"""Payloads of chat messages in envelopes: texts, receipts for them, introductions, notices that
somebody writes, the records and messages of groups, and the states of files. JSON.

    {"kind":"text","line":"5f3a9c01","n":1,"at":1763683200000,"text":"hi"}
    {"kind":"text","line":"5f3a9c01","n":2,"at":1763683260000,"text":"hello","action":"edit",
     "about":"00112233445566778899aabbccddeeff"}
    {"kind":"receipt","state":"delivered","of":["00112233445566778899aabbccddeeff"]}
    {"kind":"introduction","secret":"000102030405060708090a0b0c0d0e0f","card":"millpond:..."}
    {"kind":"typing"}
    {"kind":"file","of":"00112233445566778899aabbccddeeff","state":"received"}

The uuid of a text is that of its envelope. Readers pass over fields that they do not know.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from millpond.node.chat.groups.signed import BODY_BYTES_MAX, MEMBERS_MAX
from millpond.node.chat.records import COUNT_MAX, State
from millpond.node.peers.envelope import KEY_BYTES
from millpond.node.peers.file_format import File
from millpond.node.peers.peer import CARD_CHARS_MAX

TEXT_BYTES_MAX = 32 * 1024
"""The largest text in bytes of UTF-8; sealed it fits into a packet of every node."""
RECEIPTS_MAX = 64
"""The most uuids in one receipt."""
LINE_DIGITS = 8
REASON_CHARS_MAX = 200
"""The longest reason why a file is refused."""
KNOWN_MAX = 32
"""The most kinds of payloads that a receipt names."""
TYPING = "typing"
GROUP = "group"
FILE = "file"
KNOWN = (TYPING, GROUP, FILE)
"""The kinds that receipts of this version name."""

Uuid = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
KindName = Annotated[str, msgspec.Meta(max_length=32)]


class Text(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="text"):
    """The `n`-th message of a sender in a line, written at `at` by the clock of the sender (ms).

    `action` (`actions`) says what it does with the message `about`. `file`: it brings a file.
    """

    line: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{8}$")]
    n: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
    at: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
    text: str
    action: Annotated[str, msgspec.Meta(pattern="^[a-z]{0,16}$")] = ""
    about: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")] = ""
    file: File | None = None


class Receipt(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag="receipt"):
    """A receipt: these messages are delivered, or read. `knows`: the kinds, beyond those of the
    first version, that its sender understands."""

    state: Literal["delivered", "read"]
    of: Annotated[list[Uuid], msgspec.Meta(max_length=RECEIPTS_MAX)]
    knows: Annotated[tuple[KindName, ...], msgspec.Meta(max_length=KNOWN_MAX)] = ()

    @classmethod
    def of_state(cls, state: State, uuids: list[str], knows: tuple[str, ...] = ()) -> Receipt:
        """A receipt for `state`, which is delivered or read."""
        assert state in (State.DELIVERED, State.READ)
        return cls("read" if state is State.READ else "delivered", uuids, knows)

    @property
    def new_state(self) -> State:
        """The state of the messages."""
        return State(self.state)


class Introduction(msgspec.Struct, frozen=True, tag_field="kind", tag="introduction"):
    """The answer to an invite: its secret in 32 hexadecimal digits, and the card of the sender."""

    secret: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    card: Annotated[str, msgspec.Meta(max_length=CARD_CHARS_MAX)]

    def __repr__(self) -> str:
        """Without the secret: this may end up in a log."""
        return "<Introduction>"


class Typing(msgspec.Struct, frozen=True, tag_field="kind", tag=TYPING):
    """A notice that the sender writes at this moment; it goes only to a peer that `knows` it, and
    is in no history."""


GroupKey = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Signed = Annotated[bytes, msgspec.Meta(max_length=BODY_BYTES_MAX + 1024)]
GROUP_RECORDS_MAX = 3000
GROUP_MESSAGES_MAX = 16
HOPS_MAX = 16


class GroupPayload(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag=GROUP, kw_only=True
):
    """Signed records and messages of the group with the id `group`.

    The sender knows the group up to the record `head`, the `epoch`-th, and so many `statements`.
    The recipient passes records and messages on to `targets`; they have made `hops`. `ask`: the
    sender wants all records from this epoch on. `text`: what earlier versions show.
    """

    group: GroupKey
    epoch: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] = 0
    head: Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES)] = b""
    statements: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] = 0
    records: Annotated[tuple[Signed, ...], msgspec.Meta(max_length=GROUP_RECORDS_MAX)] = ()
    messages: Annotated[tuple[Signed, ...], msgspec.Meta(max_length=GROUP_MESSAGES_MAX)] = ()
    targets: Annotated[tuple[GroupKey, ...], msgspec.Meta(max_length=MEMBERS_MAX)] = ()
    hops: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)] = 0
    ask: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)] | None = None
    text: str = ""


class FileStatus(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", tag=FILE):
    """The state of the file that the text `of` brings. STORED: it is complete at a relay of the
    recipient, says its sender. Its recipient says the others: it has RECEIVED it, or REFUSED it,
    for the reason in `text`."""

    of: Uuid
    state: Literal["stored", "received", "refused"]
    text: Annotated[str, msgspec.Meta(max_length=REASON_CHARS_MAX)] = ""


Payload = Text | Receipt | Introduction | Typing | GroupPayload | FileStatus


class UnknownPayload(ValueError):
    """A payload of a kind that this version does not know. `text`: the text that it has for such
    versions."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(reason)
        self.text = text


class _LaterPayload(msgspec.Struct):
    """A payload of a later version, which may have a text for people of earlier ones."""

    kind: str
    text: str = ""


_decoder: msgspec.json.Decoder[Payload] = msgspec.json.Decoder(Payload)
_later_decoder = msgspec.json.Decoder(_LaterPayload)
_encoder = msgspec.json.Encoder()


def encode_payload(payload: Payload) -> bytes:
    """The bytes of a payload."""
    return _encoder.encode(payload)


def decode_payload(plaintext: bytes) -> Payload:
    """The payload in some bytes. Raises UnknownPayload."""
    try:
        payload = _decoder.decode(plaintext)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnknownPayload(str(error), _text_of_later(plaintext)) from error
    if isinstance(payload, Text) and not 0 < len(payload.text.encode()) <= TEXT_BYTES_MAX:
        raise UnknownPayload("a text is empty or too long")
    return payload


def _text_of_later(plaintext: bytes) -> str:
    try:
        text = _later_decoder.decode(plaintext).text
        return text if 0 < len(text.encode()) <= TEXT_BYTES_MAX else ""
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
