"""Revocation: open connections lose rights soon after they were withdrawn."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint

from millpond.node.connections import ConnectionRegistry
from millpond.node.peers.address_book import AddressBook

LOOK_EVERY_S = 2.0
REAUTHORIZE_EVERY_S = 30.0
"""Tokens and rules may expire at any moment."""
CONNECTIONS_PER_PASS = 100
"""After so many connections the event loop handles other events."""


async def watch_revocations(
    book: AddressBook, registry: ConnectionRegistry, now: Callable[[], float]
) -> None:
    """Check the rights of all connections soon after the address book changed, and every
    REAUTHORIZE_EVERY_S seconds.

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
        if number % CONNECTIONS_PER_PASS == 0:
            await checkpoint()
