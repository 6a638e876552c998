"""Sessions of the console: a link logs in once, with the rights of the operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millpond.node.web.login import WebLogin

FILE_NAME = "console-sessions.json"
PREFIX = "mpc1."
SESSION_S = 12 * 3600.0


def console_login(
    folder: str, now: Callable[[], float], entropy: Callable[[int], bytes]
) -> WebLogin:
    """The logins to the console of a node. `folder` "": sessions end with the node."""
    path = Path(folder) / FILE_NAME if folder else None
    return WebLogin(path, now, entropy, PREFIX, SESSION_S)
