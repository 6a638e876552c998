"""Which listeners are open to whom, as far as it can be told at the start."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from millpond.node.access.policy import AccessPolicy
from millpond.node.config import ConfigError
from millpond.node.ip import is_loopback

log = logging.getLogger(__name__)

WITHOUT_TOKENS = ("s3p", "rustlog")
"""Listeners whose protocols have no place for a token."""


def warn_unreachable_listeners(access: AccessPolicy, listeners: Iterable[str]) -> None:
    """Say which listeners nobody can use, for no rule opens them."""
    shut = [name for name in WITHOUT_TOKENS if name in listeners and not access.opens(name)]
    if shut:
        log.warning("no rule opens listeners that know no tokens: %s", " ".join(shut))


def check_exposure(name: str, host: str, *, is_guarded: bool) -> None:
    """Raises ConfigError for a listener that others can reach and nothing guards."""
    if not is_guarded and not is_loopback(host):
        raise ConfigError(
            f"{name}: {host or 'every address'} is reachable from outside and there is no "
            "access control; give --access-file, --token-file or --tls-client-ca, or "
            "--insecure-public if you mean it"
        )
