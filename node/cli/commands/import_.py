"""`millpond import`: exported messages into a node, or into the folder of a stopped node."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from math import ceil
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import anyio
import msgspec

from millpond.actors.channels.settings import TTL_UNLIMITED
from millpond.actors.errors import KeyReused, RequestError
from millpond.actors.ids import EPOCH_MS
from millpond.actors.messages import Mode
from millpond.actors.store.changes import AttemptsSet, Change, ModeSet, Snapshot, StoredMessage
from millpond.actors.store.message_attributes import DueAt, UniqueKey
from millpond.node.cli.connection import explain_errors, open_channel
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.input import STDIN, read_lines
from millpond.node.cli.jsonl import LINE_BYTES_MAX, BadLine, MessageLine, decode_line
from millpond.node.cli.options.node import add_node_options, add_timeout, channel_name
from millpond.node.cli.options.units import U32_MAX
from millpond.node.cli.output import counted, print_json
from millpond.node.cli.progress import Progress
from millpond.node.client.channel import Channel
from millpond.node.client.errors import ModeMismatch
from millpond.node.client.future import ReplyFuture
from millpond.node.client.in_flight import Receipt
from millpond.node.client.retry import RETRYABLE, RetryBudget
from millpond.node.data_folder import OfflineStore
from millpond.node.jobs.requests import Operation, ask
from millpond.transports.p2p.channel_operations import ChannelOperation

EPILOG = """\
examples:
  millpond import chat.jsonl                        into the channels of the lines
  millpond import chat/copy chat.jsonl              into one channel
  millpond export chat/1 --connect tcp://old:7400 | millpond import --connect tcp://new:7400
  millpond import chat.jsonl --data /srv/millpond   into the folder of a stopped node

A single argument is the FILE if such a file exists, else the CHANNEL; stdin is read then, and must
not be empty.

A running node stores the messages with their idempotency keys, the rest of their time to live, and
new ids. Importing a file twice changes nothing while the node remembers the keys. Jobs keep their
due times and unique keys; a job whose unique key exists is skipped. Dead letters need another
channel: clients cannot write to names with `!`.

In a folder the messages are stored as they were, with id, deadline, attempts and origin. Existing
ids and unique keys are skipped, and the limits of channels do not apply.

Expired messages are skipped. Refused messages are reported on stderr, and the exit code is 1. A
full node or channel ends the import, which can be repeated. --json prints the summary as an object.
"""
AHEAD_MAX, TOLD_MAX = 256, 10
RETRY_LIMIT_S = 30.0


class Summary(msgspec.Struct):
    """The counts of imported, existing, expired and refused messages."""

    imported: int = 0
    already_there: int = 0
    expired: int = 0
    refused: int = 0

    def refuse(self, number: int, reason: object) -> None:
        """Report a refused line, up to a number of lines."""
        self.refused += 1
        if self.refused <= TOLD_MAX:
            print(f"millpond import: line {number}: {reason}", file=sys.stderr)

    @property
    def is_empty(self) -> bool:
        """True if there was no line."""
        return not (self.imported or self.already_there or self.expired or self.refused)

    def __str__(self) -> str:
        text = f"{counted(self.imported)} imported"
        rest = {"already there": self.already_there, "expired": self.expired}
        rest["refused"] = self.refused
        return text + "".join(f", {count} {what}" for what, count in rest.items() if count)


def add_parser(subparsers: Any) -> None:
    """Add `import` to the command line."""
    parser = subparsers.add_parser(
        "import",
        description="Import exported messages into a node.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", metavar="CHANNEL | FILE", nargs="*", help="channel or file; see below"
    )
    add_timeout(parser)
    add_node_options(parser, or_data=True)


def run(args: argparse.Namespace) -> int:
    """Import every line."""
    args.channel, file = _channel_and_file(args.words)
    summary = Summary()
    try:
        with (
            _opened(file, args.words) as fd,
            Progress("read", what="message", source=fd, beside_output=True) as progress,
        ):
            args.progress = progress
            if args.data is not None:
                _import_offline(args, fd, summary)
            else:
                with explain_errors(args):
                    anyio.run(partial(_import_online, args, fd, summary))
        if len(args.words) == 1 and file == "-" != args.words[0] and summary.is_empty:
            text = f"there is no file {args.words[0]!r}, and nothing came on stdin"
            raise Failure(text, ExitCode.NOT_FOUND)
    finally:
        print(summary, file=sys.stderr)
        if args.json:
            print_json(msgspec.to_builtins(summary))
    return ExitCode.FAILURE if summary.refused else ExitCode.OK


def _channel_and_file(words: list[str]) -> tuple[bytes | None, str]:
    match words:
        case []:
            return None, "-"
        case [word]:
            if Path(word).is_dir():
                raise usage_error(f"{word} is a folder; give a FILE, or `import CHANNEL -`")
            is_file = word == "-" or Path(word).exists()
            channel, file = (None, word) if is_file else (word, "-")
        case [channel, file]:
            pass
        case _:
            raise usage_error("give at most a CHANNEL and a FILE")
    try:
        return None if channel is None else channel_name(channel), file
    except argparse.ArgumentTypeError as exc:
        raise usage_error(str(exc)) from exc


@contextmanager
def _opened(file: str, words: list[str]) -> Iterator[int]:
    if file == "-":
        if sys.stdin.isatty():
            text = "nothing to import" if len(words) != 1 else f"there is no file {words[0]!r}"
            raise usage_error(f"{text}: give a FILE, or a pipe on stdin")
        yield STDIN
        return
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise Failure(f"cannot read {file}: {exc.strerror}") from exc
    try:
        yield fd
    finally:
        os.close(fd)


async def messages(args: argparse.Namespace, fd: int) -> AsyncIterator[tuple[int, MessageLine]]:
    """The lines with their numbers. Raises Failure for an invalid line."""
    number = 0
    async for text in read_lines(LINE_BYTES_MAX, fd):
        number += 1
        if text.strip():
            try:
                line = decode_line(text)
            except BadLine as exc:
                raise Failure(f"line {number} is not an exported message: {exc}") from exc
            args.progress.add(1, len(line.row.data))
            yield number, msgspec.structs.replace(line, channel=args.channel or line.channel)


def _import_offline(args: argparse.Namespace, fd: int, summary: Summary) -> None:
    from millpond.node.cli.options.data_folder import check_owner, explain_folder_errors
    from millpond.node.data_folder import offline_store

    with explain_folder_errors(args.data):
        check_owner(args.data)
        with offline_store(args.data) as store:
            anyio.run(partial(_store_all, messages(args, fd), summary, store))


async def _import_online(args: argparse.Namespace, fd: int, summary: Summary) -> None:
    """Import one channel at a time, in the order of the lines."""
    rest = messages(args, fd)
    following = await anext(rest, None)
    while following is not None:
        line = following[1]
        async with _producing(args, line.channel, line.mode) as channel:
            puts = _Puts(args, channel, summary, await _last_id(channel))
            while following is not None and following[1].channel == line.channel:
                await puts.put(*following)
                following = await anext(rest, None)
            await puts.finish()


async def _last_id(channel: Channel) -> int:
    """The last id of the node: that of a message which the node had before is not above it, also if
    the message has gone and only its key is known."""
    reply = await channel.admin(ChannelOperation.LIST, {"limit": 1, "patterns": []})
    last_id = reply["last_id"]
    assert isinstance(last_id, int), "an id"
    return last_id


@asynccontextmanager
async def _producing(
    args: argparse.Namespace, name: bytes, mode: Mode | None
) -> AsyncIterator[Channel]:
    """The channel, in its old mode if the node allows that."""
    wanted: Any = None if mode is None else mode.name.lower()
    async with AsyncExitStack() as stack:
        try:
            channel = await stack.enter_async_context(
                open_channel(args, name, "producer", mode=wanted)
            )
        except ModeMismatch as exc:
            text = f"channel {os.fsdecode(name)!r} was in {wanted} mode, and here {exc}"
            print(f"millpond import: {text}", file=sys.stderr)
            channel = await stack.enter_async_context(open_channel(args, name, "producer"))
        yield channel


class _Puts:
    """The puts in flight, oldest first."""

    def __init__(
        self, args: argparse.Namespace, channel: Channel, summary: Summary, last_id: int
    ) -> None:
        self._last_id = last_id
        """New messages have ids above this one."""
        self._args = args
        self._channel = channel
        self._summary = summary
        self._rng = Random()
        self._waiting: deque[tuple[int, MessageLine, ReplyFuture[Receipt]]] = deque()

    async def put(self, number: int, line: MessageLine) -> None:
        """Send a message, unless it has expired."""
        if line.unique or line.due > time.time():
            await self._put_job(number, line)
            return
        ttl = self._ttl(line, time.time())
        if ttl is None:
            self._summary.expired += 1
            return
        while len(self._waiting) >= AHEAD_MAX:
            await self._settle()
        data, key = line.row.data, packet_key(line.row.key)
        while True:
            try:
                answer = self._channel.put_nowait(data, ttl=ttl, key=key)
            except anyio.WouldBlock:
                await self._settle()
            except RequestError as exc:
                if isinstance(exc, KeyReused) and self._waiting:
                    # Perhaps the same message with another rest of its ttl: the node can tell.
                    await self._settle()
                    continue
                self._summary.refuse(number, exc)
                return
            else:
                self._waiting.append((number, line, answer))
                return

    async def _put_job(self, number: int, line: MessageLine) -> None:
        """Put a job; its time to live counts from its due time."""
        due = line.due if line.due > time.time() else 0.0
        ttl = self._ttl(line, due or time.time())
        if ttl is None:
            self._summary.expired += 1
            return
        fields = {"key": packet_key(line.row.key), "ttl": ttl, "data": line.row.data}
        fields |= {"due": round(due * 1000), "unique": line.unique}
        budget = RetryBudget(RETRY_LIMIT_S, self._rng, time.monotonic)
        while True:
            try:
                with anyio.fail_after(self._args.timeout):
                    answer = await ask(self._channel, Operation.PUT, **fields)
            except RETRYABLE as exc:
                await budget.wait(exc)
            except RequestError as exc:
                self._summary.refuse(number, exc)
                return
            else:
                self._summary.already_there += answer["existing"]
                self._summary.imported += not answer["existing"]
                return

    async def finish(self) -> None:
        """Wait for all replies."""
        while self._waiting:
            await self._settle()

    async def _settle(self) -> None:
        number, line, answer = self._waiting.popleft()
        try:
            with anyio.fail_after(self._args.timeout):
                receipt = await answer
        except RETRYABLE:
            await self._again(line)
        except RequestError as exc:
            self._summary.refuse(number, exc)
            return
        else:
            if receipt.id <= self._last_id or receipt.id == line.row.id:
                self._summary.already_there += 1
                return
            self._last_id = receipt.id
        self._summary.imported += 1

    async def _again(self, line: MessageLine) -> None:
        """Put a message again after a retryable error, within a time limit."""
        ttl = self._ttl(line, time.time())
        data, key = line.row.data, packet_key(line.row.key)
        ttl = 1 if ttl is None else ttl
        await self._channel.put(data, ttl=ttl, key=key, retry_for=RETRY_LIMIT_S)

    def _ttl(self, line: MessageLine, since: float) -> int | None:
        """The rest of the time to live, from `since` on; None: it is over. 0, which is the
        queue's own, for a job that does not expire."""
        if line.row.ttl == TTL_UNLIMITED and self._channel.mode is Mode.QUEUE:
            return 0
        ttl = min(ceil(line.row.expires_at - since), U32_MAX)
        return ttl if ttl > 0 else None


def packet_key(key: int) -> int:
    """The key as packets have it: one of 64 bits was a dead letter's, or that of a sender whom this
    node does not know."""
    return key if key <= U32_MAX else crc32(key.to_bytes(8, "big"))


BATCH_BYTES = 256 * 1024
ID_BITS_BELOW_MS, AHEAD_S = 22, 366 * 86_400.0
"""Ids of a node whose clock was wrong may be ahead. An id further ahead than this is refused: the
node that gets it would begin with it, and ids end in 2080 (PA-31)."""


async def _store_all(
    messages: AsyncIterator[tuple[int, MessageLine]], summary: Summary, store: OfflineStore
) -> None:
    """Store every message as it was. Raises Failure when one cannot be stored."""
    batch: _OfflineBatch | None = None
    async for number, line in messages:
        if batch is None or batch.name != line.channel:
            if batch is not None:
                batch.write()
            batch = _OfflineBatch(line.channel, store, summary)
        batch.add(number, line)
    if batch is not None:
        batch.write()


class _OfflineBatch:
    """A batch of messages of one channel."""

    def __init__(self, name: bytes, store: OfflineStore, summary: Summary) -> None:
        kept = store.load(name)
        if not isinstance(kept, Snapshot):
            raise Failure(f"channel {os.fsdecode(name)!r} is damaged or cannot be read")
        self.name = name
        self._store = store
        self._summary = summary
        self._ids = {row.id for row in kept.rows}
        self._names = set() if kept.attributes is None else set(kept.attributes.names.values())
        self._changes: list[Change] = []
        self._count = 0
        self._bytes = 0

    def add(self, number: int, line: MessageLine) -> None:
        """Add one, unless it is there already or has expired."""
        row, now = line.row, time.time()
        if (row.id >> ID_BITS_BELOW_MS) + EPOCH_MS > (now + AHEAD_S) * 1000:
            raise Failure(f"line {number}: the id is a year ahead of this machine's clock")
        if row.id in self._ids or line.unique in self._names:
            self._summary.already_there += 1
        elif row.expires_at <= now:
            self._summary.expired += 1
        else:
            if not self._ids and line.mode is not None:
                self._changes.append(ModeSet(line.mode))
            self._ids.add(row.id)
            self._changes.append(_own_key(row))
            if line.due > now:
                self._changes.append(DueAt(row.id, line.due))
            if line.unique:
                self._names.add(line.unique)
                self._changes.append(UniqueKey(row.id, line.unique))
            if line.attempts:
                self._changes.append(AttemptsSet(row.id, line.attempts))
            self._count += 1
            self._bytes += len(row.data)
            if self._bytes >= BATCH_BYTES:
                self.write()

    def write(self) -> None:
        """Write the messages to the store."""
        if self._changes and self._store.write(self.name, self._changes) is not None:
            raise Failure(f"not stored: {self._store.reason}; repeat the import later")
        self._summary.imported += self._count
        self._changes, self._count, self._bytes = [], 0, 0


def _own_key(row: StoredMessage) -> StoredMessage:
    """The message without the number of its sender, which has no meaning in another folder."""
    return row if row.origin else msgspec.structs.replace(row, key=packet_key(row.key))
