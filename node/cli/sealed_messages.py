"""Encrypted messages of commands: `put --to`, and envelopes that `recv` decrypts.

The node does both: the keys never leave its data folder.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import msgspec

from millpond.actors.errors import NoPrekey, NotAllowed, NotNegotiated, OutcomeUnknown, UnknownPeer
from millpond.node.cli.connection import COOKIE
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.output import data_field, print_json, print_line, printable
from millpond.node.client.channel import Channel, Message
from millpond.node.outbox.messages import OpenAnswer, PeerOperation, SendAnswer

ASKED_MAX = 3
"""The number of tries of a request to the node, if the connection ends before the reply."""
ENVELOPES = (b"\xe2\x03", b"\xe2\x01")
"""The first bytes of a message that is sealed for the disk of the node, and of an envelope of
version 1 (docs/reference/sealed-messages.md)."""
UUID_BYTES = 16


class OpenedMessage(msgspec.Struct, frozen=True):
    """An opened envelope. `sender` is the peer id of the signer, `name` its name in the address
    book."""

    uuid: str
    sender: str
    name: str
    data: bytes

    def fields(self) -> dict[str, Any]:
        """The JSON fields of the message."""
        names = {"uuid": self.uuid, "sender": self.sender, "name": self.name}
        return names | data_field(self.data)


async def send_message(channel: Channel, args: argparse.Namespace, data: bytes) -> None:
    """Let the node encrypt a message for the peer `args.to`, and print the stored message."""
    request = {
        "peer": args.to,
        "channel": args.channel,
        "data": data,
        "ttl": args.ttl,
        # The same message each time it is asked for.
        "uuid": os.urandom(UUID_BYTES),
    }
    try:
        body = await _request(channel, PeerOperation.SEND, request)
    except UnknownPeer as exc:
        text = f"there is no contact {args.to!r}; `millpond peer ls` lists them"
        raise Failure(text, ExitCode.NOT_FOUND) from exc
    except NoPrekey as exc:
        text = (
            f"there is no prekey of {args.to!r} yet: its node was never reached; "
            "try again later, or add its card: `millpond peer add NAME --card CARD`"
        )
        raise Failure(text) from exc
    sent = msgspec.convert(body, SendAnswer)
    if not args.json:
        print_line(str(sent.id))
        return
    print_json({"id": str(sent.id), "ttl": sent.ttl, "uuid": sent.uuid.hex(), "to": args.to})


def is_envelope(data: bytes) -> bool:
    """True for data that begins like an envelope."""
    if not data.startswith(ENVELOPES):
        return False
    from millpond.node.peers.envelope import CannotOpen, envelope_uuid  # 20 ms, if there is any
    from millpond.node.peers.local_envelope import is_local, local_uuid

    try:
        local_uuid(data) if is_local(data) else envelope_uuid(data)
    except CannotOpen:
        return False
    return True


async def open_message(channel: Channel, name: bytes, message: Message) -> OpenedMessage | None:
    """Let the node decrypt a message; None if it cannot, with the reason on stderr."""
    request = {"channel": name, "envelope": message.data}
    try:
        body = await _request(channel, PeerOperation.OPEN, request)
    except (NotAllowed, NotNegotiated) as exc:
        text = f"message {message.id} is encrypted, and the operator of the node may decrypt it"
        ways = f"--token-file {COOKIE}, or --sealed to print it encrypted"
        raise Failure(f"{text}: {ways}", ExitCode.REFUSED) from exc
    answer = msgspec.convert(body, OpenAnswer)
    if answer.data is None or answer.sender is None:
        reason = answer.reason or "no reason given"
        print(f"millpond: message {message.id} was not decrypted: {reason}", file=sys.stderr)
        return None
    sender_name = printable(answer.name or answer.sender)
    return OpenedMessage(answer.uuid.hex(), answer.sender, sender_name, answer.data)


async def _request(
    channel: Channel, operation: PeerOperation, body: dict[str, Any]
) -> dict[str, Any]:
    for _ in range(ASKED_MAX - 1):
        try:
            return await channel.peers(operation, body)
        except OutcomeUnknown:
            continue  # the connection is mended, or the next attempt tells that it is not
    return await channel.peers(operation, body)
