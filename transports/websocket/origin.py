"""Checks of the Host and Origin that browsers send: the web pages that may connect
(docs/reference/wire-protocol.md).

The node's own are those at an address or at `localhost`. A name must be listed: a page of the same
name, but from elsewhere, could have its name point at this machine afterwards (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from millpond.transports.errors import UpgradeRefused

_SCHEMES = ("http://", "https://")


def check_origin(hosts: Sequence[str], given: Sequence[str], origins: frozenset[str]) -> None:
    """Only browsers send an Origin: it is the node's own, or one that was allowed.

    `hosts` and `given` are the values of Host and Origin. Raises UpgradeRefused.
    """
    if len(hosts) != 1 or len(given) > 1:
        raise UpgradeRefused(400, "one Host and at most one Origin")
    host = hosts[0].lower()
    own = {scheme + host for scheme in _SCHEMES} if _is_address(host) else set()
    if given and given[0] not in origins and given[0].lower() not in own:
        raise UpgradeRefused(403, "the Origin is not allowed")


def check_host(hosts: Sequence[str], origins: frozenset[str]) -> None:
    """A page is shown under an address, or under a name that was allowed. Raises UpgradeRefused."""
    if len(hosts) != 1:
        raise UpgradeRefused(400, "one Host")
    host = hosts[0].lower()
    listed = {origin.lower() for origin in origins}
    if not _is_address(host) and listed.isdisjoint(scheme + host for scheme in _SCHEMES):
        raise UpgradeRefused(403, "this name is not among the origins that were allowed")


def _is_address(host: str) -> bool:
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost"
    return True
