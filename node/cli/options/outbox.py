"""The options of `serve` for mail to and from peers (docs/internals/peers.md)."""

from __future__ import annotations

import argparse

OUTBOX_FIELDS = ("relay", "via", "addresses")
"""The settings that the options here give."""


def add_outbox_options(parser: argparse.ArgumentParser) -> None:
    """`--relay`, `--via` and `--address`."""
    parser.add_argument(
        "--relay", action="store_true", default=None, help="keep mail for trusted peers of ours"
    )
    parser.add_argument(
        "--via",
        action="append",
        metavar="RELAY",
        help="a relay that keeps our mail: a peer's name, URL or PEER-ID@URL; again for more",
    )
    parser.add_argument(
        "--address",
        dest="addresses",
        action="append",
        metavar="URL",
        help="where others can dial us, for our card: tcp://H:P; again for more",
    )
