"""The client: `async with connect("tcp://127.0.0.1:7400", channel="chat/1") as channel`."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import IntEnum
from functools import partial
from math import inf
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.messages import Mode, Role
from millpond.node.client.channel import DRAIN_S, Channel, ChannelConnection, ModeName, RoleName
from millpond.node.client.events import Event
from millpond.node.client.flow_limit import FlowLimit
from millpond.node.client.idempotency import KeyCounter
from millpond.node.client.link import Dial, DialTarget, Link, LinkSettings
from millpond.node.client.questions import AnswerMailbox
from millpond.node.client.retry import ReconnectBackoff
from millpond.node.client.session import Session
from millpond.node.client.settings import (
    DEFAULT_SETTINGS,
    ConnectSettings,
    Dialer,
    simulated,
)
from millpond.node.client.url import Address, parse_urls
from millpond.node.environment import current_environment
from millpond.node.error_groups import single_errors
from millpond.node.jobs.payload import MAILBOX_BYTES
from millpond.node.peers.authentication import Credentials
from millpond.node.peers.identity import KEY_BYTES
from millpond.transports.errors import MalformedHandshake
from millpond.transports.io import tcp
from millpond.transports.p2p.framing import Framing, LengthPrefixed
from millpond.transports.p2p.handshake import NONCE_BYTES, Hello, Signer, encode_hello
from millpond.transports.p2p.packets import BEGUN, DEFAULT_EXTENSIONS

FRAME_SIZE_MAX = 2**24 - 1
IN_FLIGHT_BYTES_MAX = 8 * 2**20
NAME_BYTES_MAX = 255

Member = TypeVar("Member", bound=IntEnum)


def connect(
    url: str,
    channel: str | bytes | None = None,
    *,
    role: RoleName = "both",
    mode: ModeName | None = None,
    window: int | None = None,
    token: str | bytes | None = None,
    identity: Signer | None = None,
    peer: bytes | None = None,
    on_peer: Callable[[bytes], None] | None = None,
    tls: ssl.SSLContext | None = None,
    allow_plain: bool = False,
    reconnect: bool = True,
    wait_s: float = 0.0,
    on_event: Callable[[Event], None] | None = None,
    settings: ConnectSettings = DEFAULT_SETTINGS,
) -> Channel:
    """Join a channel of the node at `url` (tcp, tls, ws or wss), and leave it with the block.

    Without a block, `open` joins and `close` leaves; until then nothing is sent.
    `url` may be several, separated by commas. When a connection is lost or refused the next one is
    dialled, and unanswered puts are repeated there with their keys: where the nodes are different
    ones, a message whose receipt was lost may be in both.

    `window`: so many messages may be pushed and not yet acknowledged; None = 32, a worker's 1.
    `mode`: the mode of the channel, which is created in it if it does not exist.
    `wait_s`: keep trying for so long when the node is not there yet. After a loss the client always
    reconnects, with backoff, unless `reconnect` is off; `on_event` is called with each change.
    `tls`: the context for tls and wss, in place of the system's authorities or the pin of the URL.
    `allow_plain`: send a token, and prove an identity, to another machine without TLS as well.
    `identity`: prove it, once the node has proved `peer`, or any key that `on_peer` accepts.
    `settings`: those that few need.

    Raises ConnectionLost, HandshakeRefused, ModeMismatch, NotEncrypted, PeerMismatch, and
    ValueError for arguments.
    """
    rare = simulated(settings)
    name = _name(channel)
    addresses = _addresses(url, name)
    hello = _hello(name, role, mode, token, window, settings)
    _check(hello, has_identity=identity is not None)
    _check_credentials(identity, peer, on_peer, settings)
    if tls is not None and not any(address.secure for address in addresses):
        raise ValueError("a TLS context needs a tls:// or wss:// address")

    def beside(
        other: bytes,
        /,
        *,
        role: RoleName = "consumer",
        mode: ModeName | None = None,
        window: int | None = None,
        resume_after: int | None = None,
    ) -> Channel:
        return connect(
            url,
            other,
            role=role,
            mode=mode,
            window=window,
            token=token,
            identity=identity,
            peer=peer,
            on_peer=on_peer,
            tls=tls,
            allow_plain=allow_plain,
            reconnect=reconnect,
            wait_s=inf if reconnect else 0.0,  # as patient as a connection that was live
            settings=replace(settings, resume_after=resume_after, ordered=False, key_counter=None),
        )

    @asynccontextmanager
    async def joined() -> AsyncIterator[ChannelConnection]:
        environment = current_environment()
        random = rare.rng or environment.rng()
        unpredictable = rare.entropy or environment.entropy
        links = LinkSettings(
            targets=tuple(
                DialTarget(
                    _dialling(rare.dialer, address, tls),
                    partial(_framing, address, hello, unpredictable),
                    str(address),
                )
                for address in addresses
            ),
            hello=hello,
            credentials=_credentials(identity, peer, on_peer, rare.delivery_key, unpredictable),
            on_event=on_event,
            reconnect=reconnect,
            bare=rare.bare,
            allow_plain=allow_plain,
            wait_s=wait_s,
            idle_s=rare.keep_alive_s,
        )
        counter = rare.key_counter
        keys = KeyCounter(random, None if counter is None else Path(counter))
        limit = FlowLimit(rare.in_flight_max, IN_FLIGHT_BYTES_MAX)
        link = Link(links, limit, ReconnectBackoff(random), rare.now or environment.monotonic)
        async with _running(link) as tasks:
            mailbox = unpredictable(MAILBOX_BYTES)
            answers = AnswerMailbox(name or b"", mailbox, link, keys, beside, tasks)
            yield ChannelConnection(link, keys, random, answers, beside)
            await link.drain(DRAIN_S)

    return Channel(channel if channel is not None else b"", joined)


@asynccontextmanager
async def _running(link: Link) -> AsyncIterator[TaskGroup]:
    """The link as a task beside the block, which starts once the first connection is live."""
    with single_errors():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.run)
            try:
                await link.first.wait()
                yield tasks
            finally:
                await link.stop()
                tasks.cancel_scope.cancel()


def _dialling(dialer: Dialer | None, address: Address, tls: ssl.SSLContext | None) -> Dial:
    if dialer is not None:
        return lambda tasks, session: dialer(tasks, address.host, address.port, session)
    context = _context(address, tls)

    async def dial(tasks: TaskGroup, session: Session) -> None:
        await tcp.dial(tasks, address.host, address.port, session, tls=context)

    return dial


def _addresses(url: str, channel: bytes | None) -> tuple[Address, ...]:
    addresses = parse_urls(url)
    if channel is None and any(address.websocket for address in addresses):
        raise ValueError("a WebSocket needs a channel")
    return addresses


def _framing(address: Address, hello: Hello, entropy: Callable[[int], bytes]) -> Framing:
    if address.websocket:
        from millpond.transports.websocket.framing import (
            ClientFraming,  # few need it, and it takes 20 ms
        )

        channel, token = hello.channel or b"", hello.token
        return ClientFraming(str(address), channel, True, token, FRAME_SIZE_MAX, entropy)
    return LengthPrefixed(FRAME_SIZE_MAX)


def _context(address: Address, tls: ssl.SSLContext | None) -> ssl.SSLContext | None:
    if not address.secure:
        return None
    if tls is not None:
        return tls
    if address.key_pin is not None:
        from millpond.node.tls.contexts import client_context  # X.509 takes 50 ms

        return client_context(key_pins=[address.key_pin])
    return ssl.create_default_context()


def _name(channel: str | bytes | None) -> bytes | None:
    if channel is None:
        return None
    name = channel.encode() if isinstance(channel, str) else channel
    if not 0 < len(name) <= NAME_BYTES_MAX:
        raise ValueError(f"a channel's name has 1 to {NAME_BYTES_MAX} bytes, not {len(name)}")
    return name


def _check_credentials(
    identity: Signer | None,
    peer: bytes | None,
    on_peer: Callable[[bytes], None] | None,
    settings: ConnectSettings,
) -> None:
    if identity is None:
        if peer is not None or on_peer is not None or settings.delivery_key is not None:
            raise ValueError("`peer`, `on_peer` and `delivery_key` need an `identity`")
    elif settings.bare:
        raise ValueError("without a handshake there are no identities")
    if peer is not None and len(peer) != KEY_BYTES:
        raise ValueError(f"a public key has {KEY_BYTES} bytes, not {len(peer)}")


def _credentials(
    identity: Signer | None,
    peer: bytes | None,
    on_peer: Callable[[bytes], None] | None,
    delivery_key: bytes | None,
    entropy: Callable[[int], bytes],
) -> Credentials | None:
    if identity is None:
        return None
    return Credentials(identity, peer, on_peer, partial(entropy, NONCE_BYTES), delivery_key)


def _hello(
    name: bytes | None,
    role: RoleName,
    mode: ModeName | None,
    token: str | bytes | None,
    window: int | None,
    settings: ConnectSettings,
) -> Hello:
    return Hello(
        want_push=role != "producer",
        ordered=settings.ordered,
        channel=name,
        role=_member(Role, role),
        extensions=DEFAULT_EXTENSIONS | {BEGUN} if settings.begins else DEFAULT_EXTENSIONS,
        token=token.encode() if isinstance(token, str) else token,
        window=window,
        keep_alive_ms=round(settings.keep_alive_s * 1000),
        resume_after=settings.resume_after,
        mode=None if mode is None else _member(Mode, mode),
        name=settings.name.encode(),
    )


def _check(hello: Hello, *, has_identity: bool) -> None:
    if has_identity:
        hello = msgspec.structs.replace(
            hello,
            public_key=bytes(32),
            nonce=bytes(32),
            certificate_hash=bytes(32),
            delivery_proof=bytes(32),
        )
    try:
        encode_hello(hello)
    except MalformedHandshake as error:
        raise ValueError(str(error)) from error


def _member(kind: type[Member], name: str) -> Member:
    try:
        return kind[name.upper()]
    except KeyError:
        names = ", ".join(member.name.lower() for member in kind)
        raise ValueError(f"{name!r} is none of {names}") from None
