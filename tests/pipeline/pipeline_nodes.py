"""A node with its data folder, and what tests put into its streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from millpond.pipeline.client.http_client import NodeClient
from millpond.pipeline.client.s2_codec import Headers, encode_records
from millpond.pipeline.options import SourceOptions, sink_options, source_options
from millpond.pipeline.spark.planning import batch_ranges
from millpond.pipeline.spark.read_task import read_range
from tests.fork_server import ForkedCommand
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
OFF = ("--ws", "off", "--s3p", "off", "--rustlog", "off")


class NodeProcess:
    """A node in a process of its own, for a block. It keeps its port when it is started again.
    Trims by command records take effect at once.

    `client_options`: what clients need besides the address, as a token or TLS files. `settings`:
    environment variables of the node. `module`: runs it in place of `millpond`."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        client_options: dict[str, str] | None = None,
        settings: dict[str, str] | None = None,
        module: str | None = None,
    ) -> None:
        self._folder = folder
        self._client_options = client_options or {}
        self._words = words
        self.settings = settings or {}
        self._module = module
        self._http = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        self.p2p = ""

    def __enter__(self) -> NodeProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def start(self) -> None:
        command = ["serve", "--json", "--data", str(self._folder)]
        listen = ["--http", self._http, "--p2p", "127.0.0.1:0", *OFF, *self._words]
        plain = {key: value for key, value in os.environ.items() if "MILLPOND" not in key}
        environment = plain | {"PYTHONPATH": str(ROOT), "MILLPOND_S2_TRIM_GRACE_S": "0"}
        environment |= self.settings
        words = [*command, *listen]
        if self._module is None:
            process = ForkedCommand(*words, stdout=subprocess.PIPE, env=environment)
        else:
            run = [sys.executable, "-m", self._module, *words]
            process = subprocess.Popen(run, stdout=subprocess.PIPE, env=environment)
        self._process = process
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())["listeners"]
        self._http, self.p2p = told["http"], told["p2p"]

    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def address(self) -> str:
        return f"{'https' if 'tlsCa' in self._client_options else 'http'}://{self._http}"

    @property
    def given(self) -> dict[str, str]:
        """The options that reach it."""
        return {"address": self.address, **self._client_options}

    @contextmanager
    def wire(self, timeout_ms: int = 10_000) -> Iterator[NodeClient]:
        wire = NodeClient(sink_options({**self.given, "timeoutMs": str(timeout_ms)}).nodes, 0)
        try:
            yield wire
        finally:
            wire.close()

    def options(self, **given: str) -> SourceOptions:
        return source_options({**self.given, **given}, is_streaming=False)

    def make(self, *streams: str) -> None:
        with self.wire() as wire:
            for each in streams:
                wire.request_bytes("PUT", f"/v1/streams/{quote(each, safe='')}", b"{}")

    def delete(self, stream: str) -> None:
        with self.wire() as wire:
            wire.request_bytes("DELETE", f"/v1/streams/{quote(stream, safe='')}")

    def values(self, stream: str) -> list[bytes]:
        """The values of all records of a stream, or of a topic's partitions."""
        ranges = batch_ranges(self.options(subscribe=stream))
        found = [batch.column("value").to_pylist() for each in ranges for batch in read_range(each)]
        return [value for each in found for value in each]

    def fill(self, stream: str, bodies: list[bytes], headers: Headers | None = None) -> None:
        """Append, 1000 records at a time."""
        path = f"/v1/streams/{quote(stream, safe='')}/records"
        with self.wire() as wire:
            for first in range(0, len(bodies), 1000):
                rows = [(each, headers or [], None) for each in bodies[first : first + 1000]]
                wire.request_bytes("POST", path, encode_records(rows), media="application/protobuf")

    def trim(self, stream: str, below: int) -> None:
        """By a command record, which is a record of the stream as well."""
        self.fill(stream, [below.to_bytes(8, "big")], [(b"", b"trim")])
