"""Logins to a page of the node: links that log in once, and the sessions that they start.

A link's secret is in the fragment of its URL, so no browser sends it by itself; the page gives it
to its own node for a token. Secrets and tokens are stored as SHA-256 only.
"""

from __future__ import annotations

import logging
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from millpond.actors.messages import Rights
from millpond.node.atomic_files import UnsafeFile, read_private, replace

log = logging.getLogger(__name__)

FILE_NAME = "web-sessions.json"
CHANNEL = b"millpond!chat"
"""The channel that the page's connection is attached to; it stays empty."""
RIGHTS = Rights.ADMIN
LINK_S = 600.0
SESSION_S = 30 * 86_400.0
LINKS_MAX, SESSIONS_MAX = 16, 64
"""The most sessions; one more replaces the one that would expire first."""
PREFIX = "mpw1."
_SECRET_BYTES = 32
_FILE_BYTES_MAX = 2**16


class _SessionFile(msgspec.Struct):
    """The file of sessions: the digest of each token, and its expiry."""

    v: int
    sessions: dict[str, float]


class WebLogin:
    """The logins of one node. `path` None: sessions end with the node. Times are seconds since
    1970."""

    def __init__(
        self,
        path: Path | None,
        now: Callable[[], float],
        entropy: Callable[[int], bytes],
        prefix: str = PREFIX,
        session_s: float = SESSION_S,
    ) -> None:
        """Secrets and tokens begin with `prefix`; sessions last `session_s`."""
        self._prefix = prefix
        self._session_s = session_s
        self.on_revoked: list[Callable[[], None]] = []
        self._path = path
        self._now = now
        self._entropy = entropy
        self._links: dict[str, float] = {}
        self._sessions: dict[str, float] = {} if path is None else _read(path)

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return sum(until > self._now() for until in self._sessions.values())

    def new_link(self) -> str:
        """A new secret that logs in once, within LINK_S."""
        secret = self._new_secret()
        _insert(self._links, secret, self._now() + LINK_S, LINKS_MAX)
        return secret

    def exchange(self, secret: str) -> str | None:
        """A token of a new session, for the secret of a link; None: it was used or has expired."""
        until = self._links.pop(_digest(secret.encode()), 0.0)
        if until <= self._now():
            return None
        token = self._new_secret()
        self._remove_expired()
        _insert(self._sessions, token, self._now() + self._session_s, SESSIONS_MAX)
        self._save()
        return token

    def rights(self, token: bytes) -> Rights | None:
        """The rights of a session of the chat page, in CHANNEL only; None: the token is not of a
        session."""
        return RIGHTS if self.is_session(token) else None

    def is_session(self, token: bytes) -> bool:
        """True for the token of a session that has not ended."""
        if not token.startswith(self._prefix.encode()):
            return False
        return self._sessions.get(_digest(token), 0.0) > self._now()

    def revoke(self, token: bytes) -> bool:
        """End a session. False: there is none."""
        if self._sessions.pop(_digest(token), None) is None:
            return False
        self._revoked()
        return True

    def revoke_all(self) -> int:
        """End all sessions and forget unused links; the number of sessions."""
        ended = self.sessions
        self._links.clear()
        self._sessions.clear()
        self._revoked()
        return ended

    def _revoked(self) -> None:
        self._save()
        for callback in self.on_revoked:
            callback()

    def _new_secret(self) -> str:
        return self._prefix + urlsafe_b64encode(self._entropy(_SECRET_BYTES)).decode().rstrip("=")

    def _remove_expired(self) -> None:
        now = self._now()
        self._sessions = {each: until for each, until in self._sessions.items() if until > now}

    def _save(self) -> None:
        if self._path is None:
            return
        try:
            replace(self._path, msgspec.json.encode(_SessionFile(1, self._sessions)))
        except OSError as exc:
            log.error("sessions of a page are not kept: %s: %s", self._path, exc)


def _insert(expiries: dict[str, float], secret: str, until: float, size_max: int) -> None:
    while len(expiries) >= size_max:
        del expiries[min(expiries, key=expiries.__getitem__)]
    expiries[_digest(secret.encode())] = until


def _digest(secret: bytes) -> str:
    return sha256(secret).hexdigest()


def _read(path: Path) -> dict[str, float]:
    """The sessions in the file. A file that cannot be read costs only new logins."""
    try:
        return msgspec.json.decode(read_private(path, _FILE_BYTES_MAX), type=_SessionFile).sessions
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnsafeFile, msgspec.MsgspecError) as exc:
        log.warning("sessions of a page are forgotten: %s", exc)
        return {}
