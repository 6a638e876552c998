"""The status of a subscription, for the operator of a node."""

from __future__ import annotations

import msgspec

ERROR_CHARACTERS_MAX = 200


class SubscriptionStatus(msgspec.Struct, frozen=True):
    """A subscription now. Times are in seconds since 1970; 0: none.

    `state` is `idle`, `woken` (a worker is called, or has to come), `claimed` (a worker has the
    lease of a pull-wake subscription) or `unavailable` (the node cannot serve it; all else is
    unknown). `target` is the URL, or the wake stream. `pending` of its `streams` have something
    new: `lag` records together. `retry_at` is the time of the next attempt after `failures` in a
    row. `error` is the reason of the last failure, if the last call or event failed.
    """

    id: str
    state: str
    kind: str = ""
    target: str = ""
    pattern: str | None = None
    streams: int = 0
    hidden: int = 0
    """Of `streams`, those that the maker may not read now."""
    pending: int = 0
    lag: int = 0
    generation: int = 0
    holder: str = ""
    created_at: float = 0.0
    lease_until: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    is_failed: bool = False
    error: str = ""
