"""The blocking S3P client: `with connect_s3p("127.0.0.1:7402") as s3p`.

Written by scripts/generate_sync.py: do not edit.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random

from millpond.node.client.events import Event
from millpond.node.client.requests.batching import DEFAULT_BATCHING, BatchSettings
from millpond.node.client.requests.reconnecting import REQUESTS_MAX
from millpond.node.client.s3p.client import ADDRESS, FOLLOW_MS
from millpond.node.client.s3p.client import S3p as AsyncS3p
from millpond.node.client.s3p.client import S3pProducer as AsyncS3pProducer
from millpond.node.client.s3p.client import connect_s3p as connect_s3p_async
from millpond.node.client.s3p.records import FIRST, IdLike, RecordId, S3pRecord
from millpond.node.client.sync.portal import Blocking, BlockingContext, SyncFuture


class S3pProducer(Blocking[AsyncS3pProducer]):
    """Appends records to one stream, in the order of the calls. See `BatchSettings`.

    Where the outcome of a batch is unknown, its records fail with OutcomeUnknown and are not sent
    again: in S3P the server could not know that they are the same.
    """

    @property
    def buffered(self) -> int:
        """The number of records that have no result yet."""
        return self._async.buffered

    def append(self, data: bytes) -> RecordId:
        """Take a record and wait until it is kept; its id."""
        return self._await(self._async.append, data)

    def send(self, data: bytes) -> SyncFuture[RecordId]:
        """Take a record, waiting for room in the buffer; the future of its id."""
        return self._await_send(self._async.send, data)

    def send_nowait(self, data: bytes) -> SyncFuture[RecordId]:
        """`send` without waiting; anyio.WouldBlock when the buffer is full."""
        return self._send(self._async.send_nowait, data)

    def flush(self) -> None:
        """Send what waits, and wait for the results of all that was taken so far.

        Raises the first error of a record whose result nobody awaited.
        """
        self._await(self._async.flush)

    def close(self) -> None:
        """`flush`, and take no more."""
        self._await(self._async.aclose)


class S3p(BlockingContext[AsyncS3p]):
    """An open client; see `connect_s3p`. Tasks may share it.

    Methods raise RequestErrors for what the server refuses. After a lost connection they raise
    NotDone for a request without effect, and OutcomeUnknown for one that may have had one.
    `Malformed` and `LimitExceeded` end the connection: requests behind fail with NotDone.
    """

    @property
    def connected(self) -> bool:
        """Whether a connection is live now; the next request dials if none is."""
        return self._async.connected

    @property
    def closed(self) -> bool:
        """Not open yet, closed here, or lost for good."""
        return self._async.closed

    def create(self, stream: str | bytes) -> None:
        """Create a stream. Raises StreamExists."""
        self._await(self._async.create, stream)

    def append(
        self, stream: str | bytes, records: bytes | Sequence[bytes], *, ms: int | None = None
    ) -> RecordId:
        """Append one record or several, all or none; the id of the last one.

        `ms`: the milliseconds of their ids, else the server's clock. Raises NonMonotonicId when
        the stream has later ids already.
        """
        return self._await(self._async.append, stream, records, ms=ms)

    def read(
        self,
        stream: str | bytes,
        min_id: IdLike = FIRST,
        *,
        count: int | None = None,
        block_ms: int = 0,
    ) -> list[S3pRecord]:
        """Records from `min_id` (inclusive) on, at most `count` (None: the server's default).

        Without one, waits for it for `block_ms` milliseconds.
        """
        return self._await(self._async.read, stream, min_id, count=count, block_ms=block_ms)

    def follow(
        self,
        stream: str | bytes,
        min_id: IdLike = FIRST,
        *,
        count: int | None = None,
        block_ms: int = FOLLOW_MS,
    ) -> Iterator[S3pRecord]:
        """Records from `min_id` on, without end: each once, also over lost connections.

        `count`: how many are read at once at most; `block_ms`: how long one read waits, which the
        server must allow.
        """
        return self._iterate(self._async.follow(stream, min_id, count=count, block_ms=block_ms))

    def trim(self, stream: str | bytes, min_id: IdLike) -> None:
        """Remove the records below `min_id`."""
        self._await(self._async.trim, stream, min_id)

    def delete(self, stream: str | bytes) -> None:
        """Remove a stream with all its records. Raises UnknownStream."""
        self._await(self._async.delete, stream)

    @contextmanager
    def producer(
        self, stream: str | bytes, settings: BatchSettings = DEFAULT_BATCHING
    ) -> Generator[S3pProducer]:
        """Append single records in batches; flushed at the end of the block."""
        with self._enter(self._async.producer(stream, settings)) as opened:
            yield S3pProducer(opened, self._portal)


def connect_s3p(
    address: str = ADDRESS,
    *,
    tls: ssl.SSLContext | None = None,
    reconnect: bool = True,
    wait_s: float = 0.0,
    answer_s: float = 30.0,
    requests_max: int = REQUESTS_MAX,
    waiting_max: int = 64,
    on_event: Callable[[Event], None] | None = None,
    rng: Random | None = None,
) -> S3p:
    """Connect to the server at `address` (host:port), and close with the block.

    `address` may be several, separated by commas: a connection that is lost or refused is followed
    by one to the next.

    `tls`: the context for a server with TLS; `millpond.client_context` makes one. `wait_s`: keep
    trying for so long when the server is not there yet. After a loss, the next request reconnects,
    with backoff, unless `reconnect` is off; `on_event` is called with each change. `answer_s`: a
    server that is silent for so long while requests are under way counts as lost.
    `requests_max`: requests under way; `waiting_max`: reads that wait. More of them wait.

    Raises ConnectionLost, and ValueError for arguments.
    """
    return S3p(
        partial(
            connect_s3p_async,
            address,
            tls=tls,
            reconnect=reconnect,
            wait_s=wait_s,
            answer_s=answer_s,
            requests_max=requests_max,
            waiting_max=waiting_max,
            on_event=on_event,
            rng=rng,
        )
    )
