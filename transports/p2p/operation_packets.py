"""The packets that carry what no seed protocol has, each a request or its answer (wire.md 3g)."""

from __future__ import annotations

import msgspec


class _Operation(msgspec.Struct, frozen=True, gc=False):
    """What no seed protocol has (wire.md 3g); the body is msgpack."""

    request_id: int
    operation: int
    body: bytes


class Admin(_Operation, frozen=True, gc=False):
    """A request about the node itself."""


class AdminReply(_Operation, frozen=True, gc=False):
    """Its answer."""


class Stream(_Operation, frozen=True, gc=False):
    """A request to a stream or about streams (`millpond.transports.p2p.streams.bodies`)."""


class StreamReply(_Operation, frozen=True, gc=False):
    """Its answer, or a part of it: more follows where `operation` has `MORE` set."""


class Peers(_Operation, frozen=True, gc=False):
    """A request about peers, and messages to them."""


class PeersReply(_Operation, frozen=True, gc=False):
    """Its answer."""


class Jobs(_Operation, frozen=True, gc=False):
    """A request about the jobs of the connection's channel (`transports.p2p.jobs.bodies`)."""


class JobsReply(_Operation, frozen=True, gc=False):
    """Its answer."""
