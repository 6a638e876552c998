"""The tasks of the outbox: the forwarders, fetchers and bounce readers that are running."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import partial

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import RequestError
from millpond.actors.runtime.supervisor import contain
from millpond.node.outbox.bounces import BounceReader
from millpond.node.outbox.context import OutboxContext, Wakeup
from millpond.node.outbox.fetcher import FetchSource, RelayFetcher
from millpond.node.outbox.forwarder import Forwarder
from millpond.node.outbox.inbound import InboundRouter
from millpond.node.outbox.key_exchange import (
    destroy_old_prekeys,
    keep_one_time_prekeys,
    learn_from_cards,
    publish_prekey_locally,
    wants_one_time,
)
from millpond.node.outbox.mailbox import DEAD_SUFFIX, mailbox_of, owner_of
from millpond.node.outbox.routes import Route, relay_routes, routes_to, unused_relays
from millpond.node.peers.address_book import BookUnreadable, Peer
from millpond.node.peers.identity import peer_id

log = logging.getLogger(__name__)

HOUR_S = 3600.0
CHECK_S = 0.5
"""More often than the book checks its file by itself, which would block the loop."""
RETRY_S = 30.0
INTERNAL_SEPARATOR = b"!"

FetchTarget = bytes | str
"""The target of a fetcher: the public key of a peer, or a relay as it is named in the settings."""


class OutboxScheduler:
    """The tasks of one outbox. All methods but `run` are synchronous and called in the loop."""

    def __init__(self, context: OutboxContext, inbound: InboundRouter) -> None:
        self._context = context
        self._inbound = inbound
        self._forwarders: dict[bytes, Forwarder] = {}
        self._bounce_readers: dict[bytes, BounceReader] = {}
        self._running: dict[Forwarder | BounceReader, None] = {}
        self._starting: deque[Forwarder | BounceReader] = deque()
        self._start_wakeup = Wakeup()
        self._fetchers: dict[FetchTarget, tuple[RelayFetcher, anyio.CancelScope]] = {}
        self._cards: set[str] = set()
        self._has_new_book = True
        self._is_book_unreadable = False
        self._unused_relays: set[str] = set()
        context.book.on_change(self._on_book_change)
        context.presence.on_change.append(self._on_presence)
        context.presence.on_fetching.append(self._on_fetching)

    async def run(self) -> None:
        """Start and stop tasks until cancelled."""
        self._fetchers.clear()
        self._starting = deque(self._running)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._start_mailbox_tasks, tasks)
            await self._watch_book(tasks)

    def publish_again(self) -> None:
        """Prekeys or delivery tokens have changed: exchange keys with relays now."""
        for fetcher, _ in self._fetchers.values():
            fetcher.prekey_changed()

    # Events.

    def message_arrived(self, mailbox: bytes) -> None:
        """There is a message in a mailbox."""
        owner = owner_of(mailbox)
        if owner is None or owner == self._context.identity.public:
            return
        if mailbox.endswith(DEAD_SUFFIX):
            bounce_reader = self._bounce_readers.setdefault(
                owner, BounceReader(self._context, owner)
            )
            bounce_reader.message_arrived()
            self._start(bounce_reader)
        elif INTERNAL_SEPARATOR not in mailbox:
            forwarder = self._forwarder(owner)
            forwarder.message_arrived()
            self._start(forwarder)

    def request_prekey(self, peer: bytes) -> None:
        """A message for the peer cannot be sealed: fetch a prekey."""
        forwarder = self._forwarder(peer)
        forwarder.request_prekey()
        self._start(forwarder)

    def _request_one_time(self, peer: bytes) -> None:
        forwarder = self._forwarder(peer)
        forwarder.request_one_time()
        self._start(forwarder)

    def address_book_changed(self) -> None:
        """The address book may have changed: read it soon."""
        self._has_new_book = True

    def _on_book_change(self) -> None:
        self._has_new_book = True  # in any thread; `_watch_book` acts on it

    def _on_presence(self, peer: bytes) -> None:
        """Wake the tasks that wait for a peer that was away."""
        if not self._context.presence.last_seen(peer).is_online:
            return
        if peer in self._forwarders:
            self._forwarders[peer].wakeup()
        if peer in self._fetchers:
            self._fetchers[peer][0].wakeup()

    def _on_fetching(self, peer: bytes) -> None:
        forwarder = self._forwarders.get(peer)
        if forwarder is not None:
            forwarder.stop_forwarding()
            forwarder.wakeup()
            self._start(forwarder)

    # Forwarders and bounce readers run while there is work.

    def _forwarder(self, peer: bytes) -> Forwarder:
        forwarder = self._forwarders.get(peer)
        if forwarder is None:
            forwarder = self._forwarders[peer] = Forwarder(self._context, peer)
        return forwarder

    def _start(self, mailbox_task: Forwarder | BounceReader) -> None:
        if mailbox_task in self._running or not mailbox_task.is_wanted:
            return
        self._running[mailbox_task] = None
        self._starting.append(mailbox_task)
        self._start_wakeup()

    async def _start_mailbox_tasks(self, tasks: TaskGroup) -> None:
        """Start mailbox tasks: events come from cells and connections, outside of any task."""
        while True:
            while self._starting:
                tasks.start_soon(self._work, self._starting.popleft())
            await self._start_wakeup.wait(HOUR_S)

    async def _work(self, mailbox_task: Forwarder | BounceReader) -> None:
        name = f"{type(mailbox_task).__name__.lower()}/{peer_id(mailbox_task.peer)}"
        await contain(name, mailbox_task.run)
        # No await follows: an event from here on starts the task again.
        self._running.pop(mailbox_task, None)
        if mailbox_task.is_wanted:  # it crashed
            await anyio.sleep(RETRY_S)
            self._start(mailbox_task)
        elif not mailbox_task.has_messages:
            self._drop(mailbox_task)

    def _drop(self, mailbox_task: Forwarder | BounceReader) -> None:
        """Forget a task: there may be mailboxes of any number of unknown peers."""
        if isinstance(mailbox_task, BounceReader):
            del self._bounce_readers[mailbox_task.peer]
        elif not self._context.book.is_contact(mailbox_task.peer):
            del self._forwarders[mailbox_task.peer]

    # Fetchers run as long as the address book has their peer.

    def _update_fetchers(self, contacts: list[Peer], tasks: TaskGroup) -> None:
        sources = dict(self._fetch_sources(contacts))
        for target in [target for target in self._fetchers if target not in sources]:
            self._fetchers.pop(target)[1].cancel()
        for target, source in sources.items():
            if target in self._fetchers:
                self._fetchers[target][0].wakeup()
            elif len(self._fetchers) < self._context.settings.fetchers_max:
                fetcher, scope = RelayFetcher(self._context, source), anyio.CancelScope()
                self._fetchers[target] = (fetcher, scope)
                tasks.start_soon(self._fetch, target, fetcher, scope)

    async def _fetch(
        self, target: FetchTarget, fetcher: RelayFetcher, scope: anyio.CancelScope
    ) -> None:
        with scope:
            await contain(f"fetcher/{target!r}", fetcher.run)
            del self._fetchers[target]  # it crashed
            await anyio.sleep(RETRY_S)
            self.address_book_changed()

    def _fetch_sources(self, contacts: list[Peer]) -> Iterator[tuple[FetchTarget, FetchSource]]:
        # Relays of this node come first: their messages are nowhere else, and fetchers are limited.
        seen: set[bytes | None] = set()
        for relay in self._context.settings.via:
            publics = {route.public for route in relay_routes(relay, self._context.book)}
            if publics - seen or None in publics:
                yield relay, FetchSource(partial(_relay_routes, relay, self._context), None, True)
            seen |= publics
        for public in dict.fromkeys(peer.public for peer in contacts if peer.addresses):
            yield public, FetchSource(partial(self._direct_routes, public), public, False)

    def _direct_routes(self, public: bytes) -> list[Route]:
        peer = self._context.book.by_public(public)
        routes = [] if peer is None else routes_to(peer, self._context.book)
        return [route for route in routes if not route.is_relay]

    # Periodic work.

    async def _watch_book(self, tasks: TaskGroup) -> None:
        checked_at = 0.0
        has_peers = is_expecting = False
        while True:
            await self._read_book()
            is_due = self._has_new_book or self._context.now() > checked_at + HOUR_S
            if is_due:
                self._has_new_book = False
                checked_at = self._context.now()
                has_peers = await self._apply_address_book(tasks)
            if not is_expecting and (has_peers or self._expects_strangers):
                is_expecting = True
                tasks.start_soon(self._inbound.run)
                tasks.start_soon(self._rotate_prekeys)
                tasks.start_soon(self._destroy_prekeys)
            elif not is_expecting and is_due:  # it may have keys of a time when it had peers
                await self._destroy_old_prekeys()
            await anyio.sleep(CHECK_S)

    @property
    def _expects_strangers(self) -> bool:
        """True if somebody may have a card of this node, or a message is there already."""
        context = self._context
        has_messages = context.local.count(mailbox_of(context.identity.public)) > 0
        return context.own_delivery_keys.are_used or has_messages

    async def _read_book(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._context.book.reload)
        except BookUnreadable as error:
            if not self._is_book_unreadable:
                log.error("address book not reloaded: %s", error)
            self._is_book_unreadable = True
        else:
            self._is_book_unreadable = False

    async def _apply_address_book(self, tasks: TaskGroup) -> bool:
        """Start and stop tasks as the address book says; True if it has a contact."""
        context = self._context
        contacts = [
            peer
            for peer in context.book.peers
            if peer.is_contact and peer.public != context.identity.public
        ]
        self._warn_of_unused_relays()
        self._cards = await learn_from_cards(context, contacts, self._cards)
        until = context.now() + context.settings.ttl_s
        without_prekey = await anyio.to_thread.run_sync(self._without_prekey, contacts, until)
        self._update_fetchers(contacts, tasks)
        for peer in contacts:
            if peer.public in self._forwarders:
                self._forwarders[peer.public].wakeup()
            if context.local.count(mailbox_of(peer.public)):
                self.message_arrived(mailbox_of(peer.public))
            if peer.public in without_prekey:
                self.request_prekey(peer.public)
            elif wants_one_time(context, peer.public):
                self._request_one_time(peer.public)
        return bool(contacts)

    def _warn_of_unused_relays(self) -> None:
        """Log the relays that are named and not used, each once."""
        context = self._context
        own = context.identity.public
        unused = set(unused_relays(context.settings.via, context.book, own))
        for text in sorted(unused - self._unused_relays):
            log.warning(
                "relay not used: %s is no relay in the address book; `millpond peer relay` makes"
                " or adds one",
                text,
            )
        self._unused_relays = unused

    def _without_prekey(self, contacts: list[Peer], until: float) -> set[bytes]:
        """The peers without a prekey that is valid until then. Reads files: in a worker thread."""
        cache = self._context.prekey_cache
        states = self._context.store.states
        return {
            peer.public
            for peer in contacts
            if (state := states.get(peer.public)) is None
            or cache.best(peer.public, until, version_min=2 if state.speaks_v2 else 1) is None
        }

    async def _rotate_prekeys(self) -> None:
        """Publish the prekey, here and at relays."""
        published = None
        while True:
            retry_s = HOUR_S
            try:
                prekey = await publish_prekey_locally(self._context)
                await keep_one_time_prekeys(self._context)
            except (RequestError, OSError) as error:
                log.warning("prekey not published: %s", error)
                retry_s = RETRY_S
            else:
                if published not in (None, prekey):
                    self.publish_again()
                published = prekey
            await anyio.sleep(retry_s)

    async def _destroy_prekeys(self) -> None:
        """Destroy old prekeys, whether or not new ones can be published."""
        while True:
            is_done = await self._destroy_old_prekeys()
            await anyio.sleep(HOUR_S if is_done else RETRY_S)

    async def _destroy_old_prekeys(self) -> bool:
        """Destroy old prekeys; False if the disk did not let it."""
        try:
            await destroy_old_prekeys(self._context)
        except OSError as error:
            log.error("old prekeys not destroyed: %s", error)
            return False
        return True


def _relay_routes(relay: str, context: OutboxContext) -> list[Route]:
    return list(relay_routes(relay, context.book, allows_local=True))
