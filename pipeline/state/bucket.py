"""A bucket of a table: its files, which are merged when there are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.reduce import IDENTITY, ROWS, latest

FILES_MAX = 8
COLUMNS = (*IDENTITY, "value", "offset", "timestamp")
WIDE = ROWS.set(ROWS.get_field_index("value"), pa.field("value", pa.large_binary()))
"""Rows whose values may be more than 2 GiB together, which Arrow's plain type cannot have."""
STORED = pa.schema([WIDE.field(name) for name in COLUMNS])
Floors = Mapping[tuple[str, int], int]
"""Offsets of the last resets by partition: earlier rows do not count."""


def add_changes(
    folder: Path, bucket: int, files: Sequence[str], changes: pa.Table, floors: Floors
) -> tuple[list[str], int]:
    """Add changes to a bucket; its files, oldest first, and the number of rows in the new one.

    Changes are sorted by offset. Deletions stay as rows without a value until files are merged.
    """
    new = latest(changes.select(COLUMNS).cast(STORED))
    is_merge = len(files) + 1 >= FILES_MAX
    if is_merge or not files:
        new = alive(latest(pa.concat_tables([*read_all(folder, files), new])), floors)
        files = []
    return [*files, _written(folder, bucket, new)], new.num_rows


def merge_files(folder: Path, bucket: int, files: Sequence[str], floors: Floors) -> list[str]:
    """Merge the files of a bucket into one."""
    return [_written(folder, bucket, read_bucket(folder, files, floors))]


def _written(folder: Path, bucket: int, rows: pa.Table) -> str:
    name = f"{bucket:04}-{uuid4().hex}.parquet"
    with (folder / "data" / name).open("wb") as file:
        pq.write_table(rows, file, compression="zstd")
    return name


def read_bucket(folder: Path, files: Sequence[str], floors: Floors) -> pa.Table:
    """The entities of a bucket."""
    tables = read_all(folder, files)
    return alive(latest(pa.concat_tables(tables)), floors) if tables else STORED.empty_table()


def read_all(folder: Path, files: Sequence[str]) -> list[pa.Table]:
    """The rows of each file. Raises PipelineError."""
    return [_read(folder / "data" / name) for name in files]


def _read(file: Path) -> pa.Table:
    try:
        return pq.read_table(file, schema=STORED)
    except FileNotFoundError:
        hint = "a job may have removed it: retry, and use its option --keep to keep more versions"
        raise PipelineError("bad_table", f"{file} is missing", hint) from None
    except (OSError, pa.ArrowException) as error:
        raise PipelineError("bad_table", f"{file} cannot be read: {error}") from None


def alive(table: pa.Table, floors: Floors) -> pa.Table:
    """The rows without deleted ones and those before a reset."""
    kept: Any = pc.is_valid(table.column("value"))
    return table.filter(pc.and_(kept, pc.invert(is_before(table, floors))))


def is_before(table: pa.Table, floors: Floors) -> Any:
    """For each row, whether it is before a reset of its partition."""
    found: Any = pa.repeat(False, table.num_rows)
    for (topic, partition), floor in floors.items():
        is_here = pc.and_(
            pc.equal(table.column("topic"), topic), pc.equal(table.column("partition"), partition)
        )
        found = pc.or_(found, pc.and_(is_here, pc.less(table.column("offset"), floor)))
    return found


def floors_of(resets: pa.Table) -> dict[tuple[str, int], int]:
    """The offset of the last reset of each partition."""
    floors: dict[tuple[str, int], int] = {}
    for reset in resets.select(("topic", "partition", "offset")).to_pylist():
        key = (reset["topic"], reset["partition"])
        floors[key] = max(floors.get(key, 0), reset["offset"])
    return floors
