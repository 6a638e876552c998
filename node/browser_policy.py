"""The browser policy of a node, from its configuration and its TLS certificate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from millpond.node.client.url import parse_url
from millpond.node.config import LISTENERS, OFF, Config
from millpond.transports.browser_policy import BrowserPolicy, host_name_of, origin_of
from millpond.transports.io.address import parse_address


def browser_policy(config: Config, certificate_names: Sequence[str] = ()) -> BrowserPolicy:
    """The policy of all listeners. The names of the certificate are ours: whoever points another
    name at the node cannot show a certificate for it."""
    found = [*_configured(config), *certificate_names]
    names = []
    for name in found:
        with suppress(ValueError):  # an address, which needs no mention
            names.append(host_name_of(name))
    return BrowserPolicy(names, [origin_of(each) for each in config.origins])


def _configured(config: Config) -> Iterator[str]:
    yield from config.host_names
    for listener in LISTENERS:
        address = getattr(config, listener)
        if address != OFF:
            with suppress(ValueError):
                yield parse_address(address)[0]
    for url in config.addresses:
        with suppress(ValueError):
            yield parse_url(url).host
