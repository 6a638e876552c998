"""The state of peers for `millpond peer ls`: from the running node, else from its data folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from millpond.actors.errors import Malformed, RequestError
from millpond.node.access.operator import read_cookie
from millpond.node.cli.commands.address_book import data_key, own_public, passphrase_file
from millpond.node.cli.connection import local_address
from millpond.node.cli.exit_codes import first_cause
from millpond.node.client.channel import Channel
from millpond.node.client.connect import connect
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.probe import PROBE
from millpond.node.outbox.messages import DiscoveredAnswer, DiscoveredNode, PeerOperation
from millpond.node.peers.data_key import is_encrypted
from millpond.node.peers.identity import NoIdentity
from millpond.node.peers.peer_store import FILE_NAME, PeerSummary, read_summaries

ANSWERED_WITHIN_S = 3.0
UNAVAILABLE = (RequestError, ConnectionLost, ChannelClosed, OSError, TimeoutError)


def peer_summaries(folder: Path, contacts: Sequence[bytes]) -> dict[bytes, PeerSummary]:
    """The summaries of the contacts of a node, by public key. Raises PeerStoreError, and
    DataKeyError if the folder is encrypted and the passphrase that is given is not its own."""
    found = _running(folder) if contacts else {}
    if found is not None:
        return found
    is_sealed = is_encrypted(folder)
    key = data_key(folder) if is_sealed and passphrase_file() else None
    stored = read_summaries(folder / FILE_NAME, key, is_sealed=is_sealed)
    others = PeerSummary(None) if is_sealed and key is None else PeerSummary()
    return {each: stored.get(each, others) for each in contacts}


def _running(folder: Path) -> dict[bytes, PeerSummary] | None:
    """The summaries by the node that runs on the folder; None: none runs, or it does not answer."""
    found = read_cookie(folder)
    if found is None or "p2p" not in found[1]:
        return None
    cookie, addresses = found
    try:
        own = own_public(folder)
        return anyio.run(_ask, f"tcp://{local_address(addresses['p2p'])}", cookie, own)
    except NoIdentity:
        return None
    except (*UNAVAILABLE, BaseExceptionGroup) as error:
        if not isinstance(first_cause(error), UNAVAILABLE):
            raise
        return None


def discovered_nodes(folder: Path) -> list[DiscoveredNode] | None:
    """The nodes that the running node of a folder has found on its network; None: none runs.

    Raises Malformed if it does not look for others.
    """
    found = read_cookie(folder)
    if found is None or "p2p" not in found[1]:
        return None
    cookie, addresses = found
    try:
        return anyio.run(_ask_discovered, f"tcp://{local_address(addresses['p2p'])}", cookie)
    except (*UNAVAILABLE, BaseExceptionGroup) as error:
        cause = first_cause(error)
        if isinstance(cause, Malformed):
            raise cause from error
        if not isinstance(cause, UNAVAILABLE):
            raise
        return None


async def _ask_discovered(url: str, cookie: str) -> list[DiscoveredNode]:
    with anyio.fail_after(ANSWERED_WITHIN_S):
        async with connect(
            url, PROBE, role="consumer", window=0, token=cookie, reconnect=False
        ) as channel:
            body = await channel.peers(PeerOperation.DISCOVERED, {})
            return msgspec.convert(body, DiscoveredAnswer).nodes


async def _ask(url: str, cookie: str, own: bytes) -> dict[bytes, PeerSummary] | None:
    with anyio.fail_after(ANSWERED_WITHIN_S):
        async with connect(
            url, PROBE, role="consumer", window=0, token=cookie, reconnect=False
        ) as channel:
            who = await channel.peers(PeerOperation.WHO, {})
            if who["key"] != own:
                return None  # the folder is of another node, which does not run
            return {
                each["key"]: PeerSummary(each["version"], each["unconfirmed"])
                for each in await _all(channel)
            }


async def _all(channel: Channel) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = found[-1]["name"] if found else ""
        page: dict[str, Any] = await channel.peers(PeerOperation.PEERS, {"after": after})
        found += page["peers"]
        if not page["more"]:
            return found
