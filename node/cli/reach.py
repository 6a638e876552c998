"""Warnings about contact cards that do not lead to their node from everywhere."""

from __future__ import annotations

import sys

from millpond.node.outbox.own_addresses import Reach

OWN_REACH = {
    Reach.NOWHERE: "nobody reaches this node (serve --via RELAY, or --p2p 0.0.0.0:7400)",
    Reach.MACHINE: "no other machine reaches this node (serve --via RELAY, or --p2p 0.0.0.0:7400)",
    Reach.NETWORK: "only its private network reaches this node (serve --via RELAY, or --address)",
}
"""Warnings for makers of invites, by the reach of the card."""
CARD_REACH = {
    Reach.NOWHERE: "this card has no address and no relay (--address URL, --relay NAME)",
    Reach.MACHINE: "no other machine reaches the addresses of this card (--address, --relay)",
    Reach.NETWORK: "only a private network reaches the addresses of this card (--address, --relay)",
}
"""Warnings for makers of cards that say their addresses themselves."""
PEERS_REACH = {
    Reach.NOWHERE: "no address and no relay: messages wait until {name} dials this node",
    Reach.NETWORK: "the card of {name} leads to a private network, and works from there",
}
"""Warnings for readers of cards and invites."""


def warn(text: str | None) -> None:
    """Say something on standard error, if there is something to say."""
    if text is not None:
        print(f"millpond: warning: {text}", file=sys.stderr)


def warn_of_peer(reach: Reach, name: str) -> None:
    """Warn if the card of a peer does not lead to it from everywhere."""
    text = PEERS_REACH.get(reach)
    warn(None if text is None else text.format(name=name))
