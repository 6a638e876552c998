"""The rounds of the post: which carriers, fetchers and reporters are under way, and why."""

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
from millpond.node.outbox.key_exchange import learn_from_cards, publish_here, sweep
from millpond.node.outbox.mailbox import DEAD_SUFFIX, mailbox_of, owner_of
from millpond.node.outbox.routes import Route, relay_routes, routes_to
from millpond.node.peers.address_book import BookUnreadable, Peer, Trust
from millpond.node.peers.identity import peer_id

log = logging.getLogger(__name__)

HOUR_S = 3600.0
LOOK_S = 0.5
"""More often than the book looks at its file by itself, which would hold up the loop."""
RETRY_S = 30.0
NODE_MARK = b"!"

FetchTarget = bytes | str
"""Where a fetcher goes: to a peer, by its key, or to a relay, as it was named to us."""


class OutboxScheduler:
    """Everything but `run` is synchronous; call it in the loop's thread."""

    def __init__(self, office: OutboxContext) -> None:
        self._office = office
        self._carriers: dict[bytes, Forwarder] = {}
        self._reporters: dict[bytes, BounceReader] = {}
        self._working: dict[Forwarder | BounceReader, None] = {}
        self._hired: deque[Forwarder | BounceReader] = deque()
        self._has_hired = Wakeup()
        self._fetchers: dict[FetchTarget, tuple[RelayFetcher, anyio.CancelScope]] = {}
        self._cards: set[str] = set()
        self._is_book_new = True
        self._is_book_bad = False
        office.book.on_change(self._note_change)
        office.presence.on_change.append(self._seen)
        office.presence.on_fetching.append(self._fetching)

    async def run(self) -> None:
        """Until cancelled."""
        self._fetchers.clear()
        self._hired = deque(self._working)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._begin_work, tasks)
            await self._watch_book(tasks)

    @property
    def workers(self) -> int:
        """How many carriers and reporters it knows, at work or not."""
        return len(self._carriers) + len(self._reporters)

    # What happens.

    def notice(self, mailbox: bytes) -> None:
        """There is something in a mailbox."""
        owner = owner_of(mailbox)
        if owner is None or owner == self._office.identity.public:
            return
        if mailbox.endswith(DEAD_SUFFIX):
            reporter = self._reporters.setdefault(owner, BounceReader(self._office, owner))
            reporter.has_mail = True
            self._start(reporter)
        elif NODE_MARK not in mailbox:
            carrier = self._carrier(owner)
            carrier.has_mail = True
            self._start(carrier)

    def ask_for_key(self, peer: bytes) -> None:
        """A message for the peer cannot be sealed."""
        carrier = self._carrier(peer)
        carrier.wants_key = True
        carrier.nudge()
        self._start(carrier)

    def look_at_book(self) -> None:
        """The peer book may have changed: look at it soon."""
        self._is_book_new = True

    def _note_change(self) -> None:
        self._is_book_new = True  # in any thread; `_watch_book` acts on it

    def _seen(self, peer: bytes) -> None:
        """Whoever rests because the peer was away need not any longer."""
        if not self._office.presence.last_seen(peer).here:
            return
        if peer in self._carriers:
            self._carriers[peer].nudge()
        if peer in self._fetchers:
            self._fetchers[peer][0].nudge()

    def _fetching(self, peer: bytes) -> None:
        carrier = self._carriers.get(peer)
        if carrier is not None:
            carrier.stand_down()
            carrier.nudge()
            self._start(carrier)

    # Carriers and reporters work as long as there is something to do.

    def _carrier(self, peer: bytes) -> Forwarder:
        carrier = self._carriers.get(peer)
        if carrier is None:
            carrier = self._carriers[peer] = Forwarder(self._office, peer)
        return carrier

    def _start(self, worker: Forwarder | BounceReader) -> None:
        if worker in self._working or not worker.is_wanted:
            return
        self._working[worker] = None
        self._hired.append(worker)
        self._has_hired()

    async def _begin_work(self, tasks: TaskGroup) -> None:
        """Tasks begin only in tasks, and word comes from cells and connections, too."""
        while True:
            while self._hired:
                tasks.start_soon(self._work, self._hired.popleft())
            await self._has_hired.rest(HOUR_S)

    async def _work(self, worker: Forwarder | BounceReader) -> None:
        name = f"{type(worker).__name__.lower()}/{peer_id(worker.peer)}"
        await contain(name, worker.run)
        # Nothing comes in between: what is noticed from here on starts another one.
        self._working.pop(worker, None)
        if worker.is_wanted:  # it crashed
            await anyio.sleep(RETRY_S)
            self._start(worker)
        elif not worker.has_mail:
            self._let_go(worker)

    def _let_go(self, worker: Forwarder | BounceReader) -> None:
        """There may be mailboxes of any number of strangers."""
        if isinstance(worker, BounceReader):
            del self._reporters[worker.peer]
        elif not self._office.book.is_trusted(worker.peer):
            del self._carriers[worker.peer]

    # Fetchers work as long as the peer book has them.

    def _send_fetchers(self, trusted: list[Peer], tasks: TaskGroup) -> None:
        errands = dict(self._errands(trusted))
        for goal in [goal for goal in self._fetchers if goal not in errands]:
            self._fetchers.pop(goal)[1].cancel()
        for goal, errand in errands.items():
            if goal in self._fetchers:
                self._fetchers[goal][0].nudge()
            elif len(self._fetchers) < self._office.settings.fetchers_max:
                fetcher, scope = RelayFetcher(self._office, errand), anyio.CancelScope()
                self._fetchers[goal] = (fetcher, scope)
                tasks.start_soon(self._fetch, goal, fetcher, scope)

    async def _fetch(
        self, goal: FetchTarget, fetcher: RelayFetcher, scope: anyio.CancelScope
    ) -> None:
        with scope:
            await contain(f"fetcher/{goal!r}", fetcher.run)
            del self._fetchers[goal]  # it crashed
            await anyio.sleep(RETRY_S)
            self.look_at_book()

    def _errands(self, trusted: list[Peer]) -> Iterator[tuple[FetchTarget, FetchSource]]:
        book = self._office.book
        dialled = dict.fromkeys(peer.public for peer in trusted if peer.addresses)
        also_relays: set[bytes | None] = set()
        for text in self._office.settings.via:
            publics = {place.public for place in relay_routes(text, book)}
            if publics & dialled.keys():
                also_relays |= publics
            elif publics:
                yield text, FetchSource(partial(_relay, text, self._office), None, True)
        # Nobody else has what waits at a relay of ours, and not everybody may have a fetcher.
        for public in sorted(dialled, key=lambda each: each not in also_relays):
            where = partial(self._direct, public)
            yield public, FetchSource(where, public, public in also_relays)

    def _direct(self, public: bytes) -> list[Route]:
        peer = self._office.book.by_public(public)
        places = [] if peer is None else routes_to(peer, self._office.book)
        return [place for place in places if not place.is_relay]

    # What goes on all the time.

    async def _watch_book(self, tasks: TaskGroup) -> None:
        looked_at = 0.0
        is_alone = True
        while True:
            await self._read_book()
            if self._is_book_new or self._office.now() > looked_at + HOUR_S:
                self._is_book_new = False
                looked_at = self._office.now()
                knows_somebody = await self._look(tasks)
                if is_alone and knows_somebody:
                    is_alone = False
                    tasks.start_soon(InboundRouter(self._office).run)
                    tasks.start_soon(self._keep_keys)
            await anyio.sleep(LOOK_S)

    async def _read_book(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._office.book.reload)
        except BookUnreadable as error:
            if not self._is_book_bad:
                log.error("peer book stays as it was: %s", error)
            self._is_book_bad = True
        else:
            self._is_book_bad = False

    async def _look(self, tasks: TaskGroup) -> bool:
        """Go where the peer book says now; is there anybody in it?"""
        office = self._office
        trusted = [
            peer
            for peer in office.book.peers
            if peer.trust is Trust.TRUSTED and peer.public != office.identity.public
        ]
        self._cards = await learn_from_cards(office, trusted, self._cards)
        until = office.now() + office.settings.ttl_s
        keyless = await anyio.to_thread.run_sync(self._without_key, trusted, until)
        self._send_fetchers(trusted, tasks)
        for peer in trusted:
            if peer.public in self._carriers:
                self._carriers[peer.public].nudge()
            if office.local.count(mailbox_of(peer.public)):
                self.notice(mailbox_of(peer.public))
            if peer.public in keyless:
                self.ask_for_key(peer.public)
        return bool(trusted)

    def _without_key(self, trusted: list[Peer], until: float) -> set[bytes]:
        """For whom nothing can be sealed that may live until then. Reads files: in a thread."""
        known = self._office.known
        return {peer.public for peer in trusted if known.best(peer.public, until) is None}

    async def _keep_keys(self) -> None:
        """Publish a prekey, here and at relays, and destroy what is too old."""
        published = None
        while True:
            rest_s = HOUR_S
            try:
                prekey = await publish_here(self._office)
                await sweep(self._office)
            except (RequestError, OSError) as error:
                log.warning("prekey not published: %s", error)
                rest_s = RETRY_S
            else:
                if published not in (None, prekey):
                    for fetcher, _ in self._fetchers.values():
                        fetcher.new_key()
                published = prekey
            await anyio.sleep(rest_s)


def _relay(text: str, office: OutboxContext) -> list[Route]:
    return list(relay_routes(text, office.book))
