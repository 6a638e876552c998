"""Grants: the lines of the access file (docs/guides/access.md).

SUBJECT  RIGHT[,RIGHT...]  [PATTERN ...]  [until=2026-12-31T00:00Z]
revoked:TOKEN-ID
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from fnmatch import fnmatchcase
from functools import reduce
from hashlib import sha256
from operator import or_

import msgspec

from millpond.actors.messages import Rights
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of
from millpond.node.peers.peer import checked_name, is_peer_id
from millpond.transports.server.private_names import PRIVATE_PREFIXES, is_private

RIGHTS = {
    "put": Rights.PUT,
    "get": Rights.GET,
    "push": Rights.PUSH,
    "ack": Rights.ACK,
    "list": Rights.LIST,
    "admin": Rights.ADMIN,
    "all": Rights.ALL,
    "operator": Rights.OPERATOR,
}
LISTENERS = ("p2p", "ws", "s3p", "rustlog", "http")
"""The listeners that a subject `listener:` may name."""
STREAM_PREFIX = "stream:"
REVOKED_PREFIX = "revoked:"
UNTIL_PREFIX = "until="
OWN_ID, PEER_ID = "{id}", "{peer}"
"""Placeholders in patterns: the client's own peer id, and the id of any contact."""
DIGEST = re.compile(r"[0-9a-f]{64}")
TOKEN_ID = re.compile(r"[0-9a-f]{12,64}")


class BadRule(ValueError):
    """A line that is not valid; the text gives the reason, never a token."""


class SubjectKind(Enum):
    """The kind of a subject: the property by which it matches clients."""

    TOKEN = "token"
    KEY = "key"
    NAME = "name"
    CERTIFICATE = "cert"
    LISTENER = "listener"
    ADDRESS = "address"
    ANYONE = "anyone"
    RULE = "rule"
    """The default grants, which no line gives."""


class Subject(msgspec.Struct, frozen=True):
    """The clients that a line applies to. `value`: a SHA-256, a public key, a name or a network."""

    kind: SubjectKind
    value: bytes | str = ""


ANYONE = Subject(SubjectKind.ANYONE)


class Grant(msgspec.Struct, frozen=True):
    """Rights for a subject; `channels` and `streams` None: in all of them.

    `until` is in seconds since 1970; `source` names the file and line, for messages.
    """

    subject: Subject
    rights: Rights
    channels: tuple[str, ...] | None
    streams: tuple[str, ...] | None
    until: float | None
    source: str

    def covers(
        self, name: bytes, *, is_stream: bool, own: bytes | None, is_peer: Callable[[str], bool]
    ) -> bool:
        """True if the grant is for this channel or stream. `own` is the client's key, if it has
        one."""
        patterns = self.streams if is_stream else self.channels
        if patterns is None:
            return True
        text = name.decode("utf-8", "surrogateescape")
        return any(_matches(text, pattern, own, is_peer) for pattern in patterns)

    def names_private(self, *, is_stream: bool) -> bool:
        """True if a pattern names chats or mailboxes; a right to everything does not."""
        patterns = self.streams if is_stream else self.channels
        return any(each.encode().startswith(PRIVATE_PREFIXES) for each in patterns or ())


class Revoked(msgspec.Struct, frozen=True):
    """A signed token that is revoked."""

    token_id: str


def parse_line(words: Sequence[str], source: str) -> Grant | Revoked:
    """The grant or revocation in a line of the access file. Raises BadRule."""
    if words[0].startswith(REVOKED_PREFIX):
        token_id = words[0].removeprefix(REVOKED_PREFIX)
        if len(words) > 1 or TOKEN_ID.fullmatch(token_id) is None:
            raise BadRule("want revoked:ID, and nothing behind it")
        return Revoked(token_id)
    return make_grant(parse_subject(words[0]), words[1:], source)


def parse_token_line(words: Sequence[str], source: str) -> Grant:
    """The grant in a line of a token file, which begins with the token itself. Raises BadRule.

    A line with patterns, or with `admin`, means the same as in the access file: `admin` in all
    channels reaches all streams. Other lines grant nothing in streams.
    """
    subject = Subject(SubjectKind.TOKEN, sha256(words[0].encode()).digest())
    grant = make_grant(subject, words[1:], source)
    has_streams = grant.streams is not None or Rights.ADMIN in grant.rights
    return grant if has_streams else msgspec.structs.replace(grant, streams=())


def make_grant(subject: Subject, words: Sequence[str], source: str) -> Grant:
    """The grant of a subject with the rest of a line: rights, patterns, an end. Raises BadRule."""
    if not words:
        raise BadRule(f"rights are missing after the {subject.kind.value}")
    rights = parse_rights(words[0])
    until = None
    patterns: list[str] = []
    for word in words[1:]:
        if word.startswith(UNTIL_PREFIX):
            until = parse_time(word.removeprefix(UNTIL_PREFIX))
        elif word == STREAM_PREFIX:
            # It would match the empty name, which stands for all streams together.
            raise BadRule(f"{STREAM_PREFIX} needs a pattern right behind it")
        else:
            patterns.append(word)
    channels, streams = split_patterns(patterns)
    return Grant(subject, rights, channels, streams, until, source)


def parse_rights(text: str) -> Rights:
    """Rights by name, with commas between. Raises BadRule."""
    names = text.split(",")
    unknown = [name for name in names if name not in RIGHTS]
    if unknown:
        raise BadRule(f"unknown right {unknown[0]!r}; known are: {' '.join(RIGHTS)}")
    return reduce(or_, (RIGHTS[name] for name in names))


def right_names(rights: Rights) -> list[str]:
    """The names of rights."""
    return [name for name, right in RIGHTS.items() if right in rights and right != Rights.ALL]


def split_patterns(
    patterns: Sequence[str],
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """The patterns for channels and those for streams; without any, both match everything."""
    if not patterns:
        return None, None
    channels = [each for each in patterns if not each.startswith(STREAM_PREFIX)]
    streams = [each.removeprefix(STREAM_PREFIX) for each in patterns if each not in channels]
    return tuple(channels), tuple(streams)


def parse_time(text: str) -> float:
    """The time `2026-12-31T00:00Z` in seconds since 1970. Raises BadRule."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadRule(f"{text!r} is no time like 2026-12-31T00:00Z") from None
    if moment.tzinfo is None:
        raise BadRule(f"{text!r} has no time zone; for UTC append a Z: 2026-12-31T00:00Z")
    return moment.timestamp()


def parse_subject(word: str) -> Subject:
    """The subject that a word names. Raises BadRule, also for a token itself, which must not be
    stored."""
    kind, colon, value = word.partition(":")
    match kind, colon:
        case "anyone", "":
            return ANYONE
        case "key", ":":
            return _key_subject(value)
        case "token" | "cert", ":":
            if DIGEST.fullmatch(value) is None:
                raise BadRule(f"want {kind}:SHA256, with 64 digits 0-9 a-f")
            return Subject(SubjectKind(kind), bytes.fromhex(value))
        case "listener", ":":
            if value not in LISTENERS:
                raise BadRule(f"unknown listener {value!r}; known are: {' '.join(LISTENERS)}")
            return Subject(SubjectKind.LISTENER, value)
        case "address", ":":
            return Subject(SubjectKind.ADDRESS, _checked_network(value))
        case _:
            known = "key: token: cert: listener: address: anyone revoked:"
            raise BadRule(f"a line begins with one of: {known} (`millpond token new` makes them)")


def _key_subject(value: str) -> Subject:
    if is_peer_id(value):
        return Subject(SubjectKind.KEY, public_key_of(value))
    try:
        return Subject(SubjectKind.NAME, checked_name(value))
    except (BadPeerId, ValueError) as exc:
        raise BadRule(str(exc)) from None


def _checked_network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError as exc:
        raise BadRule(f"want address:NETWORK like 10.0.0.0/8: {exc}") from None


def is_in_scope(scope: Sequence[str] | None, name: bytes) -> bool:
    """True if a stream is in a scope (`AccessPolicy.stream_scope`); None: all that are not
    private."""
    if scope is None:
        return not is_private(name)
    text = name.decode("utf-8", "surrogateescape")
    is_open = not is_private(name)
    return any(
        fnmatchcase(text, each) and (is_open or each.encode().startswith(PRIVATE_PREFIXES))
        for each in scope
    )


def scope_patterns(grant: Grant, own: bytes | None) -> Iterator[str]:
    """The patterns of a grant for streams, as they are for one client now. Those with `{peer}`,
    which change with the contacts, are left out."""
    for each in grant.streams or ():
        if PEER_ID in each or (OWN_ID in each and own is None):
            continue
        yield each if own is None else each.replace(OWN_ID, peer_id(own))


def _matches(name: str, pattern: str, own: bytes | None, is_peer: Callable[[str], bool]) -> bool:
    if OWN_ID in pattern:
        return own is not None and fnmatchcase(name, pattern.replace(OWN_ID, peer_id(own)))
    if PEER_ID in pattern:
        before, _, behind = pattern.partition(PEER_ID)
        if not (name.startswith(before) and name.endswith(behind)):
            return False
        return is_peer(name[len(before) : len(name) - len(behind)])
    return fnmatchcase(name, pattern)
