"""Who may do what: bearer tokens and their rights, one line each, from the token file (PA-39).

    TOKEN  RIGHT[,RIGHT...]  [CHANNEL-PATTERN ...]      # rights: put get push ack list admin all

Patterns are shell patterns over channel names; none means every channel. Lines of one token add up;
a comment has a line of its own. Without a token file every
client is anonymous and may do everything, and administer the node from its own machine.
"""

from __future__ import annotations

import ipaddress
import stat
from fnmatch import fnmatchcase
from functools import reduce
from hashlib import sha256
from operator import or_
from pathlib import Path

import msgspec

from actors.messages import Rights

OTHERS_MAY_READ = stat.S_IRGRP | stat.S_IROTH
NAMES = {
    "put": Rights.PUT,
    "get": Rights.GET,
    "push": Rights.PUSH,
    "ack": Rights.ACK,
    "list": Rights.LIST,
    "admin": Rights.ADMIN,
    "all": Rights.ALL,
}


class TokenFileError(Exception):
    """The token file cannot be used; the text says which line and why, never the token."""


class Grant(msgspec.Struct, frozen=True):
    """What one token allows, and where; no pattern = everywhere."""

    rights: Rights
    patterns: tuple[str, ...]

    def covers(self, channel: bytes) -> bool:
        name = channel.decode("utf-8", "surrogateescape")
        return not self.patterns or any(fnmatchcase(name, each) for each in self.patterns)


class Access:
    """The node's door. Tokens are kept as digests, so a dump of the memory does not show them."""

    def __init__(self, grants: dict[bytes, list[Grant]] | None = None) -> None:
        self._grants = grants

    @property
    def is_controlled(self) -> bool:
        return self._grants is not None

    def authorize(self, token: bytes | None, channel: bytes, address: str) -> Rights | None:
        """The rights of a bearer token in a channel; None = refused."""
        if self._grants is None:
            return Rights.CHANNEL if is_remote(address) else Rights.ALL
        # Looked up by digest: how long a wrong token takes tells nothing about a right one.
        grants = self._grants.get(sha256(token).digest(), []) if token is not None else []
        covering = [grant.rights for grant in grants if grant.covers(channel)]
        return reduce(or_, covering) if covering else None


def load_tokens(path: Path) -> Access:
    """Read the token file. Raises TokenFileError, also when others may read the file."""
    try:
        mode = path.stat().st_mode
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise TokenFileError(f"{path}: {exc}") from exc
    if mode & OTHERS_MAY_READ:
        raise TokenFileError(f"{path}: others can read it; `chmod 600 {path}` first")
    grants: dict[bytes, list[Grant]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}:{number}"
        if any(word.startswith("#") for word in words):
            # As a comment it would widen the line: without its pattern it holds everywhere.
            raise TokenFileError(f"{where}: a comment needs a line of its own")
        token = sha256(words[0].encode()).digest()
        grants[token] = [*grants.get(token, []), _grant(words[1:], where)]
    return Access(grants)


def _grant(words: list[str], where: str) -> Grant:
    if not words:
        raise TokenFileError(f"{where}: rights are missing after the token")
    unknown = [name for name in words[0].split(",") if name not in NAMES]
    if unknown:
        known = " ".join(NAMES)
        raise TokenFileError(f"{where}: unknown right {unknown[0]!r}; known are: {known}")
    rights = reduce(or_, (NAMES[name] for name in words[0].split(",")))
    return Grant(rights, tuple(words[1:]))


def is_loopback(host: str) -> bool:
    """Is it reachable from this machine alone? A name other than `localhost` may be anything."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def is_remote(address: str) -> bool:
    """Did a connection come from another machine? The simulated network has names, not numbers."""
    try:
        return not ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
