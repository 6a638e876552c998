"""Admission of a client to its channel, after a HELLO or without one
(docs/reference/wire-protocol.md, PS-04..09)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import Attach, Rights, Role
from millpond.actors.streams.names import RESERVED
from millpond.transports.p2p.framing import Upgrade
from millpond.transports.p2p.handshake import VERSION, Hello
from millpond.transports.p2p.nacks import HelloCode
from millpond.transports.p2p.packets import BEGUN, CREDIT, EXTENSIONS, TOUCH, TOUCH_ACK
from millpond.transports.server.interface import Principal

NAME_BYTES_MAX = 250
DEAD_SUFFIX = b"!dead"
PACKET_BYTES_MIN = 1024
PUSH_OVERHEAD_BYTES = 11
KEEP_ALIVE_MS_MIN, KEEP_ALIVE_MS_MAX = 1_000, 300_000


Authorize = Callable[[Principal, bytes], Rights | None]
"""The rights of a principal in a channel; None: denied."""


class LoginSettings(msgspec.Struct, frozen=True):
    """Settings of the handshake that hold for all clients."""

    default_channel: bytes | None = None
    require_hello: bool = False
    packet_bytes_max: int = 2**20
    keep_alive_ms: int = 20_000


class Admission(msgspec.Struct, frozen=True):
    """A client's admission to `channel`. `packet_bytes_max` is the largest packet it accepts."""

    channel: bytes
    join: Attach
    extensions: frozenset[int]
    packet_bytes_max: int
    keep_alive_ms: int
    principal: Principal = Principal()

    def put_refusal(self) -> Code | None:
        """The error of a PUT that is not allowed; None: it is."""
        if not self.join.role.produces:
            return Code.WRONG_ROLE
        return None if Rights.PUT in self.join.rights else Code.NOT_ALLOWED

    def read_refusal(self, right: Rights) -> Code | None:
        """The error of a GET or LIST that is not allowed; None: it is."""
        if not self.join.role.consumes:
            return Code.WRONG_ROLE
        return None if right in self.join.rights else Code.NOT_ALLOWED

    @property
    def may_ack(self) -> bool:
        return self.join.role.consumes and Rights.ACK in self.join.rights


def requested_channel(hello: Hello, upgrade: Upgrade, settings: LoginSettings) -> bytes | HelloCode:
    """The channel that a HELLO names, or the code that refuses the HELLO."""
    if not hello.version_min <= VERSION <= hello.version_max:
        return HelloCode.NO_COMMON_VERSION
    channel = hello.channel or upgrade.channel or settings.default_channel
    if channel is None or not is_channel_name(channel) or upgrade.channel not in (None, channel):
        return HelloCode.MALFORMED
    return channel


def admit_hello(
    hello: Hello,
    channel: bytes,
    principal: Principal,
    settings: LoginSettings,
    authorize: Authorize,
) -> Admission | None:
    """The admission after a HELLO; None: refused. An identity was proved before."""
    rights = authorize(principal, channel)
    if rights is None:
        return None
    packet_bytes_max = settings.packet_bytes_max
    if hello.packet_max is not None:
        packet_bytes_max = max(PACKET_BYTES_MIN, min(hello.packet_max, packet_bytes_max))
    keep_alive_ms = _keep_alive_ms(hello.keep_alive_ms, settings)
    role = hello.role or Role.BOTH
    join = Attach(
        role=role,
        push=hello.want_push and Rights.PUSH in rights,
        rights=rights,
        mode=hello.mode,
        window=hello.window,
        ordered=hello.ordered,
        keep_alive_s=keep_alive_ms / 1000,
        data_max=packet_bytes_max - PUSH_OVERHEAD_BYTES,
        resume_after=hello.resume_after,
        cursor_lists=hello.list_mode == 1,
        identity=principal.identity,
        reports_start=BEGUN in hello.extensions,
        name=hello.name,
    )
    extensions = hello.extensions & EXTENSIONS
    if role is Role.WORKER:
        extensions |= {CREDIT, TOUCH, TOUCH_ACK}
    return Admission(channel, join, extensions, packet_bytes_max, keep_alive_ms, principal)


def admit_bare(
    upgrade: Upgrade, principal: Principal, settings: LoginSettings, authorize: Authorize
) -> Admission | None:
    """The admission of a client without HELLO; None: it has to send one (PS-09)."""
    channel = upgrade.channel or settings.default_channel
    if channel is None or settings.require_hello or upgrade.hello or not is_channel_name(channel):
        return None
    rights = authorize(principal, channel)
    if rights is None:
        return None
    keep_alive_ms = _keep_alive_ms(None, settings)
    join = Attach(
        rights=rights,
        push=Rights.PUSH in rights,
        keep_alive_s=keep_alive_ms / 1000,
        data_max=settings.packet_bytes_max - PUSH_OVERHEAD_BYTES,
    )
    packet_bytes_max = settings.packet_bytes_max
    return Admission(channel, join, frozenset(), packet_bytes_max, keep_alive_ms, principal)


def is_channel_name(channel: bytes) -> bool:
    """Is this a name that a client may use for a channel?

    A dead-letter channel adds its suffix to its owner's name. Names that begin with NUL are those
    of streams' cells.
    """
    length = len(channel.removesuffix(DEAD_SUFFIX))
    return 0 < length <= NAME_BYTES_MAX and not channel.startswith(RESERVED)


def _keep_alive_ms(requested: int | None, settings: LoginSettings) -> int:
    wanted = settings.keep_alive_ms if requested is None else requested
    return max(KEEP_ALIVE_MS_MIN, min(wanted, KEEP_ALIVE_MS_MAX))
