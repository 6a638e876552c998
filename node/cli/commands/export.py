"""`millpond export`: the messages of a channel as lines of JSON."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from millpond.actors.errors import NotFound, TooLargeForPeer
from millpond.actors.messages import Mode
from millpond.actors.store.changes import Origin, Snapshot, StoredMessage
from millpond.actors.store.interface import Fault
from millpond.actors.store.message_attributes import MessageAttributes
from millpond.node.cli.connection import INFO, explain_errors, open_channel
from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.cli.jsonl import MessageLine, encode_line
from millpond.node.cli.options.node import add_channel, add_node_options, add_timeout
from millpond.node.cli.output import counted, print_json, write, write_async
from millpond.node.cli.progress import Progress
from millpond.node.client.channel import Channel

EPILOG = """\
examples:
  millpond export chat/1 > chat.jsonl                     from the local node
  millpond export jobs/mail -o mail.jsonl --connect tcp://10.0.0.5:7400
  millpond export jobs/mail --data /var/lib/millpond      from the folder of a stopped node
  millpond export chat/1 | millpond import --connect tcp://127.0.0.1:7500

A line is an object with channel, mode, id, key, ttl, expires_at (seconds since 1970), attempts and
data. Numbers of 64 bits are strings. channel_base64 and data_base64 replace fields that are not
text. A dead letter has origin, a delayed job has due (seconds since 1970), and a job with a unique
key has unique or unique_base64. The messages stay in the channel.

`millpond stream read --json STREAM > FILE` exports a stream, and a fork with its inherited records;
`millpond stream append --create --jsonl --timestamps STREAM --file FILE` imports it.

A running node requires the rights `admin` and `get`. Messages that are put or acknowledged during
the export may be missing or present. Exit code 4: the channel is empty. --json with a FILE prints a
summary as a JSON object.
"""
EXPORT = 2
"""The operation of packet 90; docs/reference/wire-protocol.md has the table."""
PAGE_BYTES, PAGE_BYTES_MIN = 256 * 1024, 512


class ExportFile:
    """The output of an export, with a count of messages."""

    def __init__(self, fd: int | None, progress: Progress) -> None:
        self.progress = progress
        self._fd = fd
        self.count = 0

    async def add_soon(self, line: MessageLine) -> None:
        """Write, and let the connection work on while the reader is slow."""
        if self._fd is None:
            await write_async(encode_line(line))
            self._added(line)
        else:
            self.add(line)

    def add(self, line: MessageLine) -> None:
        """Write."""
        data = encode_line(line)
        self._added(line)
        if self._fd is None:
            write(data)
            return
        while data:
            data = data[os.write(self._fd, data) :]

    def _added(self, line: MessageLine) -> None:
        self.count += 1
        self.progress.add(1, len(line.row.data))


def add_parser(subparsers: Any) -> None:
    """Add `export` to the command line."""
    parser = subparsers.add_parser(
        "export",
        description="Export the messages of a channel, one per line.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_channel(parser)
    parser.add_argument(
        "-o", dest="file", metavar="FILE", type=Path, help="write to FILE instead of stdout"
    )
    add_timeout(parser)
    add_node_options(parser, or_data=True)


def run(args: argparse.Namespace) -> int:
    """Export one channel."""
    name = os.fsdecode(args.channel)
    beside = args.file is not None
    with (
        Progress("exported", what="message", beside_output=beside) as progress,
        _sink(args.file, progress) as sink,
    ):
        if args.data is not None:
            _export_stopped(args, sink)
        else:
            with explain_errors(args):
                anyio.run(partial(_export_running, args, sink))
        if not sink.count:
            raise Failure(
                f"channel {name!r} is empty (for a stream: `millpond stream read --json`)",
                ExitCode.NOT_FOUND,
            )
    if args.json and args.file is not None:
        print_json({"channel": name, "exported": sink.count})
    else:
        print(f"{counted(sink.count)} of {name!r} exported", file=sys.stderr)
    return ExitCode.OK


@contextmanager
def _sink(file: Path | None, progress: Progress) -> Iterator[ExportFile]:
    """The output file, which is complete or unchanged afterwards."""
    if file is None:
        yield ExportFile(None, progress)
        return
    if file.is_dir():
        raise Failure(f"cannot write {file}: it is a folder")
    part = file.with_name(file.name + ".part")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise Failure(f"cannot write {file}: {exc.strerror}") from exc
    try:
        try:
            yield ExportFile(fd, progress)
            os.fsync(fd)
        finally:
            os.close(fd)
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


async def _export_running(args: argparse.Namespace, sink: ExportFile) -> None:
    async with open_channel(args, args.channel, "consumer") as channel:
        with anyio.fail_after(args.timeout):
            info: dict[str, Any] = await channel.admin(INFO, {"channel": args.channel})
        sink.progress.total = sum(each["messages"] for each in info["page"])
        async for line in _lines(args, channel):
            await sink.add_soon(line)


async def _lines(args: argparse.Namespace, channel: Channel) -> AsyncIterator[MessageLine]:
    """The lines of all pages; messages larger than a page are read alone."""
    request = {"channel": args.channel, "after": 0, "bytes_max": PAGE_BYTES}
    more = True
    while more:
        with anyio.fail_after(args.timeout):
            try:
                answer: dict[str, Any] = await channel.admin(EXPORT, request)
            except TooLargeForPeer:
                if request["bytes_max"] <= PAGE_BYTES_MIN:
                    raise
                request["bytes_max"] //= 4
                continue
        more = answer["more"]
        for each in answer["messages"]:
            request["after"] = each["id"]
            data = each["data"]
            if data is None:
                data = await _alone(args, channel, each["id"])
            if data is not None and each["expires_at"] > time.time():
                yield _line(args.channel, answer["mode"], each | {"data": data})


async def _alone(args: argparse.Namespace, channel: Channel, message_id: int) -> bytes | None:
    with anyio.fail_after(args.timeout):
        try:
            return await channel.get(message_id)
        except NotFound:
            return None  # acknowledged meanwhile


def _line(channel: bytes, mode: str, fields: dict[str, Any]) -> MessageLine:
    origin = fields["origin"]
    row = StoredMessage(
        fields["id"],
        fields["key"],
        fields["ttl"],
        fields["expires_at"],
        fields["data"],
        origin=None if origin is None else msgspec.convert(origin, Origin),
    )
    terms = fields.get("due", 0.0), fields.get("unique", b"")
    return MessageLine(channel, row, fields["attempts"], Mode[mode.upper()], *terms)


def _export_stopped(args: argparse.Namespace, sink: ExportFile) -> None:
    from millpond.node.cli.options.data_folder import (
        check_owner,
        existing_folder,
        explain_folder_errors,
    )
    from millpond.node.data_folder import offline_store

    name = os.fsdecode(args.channel)
    with explain_folder_errors(existing_folder(args.data)):
        check_owner(args.data)
        with offline_store(args.data) as store:
            kept = store.load(args.channel)
    match kept:
        case Snapshot():
            now, terms = time.time(), kept.attributes or MessageAttributes()
            sink.progress.total = len(kept.rows)
            for row in kept.rows:
                if row.expires_at > now:
                    more = terms.due.get(row.id, 0.0), terms.names.get(row.id, b"")
                    tries = kept.attempts.get(row.id, 0)
                    sink.add(MessageLine(args.channel, row, tries, kept.mode, *more))
        case Fault.DAMAGED:
            how = f"`millpond doctor --data {args.data}` shows how to repair it"
            raise Failure(f"channel {name!r} is damaged; {how}")
        case _:
            raise Failure(f"channel {name!r} cannot be read at the moment")
