"""The Parquet layout of tables before Delta, for their conversion.

    _current                 the name of a version
    _versions/00000012.json  query, batch, files of each bucket, resets
    data/0003-....parquet    changes of a bucket

The files of a bucket, in their order, are changes; deletions have no value.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.batch import Batch
from millpond.pipeline.state.entities import STORED, alive, latest
from millpond.pipeline.state.reduce import ROWS

_POINTER = "_current"


class _Reset(msgspec.Struct):
    topic: str
    partition: int
    offset: int


class _Version(msgspec.Struct):
    query: str
    batch: int
    files: dict[int, list[str]] = {}
    resets: list[_Reset] = []


def is_old_table(folder: Path) -> bool:
    """Whether a folder has a table in this layout."""
    return (folder / _POINTER).exists() and (folder / "_versions").is_dir()


def is_old_feed(folder: Path) -> bool:
    """Whether a folder has a change feed of such a table."""
    return any(folder.glob("batch=*"))


def read_old_table(folder: Path) -> Batch:
    """The table as a batch that makes it from nothing: its last one. Raises PipelineError."""
    if not is_old_table(folder):
        raise PipelineError("no_table", f"no table in the Parquet layout in {folder}")
    try:
        name = (folder / _POINTER).read_text("utf-8").strip()
        version = msgspec.json.decode((folder / "_versions" / name).read_bytes(), type=_Version)
        tables = [
            pq.read_table(folder / "data" / each, schema=STORED)
            for files in version.files.values()
            for each in files
        ]
    except (OSError, ValueError, pa.ArrowException) as error:
        raise PipelineError("bad_table", f"{folder} cannot be read: {error}") from None
    floors = {(each.topic, each.partition): each.offset for each in version.resets}
    rows = pa.concat_tables([STORED.empty_table(), *tables]).sort_by("offset")
    found = alive(latest(rows), floors)
    bucket = pc.cast(pa.repeat(0, found.num_rows), pa.int32())
    nothing = ROWS.empty_table()
    changes = found.add_column(0, "bucket", bucket)
    return Batch(version.query, version.batch, changes, nothing, nothing)
