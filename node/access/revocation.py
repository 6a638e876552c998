"""Keeps the node's door while it is open: whoever lost a right does not go on with it."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint

from millpond.node.connections import ConnectionRegistry
from millpond.node.peers.address_book import AddressBook

LOOK_EVERY_S = 2.0
REAUTHORIZE_EVERY_S = 30.0
"""Tokens and lines of the access file end at any moment."""
AT_ONCE = 100
"""Between so many connections others get their turn."""


async def watch_revocations(
    book: AddressBook, registry: ConnectionRegistry, now: Callable[[], float]
) -> None:
    """Have connections check their rights again: when the address book changed, and at intervals.

    `now` is in seconds. Runs until it is cancelled.
    """
    changes = 0

    def count() -> None:  # in whichever thread the change was made or noticed
        nonlocal changes
        changes += 1

    book.on_change(count)
    seen, checked_at = 0, now()
    while True:
        await anyio.sleep(LOOK_EVERY_S)
        len(book)  # has it look at its file
        if seen == changes and 0 <= now() - checked_at < REAUTHORIZE_EVERY_S:
            continue
        seen, checked_at = changes, now()
        await _reauthorize(registry)


async def _reauthorize(registry: ConnectionRegistry) -> None:
    for number, connection in enumerate(list(registry.connections), 1):
        if connection in registry.connections:
            connection.reauthorize()
        if number % AT_ONCE == 0:
            await checkpoint()
