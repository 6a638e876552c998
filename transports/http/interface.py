"""The node, as HTTP requests see it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from millpond.transports.server.interface import NodeServices


class HttpCounters(msgspec.Struct):
    """Requests and bytes over HTTP since the start.

    `answers` is by API and status; `gone` clients closed the connection before they were answered;
    `crashed` requests failed by an error of ours.
    """

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    gone: int = 0
    crashed: int = 0
    answers: dict[tuple[str, int], int] = msgspec.field(default_factory=dict)


class HttpNodeServices(NodeServices, Protocol):
    """The services of the node that HTTP requests use besides `NodeServices`.

    A request counts like a connection.
    """

    http: HttpCounters
