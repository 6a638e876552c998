"""The contact card of this node, as it is now."""

from __future__ import annotations

import anyio
import msgspec

from millpond.node.outbox.context import OutboxContext
from millpond.node.outbox.own_addresses import Reach, reach_of
from millpond.node.outbox.routes import relay_urls
from millpond.node.peers.card import ContactCard, encode_card
from millpond.node.peers.peer import ADDRESSES_MAX


class OwnCard(msgspec.Struct, frozen=True):
    """The card in a `line`, and what is in it."""

    line: str
    addresses: tuple[str, ...]
    relays: tuple[str, ...]

    @property
    def reach(self) -> Reach:
        """The furthest that the card leads to the node from."""
        return reach_of(self.addresses, self.relays)


async def make_own_card(context: OutboxContext, *, is_short: bool = False) -> OwnCard:
    """A new card. `is_short`: for invites and introductions, which no node of version 1 reads.

    An address of this machine is left out where there is a relay: who is elsewhere would refuse
    the card for it. Raises OSError and DeliveryTokenError.
    """
    identity, settings = context.identity, context.settings
    relays = relay_urls(settings.via, context.book)[:ADDRESSES_MAX]
    found = await anyio.to_thread.run_sync(context.own_addresses)
    addresses = tuple(
        each
        for each in found
        if each in settings.addresses or not relays or reach_of([each], ()) is not Reach.MACHINE
    )
    tokens = await anyio.to_thread.run_sync(context.delivery_tokens.valid)
    context.own_delivery_keys.use(tokens)
    card = ContactCard(
        identity.public,
        addresses,
        relays,
        await anyio.to_thread.run_sync(context.prekeys.current),
        context.now(),
        settings.successions,
        tokens[0].token,
    )
    return OwnCard(encode_card(card, identity, is_short=is_short), addresses, relays)
