"""Direct reads (`mode=direct`): settled records from the object store of the node's replica.

The driver asks the node, once for all streams of a batch, for the newest snapshot and the file of
each stream in it. A task reads what that file has, in ranges, and the node for the rest. A
file that is gone or damaged, or a store that is away, costs a line of the log, and the node is read
instead. Only a store that refuses is an error, because all other tasks would be refused as well.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from millpond.pipeline.client.columns import Columns
from millpond.pipeline.client.http_client import NodeClient
from millpond.pipeline.client.objects import NoObject, Objects, StoreAway, open_objects
from millpond.pipeline.errors import BadOption

if TYPE_CHECKING:
    from millpond.pipeline.options import Nodes
    from millpond.pipeline.spark.planning import Range

log = logging.getLogger(__name__)

STORE_S = 15.0
"""Requests to a store that is away are repeated for so long; then the node is read."""
AWAY_S = 60.0
"""A store that was away is not asked again for so long by the same process."""
STREAMS_A_REQUEST = 1000
MANIFESTS_MAX = 4
TOLD_MAX = 1000
VERSIONS = (1, 2)
"""Of manifests: the second one is of snapshots with cold objects."""


@dataclass(frozen=True)
class DirectFile:
    """The file of a stream in a snapshot: its object and size, and its path in a data folder.

    `first`: the records before are trimmed. `identity`: of the stream that may be read from it.
    """

    url: str
    options: Mapping[str, str] = field(repr=False)
    name: str
    size: int
    path: str
    first: int
    identity: str


Files = dict[str, tuple[str, int]]
"""The objects of a snapshot and their sizes, by path."""


class DirectPlanner:
    """The planner of direct reads, with the manifests that it read last."""

    def __init__(self, nodes: Nodes, options: Mapping[str, str]) -> None:
        self._nodes = nodes
        self._options = options
        self._manifests: OrderedDict[tuple[str, str], Files] = OrderedDict()

    def plan(self, ranges: list[Range]) -> list[Range]:
        """The ranges with the files from which they may be read. Raises PipelineError."""
        found = list(ranges)
        for node in sorted({each.location.node for each in ranges}):
            at = [
                index
                for index, each in enumerate(ranges)
                if each.location.node == node and each.identity is not None
            ]
            client = NodeClient(self._nodes, node)
            try:
                for first in range(0, len(at), STREAMS_A_REQUEST):
                    self._plan(client, found, at[first : first + STREAMS_A_REQUEST])
            finally:
                client.close()
        return found

    def _plan(self, client: NodeClient, ranges: list[Range], at: list[int]) -> None:
        answer = client.replica_files(sorted({ranges[index].location.stream for index in at}))
        if answer.url is None:
            hint = "millpond serve --replica URL; or leave the option mode out"
            raise BadOption(f"mode: {client.address} has no replica", hint)
        if not answer.manifest:
            _tell(f"{answer.url} has no snapshot yet that direct reads can use")
            return
        files = self._files(answer.url, answer.manifest)
        rows = {each.stream: each for each in answer.streams}
        for index in at:
            row = rows.get(ranges[index].location.stream)
            found = None if row is None else files.get(row.path)
            if row is None or found is None or row.identity != ranges[index].identity:
                continue  # encrypted, or newer than the snapshot, or another one now
            file = DirectFile(answer.url, self._options, *found, row.path, row.first, row.identity)
            ranges[index] = replace(ranges[index], direct=file)

    def _files(self, url: str, manifest: str) -> Files:
        """The files of a snapshot; none if it cannot be read. Raises PipelineError."""
        known = self._manifests.get((url, manifest))
        if known is not None:
            self._manifests.move_to_end((url, manifest))
            return known
        try:
            data = _asked(url, self._options, lambda store: store.get(manifest))
            found = _files_of(data)
        except NotDirect as reason:
            _tell(f"{manifest}: {reason}")
            return {}
        except ValueError:
            _tell(f"{url}: {manifest} is damaged, or of a later version")
            return {}
        self._manifests[url, manifest] = found
        if len(self._manifests) > MANIFESTS_MAX:
            self._manifests.popitem(last=False)
        return found


def _files_of(data: bytes) -> Files:
    """The files in a manifest. Raises ValueError."""
    digest, _, content = data.partition(b"\n")
    if sha256(content).hexdigest().encode() != digest:
        raise ValueError
    found = json.loads(content)
    try:
        if found["version"] not in VERSIONS:
            raise ValueError
        return {
            str(each["path"]): (
                f"blob/{each['sha256'][:2]}/{each['sha256']}",
                int(each["size"]),
            )
            for each in found["files"]
        }
    except (KeyError, TypeError):
        raise ValueError from None


class NotDirect(Exception):
    """The text is why the node is read instead."""


def read_direct(file: DirectFile, start: int, end: int) -> Iterator[Columns]:
    """The records from `start` to before `end` that the file has, up to the first one that it has
    not. Raises PipelineError where the store refuses."""
    try:
        yield from _read(file, max(start, file.first), end)
    except NotDirect as reason:
        _tell(f"{file.name} ({file.path}): {reason}")


def _read(file: DirectFile, start: int, end: int) -> Iterator[Columns]:
    try:
        import msgspec  # noqa: F401  # an executor needs it for direct reads alone

        from millpond.pipeline.client.stored_stream import StoredStream
        from millpond.pipeline.client.table_file import DamagedFile, PagedFile
    except ImportError as error:
        raise BadOption(f"mode: direct needs the package {error.name}") from None
    if start >= min(end, _tails.get(file.name, end)):
        return

    def fetch(first: int, behind: int) -> bytes:
        ask: Callable[[Objects], bytes] = lambda store: store.get_range(file.name, first, behind)  # noqa: E731
        return _asked(file.url, file.options, ask)

    def whole(name: str) -> bytes:
        return _asked(file.url, file.options, lambda store: store.get(name))

    try:
        stream = StoredStream(PagedFile(fetch, file.size), file.path, whole)
        _keep(_tails, file.name, stream.tail)
        if stream.identity == file.identity:
            yield from stream.read(start, end)
    except DamagedFile as error:
        raise NotDirect(f"it is damaged: {error}") from None


# The process of an executor reads many ranges; it keeps what it knows of stores and files.

_stores: dict[tuple[str, tuple[tuple[str, str], ...]], Objects] = {}
_away_until: dict[str, float] = {}
_tails: dict[str, int] = {}
"""The tails of files that were read: a range behind that of its file is the node's."""
_told: dict[str, bool] = {}


def _keep(kept: dict[str, int], name: str, value: int) -> None:
    if len(kept) >= TOLD_MAX:
        kept.clear()
    kept[name] = value


def _asked(url: str, options: Mapping[str, str], ask: Callable[[Objects], bytes]) -> bytes:
    """The answer of a store. Raises NotDirect, PipelineError."""
    if time.monotonic() < _away_until.get(url, 0.0):
        raise NotDirect(f"{url} is away")
    key = (url, tuple(sorted(options.items())))
    store = _stores.get(key)
    if store is None:
        store = _stores[key] = open_objects(url, options, STORE_S)
    try:
        return ask(store)
    except NoObject as error:
        raise NotDirect(f"{error} is not there any more") from None
    except StoreAway as error:
        _away_until[url] = time.monotonic() + AWAY_S
        raise NotDirect(f"the object store is away: {error}") from None


def _tell(text: str) -> None:
    """One line of the log for each text, until there are very many."""
    if text not in _told:
        if len(_told) >= TOLD_MAX:
            _told.clear()
        _told[text] = True
        log.warning("the node is read, not its replica: %s", text)
