"""Nodes that know one another, on real sockets: who they are, how they are made, what they hear."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import msgspec

from millpond.actors.messages import Ack, Put
from millpond.node.access.rules_file import FILE_NAME as ACCESS_FILE
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.relayed_message import (
    RelayedMessage,
    encode_relayed_message,
    relayed_deadline,
    relayed_idempotency_key,
)
from millpond.node.peers.address_book import FILE_NAME as BOOK_FILE
from millpond.node.peers.address_book import AddressBook, Peer, Trust
from millpond.node.peers.envelope import OpenedEnvelope, seal
from millpond.node.peers.identity import FILE_NAME, Identity, load_or_create
from millpond.node.peers.keyring import KNOWN_FOLDER, PREKEYS_FOLDER
from millpond.node.peers.prekey_cache import PrekeyCache
from millpond.node.peers.prekeys import Prekeys, SignedPrekey
from millpond.node.peers.sealed_message import Content, Kind, seal_message
from tests.ports import free_port

DEADLINE_S = 60.0
SETTINGS = {"drain_timeout_s": 0.2, "peer_channels": ("*",), "message_requests": False}
QUIET_S = 0.3
"""Nothing more comes after so long without anything."""


class PeerNode:
    """A person with a node: its folder, its key, and an address that stays the same."""

    def __init__(self, folder: Path, name: str, **settings: Any) -> None:
        self.name = name
        self.folder = folder / name
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"tcp://{self.address}"
        self.identity: Identity = load_or_create(self.folder / FILE_NAME, os.urandom)
        self._line, self._began, self._counter = os.urandom(8), int(time.time() * 1000), 0
        # Else whoever is on this machine may do everything, as everybody is in these tests.
        rules = self.folder / ACCESS_FILE
        rules.write_text("# nobody but peers\n")
        rules.chmod(0o600)
        base = Config(
            p2p=self.address, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF, data=str(self.folder)
        )
        self.config = replace(base, **(SETTINGS | settings))

    @property
    def public(self) -> bytes:
        return self.identity.public

    @property
    def as_relay(self) -> str:
        """The entry of the node in peer books, as a relay."""
        return f"{self.identity.id}@{self.url}"

    @property
    def book(self) -> AddressBook:
        """As another process sees it."""
        return AddressBook(self.folder / BOOK_FILE)

    def knows(
        self,
        other: PeerNode,
        *,
        dials: bool = True,
        relays: tuple[str, ...] = (),
        trust: Trust | None = None,
    ) -> None:
        if trust is None:
            trust = Trust.RELAY if other.config.relay else Trust.ADDED
        addresses = (other.url,) if dials else ()
        self.book.add(Peer(other.name, other.public, trust, addresses, relays, 0.0))

    def changes(self, other: PeerNode, **fields: Any) -> None:
        """Another entry in the peer book for somebody who is in it."""
        found = self.book.by_public(other.public)
        assert found is not None
        self.book.replace(other.name, msgspec.structs.replace(found, **fields))

    @property
    def prekey(self) -> SignedPrekey:
        prekeys = Prekeys(self.folder / PREKEYS_FOLDER, self.identity, time.time, os.urandom)
        return prekeys.current()

    def learns_key_of(self, other: PeerNode) -> None:
        """As if its card had come by another way."""
        assert PrekeyCache(self.folder / KNOWN_FOLDER).learn(other.public, other.prekey)

    def learns_old_key_of(self, other: PeerNode) -> None:
        """As of a node of version 1."""
        shutil.rmtree(self.folder / KNOWN_FOLDER, ignore_errors=True)
        prekeys = Prekeys(other.folder / PREKEYS_FOLDER, other.identity, time.time, os.urandom)
        old = prekeys.as_version_1(prekeys.current())
        assert PrekeyCache(self.folder / KNOWN_FOLDER).learn(other.public, old)

    def letter_to(
        self,
        other: PeerNode,
        clear: bytes,
        channel: bytes = b"notes",
        hops: int = 0,
        **fields: Any,
    ) -> RelayedMessage:
        """One that its node would have sealed, good for ten minutes."""
        self._counter += 1
        counted = {"line": self._line, "began": self._began, "counter": self._counter}
        content = message(clear, channel, **(counted | fields))
        sealed = seal_message(
            content,
            sender=self.identity,
            recipient=other.public,
            prekey=other.prekey.public,
            entropy=os.urandom,
        )
        deadline = relayed_deadline(content.deadline / 1000)
        return RelayedMessage(hops, deadline, other.public, b"", sealed)

    def v1_letter_to(
        self, other: PeerNode, clear: bytes, channel: bytes = b"notes"
    ) -> RelayedMessage:
        """One as nodes of version 1 seal it, good for ten minutes."""
        return v1_message(
            clear, channel, self.identity, other.public, other.prekey.public, time.time()
        )

    def node(self, **settings: Any) -> Node:
        return Node(replace(self.config, **settings))


def v1_message(
    clear: bytes, channel: bytes, sender: Identity, recipient: bytes, prekey: bytes, now: float
) -> RelayedMessage:
    """A message of version 1, good for ten minutes."""
    envelope = seal(
        clear,
        sender=sender,
        recipient=recipient,
        prekey=prekey,
        channel=channel,
        uuid=os.urandom(16),
        entropy=os.urandom,
    )
    return RelayedMessage(0, int(now) + 600, recipient, channel, envelope)


def message(clear: bytes, channel: bytes = b"notes", **fields: Any) -> Content:
    """The content of a message, good for ten minutes."""
    now_ms = int(time.time() * 1000)
    values = {
        "kind": Kind.MESSAGE,
        "channel": channel,
        "deadline": now_ms + 600_000,
        "sent_at": now_ms,
        "uuid": os.urandom(16),
        "line": bytes(8),
        "began": now_ms,
        "counter": 1,
        "settled": 0,
        "seen": (),
        "floor": 0,
        "key": None,
        "body": clear,
    }
    return Content(**(values | fields))


async def leave(node: Node, owner: bytes, relayed: RelayedMessage, key: int | None = None) -> None:
    """Put a message into a mailbox, as whoever runs the node can."""
    key = relayed_idempotency_key(relayed) if key is None else key
    put = Put(key, 600, encode_relayed_message(relayed))
    await node.outbox.context.local.put(mailbox_of(owner), put)


async def opened(node: Node, channel: bytes, count: int = 1) -> list[OpenedEnvelope]:
    """So many envelopes of a channel, as they were pushed, opened by the node they are for."""
    found: list[OpenedEnvelope] = []
    with anyio.fail_after(DEADLINE_S), node.outbox.context.local.consumer(channel, 32) as consumer:
        while len(found) < count:
            message = await consumer.receive()
            found.append(await node.outbox.open(channel, message.data))
            consumer.settle(Ack(message.id))
    return found


async def read(node: Node, channel: bytes, count: int = 1) -> list[bytes]:
    """Their clear texts."""
    return [each.plaintext for each in await opened(node, channel, count)]


async def remaining(node: Node, channel: bytes) -> list[bytes]:
    """The other messages of the channel, also those that arrive soon; they stay there."""
    found: list[bytes] = []
    with node.outbox.context.local.consumer(channel, 1000) as consumer:
        while True:
            with anyio.move_on_after(QUIET_S) as scope:
                found.append((await consumer.receive()).data)
            if scope.cancelled_caught:
                return found


async def until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> None:
    """Wait for something that has no event of its own."""
    with anyio.fail_after(deadline_s):
        while not condition():  # noqa: ASYNC110 (it happens in a node, which tells nobody)
            await anyio.sleep(0.01)
