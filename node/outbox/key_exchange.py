"""Exchange of prekeys: those of peers are fetched, that of this node is published."""

from __future__ import annotations

import logging
from functools import partial

import anyio

from millpond.actors.errors import NotFound, RequestError
from millpond.actors.messages import U64_MAX, Put
from millpond.node.client.errors import HandshakeRefused
from millpond.node.outbox.context import OutboxContext
from millpond.node.outbox.local_channels import seconds_left
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.routes import Route
from millpond.node.peers.address_book import Peer
from millpond.node.peers.card import BadCard, decode_card
from millpond.node.peers.identity import peer_id
from millpond.node.peers.prekeys import MalformedPrekey, SignedPrekey, decode_prekey, encode_prekey

log = logging.getLogger(__name__)

ASKED_EVERY_S = 3600.0
ANSWERED_WITHIN_S = 60.0
"""A peer that takes longer counts as away, even if the connection is alive."""


async def fetch_prekey(context: OutboxContext, owner: bytes, route: Route) -> bool:
    """Fetch the newest prekey of `owner` over a route; True if it is new.

    Raises ConnectionLost and OSError when no node answers.
    """
    name = mailbox_of(owner) + KEYS_SUFFIX
    try:
        with anyio.fail_after(ANSWERED_WITHIN_S):
            async with context.dial(route, name, "consumer") as channel:
                ids = await channel.list(U64_MAX, 0, 1)
                data = await channel.get(ids[0]) if ids else b""
    except HandshakeRefused as error:
        log.info("prekey not read: owner=%s at=%s: %s", peer_id(owner), route.url, error)
        return False
    except RequestError as error:
        if not isinstance(error, NotFound):
            log.info("prekey not read: owner=%s at=%s: %s", peer_id(owner), route.url, error)
        return False
    return bool(data) and await learn_prekey(context, owner, data, route.url)


async def learn_prekey(context: OutboxContext, owner: bytes, data: bytes, source: str) -> bool:
    """Add a published prekey to the cache and call `on_prekey`; True if it is new."""
    try:
        prekey = decode_prekey(data)
    except MalformedPrekey as error:
        log.warning("malformed prekey: owner=%s from=%s: %s", peer_id(owner), source, error)
        return False
    return await _learn(context, owner, prekey)


async def _learn(context: OutboxContext, owner: bytes, prekey: SignedPrekey) -> bool:
    is_new = await anyio.to_thread.run_sync(context.prekey_cache.learn, owner, prekey)
    if is_new:
        for callback in context.on_prekey:
            callback(owner)
    return is_new


async def learn_from_cards(context: OutboxContext, peers: list[Peer], known: set[str]) -> set[str]:
    """Add the prekeys in the cards of peers, except the cards in `known`; returns all these
    cards."""
    for peer in peers:
        if not peer.card or peer.card in known:
            continue
        try:
            card = await anyio.to_thread.run_sync(decode_card, peer.card)
        except BadCard as error:
            log.warning("card not read: peer=%s: %s", peer.id, error)
            continue
        if card.public == peer.public and card.prekey is not None:
            await _learn(context, peer.public, card.prekey)
    return {peer.card for peer in peers if peer.card}


async def publish_prekey(context: OutboxContext, route: Route) -> None:
    """Publish the prekey of this node at a relay. Raises ConnectionLost and OSError."""
    prekey = await anyio.to_thread.run_sync(context.prekeys.current)
    put = _prekey_put(prekey, context.now())
    name = mailbox_of(context.identity.public) + KEYS_SUFFIX
    try:
        with anyio.fail_after(ANSWERED_WITHIN_S):
            async with context.dial(route, name, "producer") as channel:
                await channel.put(put.data, ttl=put.ttl, key=put.key)
    except (HandshakeRefused, RequestError) as error:
        log.warning("relay refuses the prekey: at=%s: %s", route.url, error)


async def publish_prekey_locally(context: OutboxContext) -> SignedPrekey:
    """Publish the prekey of this node as the only message of its channel. Raises RequestErrors."""
    prekey = await anyio.to_thread.run_sync(context.prekeys.current)
    name = mailbox_of(context.identity.public) + KEYS_SUFFIX
    kept = await context.local.put(name, _prekey_put(prekey, context.now()))
    context.local.discard(
        name, [each for each in await context.local.list(name) if each != kept.id]
    )
    return prekey


async def destroy_old_prekeys(context: OutboxContext) -> None:
    """Destroy prekeys of this node that are too old."""
    await anyio.to_thread.run_sync(partial(context.prekeys.sweep, context.now()))


def _prekey_put(prekey: SignedPrekey, now: float) -> Put:
    key = int.from_bytes(prekey.kid, "big")
    return Put(key, seconds_left(prekey.good_until, now), encode_prekey(prekey))
