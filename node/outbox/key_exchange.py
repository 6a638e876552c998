"""Exchange of prekeys and delivery keys: prekeys of peers are fetched, and those of this node are
published; its relays get its delivery keys."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from millpond.actors.errors import NotFound, RequestError
from millpond.actors.messages import U64_MAX, Put, PutAck
from millpond.node.client.errors import HandshakeRefused
from millpond.node.outbox.context import OutboxContext
from millpond.node.outbox.local_channels import seconds_left
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.messages import GivePrekeysAnswer, PeerOperation, TakePrekeysAnswer
from millpond.node.outbox.routes import Route
from millpond.node.peers.address_book import Peer
from millpond.node.peers.card import BadCard, decode_card
from millpond.node.peers.delivery_proof import delivery_key
from millpond.node.peers.errors import DeliveryTokenError
from millpond.node.peers.identity import peer_id
from millpond.node.peers.one_time_prekeys import TAKEN_MAX, decode_one_time, encode_one_time
from millpond.node.peers.prekeys import MalformedPrekey, SignedPrekey, decode_prekey, encode_prekey

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel

log = logging.getLogger(__name__)

ASKED_EVERY_S = 3600.0
ANSWERED_WITHIN_S = 60.0
"""A peer that takes longer counts as away, even if the connection is alive."""
TAKEN_WITHIN_S = 10.0
"""One-time prekeys are not waited for longer: there is the published one."""
FORMS = 2
"""A prekey is published for versions 2 and 1."""
KEY_LEFT_S = 3600.0
"""The least lifetime of a key for which something is sealed."""


async def fetch_prekey(context: OutboxContext, owner: bytes, route: Route) -> bool:
    """Fetch the newest prekey of `owner` over a route, and one-time prekeys if they are of use;
    True if the prekey is new.

    Raises ConnectionLost and OSError when no node answers.
    """
    name = mailbox_of(owner) + KEYS_SUFFIX
    try:
        with anyio.fail_after(ANSWERED_WITHIN_S):
            async with context.dial(route, name, "consumer") as channel:
                ids = await channel.list(U64_MAX, 0, FORMS)
                found = [await channel.get(each) for each in ids]
                await _take_one_time(context, owner, channel)
    except HandshakeRefused as error:
        log.info("prekey not read: owner=%s at=%s: %s", peer_id(owner), route.url, error)
        return False
    except RequestError as error:
        if not isinstance(error, NotFound):
            log.info("prekey not read: owner=%s at=%s: %s", peer_id(owner), route.url, error)
        return False
    # In the order of publication: of the two forms of a key that of version 2 comes first.
    learned = [await learn_prekey(context, owner, each, route.url) for each in reversed(found)]
    return any(learned)


def wants_one_time(context: OutboxContext, owner: bytes) -> bool:
    """True if a message to a peer would be sealed for its published prekey."""
    state = context.store.states.get(owner)
    their_key = None if state is None else state.their_key
    is_contact = context.book.is_contact(owner)
    is_over = their_key is None or their_key.good_until / 1000 < context.now() + KEY_LEFT_S
    return is_contact and is_over and not context.taken_prekeys.count(owner)


async def _take_one_time(context: OutboxContext, owner: bytes, channel: Channel) -> None:
    """Take one-time prekeys of a peer, if it has given this node no key of its own.

    Those that a relay has invented are dropped, and a node of an earlier version has none. A relay
    that does not answer keeps nothing else back.
    """
    requested = context.taken_prekeys.requested
    if owner in requested or not wants_one_time(context, owner):
        return
    requested.add(owner)
    keys: list[bytes] = []
    try:
        with anyio.move_on_after(TAKEN_WITHIN_S):
            body = await channel.peers(PeerOperation.TAKE_PREKEYS, {"count": TAKEN_MAX})
            keys = msgspec.convert(body, TakePrekeysAnswer).keys[:TAKEN_MAX]
    except (RequestError, msgspec.ValidationError) as error:
        log.debug("no one-time prekeys: owner=%s: %s", peer_id(owner), error)
        return
    finally:
        requested.discard(owner)
    for data in keys:
        try:
            prekey = decode_one_time(data, owner)
        except MalformedPrekey as error:
            log.warning("malformed one-time prekey: owner=%s: %s", peer_id(owner), error)
        else:
            context.taken_prekeys.add(owner, prekey, int(context.now() * 1000))


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
        await note_version(context, owner, prekey)
        for callback in context.on_prekey:
            callback(owner)
    return is_new


async def note_version(context: OutboxContext, owner: bytes, prekey: SignedPrekey) -> None:
    """Record that a peer reads version 2, for good: nobody gets it down to version 1 again."""
    state = context.store.state(owner)
    if prekey.version >= 2 and not state.speaks_v2 and context.book.by_public(owner) is not None:
        state.speaks_v2 = True
        await context.store.write([context.store.stored(owner)])


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
    puts = _prekey_puts(context, prekey)
    name = mailbox_of(context.identity.public) + KEYS_SUFFIX
    try:
        with anyio.fail_after(ANSWERED_WITHIN_S):
            async with context.dial(route, name, "producer") as channel:
                for put in puts:
                    await channel.put(put.data, ttl=put.ttl, key=put.key)
    except (HandshakeRefused, RequestError) as error:
        log.warning("relay refuses the prekey: at=%s: %s", route.url, error)


async def give_delivery_keys(context: OutboxContext, route: Route) -> None:
    """Give a relay the delivery keys of the mailbox of this node. Raises ConnectionLost, OSError.

    A relay of an earlier version refuses them.
    """
    if route.public is None:
        return
    own, relay = context.identity.public, route.public
    try:
        tokens = await anyio.to_thread.run_sync(context.delivery_tokens.valid)
        keys = [
            {"key": delivery_key(each.token, own, relay), "until": each.until} for each in tokens
        ]
        with anyio.fail_after(ANSWERED_WITHIN_S):
            async with context.dial(route, mailbox_of(own) + KEYS_SUFFIX, "producer") as channel:
                await channel.peers(PeerOperation.DELIVERY_KEYS, {"keys": keys})
    except (HandshakeRefused, RequestError, DeliveryTokenError) as error:
        log.info("delivery keys not given: at=%s: %s", route.url, error)


async def give_one_time_prekeys(context: OutboxContext, route: Route) -> None:
    """Give a relay as many one-time prekeys as it lacks. Raises ConnectionLost, OSError.

    A relay of an earlier version refuses them.
    """
    own, relay = context.identity.public, route.public
    if relay is None:
        return

    async def give(known: list[int], keys: list[bytes]) -> GivePrekeysAnswer:
        body: dict[str, Any] = {"known": known, "keys": keys}
        answer = await channel.peers(PeerOperation.GIVE_PREKEYS, body)
        return msgspec.convert(answer, GivePrekeysAnswer)

    try:
        with anyio.fail_after(ANSWERED_WITHIN_S):
            async with context.dial(route, mailbox_of(own) + KEYS_SUFFIX, "producer") as channel:
                await _refill(context, relay, give)
    except (HandshakeRefused, RequestError, msgspec.ValidationError) as error:
        log.info("one-time prekeys not given: at=%s: %s", route.url, error)


async def keep_one_time_prekeys(context: OutboxContext) -> None:
    """Have this node hand out one-time prekeys of its own. Raises RequestErrors and OSError."""
    own = context.identity.public

    async def give(known: list[int], keys: list[bytes]) -> GivePrekeysAnswer:
        return GivePrekeysAnswer(*await context.given_prekeys.give(own, known, keys))

    await _refill(context, own, give)


_Give = Callable[[list[int], list[bytes]], Awaitable[GivePrekeysAnswer]]
"""Gives a relay the numbers of known keys, and new keys."""


async def _refill(context: OutboxContext, relay: bytes, give: _Give) -> None:
    one_time, now_ms = context.one_time, int(context.now() * 1000)
    answer = await give(one_time.current(relay, now_ms), [])
    await one_time.left(relay, answer.left, answer.removed)
    made = await one_time.make(relay, now_ms, int(context.prekeys.lifetime_s * 1000))
    if made:
        answer = await give(one_time.current(relay, now_ms), [encode_one_time(e) for e in made])
        await one_time.left(relay, answer.left, answer.removed)


async def publish_prekey_locally(context: OutboxContext) -> SignedPrekey:
    """Publish the prekey of this node, both forms and nothing else. Raises RequestErrors."""
    prekey = await anyio.to_thread.run_sync(context.prekeys.current)
    name = mailbox_of(context.identity.public) + KEYS_SUFFIX
    answers = [context.local.put_nowait(name, put) for put in _prekey_puts(context, prekey)]
    kept = [answer.id for each in answers if isinstance(answer := await each, PutAck)]
    context.local.discard(
        name, [each for each in await context.local.list(name) if each not in kept]
    )
    return prekey


async def destroy_old_prekeys(context: OutboxContext) -> None:
    """Destroy the prekeys of this node that are too old, and contact keys. Raises OSError."""
    if context.prekeys.is_empty and context.one_time.is_empty and not context.store.states:
        return  # it has never had a peer
    await anyio.to_thread.run_sync(partial(context.prekeys.sweep, context.now()))
    now_ms = int(context.now() * 1000)
    await context.one_time.sweep(now_ms)
    await context.given_prekeys.sweep()
    states = [context.store.stored(peer) for peer in context.store.sweep_keys(now_ms)]
    tables = ("seen_v1", "unfinished")
    old = [(f"DELETE FROM {each} WHERE until < ?", (int(context.now()),)) for each in tables]
    await context.store.write([*states, *old])
    await anyio.to_thread.run_sync(context.store.erase)


def _prekey_puts(context: OutboxContext, prekey: SignedPrekey) -> list[Put]:
    """The two forms of a prekey. That of version 1 is the last one: its readers read only that."""
    forms = (prekey, context.prekeys.as_version_1(prekey))
    ttl = seconds_left(prekey.good_until, context.now())
    kid = int.from_bytes(prekey.kid, "big")
    return [Put(kid ^ form.version - 1, ttl, encode_prekey(form)) for form in forms]
