"""`millpond backup`: a verified copy of a whole node, made while it runs."""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec

from millpond.node.backup.manifest import (
    DATA,
    NAME,
    BadBackup,
    Manifest,
    finish,
    nonce_of,
    read_manifest,
)
from millpond.node.backup.restore import verify_files
from millpond.node.cli.connection import explain_errors, open_channel
from millpond.node.cli.doctor.data_folder import content_findings
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.options.node import add_node_options
from millpond.node.cli.output import print_json, print_line
from millpond.node.client.probe import PROBE

EPILOG = """\
examples:
  millpond backup --to /backups/monday
  millpond backup --to /backups/monday --connect tcp://127.0.0.1:7500
  millpond restore --from /backups/monday --data /srv/millpond

The node writes its channels, streams, keys and access file into the new folder DIR, while it goes
on; this command, on the same machine, then reads all of it back. The backup is the node at one
moment after the command began: it has every message that was acknowledged before, and none that was
consumed before. Channels with durability `memory` are not in it, nor are files outside the data
folder: the configuration, certificates, the passphrase.

DIR/manifest.json is written last, when everything was verified: a folder without it is no backup.
What an interrupted command leaves is removed by the node, or by the next backup to DIR. That one
begins anew: it is of another moment, and files of the first have changed since.

Older records of streams that are in the replica of the node alone are fetched from there into the
backup. --without-cold leaves them out: a node of that backup refuses reads of them.

A backup has the identity and all keys of the node, as they are stored: keep it as safe. It is for
the operator of the node. Exit code 1: there is no backup, or the node has damaged channels, which
are damaged in the backup too.
"""
BACKUP = 16
"""The operation of packet 90; docs/reference/wire-protocol.md has the table."""
ASK_S = 0.2
CLEAR = "\r\x1b[K"


class ProgressLine:
    """The bytes that were read or written, on stderr if that is a terminal."""

    def __init__(self, verb: str, total: int) -> None:
        self._verb = verb
        self._total = total
        self._done = self._shown = 0
        self._is_wanted = sys.stderr.isatty()

    def add(self, size: int) -> None:
        """Add to the bytes."""
        self.show(self._done + size, self._total)

    def show(self, done: int, total: int) -> None:
        """Show the bytes so far, of about so many."""
        self._done = done
        if self._is_wanted and (done - self._shown >= 2**20 or not self._shown):
            self._shown = done
            text = f"{self._verb} {done / 2**20:.0f} of {max(done, total) / 2**20:.0f} MiB"
            print(f"{CLEAR}{text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Remove the line."""
        if self._shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)
            self._shown = 0


def add_parser(subparsers: Any) -> None:
    """Add `backup` to the command line."""
    parser = subparsers.add_parser(
        "backup",
        description="Back up a whole node while it runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--to", metavar="DIR", type=Path, required=True, help="new folder for the backup"
    )
    parser.add_argument(
        "--without-cold",
        action="store_true",
        help="leave out older records of streams that are in the replica alone",
    )
    add_node_options(parser)


def run(args: argparse.Namespace) -> int:
    """Make a backup and verify it."""
    to: Path = args.to.absolute()
    with explain_errors(args):
        anyio.run(_make, args, to)
    try:
        manifest = read_manifest(to, unfinished=True)
        line = ProgressLine("verified", manifest.size)
        verify_files(to, manifest, line.add)
        found = damages_in(to / DATA)
        line.end()
        manifest = msgspec.structs.replace(manifest, damages=found or manifest.damages)
        finish(to, manifest)
    except BadBackup as exc:
        raise Failure(str(exc)) from exc
    except OSError as exc:
        raise Failure(f"{exc.filename or to}: {exc.strerror}") from exc
    _report(args, to, manifest)
    return ExitCode.FAILURE if manifest.damages else ExitCode.OK


async def _make(args: argparse.Namespace, to: Path) -> None:
    """Have the node write the backup. Raises Failure."""
    nonce = os.urandom(16).hex()
    request: dict[str, Any] = {"action": "start", "to": os.fsdecode(to), "nonce": nonce}
    if args.without_cold:
        request["without_cold"] = True
    line = ProgressLine("copied", 0)
    async with open_channel(args, PROBE, "consumer") as channel:
        try:
            while True:
                answer: dict[str, Any] = await channel.admin(BACKUP, request)
                if answer["nonce"] != nonce:
                    raise Failure("another backup of this node is in progress")
                progress = answer["progress"]
                line.show(progress["bytes"], progress["bytes_total"])
                match answer["state"]:
                    case "written":
                        break
                    case "failed":
                        raise Failure(f"no backup: {answer['error']}")
                request = {"action": "status", "nonce": nonce}
                await anyio.sleep(ASK_S)
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await channel.admin(BACKUP, {"action": "cancel", "nonce": nonce})
            raise
        finally:
            line.end()
    if nonce_of(to) != nonce:
        raise Failure(f"{to} is on the machine of the node: run this command there")


def damages_in(folder: Path) -> list[str]:
    """The damage that a check of a folder finds; nothing is written to it."""
    return [each.text for each in content_findings(folder) if each.level == "fail"]


def summary(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """A backup as an object for `--json`."""
    fields: dict[str, Any] = msgspec.to_builtins(manifest)
    for name in ("files", "check", "nonce", "format"):
        del fields[name]
    return {"backup": str(folder), **fields, "files": len(manifest.files), "bytes": manifest.size}


def described(manifest: Manifest) -> str:
    """The content of a backup in words."""
    moment = datetime.fromtimestamp(manifest.made_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    counts = f"{manifest.messages} messages, {manifest.channels} channels, "
    size = f"{manifest.size / 2**20:.1f} MiB"
    return f"{counts}{manifest.streams} streams, {size}, of {moment}"


def left_out(manifest: Manifest) -> str:
    """The cold records that a backup lacks, in words; empty: it has all."""
    if not isinstance(manifest.cold_records, int):
        return ""
    size = f"{(manifest.cold_bytes or 0) / 2**20:.1f} MiB"
    return (
        f"{manifest.cold_records} cold records of streams, {size}, are in the replica of the node "
        "alone"
    )


def _report(args: argparse.Namespace, to: Path, manifest: Manifest) -> None:
    if args.json:
        print_json(summary(to, manifest))
    else:
        print_line(f"{to / NAME}: {described(manifest)}; verified")
    if text := left_out(manifest):
        print(f"millpond backup: not in the backup: {text}", file=sys.stderr)
    for path in manifest.outside:
        print(f"millpond backup: not in the backup: {path}", file=sys.stderr)
    for text in manifest.damages:
        print(f"millpond backup: damaged in the node and in the backup: {text}", file=sys.stderr)
