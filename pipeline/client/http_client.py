"""A blocking client of one node's HTTP listener, without an event loop, for Spark's workers.

Temporary failures are retried with growing delays, until no answer has come for `timeout_ms`. A
node may have several addresses: the client moves to the next one when a connection is refused or
lost, or when the node that answers is stopping.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import starmap
from random import uniform
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from millpond.pipeline.client.column_blocks import BlockDecoder
from millpond.pipeline.client.columns import Columns, decode_batch
from millpond.pipeline.client.s2_codec import TERMINAL, next_frame
from millpond.pipeline.errors import PipelineError
from millpond.pipeline.options import Nodes

DELAY_S, DELAY_S_MAX = 0.05, 2.0
ANSWER_BYTES_MAX = 16 * 2**20
QUIET_S_MAX = 30.0
"""A node that is silent for so long in the middle of an answer counts as unreachable."""
DIAL_S_MAX = 5.0
"""An address that takes no connection for so long is passed over, if the node has others."""
_RETRIED_STATUSES = frozenset((408, 425, 429, 500, 502, 503, 504))
_FINAL_TLS_ERRORS = ("ALERT", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""TLS errors that another attempt would have, too."""
_DRAINING = "server_draining"
_COLUMNS = "s2s/columns"
_S2S = {"content-type": "s2s/proto", "accept": f"{_COLUMNS};large"}

T = TypeVar("T")


class NodeUnreachable(Exception):
    """A temporary failure: the request can be retried."""


class NoSuchStream(PipelineError):
    """The node has no stream of this name."""

    def __init__(self, stream: str, address: str) -> None:
        super().__init__("no_stream", f"no stream {stream!r} at {address}")

    def __reduce__(self) -> tuple[type[PipelineError], tuple[str, str, str]]:
        return PipelineError, self._parts


class StreamTail(NamedTuple):
    """A stream and its tail. `identity`: no earlier or later stream of its name has the same one; 0
    is that of a topic's partition without records. `first` and `bytes`: see `NodeClient.tails`."""

    name: str
    identity: str
    tail: int
    first: int = 0
    bytes: int = 0


class ReplicaStream(NamedTuple):
    """The file of a stream in a snapshot, by its path; records before `first` are trimmed."""

    stream: str
    identity: str
    first: int
    path: str


class ReplicaFiles(NamedTuple):
    """The newest snapshot of a node's replica: its address (None: the node has none), its manifest
    (empty: there is none yet), and the files of streams."""

    url: str | None
    manifest: str
    streams: list[ReplicaStream]


class NodeClient:
    """A client of one node over one connection, which is made on first use. Not thread-safe."""

    def __init__(self, nodes: Nodes, index: int) -> None:
        self._addresses = nodes.addresses[index].split("|")
        self.address = self._addresses[0]
        """The address in use."""
        self._nodes = nodes
        self._connection: HTTPConnection | None = None
        self.is_unused = True
        """No request was made."""

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Requests on streams.

    def names(self, prefix: str = "") -> list[str]:
        """The names of all streams with a prefix."""
        found: list[str] = []
        last, has_more = "", True
        while has_more:
            query = {"prefix": prefix, "start_after": last, "limit": 1000}
            page = self.request_json("GET", f"/v1/streams?{urlencode(query)}")
            found += [each["name"] for each in page["streams"] if not each.get("deleted_at")]
            has_more = page["has_more"] and bool(page["streams"])
            last = page["streams"][-1]["name"] if has_more else ""
        return found

    def tails(self, query: Mapping[str, object], *, details: bool = False) -> list[StreamTail]:
        """Many streams in a few requests: `{"topics": [...]}` or `{"prefix": ...}`.

        `details`: with the first sequence and the size of each. Raises PipelineError.
        """
        found: list[StreamTail] = []
        after = ""
        while True:
            asked = {**query, "after": after, "details": details}
            page = self.request_json("POST", "/millpond/v1/tails", json.dumps(asked).encode())
            found += starmap(StreamTail, page["streams"])
            if page["next"] is None:
                return found
            after = page["next"]

    def replica_files(self, streams: list[str]) -> ReplicaFiles:
        """The files of streams that direct reads may use. Raises PipelineError."""
        asked = json.dumps({"streams": streams}).encode()
        found = self.request_json("POST", "/millpond/v1/replica-files", asked)
        rows = list(starmap(ReplicaStream, found["streams"]))
        return ReplicaFiles(found["replica"], found["manifest"], rows)

    def tail(self, stream: str) -> int:
        """The sequence after the last record. Raises NoSuchStream."""
        found = self.request_json("GET", f"{_path(stream)}/tail", stream=stream)
        return int(found["tail"]["seq_num"])

    def first(self, stream: str, query: Mapping[str, int]) -> int | None:
        """The sequence of the first record of a read; None: no record from there on."""
        wanted: dict[str, int | str] = {**query, "count": 1}

        def attempt() -> int | None:
            found = [int(each.sequences[0]) for each in self._session(stream, wanted)]
            return found[0] if found else None

        return self._retried(attempt)

    def earliest(self, stream: str) -> int:
        """The sequence of the first record, or the tail of an empty stream."""
        found = self.first(stream, {"seq_num": 0})
        return self.tail(stream) if found is None else found

    def at_time(self, stream: str, time_ms: int) -> int | None:
        """The sequence of the first record of that time or later; None: no such record."""
        return self.first(stream, {"timestamp": time_ms})

    def read(self, stream: str, start: int, end: int) -> Iterator[Columns]:
        """Records from `start` to before `end`, across lost connections, up to the tail."""
        give_up_at = time.monotonic() + self._limit_s
        delay = DELAY_S
        while start < end:
            try:
                query: dict[str, int | str] = {"seq_num": start, "clamp": "true"}
                query["count"] = end - start
                for columns in self._session(stream, query):
                    start = int(columns.sequences[-1]) + 1
                    give_up_at, delay = time.monotonic() + self._limit_s, DELAY_S
                    yield columns
                    if start >= end:
                        return
                return
            except NodeUnreachable as error:
                delay = self._wait(delay, give_up_at, error)

    def _session(self, stream: str, query: Mapping[str, int | str]) -> Iterator[Columns]:
        response = self._send("GET", f"{_path(stream)}?{urlencode(query)}", _S2S, None)
        if response.status != 200:
            body = self._whole(response)
            if response.status == 416:
                return
            self.check(response.status, body, stream)
        is_over = False
        is_by_columns = response.getheader("content-type") == _COLUMNS
        decode = BlockDecoder().decode if is_by_columns else _decode_frame
        try:
            while (frame := self._frame(response)) is not None:
                flag, body = frame
                if flag & TERMINAL:
                    self.check(int.from_bytes(body[:2], "big"), body[2:], stream)
                yield from decode(body)
            is_over = True
        finally:
            if not is_over:
                self.close()

    def _frame(self, response: HTTPResponse) -> tuple[int, bytes] | None:
        try:
            return next_frame(response.read)
        except (OSError, HTTPException, EOFError) as error:
            raise self._unreachable(error) from None

    # One request.

    def request_json(
        self, method: str, path: str, body: bytes | None = None, stream: str = ""
    ) -> Any:
        """The answer to a request as JSON, with retries. Raises PipelineError."""
        return json.loads(self.request_bytes(method, path, body, stream=stream) or b"null")

    def request_bytes(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        media: str = "application/json",
        stream: str = "",
    ) -> bytes:
        """The answer to a request as bytes, with retries. Raises PipelineError."""
        headers = {} if body is None else {"content-type": media}

        def attempt() -> bytes:
            status, answer = self._request(method, path, headers, body)
            self.check(status, answer, stream)
            return answer

        return self._retried(attempt)

    def check(self, status: int, body: bytes, stream: str) -> None:
        """Raise NodeUnreachable or PipelineError for a status that is no success."""
        if status < 300:
            return
        code, text = _error_of(body)
        if code == "stream_not_found":
            raise NoSuchStream(stream, self.address)
        if status in _RETRIED_STATUSES:
            self._refused(code)
            raise NodeUnreachable(f"{code}: {text}")
        is_denied = status in (401, 403) and code != "quota_exhausted"
        hint = "see the options token and tokenFile" if is_denied else ""
        raise PipelineError(code, f"{self.address} answered {status}: {text}", hint)

    def _request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> tuple[int, bytes]:
        response = self._send(method, path, headers, body)
        answer = self._whole(response)
        if response.status in _RETRIED_STATUSES:
            code, text = _error_of(answer)
            self._refused(code)
            raise NodeUnreachable(f"{code}: {text}")
        return response.status, answer

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> HTTPResponse:
        self.is_unused = False
        sent = {"s2-basin": self._nodes.basin, **headers}
        if self._nodes.token is not None:
            sent["authorization"] = f"Bearer {self._nodes.token}"
        try:
            connection = self._connection or self._dial()
            connection.request(method, path, body, sent)
            return connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            self.close()
            text = f"{self.address}: {error.verify_message}"
            raise PipelineError("tls_refused", text, "see the option tlsCa") from None
        except ssl.SSLError as error:
            if not any(each in (error.reason or "") for each in _FINAL_TLS_ERRORS):
                raise self._unreachable(error) from None
            self.close()
            text, hint = (
                f"{self.address}: {error.reason}",
                "see the options tlsCert and tlsKey; is it https?",
            )
            raise PipelineError("tls_refused", text.lower().replace("_", " "), hint) from None
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None

    def _whole(self, response: HTTPResponse) -> bytes:
        """A whole body: `read` of a known length raises if it is cut short."""
        is_sized = response.length is not None and response.length <= ANSWER_BYTES_MAX
        try:
            body = response.read() if is_sized else response.read(ANSWER_BYTES_MAX)
            if response.isclosed() or not response.read(1):
                return body
        except (OSError, HTTPException) as error:
            raise self._unreachable(error) from None
        self.close()
        raise PipelineError("bad_answer", f"{self.address}: the answer has no end")

    def _unreachable(self, error: Exception) -> NodeUnreachable:
        text = str(error) or type(error).__name__
        if len(self._addresses) > 1:
            text = f"{self.address}: {text}"
        self._next_address()
        return NodeUnreachable(text)

    def _refused(self, code: str) -> None:
        """A node that is stopping is left for the next address; one that is busy is not."""
        if code == _DRAINING:
            self._next_address()

    def _next_address(self) -> None:
        self.close()
        at = self._addresses.index(self.address) + 1
        self.address = self._addresses[at % len(self._addresses)]

    def _dial(self) -> HTTPConnection:
        """Connect to the address in use. Raises OSError and PipelineError."""
        connection = self._connection = self._prepared()
        timeout = connection.timeout
        if len(self._addresses) > 1:
            connection.timeout = min(DIAL_S_MAX, self._limit_s / len(self._addresses))
        connection.connect()
        connection.timeout = timeout
        connection.sock.settimeout(timeout)
        return connection

    def _prepared(self) -> HTTPConnection:
        parts = urlsplit(self.address)
        timeout = min(QUIET_S_MAX, self._limit_s)
        if parts.scheme == "https":
            port, nodes = parts.port or 443, self._nodes
            try:
                context = ssl.create_default_context(cafile=nodes.tls_ca)
                if nodes.tls_cert is not None:
                    context.load_cert_chain(nodes.tls_cert, nodes.tls_key)
            except (OSError, ssl.SSLError) as error:
                raise PipelineError("bad_option", f"tlsCa, tlsCert, tlsKey: {error}") from None
            return HTTPSConnection(
                parts.hostname or "", port, timeout=timeout, context=context, blocksize=2**16
            )
        return HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)

    # Retries.

    @property
    def _limit_s(self) -> float:
        return self._nodes.timeout_ms / 1000

    def _retried(self, attempt: Callable[[], T]) -> T:
        give_up_at = time.monotonic() + self._limit_s
        delay = DELAY_S
        while True:
            try:
                return attempt()
            except NodeUnreachable as error:
                delay = self._wait(delay, give_up_at, error)

    def _wait(self, delay: float, give_up_at: float, error: NodeUnreachable) -> float:
        """Wait before a retry; returns the next delay. Raises PipelineError after the limit."""
        if time.monotonic() + delay > give_up_at:
            where = ", ".join(self._addresses)
            text = f"{where} did not answer for {self._limit_s:g} s: {error}"
            raise PipelineError(
                "node_away", text, "see the option timeoutMs; a restart continues"
            ) from None
        time.sleep(delay * uniform(0.5, 1.0))
        return min(2 * delay, DELAY_S_MAX)


def _decode_frame(body: bytes) -> Iterator[Columns]:
    columns = decode_batch(body)
    if len(columns.sequences):
        yield columns


def _path(stream: str) -> str:
    return f"/v1/streams/{quote(stream, safe='')}/records"


def _error_of(body: bytes) -> tuple[str, str]:
    """The code and the text of an error answer."""
    try:
        found = json.loads(body)
        return str(found["code"]), str(found["message"])
    except (ValueError, KeyError, TypeError):
        return "refused", body[:200].decode("utf-8", "replace")
