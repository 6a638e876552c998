"""Removal of what a benchmark made on a node that goes on running."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio

REMOVAL_S = 5.0
"""The time for it after an error."""


@asynccontextmanager
async def removed_at_the_end(remove: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Remove at the end, also after an error or a Ctrl-C, which is then raised."""
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(REMOVAL_S), suppress(Exception):
            await remove()
        raise
    await remove()
