"""Removal of what a benchmark made on a node that goes on running."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

log = logging.getLogger(__name__)

REMOVAL_S = 5.0
"""The time for it after an error."""


@asynccontextmanager
async def removed_at_the_end(remove: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Remove at the end, also after an error or a Ctrl-C, which is then raised."""
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(REMOVAL_S):
            try:
                await remove()
            except Exception as exc:  # the error of the benchmark is the one to be raised
                log.warning("data of the benchmark not removed: error=%s", exc)
        raise
    await remove()
