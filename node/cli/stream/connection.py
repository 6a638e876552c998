"""The streams of a node, for commands."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millpond.node.cli.connection import open_channel
from millpond.node.client.connect import PROBE
from millpond.node.client.streams.streams import Streams


@asynccontextmanager
async def open_streams(
    args: argparse.Namespace, reconnect_s: float = 0.0
) -> AsyncIterator[Streams]:
    """The node's streams, for the block."""
    async with open_channel(args, PROBE, "consumer", reconnect_s=reconnect_s) as channel:
        yield channel.streams
