"""Prekeys over the wire: those of others are read, our own are left where our mail waits."""

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
"""Who takes longer is as good as away, whatever other life it shows."""


async def learn(office: OutboxContext, owner: bytes, place: Route) -> bool:
    """Read the newest prekey of `owner` at a place; is it news?

    Raises ConnectionLost and OSErrors when nobody is there.
    """
    name = mailbox_of(owner) + KEYS_SUFFIX
    try:
        with anyio.fail_after(ANSWERED_WITHIN_S):
            async with office.reach(place, name, "consumer") as channel:
                ids = await channel.list(U64_MAX, 0, 1)
                data = await channel.get(ids[0]) if ids else b""
    except HandshakeRefused as error:
        log.info("prekey not read: owner=%s at=%s: %s", peer_id(owner), place.url, error)
        return False
    except RequestError as error:
        if not isinstance(error, NotFound):
            log.info("prekey not read: owner=%s at=%s: %s", peer_id(owner), place.url, error)
        return False
    return bool(data) and await take_in(office, owner, data, place.url)


async def take_in(office: OutboxContext, owner: bytes, data: bytes, source: str) -> bool:
    """Learn a prekey as it is published, and tell who waits for one; is it news?"""
    try:
        prekey = decode_prekey(data)
    except MalformedPrekey as error:
        log.warning("no prekey: owner=%s from=%s: %s", peer_id(owner), source, error)
        return False
    return await _learn(office, owner, prekey)


async def _learn(office: OutboxContext, owner: bytes, prekey: SignedPrekey) -> bool:
    is_news = await anyio.to_thread.run_sync(office.known.learn, owner, prekey)
    if is_news:
        for hear in office.on_prekey:
            hear(owner)
    return is_news


async def learn_from_cards(office: OutboxContext, peers: list[Peer], known: set[str]) -> set[str]:
    """Take the prekeys out of the cards by which peers were added, but those `known`; gives all."""
    for peer in peers:
        if not peer.card or peer.card in known:
            continue
        try:
            card = await anyio.to_thread.run_sync(decode_card, peer.card)
        except BadCard as error:
            log.warning("card not read: peer=%s: %s", peer.id, error)
            continue
        if card.public == peer.public and card.prekey is not None:
            await _learn(office, peer.public, card.prekey)
    return {peer.card for peer in peers if peer.card}


async def publish(office: OutboxContext, place: Route) -> None:
    """Leave our prekey at a relay. Raises ConnectionLost and OSErrors when nobody is there."""
    prekey = await anyio.to_thread.run_sync(office.prekeys.current)
    put = _published(prekey, office.now())
    name = mailbox_of(office.identity.public) + KEYS_SUFFIX
    try:
        with anyio.fail_after(ANSWERED_WITHIN_S):
            async with office.reach(place, name, "producer") as channel:
                await channel.put(put.data, ttl=put.ttl, key=put.key)
    except (HandshakeRefused, RequestError) as error:
        log.warning("relay does not take our prekey: at=%s: %s", place.url, error)


async def publish_here(office: OutboxContext) -> SignedPrekey:
    """Keep our prekey as the one message of its channel on this node. Raises RequestErrors."""
    prekey = await anyio.to_thread.run_sync(office.prekeys.current)
    name = mailbox_of(office.identity.public) + KEYS_SUFFIX
    kept = await office.local.put(name, _published(prekey, office.now()))
    office.local.forget(name, [each for each in await office.local.list(name) if each != kept.id])
    return prekey


async def sweep(office: OutboxContext) -> None:
    """Destroy our prekeys that are too old."""
    await anyio.to_thread.run_sync(partial(office.prekeys.sweep, office.now()))


def _published(prekey: SignedPrekey, now: float) -> Put:
    key = int.from_bytes(prekey.kid, "big")
    return Put(key, seconds_left(prekey.good_until, now), encode_prekey(prekey))
