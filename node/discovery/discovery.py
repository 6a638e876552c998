"""The discovery of one node: it announces itself, checks the announcements of others, and lists the
nodes that have proved their keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.errors import NotAllowed, RequestError
from millpond.node.client.errors import ChannelClosed, ConnectionLost, HandshakeRefused
from millpond.node.config import Config, ConfigError
from millpond.node.discovery.announcement import Announcement
from millpond.node.discovery.found_nodes import FoundNodes
from millpond.node.discovery.networks import LocalNetwork, contains, local_networks
from millpond.node.environment import installed_version
from millpond.node.ip import is_loopback
from millpond.node.outbox import messages as b
from millpond.node.outbox.context import OutboxContext
from millpond.node.outbox.own_card import make_own_card
from millpond.node.outbox.requests import PeerRequests
from millpond.node.peers.card import decode_card, local_addresses
from millpond.node.peers.fingerprint import fingerprint, fingerprint_words
from millpond.node.peers.identity import peer_id
from millpond.node.peers.peer import Trust
from millpond.transports.io.address import format_address, parse_address
from millpond.transports.p2p.bodies import read_body
from millpond.transports.server.interface import Principal

if TYPE_CHECKING:
    from millpond.node.discovery.multicast import Multicast
    from millpond.node.outbox.dialer import PeerDialer

log = logging.getLogger(__name__)

TICK_S = 0.5
NETWORKS_S = 5.0
"""The networks of this machine, and known announcements, are looked at so often."""
RETRY_S = 30.0
CHECKS_MAX = 4
"""Announced addresses that are dialled at once."""
CHECK_S = 5.0
CARD_S = 60.0
"""A card that was made is shown for so long."""
CLOSE_S = 3.0
INSTANCE_BYTES = 8
REFUSED = "announced node"
"""The reason in `millpond_refusals_total` of a node that has not proved its announcement."""
UNAVAILABLE = (RequestError, ConnectionLost, ChannelClosed, HandshakeRefused, OSError, TimeoutError)


class WrongCard(ValueError):
    """The card of a node that proved the announced key, which is another node's or leads here."""


class Discovery:
    """The discovery of one node. `listener` gives the address of its P2P listener."""

    def __init__(
        self,
        config: Config,
        context: OutboxContext,
        dial: PeerDialer,
        listener: Callable[[], str | None],
    ) -> None:
        """Raises ConfigError if `zeroconf` is not installed."""
        if find_spec("zeroconf") is None:
            raise ConfigError("discover: needs zeroconf: pip install 'millpond[discovery]'")
        self._chosen = config.discover_interfaces
        self._context = context
        self._dial = dial
        self._listener = listener
        self._networks: tuple[LocalNetwork, ...] = ()
        self.found = FoundNodes(context.identity.public)
        self._checks = 0
        self._card = ""
        self._card_until = 0.0
        self._has_warned = self._has_refused = False

    def register(self, requests: PeerRequests) -> None:
        """Add the handlers of operations 60 and 61."""
        requests.register_for_peers(b.PeerOperation.CARD, self._give_card)
        requests.register(b.PeerOperation.DISCOVERED, self._list)

    def may_ask(self, principal: Principal) -> bool:
        """True for a client that may ask for the card: it has a key and is on a local network."""
        return principal.identity is not None and contains(self._networks, principal.address)

    async def run(self) -> None:
        """Announce and look for nodes, until cancelled."""
        self._checks = 0
        async with anyio.create_task_group() as tasks:
            while True:
                await self._run_once(tasks)

    async def _run_once(self, tasks: TaskGroup) -> None:
        """Run until the networks change, or mDNS fails."""
        from millpond.node.discovery.multicast import Multicast  # it takes time to load

        address = self._listener()
        networks = await self._look(address)
        self._networks = networks
        self.found.clear()
        if address is None or not networks:
            self._warn("no private network to look for nodes on; looking again every 5 s")
            await anyio.sleep(NETWORKS_S)
            return
        multicast = Multicast(networks)
        instance = self._context.entropy(INSTANCE_BYTES).hex()
        own, port = self._context.identity.id, parse_address(address)[1]
        try:
            opening = partial(multicast.open, instance, own, port, installed_version())
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(opening)
            self._has_warned = False
            shown = ", ".join(str(each.address) for each in networks)
            log.info("looking for nodes: at=%s", shown)
            await self._follow(tasks, multicast, address)
            return
        except OSError as error:
            self._warn(f"no nodes are looked for: {error}; tried again every {RETRY_S:.0f} s")
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await anyio.to_thread.run_sync(multicast.close, abandon_on_cancel=True)
        await anyio.sleep(RETRY_S)

    async def _follow(self, tasks: TaskGroup, multicast: Multicast, address: str) -> None:
        looked_at = self._context.now()
        while True:
            now = self._context.now()
            for each in multicast.take():
                if isinstance(each, Announcement):
                    if not self._is_blocked(each.public):
                        self.found.heard(each, now)
                else:
                    self.found.gone(each.instance)
            while self._checks < CHECKS_MAX and (checked := self.found.next(now)) is not None:
                self._checks += 1
                tasks.start_soon(self._check, checked)
            await anyio.sleep(TICK_S)
            if not looked_at <= now < looked_at + NETWORKS_S:
                looked_at = now
                multicast.look_again(self._context.rng)
                if await self._look(address) != multicast.networks:
                    return

    async def _look(self, address: str | None) -> tuple[LocalNetwork, ...]:
        if address is None:
            return ()
        host = parse_address(address)[0]
        return await anyio.to_thread.run_sync(local_networks, host, self._chosen)

    def _warn(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s", text)

    def _is_blocked(self, public: bytes) -> bool:
        peer = self._context.book.by_public(public)
        return peer is not None and peer.trust is Trust.BLOCKED

    # Checks of announcements.

    async def _check(self, checked: Announcement) -> None:
        try:
            card = await self._fetch(checked)
        except Exception as error:  # whatever a hostile node makes the client raise
            self.found.failed(checked, self._context.now())
            refusals = self._context.refusals
            refusals[REFUSED] = refusals.get(REFUSED, 0) + 1
            is_first, self._has_refused = not self._has_refused, True
            log.log(
                logging.WARNING if is_first else logging.DEBUG,  # anybody can cause more of them
                "announced node refused: peer=%s at=%s: %.200s",
                peer_id(checked.public),
                checked.addresses[0],
                error or type(error).__name__,
            )
        else:
            self.found.verified(checked, card, self._context.now())
        finally:
            self._checks -= 1

    async def _fetch(self, announced: Announcement) -> str:
        """The card of an announced node, which proves its key first. Raises UNAVAILABLE, BadCard,
        WrongCard and msgspec.ValidationError."""
        failure: Exception | None = None
        for address in announced.addresses:
            scheme = "tcp" if is_loopback(address) else "tls"
            url = f"{scheme}://{format_address(address, announced.port)}"
            try:
                with anyio.fail_after(CHECK_S):
                    async with self._dial.stranger(url, announced.public) as channel:
                        body = await channel.peers(b.PeerOperation.CARD, {})
            except UNAVAILABLE as error:
                failure = error
                continue
            line = msgspec.convert(body, b.CardAnswer).card
            await anyio.to_thread.run_sync(check_card, line, announced.public, address)
            return line
        raise failure or OSError("it has no address")

    # Requests.

    async def _give_card(self, client: bytes | None, channel: bytes, body: bytes) -> bytes:
        """The card of this node, for others on the network. Raises StorageFailed."""
        read_body(body, b.Nothing)
        if client is None:
            raise NotAllowed("a client that asks for the card proves its key")
        now = self._context.now()
        if not self._card_until - CARD_S <= now < self._card_until:
            self._card = (await make_own_card(self._context, is_short=True)).line
            self._card_until = now + CARD_S
        return b.write_body(b.CardAnswer(self._card))

    async def _list(self, body: bytes) -> bytes:
        read_body(body, b.Nothing)
        context, nodes = self._context, []
        for each in self.found.all(context.now()):
            found = each.announcement
            peer = context.book.by_public(found.public)
            nodes.append(
                b.DiscoveredNode(
                    id=peer_id(found.public),
                    name=None if peer is None else peer.name,
                    fingerprint=fingerprint(found.public),
                    words=fingerprint_words(found.public),
                    address=format_address(found.addresses[0], found.port),
                    version=found.version,
                    found_at=each.found_at,
                    card=each.card,
                )
            )
        return b.write_body(b.DiscoveredAnswer(nodes))


def check_card(line: str, public: bytes, address: str) -> None:
    """Check the card that the node with the key `public` gave at an address. Raises BadCard and
    WrongCard."""
    card = decode_card(line)
    if card.public != public:
        raise WrongCard("the node gave the card of another one")
    if local_addresses(card) and not is_loopback(address):
        raise WrongCard("its card has addresses of this machine or link")
