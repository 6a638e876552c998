"""`millpond restore`: a backup or a replica of a node into a new data folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import SystemRandom
from typing import Any

from millpond.node.backup.manifest import DATA, BadBackup, Manifest, read_manifest
from millpond.node.backup.restore import Restoration, verify_files
from millpond.node.cli.commands.backup import ProgressLine, damages_in, described, left_out, summary
from millpond.node.cli.commands.replica import instant, is_address, restore_replica
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.data_folder import explain_folder_errors
from millpond.node.cli.output import print_json, print_line

EPILOG = """\
examples:
  millpond restore --from /backups/monday --data /srv/millpond
  millpond restore --from /backups/monday --data /srv/staging --new-identity
  millpond restore --from /backups/monday --check
  millpond restore --from s3://bucket/node --data /srv/millpond
  millpond restore --from s3://bucket/node --data /srv/millpond --at 2026-11-24T10:15:00Z

DIR is a new or an empty folder. Every file is compared with the manifest, and the whole folder is
checked as by `millpond doctor`, before it counts: what fails leaves nothing behind. A node does not
start on a folder into which a backup was not restored to the end.

The restored node takes the place of the original: it has its identity, its keys, its peers and its
access file. Two nodes with one identity are a danger: each gets a part of the messages of peers,
and both give out the same message ids. Stop the original for good first.

--new-identity is for a copy beside the original: the node gets a new identity, other message ids,
and no keys: sealed messages that nobody has read, and chats of an encrypted folder, cannot be read
there, and peers do not know it.

--check reads a backup and compares it with its manifest; nothing is restored. Exit code 1: the
backup is damaged, or the node of the backup had damaged channels.

From a replica (`millpond serve --replica URL`) the folder has the channels and streams of the last
moment that was shipped, or of the moment --at: the newest snapshot before it, and the journal
behind that. The identity, keys, peers and access file are in a replica only if its node ran with
--replica-keys; --replica-keys FILE, with the same passphrase, restores the last ones, whatever --at
is. Otherwise the node has a new identity unless these files of a backup are copied into the folder
before its first start. `millpond replica verify URL` verifies a replica.
"""


def add_parser(subparsers: Any) -> None:
    """Add `restore` to the command line."""
    parser = subparsers.add_parser(
        "restore",
        description="Restore a backup or a replica into a new data folder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--from",
        metavar="DIR|URL",
        dest="source",
        required=True,
        help="folder of a backup, or address of a replica",
    )
    parser.add_argument(
        "--at",
        metavar="TIME",
        type=instant,
        help="of a replica: the wanted moment (2026-11-24T10:15:00Z; default: the last one)",
    )
    parser.add_argument(
        "--until-damage",
        action="store_true",
        help="of a replica: restore what is before the first missing or damaged object",
    )
    parser.add_argument(
        "--replica-keys",
        metavar="FILE",
        help="of a replica: restore identity and keys, which are sealed under this passphrase",
    )
    parser.add_argument("--data", metavar="DIR", type=Path, help="new data folder")
    parser.add_argument(
        "--new-identity", action="store_true", help="leave out identity and keys: for a copy"
    )
    parser.add_argument("--check", action="store_true", help="only verify the backup")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")


def run(args: argparse.Namespace) -> int:
    """Restore a backup, or verify it."""
    if args.check == (args.data is not None):
        raise usage_error("give --data DIR to restore into, or --check")
    if is_address(args.source):
        if args.check or args.new_identity:
            option = "--check" if args.check else "--new-identity"
            raise usage_error(f"{option} is for backups; `millpond replica verify` is for replicas")
        return restore_replica(args)
    if args.replica_keys is not None:
        raise usage_error("--replica-keys is for replicas: a backup has the keys of its node")
    if args.at is not None or args.until_damage:
        raise usage_error("--at and --until-damage are for replicas: a backup is of one moment")
    args.source = Path(args.source)
    try:
        return _check(args) if args.check else _restore(args)
    except BadBackup as exc:
        raise Failure(str(exc)) from exc
    except OSError as exc:
        where = exc.filename or args.data or args.source
        raise Failure(f"{where}: {exc.strerror}") from exc


def _check(args: argparse.Namespace) -> int:
    manifest = read_manifest(args.source)
    line = ProgressLine("verified", manifest.size)
    verify_files(args.source, manifest, line.add)
    damages = damages_in(args.source / DATA)
    line.end()
    if args.json:
        print_json({**summary(args.source, manifest), "damages": damages})
    else:
        print_line(f"{args.source}: {described(manifest)}; verified")
    _tell_left_out(manifest)
    return _told(damages)


def _restore(args: argparse.Namespace) -> int:
    rng = SystemRandom() if args.new_identity else None
    damages: list[str] = []

    with explain_folder_errors(args.data):
        restoration = Restoration(args.source, args.data, rng)
        manifest = restoration.manifest
        line = ProgressLine("restored", manifest.size)
        restoration.run(line.add, lambda: damages.extend(damages_in(args.data)))
    line.end()
    if args.json:
        identity = None if args.new_identity else manifest.identity
        print_json({**summary(args.source, manifest), "data": str(args.data), "identity": identity})
    else:
        print_line(f"{args.data}: {described(manifest)}; verified")
        whose = "its first start makes a new identity"
        if not args.new_identity:
            whose = f"it is {manifest.identity}: never start the original again beside it"
        print_line(whose)
    _tell_left_out(manifest)
    for path in manifest.outside:
        print(f"millpond restore: was not in the backup: {path}", file=sys.stderr)
    return _told(damages)


def _tell_left_out(manifest: Manifest) -> None:
    if text := left_out(manifest):
        print(f"millpond restore: was not in the backup: {text}", file=sys.stderr)


def _told(damages: list[str]) -> int:
    for text in damages:
        print(f"millpond restore: damaged: {text}", file=sys.stderr)
    return ExitCode.FAILURE if damages else ExitCode.OK
