"""Entities of a table as Arrow rows: their columns, the last row of each, and resets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millpond.pipeline.state.reduce import IDENTITY, ROWS

COLUMNS = (*IDENTITY, "value", "offset", "timestamp")
WIDE = ROWS.set(ROWS.get_field_index("value"), pa.field("value", pa.large_binary()))
"""Rows whose values may be more than 2 GiB together, which Arrow's plain type cannot have."""
STORED = pa.schema([WIDE.field(name) for name in COLUMNS])
Floors = Mapping[tuple[str, int], int]
"""Offsets of the last resets by partition: earlier rows do not count."""


def latest(table: pa.Table) -> pa.Table:
    """The last row of each entity."""
    if table.num_rows < 2:
        return table
    return table.take(last_of_each(table, pa.array(np.arange(table.num_rows))))


def last_of_each(table: pa.Table, order: pa.Array) -> pa.Array:
    """Where in an order of rows, by their numbers, the last row of each entity is, ascending."""
    index = pa.array(np.arange(len(order)))
    found = table.select(IDENTITY).take(order).append_column("at", index).group_by(IDENTITY)
    places = found.aggregate([("at", "max")]).column("at_max")
    return pa.array(np.sort(places.to_numpy()))


def with_values(table: pa.Table) -> pa.Table:
    """The rows without deleted ones."""
    values = table.column("value")
    return table.filter(pc.is_valid(values)) if values.null_count else table


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
