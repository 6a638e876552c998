"""The link of a channel to its node: dials, keeps the connection alive, and dials again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from ssl import SSLError
from typing import NamedTuple

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.messages import Ack, Credit, Durability, Mode, Role
from millpond.node.client.errors import (
    ClientClosed,
    ClientForked,
    ConnectionLost,
    HandshakeRefused,
)
from millpond.node.client.events import Connected, Disconnected, Event, Retrying
from millpond.node.client.flow_limit import FlowLimit
from millpond.node.client.forks import release_socket, watch
from millpond.node.client.future import ReplyFuture
from millpond.node.client.in_flight import InFlight
from millpond.node.client.inbox import Counts, Inbox
from millpond.node.client.retry import ReconnectBackoff
from millpond.node.client.session import WINDOW, Session, SessionContext
from millpond.node.peers.authentication import Credentials
from millpond.node.tls.errors import reason_of
from millpond.transports.errors import UpgradeRefused
from millpond.transports.p2p.framing import Framing
from millpond.transports.p2p.handshake import Hello
from millpond.transports.p2p.nacks import HelloCode
from millpond.transports.p2p.packets import encode

log = logging.getLogger("millpond.client")

PACKET_MAX = 2**20
CREDIT_MAX = 2**16 - 1
LEAVE_S = 2.0
PING_TRIES = 2

Dial = Callable[[TaskGroup, Session], Awaitable[None]]


class DialTarget(NamedTuple):
    """One address of the node, or of several that serve the same: how it is dialled, and framed."""

    dial: Dial
    framing: Callable[[], Framing]
    address: str = ""


TEMPORARY_REFUSALS = (HelloCode.TOO_MANY_CONNECTIONS, HelloCode.STORAGE_FAILED, HelloCode.INTERNAL)
"""Handshakes refused for these may succeed later."""


class LinkSettings(msgspec.Struct, frozen=True):
    """Settings of a link: the addresses in their order, the HELLO, the timeouts in seconds."""

    targets: tuple[DialTarget, ...]
    hello: Hello
    credentials: Credentials | None = None
    on_event: Callable[[Event], None] | None = None
    reconnect: bool = True
    bare: bool = False
    allow_plain: bool = False
    wait_s: float = 0.0
    idle_s: float = 20.0
    pong_s: float = 10.0
    handshake_s: float = 3.0
    dial_s: float = 10.0


class Link:
    """The connections of a channel, one after the other. `run` it as a task beside the rest.

    With several addresses a lost connection, or a refused one, is followed by one to the next
    address. The client waits, with backoff, once none of them took it in a row, and after a
    connection that was live for a short time. A refusal is final where all addresses refuse.
    """

    def __init__(
        self,
        settings: LinkSettings,
        limit: FlowLimit,
        backoff: ReconnectBackoff,
        now: Callable[[], float],
    ) -> None:
        self.counts = Counts()
        self.inflight = InFlight(limit)
        self.inbox = Inbox(self.counts)
        self.first: ReplyFuture[None] = ReplyFuture()
        self.error: Exception | None = None
        self.mode: Mode | None = None
        self.window = self._default_window(settings.hello)
        self.packet_max = PACKET_MAX
        self.now = now
        self._settings = settings
        self._backoff = backoff
        self._session: Session | None = None
        self._credit = 0
        self._number = 0
        self._target = 0
        self._misses = 0
        """Connections in a row that were never live."""
        self._refusals = 0
        """Those of them that the node refused for good."""
        self._refusal: Exception | None = None
        """The last refusal since a connection was live."""
        self._told: set[int] = set()
        """The addresses whose refusal was logged."""
        self._opening: Session | None = None
        """The connection that is being opened, or is open."""
        self._live_at = 0.0
        self._stopping = False
        # Shielded: only `stop` ends it, so that a cancelled user still says goodbye.
        self._scope = anyio.CancelScope(shield=True)
        self._changed = anyio.Event()
        self._unsent = anyio.Event()
        self.inbox.set_size_max(self.window)
        watch(self)

    # Calls of the channel.

    def check_open(self) -> None:
        """Raises why there will be no connection any more, if that is so."""
        if self.error is not None:
            raise self.error.with_traceback(None)

    @property
    def session(self) -> Session | None:
        """The connection that may be used now."""
        session = self._session
        return session if session is not None and session.live else None

    async def live(self) -> Session:
        """Wait for a connection that may be used; raises why there will be none."""
        while (session := self.session) is None:
            if self.error is not None:
                raise self.error.with_traceback(None)
            if self._changed.is_set():
                self._changed = anyio.Event()
            await self._changed.wait()
        return session

    def send(self, packet: bytes, *, at_once: bool = False) -> bool:
        """Send on the live connection, together with what else this pass of the loop brings.

        False without one: requests in flight are sent on the next connection anyway.
        """
        session = self._session
        if session is None or not session.live:
            return False
        session.send(packet)
        if at_once:
            session.flush()
        else:
            self._unsent.set()
        return True

    def ack(self, message_id: int) -> None:
        """Acknowledge, on the next connection if none is live."""
        if not self.send(self.inbox.settle(message_id)):
            self.inbox.acks.append(message_id)

    def credit(self, count: int) -> None:
        """Widen the window by `count` messages, on later connections as well."""
        self._credit += count
        self.inbox.set_size_max(self.window + self._credit)
        self.send(encode(Credit(count)), at_once=True)

    async def drain(self, timeout_s: float) -> None:
        """Wait until every put is answered, at most `timeout_s` seconds; not in a child."""
        if self.error is None:
            with anyio.move_on_after(timeout_s):
                await self.inflight.limit.wait_empty()

    async def stop(self) -> None:
        """Say goodbye, wait shortly until the wire is down, and dial no more."""
        self._stopping = True
        session = self.session
        if session is not None:
            session.leave()
            with anyio.move_on_after(LEAVE_S, shield=True):
                await session.closed.wait()
        self._scope.cancel()
        self._give_up(ClientClosed("the client is closed"))

    def end_in_child(self, error: ClientForked) -> None:
        """See `node.client.forks`."""
        session, self._opening, self._session = self._opening, None, None
        self.error = error
        self.inbox.end_in_child(error)
        if session is not None:
            release_socket(session.fileno)

    # The task.

    async def run(self) -> None:
        """Connect, and again, until `stop`, a final refusal, or the end of `wait_s`."""
        give_up_at = self.now() + self._settings.wait_s
        with self._scope:
            while True:
                session = await self._connect()
                lived_s = self.now() - self._live_at if session.ready is not None else 0.0
                failure = session.failure or ConnectionLost("the connection ended")
                self.inflight.lost()
                self.inbox.lost()
                self._tell_end(failure, lived_s)
                if self._stopping:
                    return
                self._count(session, failure)
                if self._is_final(give_up_at):
                    self._give_up(_final(self._refusal or failure))
                    return
                self._target = (self._target + 1) % len(self._settings.targets)
                delay_s = self._delay_s(lived_s, session)
                self._tell(Retrying(delay_s))
                await anyio.sleep(delay_s)

    async def _connect(self) -> Session:
        """One connection from dialling to its end."""
        self._number += 1
        settings = self._settings
        context = SessionContext(
            self.inflight, self.inbox, self.counts, self.now, self._start_session
        )
        session = Session(
            self._number,
            settings.targets[self._target].framing(),
            settings.hello,
            context,
            bare=settings.bare,
            credentials=settings.credentials,
            allow_plain=settings.allow_plain,
        )
        self._opening = session
        try:
            async with anyio.create_task_group() as tasks:
                if await self._dial(tasks, session):
                    await self._stay(tasks, session)
                tasks.cancel_scope.cancel()
        finally:
            session.abort()
        return session

    async def _dial(self, tasks: TaskGroup, session: Session) -> bool:
        try:
            with anyio.fail_after(self._settings.dial_s):
                await self._settings.targets[self._target].dial(tasks, session)
        except OSError as error:
            session.fail(error)
            return False
        return True

    async def _stay(self, tasks: TaskGroup, session: Session) -> None:
        with anyio.move_on_after(self._settings.handshake_s):
            await session.handshake_ended.wait()
        if not session.handshake_ended.is_set():
            self._no_handshake(session)
        if session.live:
            self._tell(Connected(self.counts.connections))
            tasks.start_soon(self._flush, session)
            tasks.start_soon(self._keep_alive, session)
        await session.closing.wait()
        with anyio.move_on_after(LEAVE_S):
            await session.closed.wait()
        session.abort()
        await session.closed.wait()

    def _no_handshake(self, session: Session) -> None:
        if self._settings.bare:
            session.start_without_handshake()
        else:
            session.fail(ConnectionLost("the other end does not answer the handshake"))
            session.close()

    async def _flush(self, session: Session) -> None:
        """Once per pass of the loop, write what tasks have sent."""
        while True:
            await self._unsent.wait()
            self._unsent = anyio.Event()
            session.flush()

    async def _keep_alive(self, session: Session) -> None:
        """Ping after silence; two pings without an answer end the connection (PA-28)."""
        tries = 0
        while tries < PING_TRIES:
            # Compared with a point in time: a wait below the clock's resolution would never end.
            wait_s = session.received_at + self._settings.idle_s - self.now()
            if wait_s > 0:
                await anyio.sleep(wait_s)
                continue
            received_at = session.received_at
            packet, _ = self.inflight.ping(self.now(), is_awaited=False)
            session.send(packet)
            session.flush()
            await anyio.sleep(self._settings.pong_s)
            tries = tries + 1 if session.received_at == received_at else 0
        session.fail(ConnectionLost("the node does not answer"))
        session.leave()

    def _start_session(self, session: Session) -> None:
        """The connection is live: first send what earlier ones left undone, in order (P2P-15)."""
        ready = session.ready
        assert ready is not None
        self._session = session
        self._live_at = self.now()
        self.counts.connections += 1
        self.mode = ready.mode
        self.inflight.promise(ready.durability or Durability.MEMORY)
        if ready.window is not None:
            self.window = ready.window
        self.packet_max = ready.packet_max or PACKET_MAX
        self.inbox.set_size_max(self.window + self._credit)
        while self.inbox.acks:
            session.send(encode(Ack(self.inbox.acks.popleft())))
        for start in range(0, self._credit, CREDIT_MAX):
            session.send(encode(Credit(min(CREDIT_MAX, self._credit - start))))
        for packet in self.inflight.packets(self._live_at, self.packet_max):
            session.send(packet)
        self._changed.set()
        self.first.resolve(None)

    def _count(self, session: Session, failure: Exception) -> None:
        if session.ready is not None:
            self._misses = self._refusals = 0
            self._refusal = None
            self._told.clear()
        if _is_refusal(failure):
            self._refusals += 1
            self._refusal = failure
        elif session.ready is None:
            self._refusals = 0
        self._misses += session.ready is None

    def _is_final(self, give_up_at: float) -> bool:
        if self._refusals >= len(self._settings.targets):
            return True
        if self.first.done:
            return not self._settings.reconnect
        # Without a wait each address is tried once.
        return self._tried_all and self.now() >= give_up_at

    @property
    def _tried_all(self) -> bool:
        return self._misses % len(self._settings.targets) == 0

    def _delay_s(self, lived_s: float, session: Session) -> float:
        if session.ready is None and not self._tried_all:
            return 0.0
        return self._backoff.delay_s(lived_s, session.closed_by_node)

    def _give_up(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
        self.inflight.fail(self.error)
        self.inbox.fail(self.error)
        self.first.fail(self.error)
        self._changed.set()

    def _tell_end(self, failure: Exception, lived_s: float) -> None:
        """Tell of the end of a connection; a refusal is logged as well, where others are tried."""
        target, targets = self._target, self._settings.targets
        text = str(failure) or type(failure).__name__
        is_refused = _is_refusal(failure)
        address = targets[target].address
        if is_refused and len(targets) > 1 and target not in self._told:
            self._told.add(target)
            log.warning("node refuses, others are tried: address=%s error=%s", address, text)
        self._tell(Disconnected(text, lived_s, address, is_refused))

    def _tell(self, event: Event) -> None:
        if self._settings.on_event is not None:
            self._settings.on_event(event)

    @staticmethod
    def _default_window(hello: Hello) -> int:
        if hello.window is not None:
            return hello.window
        return 1 if hello.role is Role.WORKER or hello.ordered else WINDOW


def _is_refusal(failure: Exception) -> bool:
    """Whether this node would refuse again."""
    match failure:
        case HandshakeRefused(code=code):
            return code not in TEMPORARY_REFUSALS
        case UpgradeRefused(status=status):
            return status < 500
        case _:
            return False


def _final(failure: Exception) -> ConnectionLost:
    """The error that waiting callers get."""
    match failure:
        case ConnectionLost():
            return failure
        case UpgradeRefused(status=status):
            error: ConnectionLost = HandshakeRefused(str(failure), status=status)
        case SSLError():
            error = ConnectionLost(reason_of(failure).text)
        case _:
            error = ConnectionLost(str(failure) or type(failure).__name__)
    error.__cause__ = failure
    return error
