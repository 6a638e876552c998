"""Options of `serve` for relays and contact cards (docs/internals/peers.md)."""

from __future__ import annotations

import argparse

OUTBOX_FIELDS = ("relay", "via", "addresses")
"""The settings of these options."""


def add_outbox_options(parser: argparse.ArgumentParser) -> None:
    """Add `--relay`, `--via` and `--address`."""
    parser.add_argument(
        "--relay",
        action="store_true",
        default=None,
        help="store encrypted messages for trusted peers",
    )
    parser.add_argument(
        "--via",
        action="append",
        metavar="RELAY",
        help="relay that stores messages for this node: a peer's name, URL or "
        "PEER-ID@URL; repeatable",
    )
    parser.add_argument(
        "--address",
        dest="addresses",
        action="append",
        metavar="URL",
        help="address of this node for its contact card: tcp://H:P; repeatable",
    )
