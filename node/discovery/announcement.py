"""Announcements: the mDNS records of a node, as they are made and as they are read.

An announcement is a service of the type `_millpond._tcp` under a random name, with a port, IP
addresses, and a TXT record of `id` (the peer id) and `v` (the version of the program). Everybody on
the network can make any announcement, so it is a hint where a node may be, and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from millpond.node.discovery.networks import LocalNetwork, contains
from millpond.node.peers.identity import BadPeerId, public_key_of

SERVICE = "_millpond._tcp.local."
INSTANCE_CHARS_MAX = 64
PEER_ID_CHARS = 52
VERSION_CHARS_MAX = 32
ADDRESSES_READ_MAX = 16
"""So many addresses of an announcement are looked at."""
ADDRESSES_MAX = 2
"""So many of them are dialled."""


class BadAnnouncement(ValueError):
    """Records that are no announcement of a node on a local network."""


class Announcement(msgspec.Struct, frozen=True):
    """A claim that the node with the key `public` listens at these addresses."""

    instance: str
    public: bytes
    addresses: tuple[str, ...]
    port: int
    version: str


def read_announcement(
    name: str,
    port: int | None,
    properties: Mapping[bytes, bytes | None],
    addresses: Iterable[str],
    networks: Iterable[LocalNetwork],
) -> Announcement:
    """The announcement in records under `name`. Raises BadAnnouncement.

    Addresses outside of `networks` are left out.
    """
    instance = name.removesuffix(f".{SERVICE}")
    if instance == name or not 0 < len(instance) <= INSTANCE_CHARS_MAX:
        raise BadAnnouncement("the name is not that of a node")
    if port is None or not 0 < port < 2**16:
        raise BadAnnouncement("the port is missing")
    try:
        text = _text(properties, b"id", PEER_ID_CHARS)
        public = public_key_of(text)
    except BadPeerId as error:
        raise BadAnnouncement("the peer id is damaged") from error
    networks = tuple(networks)
    read = [each for each, _ in zip(addresses, range(ADDRESSES_READ_MAX), strict=False)]
    near = [each for each in dict.fromkeys(read) if contains(networks, each)]
    if not near:
        raise BadAnnouncement("no address is on a local network")
    version = _text(properties, b"v", VERSION_CHARS_MAX)
    return Announcement(instance, public, tuple(near[:ADDRESSES_MAX]), port, version)


def properties_of(peer_id: str, version: str) -> dict[bytes, bytes]:
    """The TXT record of a node."""
    return {b"id": peer_id.encode("ascii"), b"v": version[:VERSION_CHARS_MAX].encode("ascii")}


def _text(properties: Mapping[bytes, bytes | None], key: bytes, chars_max: int) -> str:
    value = properties.get(key) or b""
    text = value[: chars_max + 1].decode("ascii", "replace")
    if len(text) > chars_max or not (text.isascii() and text.isprintable()):
        raise BadAnnouncement(f"{key.decode()} is too long or not text")
    return text
