"""The node's door: which rights an asker has in a channel or a stream, and why
(docs/guides/access.md).

Rights add up over everything that is known of the asker: its token, identity and certificate, where
it comes from and at which listener. Without an access file this machine may do everything and
nobody else anything, but for trusted peers, certificates and what `--insecure-public` lets in.
"""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from hashlib import sha256
from pathlib import Path

import msgspec

from millpond.actors.messages import Rights
from millpond.node.access.default_policy import (
    STREAM_LISTENERS,
    TrustedPeers,
    default_grants,
    is_channel_owner,
    page_session_grants,
    peer_grants,
)
from millpond.node.access.grants import ANYONE, Grant, Subject, SubjectKind
from millpond.node.access.rules_file import (
    FILE_NAME,
    AccessFileError,
    Rules,
    read_access_file,
    read_token_file,
)
from millpond.node.access.tokens import ISSUED_PREFIX, SIGNED_PREFIX, read_signed
from millpond.node.client.connect import PROBE
from millpond.node.config import ConfigError
from millpond.node.ip import ip_of, is_loopback, is_remote
from millpond.node.peers.address_book import Trust
from millpond.node.peers.identity import BadPeerId, public_key_of
from millpond.node.web.login import PREFIX as PAGE_PREFIX
from millpond.transports.server.interface import Principal

log = logging.getLogger(__name__)

NODE_MARK = b"!"
"""In the name of a channel that is the node's own."""


class GrantOutcome(Enum):
    """What comes of a grant that is for an asker."""

    GIVES = "gives"
    ELSEWHERE = "is for other names"
    EXPIRED = "has ended"
    REVOKED = "is revoked"


class GrantDecision(msgspec.Struct, frozen=True):
    """A grant that was looked at, and what came of it."""

    grant: Grant
    verdict: GrantOutcome


class Explanation(msgspec.Struct, frozen=True):
    """How a decision came about. `rights` None: refused at the door."""

    rights: Rights | None
    reasons: list[GrantDecision]
    notes: list[str]


class RuleFiles(msgspec.Struct, frozen=True):
    """The files that the rules come from; None: there is none, and none is looked for."""

    access_file: Path | None = None
    token_file: Path | None = None
    must_exist: bool = True
    """The access file was named by somebody, so it is an error when it is not there."""

    def read(self) -> Rules | None:
        """What they say; None: there is no file. Raises AccessFileError."""
        found = None
        if self.access_file is not None and (self.must_exist or self.access_file.exists()):
            found = read_access_file(self.access_file)
        if self.token_file is not None:
            found = (found or Rules()) + read_token_file(self.token_file)
        return found


class AccessPolicy:
    """Answers with rights. Tokens are kept as digests, so a dump of the memory shows none.

    `is_public`: somebody said that everybody shall be served (`--insecure-public`).
    """

    def __init__(
        self,
        sources: RuleFiles | None = None,
        *,
        now: Callable[[], float] = time.time,
        is_public: bool = False,
    ) -> None:
        """Raises AccessFileError."""
        self.peers: TrustedPeers | None = None
        self.sessions: Callable[[bytes], Rights | None] = lambda token: None
        """The rights that a session of the chat page has, by its token."""
        self.issued: Callable[[Principal], Sequence[Grant]] = lambda asker: ()
        """What an asker may do that shows a token issued by the API of S2."""
        self._sources = sources or RuleFiles()
        self._now = now
        self._is_public = is_public
        self._rules: Rules | None = None
        self._by_subject: dict[Subject, list[Grant]] = {}
        self._networks: list[tuple[Network, Grant]] = []
        self._take(self._sources.read())

    @property
    def is_controlled(self) -> bool:
        """Is there a file that decides, so that nobody has a right that it does not give?"""
        return self._rules is not None

    @property
    def files(self) -> list[Path]:
        """Those that it was read from."""
        both = (self._sources.access_file, self._sources.token_file)
        return [path for path in both if path is not None and path.exists()]

    def guards(self, listener: str) -> bool:
        """Is it known whom to let in there, so that other machines may be listened to?"""
        if self.is_controlled:
            return True
        has_peers = self.peers is not None and len(self.peers.book) > 0
        return has_peers and listener not in STREAM_LISTENERS

    def opens(self, listener: str) -> bool:
        """Does any rule let somebody in at a listener that serves streams alone?"""
        kinds = (
            SubjectKind.ANYONE,
            SubjectKind.LISTENER,
            SubjectKind.ADDRESS,
            SubjectKind.CERTIFICATE,
        )
        return self._rules is None or any(
            grant.streams != () and grant.subject.kind in kinds
            for grant in self._rules.grants
            if grant.subject.kind is not SubjectKind.LISTENER or grant.subject.value == listener
        )

    def reload(self) -> bool:
        """Read the files again. False: they cannot be used; the rules stay, and the log says so."""
        try:
            found = self._sources.read()
        except AccessFileError as exc:
            log.error("access rules stay as they were: %s", exc)
            return False
        if found is None and self._rules is not None:
            log.error("access rules stay as they were: %s is gone", self._sources.access_file)
            return False
        self._take(found)
        return True

    def authorize(self, asker: Principal, channel: bytes) -> Rights | None:
        """The rights of an asker in a channel; None = refused."""
        rights = self._rights(asker, channel, is_stream=False)
        if rights is not None and NODE_MARK in channel and not is_channel_owner(asker, channel):
            # Only their owner writes to the node's own channels (PS-14).
            rights &= ~Rights.PUT
            if not rights and channel != PROBE:
                return None
        return rights

    def authorize_stream(self, asker: Principal, name: bytes) -> Rights | None:
        """The rights of an asker in a stream or topic; None = none. The empty name: everywhere."""
        return self._rights(asker, name, is_stream=True)

    def admits_to_streams(self, asker: Principal) -> bool:
        """Might there be a stream in which this asker has a right?"""
        return any(
            grant.streams != () and self._is_alive(grant) for grant in self._grants_for(asker)
        )

    def explain(self, asker: Principal, name: bytes, *, is_stream: bool = False) -> Explanation:
        """What `authorize` or `authorize_stream` decides, and how it came to that."""
        judge = self.authorize_stream if is_stream else self.authorize
        reasons = [
            GrantDecision(grant, self._verdict(grant, asker, name, is_stream=is_stream))
            for grant in self._grants_for(asker)
        ]
        return Explanation(judge(asker, name), reasons, list(self._notes(asker, name, is_stream)))

    # The decision.

    def _rights(self, asker: Principal, name: bytes, *, is_stream: bool) -> Rights | None:
        rights = None
        for grant in self._grants_for(asker):
            if self._verdict(grant, asker, name, is_stream=is_stream) is GrantOutcome.GIVES:
                rights = grant.rights if rights is None else rights | grant.rights
        return rights

    def _verdict(
        self, grant: Grant, asker: Principal, name: bytes, *, is_stream: bool
    ) -> GrantOutcome:
        if not self._is_alive(grant):
            return GrantOutcome.EXPIRED
        if self._rules is not None and _is_revoked(grant, self._rules):
            return GrantOutcome.REVOKED
        is_covered = grant.covers(
            name, is_stream=is_stream, own=asker.identity, is_peer=self._is_peer
        )
        return GrantOutcome.GIVES if is_covered else GrantOutcome.ELSEWHERE

    def _is_alive(self, grant: Grant) -> bool:
        return grant.until is None or self._now() < grant.until

    def _is_peer(self, text: str) -> bool:
        """Is it the id of somebody whom we trust?"""
        try:
            return self.peers is not None and self.peers.book.is_trusted(public_key_of(text))
        except BadPeerId:
            return False

    def _grants_for(self, asker: Principal) -> Iterator[Grant]:
        """Everything that is said of whoever this is; of a key that was revoked, nothing is."""
        trust = self._trust(asker)
        if trust is Trust.REVOKED:
            return
        if asker.token is not None and asker.token.startswith(PAGE_PREFIX.encode()):
            # Wherever the page is opened: when its session ends, so does all that it may do.
            yield from page_session_grants(self.sessions(asker.token))
            return
        if asker.token is not None and asker.token.startswith(ISSUED_PREFIX.encode()):
            # It narrows whoever shows it, on this machine too; a revoked one permits nothing.
            yield from self.issued(asker)
            return
        if self._rules is None:
            yield from default_grants(asker, self._is_public)
        else:
            for subject in self._subjects(asker):
                yield from self._by_subject.get(subject, ())
            address = ip_of(asker.address) if self._networks else None
            yield from (
                grant
                for network, grant in self._networks
                if address is not None and address in network
            )
        if asker.token is not None and self.peers is not None:
            signed = read_signed(asker.token, self.peers.own)
            if signed is not None:
                yield signed.grant
        if trust is Trust.TRUSTED and self.peers is not None:
            yield from peer_grants(self.peers)

    def _subjects(self, asker: Principal) -> Iterator[Subject]:
        yield ANYONE
        yield Subject(SubjectKind.LISTENER, asker.listener)
        if asker.token is not None:
            # Looked up by digest: how long a wrong token takes tells nothing about a right one.
            yield Subject(SubjectKind.TOKEN, sha256(asker.token).digest())
        if asker.certificate is not None:
            yield Subject(SubjectKind.CERTIFICATE, asker.certificate)
        if asker.identity is not None:
            yield Subject(SubjectKind.KEY, asker.identity)
            peer = None if self.peers is None else self.peers.book.by_public(asker.identity)
            if peer is not None and peer.trust is Trust.TRUSTED:
                # A name is as good as the trust that its key has; a key stands for itself.
                yield Subject(SubjectKind.NAME, peer.name)

    def _trust(self, asker: Principal) -> Trust | None:
        if asker.identity is None or self.peers is None:
            return None
        peer = self.peers.book.by_public(asker.identity)
        return None if peer is None else peer.trust

    def _take(self, rules: Rules | None) -> None:
        self._rules = rules
        self._by_subject = {}
        self._networks = []
        for grant in () if rules is None else rules.grants:
            if grant.subject.kind is SubjectKind.ADDRESS:
                network = ipaddress.ip_network(str(grant.subject.value))
                self._networks.append((network, grant))
            else:
                self._by_subject.setdefault(grant.subject, []).append(grant)

    def _notes(self, asker: Principal, name: bytes, is_stream: bool) -> Iterator[str]:
        """What no grant shows."""
        match self._trust(asker):
            case Trust.REVOKED:
                yield "the key was revoked: nothing that anybody is allowed holds for it"
            case Trust.PINNED:
                yield "the peer is pinned: only who is trusted has what peers have by themselves"
            case None if asker.identity is not None:
                yield "the key is not in the peer book"
        if self._rules is None and is_remote(asker.address):
            yield "without an access file other machines have nothing by themselves"
        elif self._rules is not None:
            yield "an access file decides: what no line of it gives is refused"
        if asker.token is not None and asker.token.startswith(SIGNED_PREFIX.encode()):
            if self.peers is None or read_signed(asker.token, self.peers.own) is None:
                yield "the token was not signed by this node"
        if asker.token is not None and asker.token.startswith(ISSUED_PREFIX.encode()):
            yield "a token of S2's API has what its scope says at the listener http, nothing else"
        if not is_stream and NODE_MARK in name and not is_channel_owner(asker, name):
            yield "nobody but its owner puts into a channel with `!` in its name"


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def load_access(
    access_file: str,
    token_file: str,
    data: str,
    *,
    now: Callable[[], float] = time.time,
    is_public: bool = False,
) -> AccessPolicy:
    """The access of a node whose configuration says this; empty: not given.

    Without `access_file` it is `access.conf` in the data folder, if there is one. Raises
    AccessFileError.
    """
    path = Path(access_file) if access_file else Path(data) / FILE_NAME if data else None
    tokens = Path(token_file) if token_file else None
    sources = RuleFiles(path, tokens, must_exist=bool(access_file))
    return AccessPolicy(sources, now=now, is_public=is_public)


def _is_revoked(grant: Grant, rules: Rules) -> bool:
    where = grant.where.removeprefix("signed token ")
    return where != grant.where and where in rules.revoked


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
