"""Settings of RustLog connections, and the services of the node that they use."""

from __future__ import annotations

from typing import Protocol

import msgspec

from millpond.transports.rustlog.codec import RustlogLimits
from millpond.transports.rustlog.metrics import RustlogMetrics
from millpond.transports.server.interface import NodeServices
from millpond.transports.server.pipelined import FlowSettings

ANSWER_S = 14.0
"""A client waits twice that at most for a disk that does not answer (RB-34)."""


class RustlogSettings(msgspec.Struct, frozen=True):
    """Limits of a RustLog connection; docs/reference/limits.md.

    A Fetch gives at most `fetch_records_max`, and about `fetch_bytes` where it does not say.
    """

    limits: RustlogLimits = RustlogLimits()
    flow: FlowSettings = FlowSettings(answer_s=ANSWER_S)
    fetch_records_max: int = 16_384
    fetch_bytes: int = 2**20


class RustlogNodeServices(NodeServices, Protocol):
    """The services for RustLog besides `NodeServices`."""

    rustlog_metrics: RustlogMetrics
