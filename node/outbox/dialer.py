"""Connections to other nodes, authenticated with the identity of this node and the key of the
peer.

Connections to other machines are encrypted: a `tcp://` or `ws://` address there is dialled with
TLS, which nodes speak at the same port. A certificate is checked by the pin of its key, where the
address has one, and the proof of the peer's key is bound to it in any case
(docs/reference/wire-protocol.md).

A name is resolved once, here, and the connection is made to the addresses that were found. A name
that leads to this machine or link is not dialled, unless a person has allowed that of the peer:
whoever made a contact card controls what its names lead to.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from millpond.node.client.errors import HandshakeRefused
from millpond.node.client.url import Address, parse_url
from millpond.node.ip import ip_of, is_local, is_loopback, is_own
from millpond.node.outbox.mailbox import owner_of
from millpond.node.outbox.presence import Presence
from millpond.node.outbox.routes import Route, may_serve
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.delivery_proof import delivery_key
from millpond.node.peers.delivery_token import token_in_card
from millpond.node.peers.identity import Identity, peer_id
from millpond.node.tls.errors import reason_of
from millpond.transports.io import tcp
from millpond.transports.io.tls import HandshakeFailed

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel, RoleName
    from millpond.node.client.session import Session
    from millpond.node.client.settings import Dialer

log = logging.getLogger(__name__)

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as numbers. Raises OSError."""


class LeadsHere(OSError):
    """A name of a peer that leads to this machine or link, and was not dialled."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, by the system. Raises OSError."""
    try:
        found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} cannot be resolved: {error}") from error
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class PeerDialer:
    """The implementation of `routes.RouteDialer` by the client, with the node's own clock and
    chance."""

    def __init__(
        self,
        identity: Identity,
        book: AddressBook,
        presence: Presence,
        now: Callable[[], float],
        rng: Random,
        entropy: Callable[[int], bytes],
        dialer: Dialer | None = None,
        *,
        allow_plain: bool = False,
        resolver: Resolver = resolve,
    ) -> None:
        """`allow_plain`: peers on other machines that do not speak TLS are dialled without it.

        `dialer` opens connections in place of sockets, and resolves names itself.
        """
        self._identity = identity
        self._book = book
        self._presence = presence
        self._now = now
        self._rng = rng
        self._entropy = entropy
        self._dialer = dialer
        self._allow_plain = allow_plain
        self._without_tls: set[str] = set()
        """The addresses of which the log says that no TLS is spoken there."""
        self._resolver = resolver
        self._leading_here: set[str] = set()
        """The addresses of which the log says that they lead to this machine."""

    @asynccontextmanager
    async def __call__(
        self, route: Route, channel: bytes, role: RoleName, window: int = 0, /
    ) -> AsyncIterator[Channel]:
        from millpond.node.client.connect import connect  # they take time to load
        from millpond.node.client.settings import SimulatedSettings

        proved: list[bytes] = []

        def check(public: bytes) -> None:
            if not may_serve(self._book, public, route):
                wanted = "a relay" if route.is_relay else "a contact"
                raise HandshakeRefused(f"{peer_id(public)} is not {wanted} of this node")
            proved.append(public)

        async with connect(
            route.url,
            channel,
            role=role,
            window=window,
            identity=self._identity,
            peer=route.public,
            on_peer=check,
            settings=SimulatedSettings(
                delivery_key=self._delivery_key(route, channel),
                dialer=self._dialer or self._dialling(parse_url(route.url), route.allows_local),
                rng=self._rng,
                now=self._now,
                entropy=self._entropy,
            ),
            allow_plain=self._allow_plain,
            reconnect=False,
        ) as opened:
            public = route.public or proved[0]
            self._presence.connected(public, opened, lambda: self._now() - opened.silent_s)
            try:
                yield opened
            finally:
                self._presence.disconnected(public, opened)

    @asynccontextmanager
    async def stranger(self, url: str, public: bytes, /) -> AsyncIterator[Channel]:
        """A connection to a node that need not be in the address book, to ask for its card. It has
        to prove the key `public`. Raises ConnectionLost, HandshakeRefused and OSError."""
        from millpond.node.client.connect import connect  # they take time to load
        from millpond.node.client.probe import PROBE
        from millpond.node.client.settings import SimulatedSettings

        dialer = self._dialer or self._dialling(parse_url(url), allows_local=False)
        async with connect(
            url,
            PROBE,
            role="consumer",
            window=0,
            identity=self._identity,
            peer=public,
            settings=SimulatedSettings(
                dialer=dialer, rng=self._rng, now=self._now, entropy=self._entropy
            ),
            reconnect=False,
        ) as opened:
            yield opened

    def _delivery_key(self, route: Route, channel: bytes) -> bytes | None:
        """The key for the mailbox of a peer, at its relay or its own node, by the token in the
        peer's card."""
        owner = owner_of(channel)
        if owner is None or route.public is None:
            return None
        peer = self._book.by_public(owner)
        token = token_in_card(peer.card) if peer is not None else b""
        return delivery_key(token, owner, route.public) if token else None

    def _dialling(self, address: Address, allows_local: bool) -> Dialer:
        """The dialer for an address of a peer."""

        async def dial(tasks: TaskGroup, host: str, port: int, session: Session) -> None:
            failure: OSError | None = None
            for number in await self._numbers(address, allows_local):
                try:
                    await self._dial(tasks, address, number, session)
                except (ssl.SSLError, HandshakeFailed):
                    raise
                except OSError as error:
                    failure = error
                else:
                    return
            raise failure or OSError(f"{host!r} has no address")

        return dial

    async def _numbers(self, address: Address, allows_local: bool) -> Sequence[str]:
        """The addresses to dial, as numbers. Raises LeadsHere."""
        host = address.host
        if ip_of(host) is not None or is_local(host):
            return [host]  # it was checked where the peer was added
        found = await self._resolver(host, address.port)
        usable = [each for each in found if allows_local or not (is_local(each) or is_own(each))]
        if found and not usable:
            text = f"{address} leads to this machine or link ({', '.join(found)})"
            if str(address) not in self._leading_here:
                self._leading_here.add(str(address))
                log.warning("address not dialled: %s (allow-local-addresses)", text)
            raise LeadsHere(text)
        self._leading_here.discard(str(address))
        return usable

    async def _dial(
        self, tasks: TaskGroup, address: Address, number: str, session: Session
    ) -> None:
        """Connect to one address of a peer, without TLS if it is on this machine."""
        port, may_be_old = address.port, not address.secure
        if may_be_old and is_loopback(number):
            await tcp.dial(tasks, number, port, session)
            return
        tls, name = _context(address), address.host
        try:
            await tcp.dial(tasks, number, port, session, tls=tls, server_hostname=name)
        except (ssl.SSLError, HandshakeFailed) as error:
            if not may_be_old:
                raise
            self._warn(address, error)
            if not self._allow_plain:
                raise
            await tcp.dial(tasks, number, port, session)
        else:
            self._without_tls.discard(str(address))

    def _warn(self, address: Address, error: OSError) -> None:
        """Log once that a peer does not speak TLS."""
        if str(address) in self._without_tls:
            return
        self._without_tls.add(str(address))
        what = "dialled without it" if self._allow_plain else "not dialled (allow_plain_peers)"
        log.warning("peer without tls: at=%s %s: %s", address, what, reason_of(error).text)


def _context(address: Address) -> ssl.SSLContext:
    """A TLS context that checks the pin of an address, and nothing else."""
    if address.key_pin is not None:
        from millpond.node.tls.contexts import client_context  # X.509 takes 50 ms

        return client_context(key_pins=[address.key_pin])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
