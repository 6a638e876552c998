"""The access policy: the rights of a client in a channel or a stream, and the reasons for them
(docs/guides/access.md).

Rights add up over everything that is known of the client: token, identity, certificate, address and
listener. Without an access file this machine may do everything and others nothing, except for
contacts, relays, client certificates and `--insecure-public`.
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
    CONSOLE_GRANT,
    OPERATOR_GRANT,
    STREAM_LISTENERS,
    KnownPeers,
    contact_grants,
    default_grants,
    default_stream_rights,
    delivery_rights,
    is_own_prekey_channel,
    message_grant,
    note_without_token,
    page_session_grants,
    relay_grants,
    takes_tokens,
)
from millpond.node.access.grants import (
    ANYONE,
    Grant,
    Subject,
    SubjectKind,
    scope_patterns,
)
from millpond.node.access.operator import Operator
from millpond.node.access.rules_file import (
    FILE_NAME,
    AccessFileError,
    Rules,
    read_access_file,
    read_token_file,
)
from millpond.node.access.tokens import ISSUED_PREFIX, SIGNED_PREFIX, read_signed
from millpond.node.client.probe import PROBE
from millpond.node.config import ConfigError
from millpond.node.console.login import PREFIX as CONSOLE_PREFIX
from millpond.node.ip import ip_of, is_loopback, is_remote
from millpond.node.peers.address_book import Trust
from millpond.node.peers.identity import BadPeerId, peer_id, public_key_of
from millpond.node.peers.peer import CONTACTS
from millpond.node.web.login import PREFIX as PAGE_PREFIX
from millpond.transports.server.interface import Principal
from millpond.transports.server.private_names import PRIVATE_PREFIXES, is_private

log = logging.getLogger(__name__)

_ISSUED_HERE = (PAGE_PREFIX.encode(), CONSOLE_PREFIX.encode(), ISSUED_PREFIX.encode())
"""Tokens that are judged by what issued them begin so."""
INTERNAL_SEPARATOR = b"!"
"""A mark in the names of the node's own channels."""


class GrantOutcome(Enum):
    """The outcome of a grant for a client in one channel or stream."""

    GIVES = "gives"
    ELSEWHERE = "is for other names"
    EXPIRED = "has ended"
    REVOKED = "is revoked"
    PRIVATE = "does not include chats and mailboxes"


class GrantDecision(msgspec.Struct, frozen=True):
    """A grant of the client, and its outcome."""

    grant: Grant
    outcome: GrantOutcome


class Explanation(msgspec.Struct, frozen=True):
    """The reasons of a decision. `rights` None: the client is denied."""

    rights: Rights | None
    reasons: list[GrantDecision]
    notes: list[str]


class RuleFiles(msgspec.Struct, frozen=True):
    """The files that hold the rules; None: there is no such file."""

    access_file: Path | None = None
    token_file: Path | None = None
    must_exist: bool = True
    """The access file was named in the configuration: a missing file is an error."""

    def read(self) -> Rules | None:
        """The rules of the files; None: there is no file. Raises AccessFileError."""
        found = None
        if self.access_file is not None and (self.must_exist or self.access_file.exists()):
            found = read_access_file(self.access_file)
        if self.token_file is not None:
            found = (found or Rules()) + read_token_file(self.token_file)
        return found


class AccessPolicy:
    """The access policy of a node. Tokens are kept as digests: a memory dump shows none.

    `is_public`: everybody is served (`--insecure-public`).
    """

    def __init__(
        self,
        sources: RuleFiles | None = None,
        *,
        now: Callable[[], float] = time.time,
        is_public: bool = False,
    ) -> None:
        """Raises AccessFileError."""
        self._peers: KnownPeers | None = None
        self._session_rights: Callable[[bytes], Rights | None] = lambda token: None
        self._is_console_session: Callable[[bytes], bool] = lambda token: False
        self._operator: Operator | None = None
        self._is_near: Callable[[Principal], bool] | None = None
        self._issued_grants: Callable[[Principal], Sequence[Grant]] = lambda principal: ()
        self._sources = sources or RuleFiles()
        self.now = now
        self._is_public = is_public
        self._rules: Rules | None = None
        self._by_subject: dict[Subject, list[Grant]] = {}
        self._networks: list[tuple[Network, Grant]] = []
        self._has_tokens = False
        """Some of the rules are for tokens."""
        self._set_rules(self._sources.read())

    def admit_peers(self, peers: KnownPeers) -> None:
        """Give contacts and relays of this node, and tokens that it signed, their rights."""
        self._peers = peers

    def accept_page_sessions(self, rights: Callable[[bytes], Rights | None]) -> None:
        """Accept tokens of the chat page; `rights` gives those of a session, None: it ended."""
        self._session_rights = rights

    def accept_console_sessions(self, is_session: Callable[[bytes], bool]) -> None:
        """Accept tokens of the console, which have the rights of the operator."""
        self._is_console_session = is_session

    def accept_issued_tokens(self, grants: Callable[[Principal], Sequence[Grant]]) -> None:
        """Accept tokens that the S2 API issued; `grants` gives those of a client with one."""
        self._issued_grants = grants

    def admit_neighbours(self, is_near: Callable[[Principal], bool]) -> None:
        """Let clients for which `is_near` is true ask for the card of this node."""
        self._is_near = is_near

    def recognize_operator(self, operator: Operator) -> None:
        """Give the operator of the node its rights."""
        self._operator = operator

    @property
    def is_controlled(self) -> bool:
        """True if there are rule files: nobody has a right that they do not give."""
        return self._rules is not None

    @property
    def files(self) -> list[Path]:
        """The files that exist."""
        both = (self._sources.access_file, self._sources.token_file)
        return [path for path in both if path is not None and path.exists()]

    def guards(self, listener: str) -> bool:
        """True if access at this listener is restricted, so that other machines may reach it."""
        if self.is_controlled or (listener == "p2p" and self._is_near is not None):
            return True
        has_peers = self._peers is not None and len(self._peers.book) > 0
        return has_peers and listener not in STREAM_LISTENERS

    def opens(self, listener: str) -> bool:
        """True if some rule gives rights at a listener that serves only streams."""
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
        """Read the files again. False: they are unusable; the rules stay, an error is logged."""
        try:
            found = self._sources.read()
        except AccessFileError as exc:
            log.error("access rules not reloaded, the old ones stay: %s", exc)
            return False
        if found is None and self._rules is not None:
            log.error(
                "access rules not reloaded, the old ones stay: %s does not exist",
                self._sources.access_file,
            )
            return False
        self._set_rules(found)
        return True

    def authorize(self, principal: Principal, channel: bytes) -> Rights | None:
        """The rights of a client in a channel; None: denied."""
        rights = self._rights(principal, channel, is_stream=False)
        if rights is None and channel == PROBE and self._may_probe(principal):
            rights = Rights.NONE  # it may ask the node what it may have elsewhere
        if (
            rights is not None
            and INTERNAL_SEPARATOR in channel
            and not is_own_prekey_channel(principal, channel)
        ):
            # Only their owner writes to the node's own channels (PS-14).
            rights &= ~Rights.PUT
            if not rights and channel != PROBE:
                return None
        return self._with_delivery(principal, channel, rights)

    def _may_probe(self, principal: Principal) -> bool:
        if self.knows(principal):
            return True
        if self._is_near is None or self._trust(principal) is Trust.BLOCKED:
            return False
        return self._is_near(principal)

    def _with_delivery(
        self, principal: Principal, channel: bytes, rights: Rights | None
    ) -> Rights | None:
        """The rights with those by the delivery token of a mailbox."""
        peers = self._peers
        if peers is None or self._trust(principal) is Trust.BLOCKED:
            return rights
        given = delivery_rights(peers, principal, channel)
        if given:
            return given if rights is None else rights | given
        if rights is not None and Rights.PUT in rights:
            note_without_token(peers, principal, channel)
        return rights

    def authorize_stream(self, principal: Principal, name: bytes) -> Rights | None:
        """The rights of a client in a stream or topic, or in all (the empty name); None: none."""
        if self._rules is None and principal.token is None and principal.identity is None:
            if not name.startswith(PRIVATE_PREFIXES):
                return default_stream_rights(principal, self._is_public)
        return self._rights(principal, name, is_stream=True)

    def stream_scope(self, principal: Principal) -> tuple[str, ...] | None:
        """The streams that a client may read now, as patterns; None: all that are not private."""
        scope: set[str] = set()
        for grant in self._grants_for(principal):
            if Rights.GET in grant.rights and self._is_in_force(grant):
                if grant.streams is None:
                    return None
                scope.update(scope_patterns(grant, principal.identity))
        return None if scope == {"*"} else tuple(sorted(scope))

    def is_operator(self, principal: Principal) -> bool:
        """True for a client that may read chats and mailboxes, and write in the node's name: by the
        cookie, a session of the chat page or the console, a grant of the right `operator`, or,
        without an access file, as the user that the node runs as."""
        if self._trust(principal) is Trust.BLOCKED:
            return False
        token = principal.token or b""
        if token.startswith(PAGE_PREFIX.encode()):
            return self._session_rights(token) is not None
        if token.startswith(ISSUED_PREFIX.encode()):
            return False
        if token.startswith(CONSOLE_PREFIX.encode()):
            return self._is_console_session(token)
        if any(
            Rights.OPERATOR in grant.rights and self._is_in_force(grant)
            for grant in self._grants_for(principal)
        ):
            return True
        operator = self._operator
        return self._rules is None and operator is not None and operator.is_same_user(principal)

    def admits_to_streams(self, principal: Principal) -> bool:
        """True if the client may have rights in some stream."""
        return any(
            grant.streams != () and self._is_in_force(grant)
            for grant in self._grants_for(principal)
        )

    def knows(self, principal: Principal) -> bool:
        """True for a client with some right in some channel or stream, by whatever it shows or
        wherever it is.

        Otherwise HTTP refuses its credentials (401), and not only the request (403).
        """
        return any(map(self._is_in_force, self._grants_for(principal)))

    def is_stranger(self, principal: Principal) -> bool:
        """True for a client with a token that is unknown, where the access files name tokens. A
        node that names none takes any (S2X-27)."""
        token = principal.token
        if token is None or not self._has_tokens:
            return False
        if token.startswith(_ISSUED_HERE):
            return False  # they are judged by what issued them
        if Subject(SubjectKind.TOKEN, sha256(token).digest()) in self._by_subject:
            return False
        if self._operator is not None and self._operator.has_cookie(principal):
            return False
        return self._peers is None or read_signed(token, self._peers.own) is None

    def may_send(self, sender: bytes, channel: bytes) -> bool:
        """True if a peer, known by its signature, may send messages to a channel of this node.

        A contact may send to its own chat, and to the channels of `--peer-channel`. Further
        only rules count that name its key: neither its address nor a listener is known. The chats
        of others are for nobody else, whatever a pattern says.
        """
        if self._peers is None or not self._peers.book.is_contact(sender):
            return False
        if is_private(channel) and channel != b"chat/" + peer_id(sender).encode():
            return False
        peer = self._peers.book.by_public(sender)
        subjects = [Subject(SubjectKind.KEY, sender)]
        if peer is not None:
            subjects.append(Subject(SubjectKind.NAME, peer.name))
        grants = [grant for each in subjects for grant in self._by_subject.get(each, ())]
        return any(
            Rights.PUT in grant.rights
            and self._is_in_force(grant)
            and grant.covers(channel, is_stream=False, own=sender, is_peer=self._is_peer)
            for grant in [message_grant(self._peers), *grants]
        )

    def explain(self, principal: Principal, name: bytes, *, is_stream: bool = False) -> Explanation:
        """The decision of `authorize` or `authorize_stream`, with its reasons."""
        authorize = self.authorize_stream if is_stream else self.authorize
        is_open = self._is_open(principal, name)
        reasons = [
            GrantDecision(
                grant,
                self._outcome(grant, principal, name, is_stream=is_stream, is_open=is_open),
            )
            for grant in self._grants_for(principal)
        ]
        return Explanation(
            authorize(principal, name), reasons, list(self._notes(principal, name, is_stream))
        )

    def _rights(self, principal: Principal, name: bytes, *, is_stream: bool) -> Rights | None:
        rights = None
        is_open = self._is_open(principal, name)
        for grant in self._grants_for(principal):
            outcome = self._outcome(grant, principal, name, is_stream=is_stream, is_open=is_open)
            if outcome is GrantOutcome.GIVES:
                rights = grant.rights if rights is None else rights | grant.rights
        return rights

    def _is_open(self, principal: Principal, name: bytes) -> bool:
        """True if a right to everything includes this name."""
        return not is_private(name) or self.is_operator(principal)

    def _outcome(
        self, grant: Grant, principal: Principal, name: bytes, *, is_stream: bool, is_open: bool
    ) -> GrantOutcome:
        ended = self._end_of(grant)
        if ended is not None:
            return ended
        is_covered = grant.covers(
            name, is_stream=is_stream, own=principal.identity, is_peer=self._is_peer
        )
        if not is_covered:
            return GrantOutcome.ELSEWHERE
        if not is_open and not grant.names_private(is_stream=is_stream):
            return GrantOutcome.PRIVATE
        return GrantOutcome.GIVES

    def _is_in_force(self, grant: Grant) -> bool:
        return self._end_of(grant) is None

    def _end_of(self, grant: Grant) -> GrantOutcome | None:
        """The reason why a grant gives nothing any more; None: it is in force."""
        if grant.until is not None and self.now() >= grant.until:
            return GrantOutcome.EXPIRED
        if self._rules is not None and _is_revoked(grant, self._rules):
            return GrantOutcome.REVOKED
        return None

    def _is_peer(self, text: str) -> bool:
        """True for the id of a contact."""
        try:
            return self._peers is not None and self._peers.book.is_contact(public_key_of(text))
        except BadPeerId:
            return False

    def _grants_for(self, principal: Principal) -> Iterator[Grant]:
        """All grants of a client; a blocked key has none."""
        trust = None if principal.identity is None else self._trust(principal)
        if trust is Trust.BLOCKED:
            return
        if principal.token is not None and principal.token.startswith(PAGE_PREFIX.encode()):
            # Nothing else counts, wherever the page is opened: all rights end with its session.
            yield from page_session_grants(self._session_rights(principal.token))
            return
        if principal.token is not None and principal.token.startswith(CONSOLE_PREFIX.encode()):
            if self._is_console_session(principal.token):
                yield CONSOLE_GRANT
            return
        if principal.token is not None and principal.token.startswith(ISSUED_PREFIX.encode()):
            # The token restricts its client, on this machine too; a revoked one permits nothing.
            yield from self._issued_grants(principal)
            return
        if self._operator is not None and self._operator.has_cookie(principal):
            yield OPERATOR_GRANT
        if self._rules is None:
            yield from default_grants(principal, self._is_public)
        else:
            for subject in self._subjects(principal):
                yield from self._by_subject.get(subject, ())
            address = ip_of(principal.address) if self._networks else None
            yield from (
                grant
                for network, grant in self._networks
                if address is not None and address in network
            )
        if principal.token is not None and self._peers is not None:
            signed = read_signed(principal.token, self._peers.own)
            if signed is not None:
                yield signed.grant
        if self._peers is not None and trust in CONTACTS:
            yield from contact_grants(self._peers)
        elif self._peers is not None and trust is Trust.RELAY:
            yield from relay_grants(self._peers)

    def _subjects(self, principal: Principal) -> Iterator[Subject]:
        yield ANYONE
        yield Subject(SubjectKind.LISTENER, principal.listener)
        if principal.token is not None:
            # Looked up by digest: the time for a wrong token tells nothing about a valid one.
            yield Subject(SubjectKind.TOKEN, sha256(principal.token).digest())
        if principal.certificate is not None:
            yield Subject(SubjectKind.CERTIFICATE, principal.certificate)
        if principal.identity is not None:
            yield Subject(SubjectKind.KEY, principal.identity)
            peer = None if self._peers is None else self._peers.book.by_public(principal.identity)
            if peer is not None and (peer.is_contact or peer.trust is Trust.RELAY):
                # A name counts only for a key that a person added; a key stands for itself.
                yield Subject(SubjectKind.NAME, peer.name)

    def _trust(self, principal: Principal) -> Trust | None:
        if principal.identity is None or self._peers is None:
            return None
        peer = self._peers.book.by_public(principal.identity)
        return None if peer is None else peer.trust

    def _set_rules(self, rules: Rules | None) -> None:
        self._rules = rules
        self._by_subject = {}
        self._networks = []
        self._has_tokens = rules is not None and any(
            grant.subject.kind is SubjectKind.TOKEN for grant in rules.grants
        )
        for grant in () if rules is None else rules.grants:
            if grant.subject.kind is SubjectKind.ADDRESS:
                network = ipaddress.ip_network(str(grant.subject.value))
                self._networks.append((network, grant))
            else:
                self._by_subject.setdefault(grant.subject, []).append(grant)

    def _notes(self, principal: Principal, name: bytes, is_stream: bool) -> Iterator[str]:
        """Remarks beyond the grants."""
        match self._trust(principal):
            case Trust.BLOCKED:
                yield "the key is blocked: it has no rights at all"
            case Trust.PINNED:
                yield "the peer is pinned: it has no rights until a person adds it"
            case Trust.RELAY:
                yield "the peer is a relay: it has none of the rights of contacts"
            case None if principal.identity is not None:
                yield "the key is not in the peer book"
        if self._rules is None and is_remote(principal.address):
            yield "without an access file other machines have no rights by default"
        elif self._rules is not None:
            yield "an access file is in force: rights that it does not give are denied"
        if principal.token is not None and principal.token.startswith(SIGNED_PREFIX.encode()):
            if self._peers is None or read_signed(principal.token, self._peers.own) is None:
                yield "the token was not signed by this node"
        if principal.token is not None and principal.token.startswith(ISSUED_PREFIX.encode()):
            yield "a token of the S2 API has the rights of its scope, at the http listener only"
        if not is_stream and self._peers is not None and takes_tokens(self._peers, name):
            yield "on this relay clients that show the delivery token of its owner may put, too"
        if (
            not is_stream
            and INTERNAL_SEPARATOR in name
            and not is_own_prekey_channel(principal, name)
        ):
            yield "only its owner may put messages into a channel with `!` in its name"


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def load_access(
    access_file: str,
    token_file: str,
    data: str,
    *,
    now: Callable[[], float] = time.time,
    is_public: bool = False,
) -> AccessPolicy:
    """The access policy for these settings; an empty one is not given.

    Without `access_file` it is `access.conf` in the data folder, if there is one. Raises
    AccessFileError.
    """
    path = Path(access_file) if access_file else Path(data) / FILE_NAME if data else None
    tokens = Path(token_file) if token_file else None
    sources = RuleFiles(path, tokens, must_exist=bool(access_file))
    return AccessPolicy(sources, now=now, is_public=is_public)


def _is_revoked(grant: Grant, rules: Rules) -> bool:
    token_id = grant.source.removeprefix("signed token ")
    return token_id != grant.source and token_id in rules.revoked


WITHOUT_TOKENS = ("s3p", "rustlog")
"""Listeners whose protocols carry no tokens."""


def warn_unreachable_listeners(access: AccessPolicy, listeners: Iterable[str]) -> None:
    """Log the listeners that no rule opens to anybody."""
    shut = [name for name in WITHOUT_TOKENS if name in listeners and not access.opens(name)]
    if shut:
        log.warning(
            "no access rule applies to these listeners, which take no tokens: %s", " ".join(shut)
        )


def check_exposure(name: str, host: str, *, is_guarded: bool) -> None:
    """Raises ConfigError for a listener that other machines reach without access control."""
    if not is_guarded and not is_loopback(host):
        raise ConfigError(
            f"{name}: {host or 'every address'} is reachable from outside and there is no "
            "access control; give --access-file, --token-file or --tls-client-ca, or "
            "--insecure-public if this is intended"
        )
