"""The streams of a node, for commands."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millpond.actors.errors import UnknownStream
from millpond.node.cli.connection import open_channel
from millpond.node.cli.exit_codes import ExitCode, Failure, first_cause
from millpond.node.client.probe import PROBE
from millpond.node.client.streams.streams import Streams


@asynccontextmanager
async def open_streams(
    args: argparse.Namespace, reconnect_s: float = 0.0
) -> AsyncIterator[Streams]:
    """The node's streams, for the block. Raises Failure where a stream is named as a topic is that
    has several."""
    async with open_channel(args, PROBE, "consumer", reconnect_s=reconnect_s) as channel:
        streams = channel.streams
        try:
            yield streams
        except (UnknownStream, BaseExceptionGroup) as exc:
            if not isinstance(first_cause(exc), UnknownStream):
                raise
            name = getattr(args, "name", None)
            if args.command != "stream" or not isinstance(name, bytes):
                raise
            count = await streams.partitions(name)
            if count is None or count == 1:
                raise
            raise Failure(topic_text(name, count), ExitCode.NOT_FOUND) from exc


def topic_text(name: bytes, count: int) -> str:
    """The text for one who takes a topic of several partitions for a stream."""
    streams = f"{shown(name)}/0 to {shown(name)}/{count - 1}"
    return f"{shown(name)!r}: it is a topic, whose streams are {streams}"


async def existing(streams: Streams, name: bytes) -> str:
    """The text that says what has this name, or that a partition of a topic of it has its own."""
    count = await streams.partitions(name)
    match count:
        case None:
            first = [each async for each in _numbered(streams, name)][:1]
            which = f" ({shown(first[0])!r})" if first else ""
            what = f"a stream of one of its partitions exists{which}"
        case 1:
            what = "a stream of this name exists, which is a topic of one partition as well"
        case _:
            what = f"a topic of this name exists, with {count} partitions"
    return f"{shown(name)!r}: {what}"


async def _numbered(streams: Streams, name: bytes) -> AsyncIterator[bytes]:
    """The streams that have names of partitions of this topic."""
    async for each in streams.names(name + b"/"):
        if each[len(name) + 1 :].isdigit():
            yield each


def shown(name: bytes | None) -> str:
    """A name as the user gave it."""
    return os.fsdecode(name or b"")
