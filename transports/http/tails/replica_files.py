"""`POST /millpond/v1/replica-files`: the files of streams in the newest snapshot of the replica.

A reader with access to the object store reads settled records there, without the node. It is told
of streams that it may read, and where each begins now: what the snapshot has before that is
trimmed. Encrypted streams are left out, as the node alone decrypts.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio.lowlevel
import msgspec

from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.paths import REPLICA_FILES
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, json_response
from millpond.transports.http.s2.app import S2Api
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.errors import ErrorCode, NoSuchMethod, S2Error, invalid
from millpond.transports.http.s2.interface import S2NodeServices
from millpond.transports.http.s2.metadata import stream_metadata
from millpond.transports.http.s2.usage import S2Usage
from millpond.transports.http.tails.app import BODY_BYTES_MAX, GROUP_MAX, PAGE_MAX, described
from millpond.transports.http.tails.interface import ReplicaFiles


class FilesQuery(msgspec.Struct, frozen=True):
    """The streams that are asked for."""

    streams: list[str]


class FilesAnswer(msgspec.Struct, frozen=True):
    """The address of the replica (None: there is none), the name of the manifest, and of each
    stream that exists: name, identity, first sequence, path of its file. A manifest may lack a
    file, or have that of an earlier stream of the name."""

    replica: str | None = None
    manifest: str = ""
    streams: list[tuple[str, str, int, str]] = []


_query = msgspec.json.Decoder(FilesQuery).decode


class ReplicaFilesApi:
    """Implements `millpond.transports.http.app.Api`; its refusals are those of S2."""

    name = "replica-files"

    def __init__(self, services: S2NodeServices, files: ReplicaFiles) -> None:
        self._services = services
        self._files = files
        self._usage = S2Usage(services.now, lambda name: services.basins.find(name) is not None)
        self._s2 = S2Api(services)

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        context = S2Context(self._services, request, self._usage, writer)
        try:
            if request.method != "POST" or len(request.segments) > len(REPLICA_FILES):
                raise NoSuchMethod(request.method, ["POST"])
            query = decode_json(_query, await context.json_body(BODY_BYTES_MAX))
            if len(query.streams) > PAGE_MAX:
                raise invalid(f"streams: at most {PAGE_MAX} names")
            return json_response(200, await self._answer(context, query))
        except S2Error as error:
            return error.response

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """A rejection by the application, with a code of S2."""
        return self._s2.reject(reason, delay_ms)

    async def _answer(self, context: S2Context, query: FilesQuery) -> FilesAnswer:
        basin = context.basin()
        targets = [
            context.target_named(basin, each.encode(), ErrorCode.INVALID) for each in query.streams
        ]
        for target in targets:
            context.require(Operation.READ, target)
        context.require_basin(basin)
        snapshot = self._files.replica_snapshot()
        if snapshot is None:
            return FilesAnswer()
        rows: list[tuple[str, str, int, str]] = []
        if snapshot.manifest:
            with context.cell_client() as cells:
                for at in range(0, len(targets), GROUP_MAX):
                    await anyio.lowlevel.checkpoint()
                    group = targets[at : at + GROUP_MAX]
                    rows += await self._rows(cells, group)
        return FilesAnswer(snapshot.url, snapshot.manifest, rows)

    async def _rows(
        self, cells: CellClient, targets: Sequence[S2Target]
    ) -> list[tuple[str, str, int, str]]:
        found = await described(cells, targets)
        return [
            (
                target.shown.decode(),
                f"{found[target.stream].incarnation:x}",
                found[target.stream].info.trim_point,
                self._files.partition_path(target.cell),
            )
            for target in targets
            if target.stream in found
            and stream_metadata(found[target.stream].settings).cipher is None
        ]
