"""`millpond replica`: the replica of a node in an object store, read without the node; a snapshot
by the node; and the restoration of one."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec

from millpond.node.backup.manifest import BadBackup
from millpond.node.cli.commands.backup import ProgressLine, damages_in
from millpond.node.cli.connection import explain_errors, open_channel
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.options.data_folder import explain_folder_errors
from millpond.node.cli.options.node import add_node_options
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import print_json, print_line, size_text
from millpond.node.cli.parser import action
from millpond.node.cli.removal import add_yes, confirm, is_asked, plural
from millpond.node.cli.stream.options import timestamp
from millpond.node.client.probe import PROBE
from millpond.node.peers.data_key import DataKeyError, read_passphrase
from millpond.node.replica.errors import (
    BadAddress,
    BadReplica,
    NoObject,
    ObjectStoreAway,
    ObjectStoreRefuses,
    ReplicaError,
)
from millpond.node.replica.forced_takeover import (
    UnfinishedHistory,
    allow_takeover,
    unfinished_history,
)
from millpond.node.replica.interface import SnapshotReply, SnapshotRequest, SnapshotState
from millpond.node.replica.keys import KeysCipher
from millpond.node.replica.object_store import ObjectStore, open_object_store
from millpond.node.replica.objects import BEAT_S
from millpond.node.replica.restoration import (
    ReplicaRestoration,
    ReplicaStatus,
    Restored,
    read_status,
    verify,
)
from millpond.node.replica.snapshots import prune
from millpond.node.units import duration_s

ALIVE_S = 6 * BEAT_S
"""A node whose last beat is younger owns its replica, and removes what is old by itself."""
SNAPSHOT = 26
"""The operation of packet 90; docs/reference/wire-protocol.md has the table."""
SNAPSHOT_TIMEOUT_S = 3600.0
ASK_S, ASK_S_MAX = 0.05, 1.0

EPILOG = """\
examples:
  millpond replica status s3://bucket/node
  millpond replica verify file:///mnt/replica
  millpond replica prune s3://bucket/node --keep 7d
  millpond replica snapshot --connect tcp://127.0.0.1:7400
  millpond replica takeover s3://bucket/node

A node ships to a replica with `millpond serve --replica URL`; `millpond restore --from URL` makes a
data folder of one. The credentials of an object store are those of its usual environment variables
(AWS_ACCESS_KEY_ID and so on). docs/guides/replica.md has the rest.
"""
STATUS_EPILOG = """\
example:
  millpond replica status s3://bucket/node --json

The owner and when it was alive last, the last record that was shipped, the moments that can be
restored. No node is asked.
"""
VERIFY_EPILOG = """\
example:
  millpond replica verify s3://bucket/node

Every object that a restoration may need is read, and all hashes and the chain of the journal are
compared. Exit code 1: an object is missing or damaged, and named.
"""
SNAPSHOT_EPILOG = """\
examples:
  millpond replica snapshot
  millpond replica snapshot --connect tcp://127.0.0.1:7500 --json

The running node uploads a snapshot of its store to its replica, and this command waits for it. The
snapshot has everything that was acknowledged before. A restoration then reads no older journal. The
node makes snapshots by itself as well: this is for the moment before something risky. Needs the
right admin.

Exit code 1: there is no snapshot, or the node has no replica. Exit code 3: it is not finished after
--timeout seconds; the node goes on with it.
"""
PRUNE_EPILOG = """\
example:
  millpond replica prune s3://bucket/node --keep 30d

Removes what no restoration to a moment of the last so many days needs; the newest snapshot stays. A
node does this by itself: this is for the replica of a node that does not run.
"""

TAKEOVER_EPILOG = """\
example:
  millpond replica takeover s3://bucket/node

A node that lost the end of its journal, or ran without its replica, begins a new history in it, and
uploads a snapshot first. When the node is lost before that is finished, a standby waits: nothing of
the new history can be restored. This command tells what a takeover would lose, asks, and then lets
a standby go on from the end of the history before, once the owner gives no sign of life.

What was acknowledged as replicated is not lost. What the disk of the owner alone has is: start the
owner again instead, if that is possible. Leave is given for what the replica has now: when the
owner ships more, it counts for nothing.

Exit code 1: there is nothing that a standby waits for, or no snapshot at all.
"""


def add_parser(subparsers: Any) -> None:
    """Add `replica` to the command line."""
    parser = subparsers.add_parser(
        "replica",
        description="Show, verify, prune and snapshot the replica of a node; force a takeover.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)
    _add(actions, "status", "Show a replica.", STATUS_EPILOG, _status)
    _add(actions, "verify", "Read a whole replica and compare all hashes.", VERIFY_EPILOG, _verify)
    pruned = _add(actions, "prune", "Remove what is older.", PRUNE_EPILOG, _prune)
    pruned.add_argument(
        "--keep",
        metavar="SPAN",
        type=_span,
        required=True,
        help="the moments of so long can be restored afterwards (7d, 12h)",
    )

    forced = _add(
        actions,
        "takeover",
        "Let a standby go on without the last history of a lost owner.",
        TAKEOVER_EPILOG,
        _takeover,
    )
    add_yes(forced)

    asked = action(actions, "snapshot", "Have a node make a snapshot now.", SNAPSHOT_EPILOG)
    asked.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=SNAPSHOT_TIMEOUT_S,
        help="give up after S seconds, with exit code 3 (default %(default)g)",
    )
    add_node_options(asked)
    asked.set_defaults(url=None)


def _add(actions: Any, name: str, summary: str, epilog: str, work: Any) -> argparse.ArgumentParser:
    parser = action(actions, name, summary, epilog)
    parser.add_argument("url", metavar="URL", help="address of the replica")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(work=work)
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.url is None:
        with explain_errors(args):
            return anyio.run(_snapshot, args)
    with _explained(args.url):
        code: int = args.work(args, open_object_store(args.url))
    return code


def is_address(source: str) -> bool:
    """True for the address of a replica, false for a path."""
    return "://" in source


def instant(text: str) -> float:
    """A moment in seconds since 1970; without an offset it is of the local time zone."""
    found = timestamp(text)
    assert isinstance(found, datetime), "it is a time"
    return found.timestamp()


def restore_replica(args: argparse.Namespace) -> int:
    """Restore the replica of the arguments of `millpond restore`."""
    damages: list[str] = []
    with _explained(args.source), explain_folder_errors(args.data):
        objects = open_object_store(args.source)
        restoration = ReplicaRestoration(
            objects,
            args.data,
            args.at,
            until_damage=args.until_damage,
            keys=_cipher(args.replica_keys),
        )
        manifest = restoration.manifest
        line = ProgressLine("restored", manifest.size)
        try:
            found = restoration.run(line.add, lambda: damages.extend(damages_in(args.data)))
        finally:
            line.end()
    if args.json:
        print_json(
            {
                "replica": args.source,
                "data": str(args.data),
                "snapshot_at": manifest.made_at,
                "made_at": found.made_at,
                "lsn": found.lsn,
                "objects": found.objects,
                "records": found.records,
                "is_cut": found.is_cut,
                "damage": found.damage or None,
                "cold_bytes": manifest.cold_bytes,
                "keys_at": None if found.keys is None else found.keys.made_at,
            }
        )
    else:
        print_line(
            f"{args.data}: the node of {_moment(found.made_at)}: its snapshot of "
            f"{_moment(manifest.made_at)}, and {found.records} records behind that"
        )
        print_line(_identity(found))
    if found.is_cut:
        text = "what came later cannot be restored: the node had lost the end of its journal, and"
        print(f"millpond restore: {text} no snapshot was finished since", file=sys.stderr)
    if cold_bytes := found.manifest.cold_bytes:
        text = f"{size_text(cold_bytes)} of streams stay in {args.source}: serve the folder with it"
        print(f"millpond restore: {text} as its --replica", file=sys.stderr)
    if found.damage:
        print(f"millpond restore: restored up to damage: {found.damage}", file=sys.stderr)
    for text in damages:
        print(f"millpond restore: damaged: {text}", file=sys.stderr)
    return ExitCode.FAILURE if damages or found.damage else ExitCode.OK


def _cipher(file: str | None) -> KeysCipher | None:
    if file is None:
        return None
    try:
        return KeysCipher(read_passphrase(file), os.urandom)
    except DataKeyError as exc:
        raise usage_error(str(exc)) from exc


def _identity(found: Restored) -> str:
    if found.keys is not None:
        return (
            f"it has the identity and the keys of {_moment(found.keys.made_at)}: never start the "
            "original beside it"
        )
    hint = "; the replica has it, for --replica-keys" if found.has_keys else ""
    return f"its first start makes a new identity, unless those files are copied into it{hint}"


def _status(args: argparse.Namespace, objects: ObjectStore) -> int:
    found = read_status(objects)
    if args.json:
        print_json(_as_json(args.url, found))
        return ExitCode.OK
    owner, beat, last = found.owner, found.beat, found.last
    rows = {
        "node": found.format.node.hex(),
        "owner": "none" if owner is None else f"{owner.host}, epoch {owner.epoch}",
        "alive": "never" if beat is None else _moment(beat.at),
        "shipped": "nothing" if last is None else f"lsn {last.last_lsn}, {_moment(last.made_at)}",
        "journal": f"{found.journal_objects} objects, {size_text(found.journal_bytes)}",
        "cold": f"{found.cold_objects} objects, {size_text(found.cold_bytes)}",
        "keys": "none" if found.keys_at is None else f"sealed, {_moment(found.keys_at)}",
        "snapshots": str(len(found.snapshots)),
    }
    for each in found.snapshots:
        text = f"{each.messages} messages, {each.streams} streams, {size_text(each.size)}"
        rows[_moment(each.made_at)] = text
    for name, text in rows.items():
        print_line(f"{name:12} {text}")
    return ExitCode.OK


def _as_json(url: str, found: ReplicaStatus) -> dict[str, Any]:
    owner, beat, last = found.owner, found.beat, found.last
    return {
        "replica": url,
        "node": found.format.node.hex(),
        "owner": None if owner is None else owner.host,
        "epoch": None if owner is None else owner.epoch,
        "alive_at": None if beat is None else beat.at,
        "lsn": None if last is None else last.last_lsn,
        "shipped_at": None if last is None else last.made_at,
        "journal_objects": found.journal_objects,
        "journal_bytes": found.journal_bytes,
        "cold_objects": found.cold_objects,
        "cold_bytes": found.cold_bytes,
        "keys_at": found.keys_at,
        "snapshots": [
            {
                "at": each.made_at,
                "lsn": each.lsn,
                "bytes": each.size,
                "cold_bytes": each.cold_bytes,
                "messages": each.messages,
            }
            for each in found.snapshots
        ],
    }


def _verify(args: argparse.Namespace, objects: ObjectStore) -> int:
    line = ProgressLine("verified", 0)
    try:
        found = verify(objects, line.add)
    finally:
        line.end()
    counts = {
        "snapshots": found.snapshots,
        "blobs": found.blobs,
        "cold_objects": found.cold_objects,
        "journal_objects": found.journal_objects,
        "records": found.records,
        "bytes": found.bytes,
    }
    if args.json:
        print_json({"replica": args.url, **counts})
    else:
        summary = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
        print_line(f"{args.url}: {summary}; verified")
    return ExitCode.OK


def _prune(args: argparse.Namespace, objects: ObjectStore) -> int:
    beat, now = read_status(objects).beat, time.time()
    if beat is not None and now - beat.at < ALIVE_S:
        text = f"its node was alive at {_moment(beat.at)}, and removes what is old by itself"
        raise Failure(f"{args.url}: {text}", ExitCode.REFUSED)
    found = prune(objects, args.keep, now)
    counts = {
        "snapshots": found.snapshots,
        "journal": found.journal,
        "blobs": found.blobs,
        "cold": found.cold,
    }
    if args.json:
        print_json({"replica": args.url, "removed": counts})
    else:
        summary = ", ".join(f"{count} {name}" for name, count in counts.items())
        print_line(f"{args.url}: removed {summary}")
    return ExitCode.OK


def _takeover(args: argparse.Namespace, objects: ObjectStore) -> int:
    found = unfinished_history(objects)
    if found is None:
        text = "its last history has a snapshot, so a standby takes over by itself"
        raise Failure(f"{args.url}: nothing to allow: {text}")
    if not args.json:
        print(_warning(args.url, found), file=sys.stderr)
    if is_asked(args):
        confirm("Allow a standby to go on without it?", "no takeover was allowed")
    allow_takeover(objects, found)
    if args.json:
        print_json(
            {
                "replica": args.url,
                "owner": found.host,
                "kept_at": found.kept_at,
                "kept_lsn": found.kept_lsn,
                "lost_objects": found.objects,
                "lost_records": found.records,
                "lost_from": found.began_at,
                "lost_to": found.ended_at,
            }
        )
    else:
        print_line(f"{args.url}: a standby may go on from {_moment(found.kept_at)}")
    return ExitCode.OK


def _warning(url: str, found: UnfinishedHistory) -> str:
    owner = f"the owner ({found.host})" if found.host else "the owner"
    records, objects = plural(found.records, "record"), plural(found.objects, "journal object")
    began, ended = _moment(found.began_at), _moment(found.ended_at)
    lines = (
        f"{url}: {owner} began a new history at {began}, and has uploaded no snapshot of it.",
        f"A takeover goes on from {_moment(found.kept_at)}. Lost are {records} in {objects}",
        f"from then to {ended}, and what the disk of the owner alone has. Nothing that was",
        "acknowledged as replicated is lost. Start the owner again instead, if its disk is there.",
    )
    return "\n".join(lines)


async def _snapshot(args: argparse.Namespace) -> int:
    """Have the node make a snapshot, and wait for it."""
    found, delay_s = SnapshotReply(SnapshotState.WAITING), ASK_S
    with anyio.move_on_after(args.timeout):
        async with open_channel(args, PROBE, "consumer") as channel:
            while found.state not in (SnapshotState.MADE, SnapshotState.FAILED):
                asked = SnapshotRequest(found.number)
                answer = await channel.admin(SNAPSHOT, msgspec.to_builtins(asked))
                found = msgspec.convert(answer, SnapshotReply)
                if found.state in (SnapshotState.WAITING, SnapshotState.COPYING):
                    await anyio.sleep(delay_s)
                    delay_s = min(2 * delay_s, ASK_S_MAX)
    match found.state:
        case SnapshotState.MADE:
            _report_snapshot(args, found)
            return ExitCode.OK
        case SnapshotState.FAILED:
            raise Failure(f"no snapshot: {found.error}")
        case state if found.number:
            why = f": {found.error}" if found.error else ""
            text = f"the snapshot is {state} after {args.timeout:g} s (--timeout){why}"
            raise Failure(text, ExitCode.TIMEOUT)
        case _:
            raise TimeoutError


def _report_snapshot(args: argparse.Namespace, found: SnapshotReply) -> None:
    if args.json:
        fields = {"made_at": found.made_at, "bytes": found.bytes}
        print_json({"replica": found.url, "snapshot": found.name, **fields})
    else:
        size = size_text(found.bytes)
        print_line(f"{found.url}: {found.name}, {_moment(found.made_at)}, {size} uploaded")


def _span(text: str) -> float:
    found = duration_s(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time such as 7d or 12h")
    return found


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@contextmanager
def _explained(url: str) -> Generator[None]:
    """Errors of a replica as failures of the command."""
    try:
        yield
    except BadAddress as exc:
        raise usage_error(str(exc)) from exc
    except (ObjectStoreAway, ObjectStoreRefuses) as exc:
        code = ExitCode.REFUSED if isinstance(exc, ObjectStoreRefuses) else ExitCode.FAILURE
        raise Failure(f"{url}: {exc}", code) from exc
    except (BadReplica, NoObject, BadBackup, ReplicaError) as exc:
        raise Failure(f"{url}: {exc}") from exc
