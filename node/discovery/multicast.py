"""The mDNS of one node by `zeroconf`, which runs in a thread of its own.

Announcements that it hears wait in a bounded queue until the node takes them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
from zeroconf import (
    Error,
    IPVersion,
    ServiceBrowser,
    ServiceInfo,
    ServiceStateChange,
    Zeroconf,
)

from millpond.node.discovery.announcement import (
    ADDRESSES_READ_MAX,
    SERVICE,
    Announcement,
    BadAnnouncement,
    properties_of,
    read_announcement,
)
from millpond.node.discovery.networks import LocalNetwork

log = logging.getLogger(__name__)

HEARD_MAX = 256
"""Announcements and goodbyes that wait for the node; of more the oldest are dropped."""
AGAIN_MAX = 64
"""Names that `look_again` reads."""
BAD = (BadAnnouncement, Error, ValueError, IndexError, KeyError, UnicodeError)
"""Errors that records of others may raise, in `zeroconf` or here."""


class Gone(msgspec.Struct, frozen=True):
    """A goodbye."""

    instance: str


class Multicast:
    """Announces a node on some networks, and hears others there, from `open` to `close`. Both block
    for up to a second or two."""

    def __init__(self, networks: Sequence[LocalNetwork]) -> None:
        self.networks = tuple(networks)
        self._heard: deque[Announcement | Gone] = deque(maxlen=HEARD_MAX)
        self._zeroconf: Zeroconf | None = None
        self._info: ServiceInfo | None = None
        self._has_refused = False

    def open(self, instance: str, peer_id: str, port: int, version: str) -> None:
        """Begin. Raises OSError where a network takes no multicast."""
        addresses = [str(each.address) for each in self.networks]
        versions = {each.address.version for each in self.networks}
        version_of_ip = IPVersion.All
        if len(versions) == 1:
            version_of_ip = IPVersion.V4Only if versions == {4} else IPVersion.V6Only
        self._zeroconf = Zeroconf(interfaces=addresses, ip_version=version_of_ip, use_asyncio=False)
        self._info = ServiceInfo(
            SERVICE,
            f"{instance}.{SERVICE}",
            port,
            properties=properties_of(peer_id, version),
            server=f"{instance}.local.",
            parsed_addresses=addresses,
        )
        # The name is random: no other node has it, so nobody is asked whether it is free.
        self._zeroconf.register_service(self._info, cooperating_responders=True)
        ServiceBrowser(self._zeroconf, SERVICE, handlers=[self._changed])

    def close(self) -> None:
        """Say goodbye, and end."""
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf is None:
            return
        try:
            if self._info is not None:
                zeroconf.unregister_service(self._info)
        except Exception as error:  # it ends all the same
            log.debug("no goodbye: %s", error)
        finally:
            zeroconf.close()

    def take(self) -> list[Announcement | Gone]:
        """The announcements and goodbyes since the last call."""
        return [self._heard.popleft() for _ in range(len(self._heard))]

    def look_again(self, rng: Random) -> None:
        """Read some of the known names once more, at random: an announcement may have been dropped,
        refused or incomplete, and comes only once."""
        if self._zeroconf is None:
            return
        known = self._zeroconf.cache.entries_with_name(SERVICE)
        aliases = [getattr(each, "alias", None) for each in known]
        names = [each for each in aliases if isinstance(each, str)]
        for name in rng.sample(names, min(len(names), AGAIN_MAX)):
            self._read(name)

    def _changed(
        self, *, zeroconf: Any, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        """A service came, changed or went; called in the thread of `zeroconf`."""
        if state_change is ServiceStateChange.Removed:
            self._heard.append(Gone(name.removesuffix(f".{SERVICE}")))
        else:
            self._read(name)

    def _read(self, name: str) -> None:
        """Read the records of a name, if all have come."""
        zeroconf = self._zeroconf
        if zeroconf is None:
            return
        try:
            info = ServiceInfo(SERVICE, name)
            if not info.load_from_cache(zeroconf):
                return
            addresses = info.parsed_addresses(IPVersion.All)[:ADDRESSES_READ_MAX]
            self._heard.append(
                read_announcement(name, info.port, info.properties, addresses, self.networks)
            )
        except BAD as error:
            if not self._has_refused:
                self._has_refused = True
                log.warning("announcement refused: %.200r: %.200s", name, error)
