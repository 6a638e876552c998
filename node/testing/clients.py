"""Clients of S3P and RustLog over the dialer of a world."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

from anyio.abc import TaskGroup

from millpond.node.client.requests.reconnecting import Dial, ReconnectSettings, open_connection
from millpond.node.client.rustlog.client import Rustlog
from millpond.node.client.rustlog.client import closing_error as rustlog_closing_error
from millpond.node.client.rustlog.forms import JSON, Wire
from millpond.node.client.s3p.client import REPLY_LIMITS, S3p
from millpond.node.client.s3p.records import closing_error as s3p_closing_error
from millpond.node.testing.network import RUSTLOG_PORT, S3P_PORT, WorldDialer
from millpond.transports.io.interface import Session
from millpond.transports.s3p.client_codec import Reply, ReplyDecoder


@asynccontextmanager
async def s3p_over(dialer: WorldDialer, host: str, rng: Random) -> AsyncIterator[S3p]:
    """See `millpond.node.client.s3p.client.connect_s3p`."""
    settings: ReconnectSettings[Reply] = ReconnectSettings(
        dial=_dial(dialer, host, S3P_PORT),
        replies=partial(ReplyDecoder, REPLY_LIMITS),
        closing_error=s3p_closing_error,
    )
    async with open_connection(settings, rng) as connection:
        yield S3p.over(connection)


@asynccontextmanager
async def rustlog_over(dialer: WorldDialer, host: str, rng: Random) -> AsyncIterator[Rustlog]:
    """See `millpond.node.client.rustlog.client.connect_rustlog`."""
    settings: ReconnectSettings[Wire] = ReconnectSettings(
        dial=_dial(dialer, host, RUSTLOG_PORT),
        replies=JSON.decoder,
        closing_error=rustlog_closing_error(JSON),
    )
    async with Rustlog(partial(open_connection, settings, rng), JSON) as rustlog:
        yield rustlog


def _dial(dialer: WorldDialer, host: str, port: int) -> Dial:
    async def dial(tasks: TaskGroup, session: Session) -> None:
        await dialer(tasks, host, port, session)

    return dial
