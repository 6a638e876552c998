"""`millpond token`: access tokens in the access file."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from millpond.actors.messages import Rights
from millpond.node.access.grants import (
    REVOKED_PREFIX,
    STREAM_PREFIX,
    UNTIL_PREFIX,
    BadRule,
    Grant,
    parse_line,
    parse_rights,
    parse_time,
    right_names,
)
from millpond.node.access.rules_file import (
    FILE_NAME,
    AccessFileError,
    add_line,
    notes_of,
    revoke_signed,
    without_token,
)
from millpond.node.access.tokens import (
    ID_BYTES,
    ID_DIGITS,
    SIGNED_PREFIX,
    digest_of,
    id_of,
    new_signed,
    new_token,
)
from millpond.node.cli.commands.address_book import add_command, data_key, own_identity
from millpond.node.cli.connection import ISSUED_TOKENS, open_channel, run_in_loop
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.data_folder import check_owner
from millpond.node.cli.options.node import add_node_options, add_timeout
from millpond.node.cli.output import print_json, print_line, printable
from millpond.node.cli.parser import Parser, action, add_alias
from millpond.node.cli.removal import add_yes, confirm, is_asked
from millpond.node.cli.token_file import read_token
from millpond.node.client.probe import PROBE
from millpond.node.units import duration_s

_ID = re.compile(r"[0-9a-f]{12,64}")

EPILOG = """\
a first token, for a program that puts jobs:
  (umask 077; millpond token new --data DIR --rights put --channel 'jobs/*' > jobs.token)
  kill -HUP PID                               the node reloads its access file
  millpond put --token-file jobs.token jobs/1 'mow the lawn'

The access file stores the SHA-256 of a token, not the token. It is access.conf in the data folder
unless --access-file names another file. docs/guides/access.md describes its format.
"""
NEW_EPILOG = """\
examples:
  millpond token new --data DIR --rights put,get --channel 'jobs/*' --expires 30d --note 'crawler'
  millpond token new --rights get,list --stream 'logs/*'      print the line for an access file
  millpond token new --rights get --channel news --expires 1h --signed

The token is the first line of the output, and cannot be shown again. Without --channel and --stream
it is valid everywhere. A signed token needs no line in a file and no reload.
"""
LS_EPILOG = """\
example:
  millpond token ls --data DIR --json         signed tokens are listed only if they are revoked
"""
ISSUED_EPILOG = """\
examples:
  millpond token issued              ids, issuers and ends of the tokens that S2 clients were issued
  millpond token issued --json       with their scopes

They are issued and revoked over HTTP (docs/reference/s2.md). Requires the right `admin`, which
every local client has if there is no token file.
"""
SHOW_EPILOG = """\
example:
  millpond token show 3f0a61c9d2b7       rights and end of a token; exit code 4: not found
"""
REVOKE_EPILOG = """\
examples:
  millpond token rm 3f0a61c9d2b7 --data DIR      by the id from `token ls` or `token new`
  millpond token rm --token-file jobs.token      by the token itself
"""


def add_parser(subparsers: Any) -> None:
    """Add `token` to the command line."""
    parser = subparsers.add_parser(
        "token",
        description="Create, list and revoke access tokens.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="COMMAND", required=True, parser_class=Parser
    )
    made = add_command(actions, "new", "Create a token.", NEW_EPILOG, _new)
    made.add_argument(
        "--rights",
        required=True,
        metavar="R[,R...]",
        help="rights of the token: put get push ack list admin, or all",
    )
    made.add_argument("--channel", action="append", default=[], metavar="PATTERN")
    made.add_argument("--stream", action="append", default=[], metavar="PATTERN")
    made.add_argument("--expires", metavar="30d|TIME", help="lifetime in d, h, m, s, or end time")
    made.add_argument(
        "--signed",
        action="store_true",
        help="sign the token with the identity of the node, in place of a line in the file",
    )
    made.add_argument("--note", default="", metavar="TEXT", help="note for the list of tokens")
    listed = add_command(actions, "ls", "List the tokens of the access file.", LS_EPILOG, _ls)
    issued = action(actions, "issued", "List the tokens that a node issued.", ISSUED_EPILOG)
    add_timeout(issued)
    add_node_options(issued)
    issued.set_defaults(work=_issued)
    shown = add_command(actions, "show", "Show a token of the access file.", SHOW_EPILOG, _show_one)
    shown.add_argument("id", metavar="ID", help="id of the token, or how it begins")
    revoked = add_command(actions, "rm", "Revoke a token.", REVOKE_EPILOG, _revoke)
    add_alias(actions, "revoke", revoked)
    revoked.add_argument(
        "id", metavar="ID", nargs="?", help="id of the token, at least 12 hexadecimal digits"
    )
    revoked.add_argument("--token-file", metavar="FILE", help="its first word is the token")
    add_yes(revoked)
    for each in (made, listed, shown, revoked):
        each.add_argument(
            "--access-file",
            metavar="FILE",
            default=os.environ.get("MILLPOND_ACCESS_FILE") or None,
            help="access file (default: access.conf in the data folder)",
        )


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    try:
        code: int = args.work(args)
    except AccessFileError as exc:
        raise Failure(str(exc)) from exc
    return code


def _new(folder: Path, args: argparse.Namespace) -> None:
    until = None if args.expires is None else _end(args.expires)
    grant_words = _grant_words(args, until)
    if args.signed:
        rights, patterns = _rights(args.rights), _patterns(args)
        try:
            identity = own_identity(folder, data_key(folder))
            token, token_id = new_signed(identity, rights, patterns, until, os.urandom)
        except ValueError as exc:
            raise usage_error(str(exc)) from exc
        _show(args, token, token_id, None)
        return
    token = new_token(os.urandom)
    line = f"token:{digest_of(token)} {grant_words}"
    if args.access_file is None and args.data is None:
        _show(args, token, id_of(token), line)
        return
    check_owner(folder)
    path = _path(folder, args)
    is_new = add_line(path, line, args.note)
    _show(args, token, id_of(token), None)
    _report_change(path, is_new=is_new)


def _show(args: argparse.Namespace, token: str, token_id: str, line: str | None) -> None:
    """Print a token. `line` is a line for the access file, if it was not written."""
    if args.json:
        print_json({"token": token, "id": token_id, "line": line})
        return
    print_line(token)
    if line is not None:
        print_line(line)
    print(f"millpond token: id for `token rm`: {token_id}", file=sys.stderr)


def _report_change(path: Path, *, is_new: bool) -> None:
    if is_new:
        print(
            f"millpond token: {path} is new: from now on a node that reads it refuses what no line "
            "of it allows, to this machine too; see docs/guides/access.md",
            file=sys.stderr,
        )
    else:
        print(f"millpond token: {path} changed; send SIGHUP to a running node", file=sys.stderr)


def _ls(folder: Path, args: argparse.Namespace) -> None:
    _print_rows(args, _rows(_path(folder, args)))


def _show_one(folder: Path, args: argparse.Namespace) -> None:
    path, wanted = _path(folder, args), args.id.lower()
    rows = [row for row in _rows(path) if wanted and row["id"].startswith(wanted[:ID_DIGITS])]
    if not rows:
        raise Failure(f"{path} has no token {args.id}", ExitCode.NOT_FOUND)
    _print_rows(args, rows)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        text = f"there is no access file {path}, so there are no tokens"
        hint = "make one with `millpond token new --rights RIGHTS`"
        raise Failure(text, ExitCode.NOT_FOUND, hint)
    return [row for note, words in notes_of(path) if (row := _row(note, words)) is not None]


def _print_rows(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if args.json:
        for row in rows:
            print_json(row)
        return
    for row in rows:
        rights = ",".join(row["rights"]) or "revoked"
        where = " ".join(row["patterns"]) or ("everywhere" if row["rights"] else "")
        ended = " ENDED" if row["until"] is not None and row["until"] <= time.time() else ""
        until = f" until {_text_of(row['until'])}{ended}" if row["until"] is not None else ""
        note = f"  # {row['note']}" if row["note"] else ""
        print_line(f"{row['id']}  {rights}  {where}{until}{note}".rstrip())


def _issued(args: argparse.Namespace) -> int:
    return run_in_loop(args, partial(_list_issued, args))


async def _list_issued(args: argparse.Namespace) -> int:
    after, more = b"", True
    async with open_channel(args, PROBE, "consumer") as channel:
        while more:
            answer: dict[str, Any] = await channel.admin(ISSUED_TOKENS, {"after": after})
            page = answer["page"]
            for row in page:
                _show_issued(row, is_json=args.json)
            more = answer["more"] and bool(page)
            after = page[-1]["id"].encode() if page else b""
    return ExitCode.OK


def _show_issued(row: dict[str, Any], *, is_json: bool) -> None:
    until = None if row["expires_at"] is None else _text_of(row["expires_at"])
    if is_json:
        print_json({**row, "expires_at": until})
        return
    by = "an administrator" if row["issuer"] is None else printable(row["issuer"])
    end = "" if until is None else f"  until {until}"
    print_line(f"{printable(row['id'])}  issued by {by}{end}")


def _row(note: str, words: list[str]) -> dict[str, Any] | None:
    """The JSON object of a line of the access file with a token."""
    try:
        parsed = parse_line(words, "")
    except BadRule as exc:
        raise Failure(f"the access file has an invalid line: {exc}") from exc
    if not isinstance(parsed, Grant):
        about: dict[str, Any] = {"id": parsed.token_id, "rights": [], "patterns": [], "until": None}
        return {**about, "note": note, "revoked": True}
    if not words[0].startswith("token:"):
        return None
    patterns = [word for word in words[2:] if not word.startswith(UNTIL_PREFIX)]
    return {
        "id": words[0].removeprefix("token:")[:ID_DIGITS],
        "rights": right_names(parsed.rights),
        "patterns": patterns,
        "until": parsed.until,
        "note": note,
        "revoked": False,
    }


def _revoke(folder: Path, args: argparse.Namespace) -> None:
    token_id = _id_to_revoke(args)
    check_owner(folder)
    path = _path(folder, args)
    if is_asked(args):
        confirm(f"Revoke the token {token_id[:ID_DIGITS]} in {path}?")
    if without_token(path, token_id):
        _report_change(path, is_new=False)
    elif len(token_id) == 2 * ID_BYTES:
        _report_change(path, is_new=revoke_signed(path, token_id))
    else:
        raise Failure(f"{path} has no token {token_id}", ExitCode.NOT_FOUND)
    if args.json:
        print_json({"id": token_id, "revoked": True})
    else:
        print_line(f"revoked {token_id}")


def _id_to_revoke(args: argparse.Namespace) -> str:
    if (args.id is None) == (args.token_file is None):
        raise usage_error("give an ID or --token-file")
    if args.id is None:
        token = read_token(args.token_file)
        assert token is not None
        found = id_of(token)
        return found if token.startswith(SIGNED_PREFIX) else digest_of(token)
    token_id: str = args.id.lower().removeprefix(REVOKED_PREFIX)
    if _ID.fullmatch(token_id) is None:
        raise usage_error(f"{args.id!r} is not a token id: 12 to 64 digits 0-9 a-f")
    return token_id


def _path(folder: Path, args: argparse.Namespace) -> Path:
    return folder / FILE_NAME if args.access_file is None else Path(args.access_file)


def _rights(text: str) -> Rights:
    try:
        return parse_rights(text)
    except BadRule as exc:
        raise usage_error(str(exc)) from exc


def _patterns(args: argparse.Namespace) -> list[str]:
    return [*args.channel, *(f"{STREAM_PREFIX}{each}" for each in args.stream)]


def _grant_words(args: argparse.Namespace, until: float | None) -> str:
    """The words of a line after its subject, checked by parsing them."""
    _rights(args.rights)
    if not args.note.isprintable():
        raise usage_error("--note: one line of printable characters")
    patterns = _patterns(args)
    if "" in args.stream:
        raise usage_error("--stream needs a pattern; '*' is all of them")
    for pattern in patterns:
        if pattern.split() != [pattern] or pattern.startswith("#") or not pattern.isprintable():
            raise usage_error(
                f"{pattern!r} is not a pattern: it cannot have spaces or begin with #"
            )
    if any(each.startswith((STREAM_PREFIX, UNTIL_PREFIX)) for each in args.channel):
        raise usage_error(
            f"--channel: a pattern cannot begin with {STREAM_PREFIX} or {UNTIL_PREFIX}"
        )
    ends = [] if until is None else [f"{UNTIL_PREFIX}{_text_of(until)}"]
    return " ".join((args.rights, *patterns, *ends))


def _end(text: str) -> float:
    """The end time in seconds since 1970."""
    lifetime = None if text.isdigit() else duration_s(text)
    if lifetime is not None:
        return float(int(time.time() + lifetime))
    try:
        return parse_time(text)
    except BadRule as exc:
        raise usage_error(f"--expires: {exc}, and not a duration such as 30d or 12h") from exc


def _text_of(until: float) -> str:
    try:
        return datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError) as exc:
        raise usage_error("--expires: the date is too far away") from exc
