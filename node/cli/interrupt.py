"""Ctrl-C as an end that a command takes in its stride."""

from __future__ import annotations

import signal

import anyio


async def until_signal(scope: anyio.CancelScope) -> None:
    """Cancel the scope when SIGINT or SIGTERM comes."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return
