"""Lists of addresses of `millpond bench --connect`: the first one reached is measured."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from millpond.node.cli.exit_codes import Failure
from millpond.node.client.url import ADDRESSES_MAX
from millpond.transports.io.address import format_address, parse_address

REACH_S = 5.0
"""An address that takes no connection for so long is passed over."""

Endpoint = tuple[str, int]
"""A host and a port."""


def first_reached(endpoints: Sequence[Endpoint]) -> int:
    """The index of the first endpoint that takes a connection. A single one is not tried.

    Raises Failure if there is none.
    """
    if len(endpoints) == 1:
        return 0
    for index, endpoint in enumerate(endpoints):
        with suppress(OSError), socket.create_connection(endpoint, REACH_S):
            if index > 0:
                print(f"millpond: {format_address(*endpoint)} is measured", file=sys.stderr)
            return index
    where = ", ".join(format_address(*each) for each in endpoints)
    raise Failure(f"none of {where} takes a connection", hint="start a node with `millpond serve`")


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Read `HOST:PORT[,HOST:PORT...]`. Raises ValueError."""
    endpoints = tuple(parse_address(each.strip()) for each in text.split(","))
    if len(set(endpoints)) < len(endpoints):
        raise ValueError(f"{text!r}: an address is named twice")
    if len(endpoints) > ADDRESSES_MAX:
        raise ValueError(f"{text!r}: there may be {ADDRESSES_MAX} addresses at most")
    return endpoints
