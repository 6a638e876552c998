"""`millpond doctor access`: the rights of a principal, and the rules that grant them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millpond.actors.messages import Durability, Rights
from millpond.node.access.default_policy import KnownPeers
from millpond.node.access.grants import DIGEST, LISTENERS, right_names
from millpond.node.access.policy import AccessPolicy, Explanation, GrantOutcome, load_access
from millpond.node.access.rules_file import AccessFileError
from millpond.node.cli.commands.address_book import own_public
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.data_folder import data_folder
from millpond.node.cli.output import print_json, print_line, printable
from millpond.node.cli.parser import action
from millpond.node.cli.token_file import read_token
from millpond.node.config import Config, ConfigError, load_config
from millpond.node.ip import ip_of, is_remote
from millpond.node.peers.address_book import FILE_NAME as BOOK_FILE
from millpond.node.peers.address_book import AddressBook, BookUnreadable
from millpond.node.peers.identity import (
    BadPeerId,
    IdentityError,
    NoIdentity,
    peer_id,
    public_key_of,
)
from millpond.transports.p2p.admission import is_channel_name
from millpond.transports.server.interface import Principal

EPILOG = """\
examples:
  millpond doctor access bob jobs/mail               the rights of bob in this channel
  millpond doctor access token:jobs.token jobs/mail  the rights of this token
  millpond doctor access anyone logs/web --stream --listener s3p --address 10.0.0.7
  millpond doctor access anyone jobs/mail --address 127.0.0.1

The command reads the files that `serve` reads; it does not connect to a node. The exit code is 5 if
nothing is allowed.
"""
ELSEWHERE = "192.0.2.1"
"""An address that nobody has (RFC 5737)."""


def add_action(actions: Any) -> None:
    """Add `access` to `doctor`."""
    parser = action(
        actions, "access", "Show the rights of a principal and the rules that grant them.", EPILOG
    )
    parser.add_argument(
        "who", metavar="WHO", help="name or id of a peer, token:FILE, cert:SHA256, or anyone"
    )
    parser.add_argument("name", metavar="CHANNEL", help="channel; with --stream a stream or topic")
    parser.add_argument("--stream", action="store_true", help="check a stream or topic")
    parser.add_argument(
        "--listener",
        choices=LISTENERS,
        default="p2p",
        help="listener of the connection (default p2p)",
    )
    parser.add_argument(
        "--address",
        default=ELSEWHERE,
        metavar="IP",
        help="address of the client (default: another machine)",
    )
    parser.add_argument("--data", metavar="DIR", help="data folder of the node")
    parser.add_argument("--config", metavar="FILE", default=os.environ.get("MILLPOND_CONFIG"))
    parser.add_argument("--access-file", metavar="FILE")
    parser.add_argument("--token-file", metavar="FILE", help="as for `serve`")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(work=run)


def run(args: argparse.Namespace) -> int:
    """Print the explanation; 5 if nothing is allowed."""
    config, folder = _config(args)
    name = os.fsencode(args.name)
    if not args.stream and not is_channel_name(name):
        raise usage_error(f"{args.name!r} is not a channel name")
    try:
        access = load_access(
            config.access_file, config.token_file, config.data, is_public=config.insecure_public
        )
        peers = _peers(folder, config) if folder is not None else None
    except (AccessFileError, BookUnreadable, IdentityError) as exc:
        raise Failure(str(exc)) from exc
    if peers is not None:
        access.admit_peers(peers)
    principal = _principal(args, None if peers is None else peers.book)
    explanation = access.explain(principal, name, is_stream=args.stream)
    if args.json:
        print_json(_object(explanation, access))
    else:
        for line in _lines(args, principal, explanation):
            print_line(line)
    return ExitCode.OK if explanation.rights else ExitCode.REFUSED


def _config(args: argparse.Namespace) -> tuple[Config, Path | None]:
    """The configuration, with the data folder unless data is in memory."""
    names = ("access_file", "token_file", "data")
    flags = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    try:
        config = load_config(flags, os.environ, Path(args.config) if args.config else None).config
    except ConfigError as exc:
        raise usage_error(str(exc)) from exc
    if not config.data and config.durability is not Durability.MEMORY:
        flags["data"] = str(data_folder(os.environ))
        config = load_config(flags, os.environ, Path(args.config) if args.config else None).config
    return config, Path(config.data) if config.data else None


def _peers(folder: Path, config: Config) -> KnownPeers | None:
    """The identity and peers of the node; None without an identity."""
    try:
        own = own_public(folder)
    except NoIdentity:
        return None
    return KnownPeers(
        own,
        AddressBook(folder / BOOK_FILE),
        config.relay,
        needs_tokens=config.delivery_tokens_required,
    )


def _principal(args: argparse.Namespace, book: AddressBook | None) -> Principal:
    if ip_of(args.address) is None:
        raise usage_error(f"--address: {args.address!r} is not an IP address")
    kind, _, value = args.who.partition(":")
    token = identity = certificate = None
    match kind:
        case "anyone" if not value:
            pass
        case "token" if value:
            token = (read_token(value) or "").encode()
        case "cert" if DIGEST.fullmatch(value):
            certificate = bytes.fromhex(value)
        case _:
            identity = _key(args.who.removeprefix("key:"), book)
    return Principal(token, identity, args.address, args.listener, certificate)


def _key(who: str, book: AddressBook | None) -> bytes:
    peer = None if book is None else book.resolve(who)
    if peer is not None:
        return peer.public
    try:
        return public_key_of(who)
    except BadPeerId:
        known = "a peer's name or id, token:FILE, cert:SHA256, anyone"
        raise Failure(f"{who!r} is not known; expected {known}", ExitCode.NOT_FOUND) from None


def _lines(
    args: argparse.Namespace, principal: Principal, explanation: Explanation
) -> Iterator[str]:
    who = printable(args.who)
    if principal.identity is not None:
        who = f"{who} ({peer_id(principal.identity)})" if len(who) < 52 else who
    client_address = (
        f"from {principal.address}" if principal.address != ELSEWHERE else "from another machine"
    )
    if not is_remote(principal.address):
        client_address = "from this machine"
    what = "stream" if args.stream else "channel"
    yield f"{who} at {principal.listener} {client_address}, {what} {printable(args.name)}:"
    for word, right in _each_right():
        given = explanation.rights is not None and right in explanation.rights
        yield f"  {word:5}  {'yes' if given else 'no':3}  {_why(explanation, right, given=given)}"
    yield from (f"note: {note}" for note in explanation.notes)


def _why(explanation: Explanation, right: Rights, *, given: bool) -> str:
    """The rules that grant a right, or those that would grant it under other conditions."""
    about = [each for each in explanation.reasons if right in each.grant.rights]
    giving = [each.grant.source for each in about if each.outcome is GrantOutcome.GIVES]
    if given:
        return ", ".join(giving)
    if giving:
        return f"{', '.join(giving)} would, but only its owner puts there"
    if not about:
        return "no line gives it"
    return "; ".join(f"{each.grant.source} {each.outcome.value}" for each in about)


def _object(explanation: Explanation, access: AccessPolicy) -> dict[str, Any]:
    rights = {}
    for word, right in _each_right():
        given = explanation.rights is not None and right in explanation.rights
        about = [each for each in explanation.reasons if right in each.grant.rights]
        because = [{"line": each.grant.source, "verdict": each.outcome.name} for each in about]
        rights[word] = {"given": given, "because": because}
    files = [str(path) for path in access.files]
    return {
        "allowed": bool(explanation.rights),
        "rights": rights,
        "notes": explanation.notes,
        "files": files,
    }


def _each_right() -> Iterator[tuple[str, Rights]]:
    return ((word, right) for right in Rights.ALL for word in right_names(right))
