"""Changes of a table by a batch: insertions, updates and deletions, with old and new values.

An entity has at most one change in a batch: the difference between the table before it and after.
Its offset and timestamp are those of the record that made it.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from millpond.pipeline.state.batch import Batch
from millpond.pipeline.state.entities import COLUMNS, STORED, Floors, is_before
from millpond.pipeline.state.reduce import IDENTITY

INSERT, UPDATE, DELETE = "insert", "update", "delete"
CHANGES = pa.schema(
    [
        *(STORED.field(name) for name in IDENTITY),
        ("operation", pa.string()),
        ("before", pa.large_binary()),
        ("after", pa.large_binary()),
        STORED.field("offset"),
        STORED.field("timestamp"),
    ]
)
ORDER = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]


def changes_of(before: Iterable[pa.Table], batch: Batch) -> pa.Table:
    """The changes of a table by a batch, sorted by offset.

    `before`: pieces of the table before the batch, which have all entities of the batch.
    """
    new = batch.changes.select(COLUMNS)
    old = _touched(before, new, batch.floors)
    pairs = _pairs(old, new)
    was, now = old.take(pairs.column("old")), new.take(pairs.column("new"))
    after = now.column("value")
    is_known = pc.is_valid(pairs.column("old"))
    operation = pc.if_else(pc.is_null(after), DELETE, pc.if_else(is_known, UPDATE, INSERT)).cast(
        pa.string()
    )
    found = pa.table(
        [
            *(pc.coalesce(now.column(name), was.column(name)) for name in IDENTITY),
            operation,
            was.column("value"),
            after,
            now.column("offset"),
            now.column("timestamp"),
        ],
        schema=CHANGES,
    )
    is_change = pc.or_(is_known, pc.is_valid(after))
    return _with_resets(found.filter(is_change), batch.resets).sort_by(ORDER)


def _touched(before: Iterable[pa.Table], new: pa.Table, floors: Floors) -> pa.Table:
    """The entities that rows or resets may change, and some others: keys alone are compared."""
    keys = pc.unique(new.column("key"))
    found = [STORED.empty_table()]
    for piece in before:
        is_new = pc.is_in(piece.column("key"), value_set=keys)
        found.append(piece.filter(pc.or_(is_new, is_before(piece, floors))))
    return pa.concat_tables(found)


def _pairs(old: pa.Table, new: pa.Table) -> pa.Table:
    """For each entity, its row in the old table and in the new one; null where it has none."""
    sides = []
    for name, table in (("old", old), ("new", new)):
        numbers = pa.array(range(table.num_rows), pa.int64())
        blank = pa.nulls(table.num_rows, pa.int64())
        sides.append(
            table.select(IDENTITY)
            .append_column("old", numbers if name == "old" else blank)
            .append_column("new", numbers if name == "new" else blank)
        )
    found = pa.concat_tables(sides).group_by(IDENTITY)
    pairs = found.aggregate([("old", "max"), ("new", "max")])
    return pairs.select(("old_max", "new_max")).rename_columns(("old", "new"))


def _with_resets(changes: pa.Table, resets: pa.Table) -> pa.Table:
    """Deletions that have no row of their own with the place of the reset that made them; what no
    reset is behind has not changed."""
    is_made = pc.is_valid(changes.column("offset"))
    found = [changes.filter(is_made)]
    others = changes.filter(pc.invert(is_made))
    for topic, partition, offset, at in _last_resets(resets):
        is_here = pc.and_(
            pc.equal(others.column("topic"), topic), pc.equal(others.column("partition"), partition)
        )
        here = others.filter(is_here)
        for name, value in (("offset", offset), ("timestamp", at)):
            column = pa.repeat(pa.scalar(value, CHANGES.field(name).type), here.num_rows)
            here = here.set_column(CHANGES.get_field_index(name), CHANGES.field(name), column)
        found.append(here)
    return pa.concat_tables(found)


def _last_resets(resets: pa.Table) -> Iterable[tuple[str, int, int, object]]:
    """Topic, partition, offset and time of the last reset of each partition."""
    rows = resets.sort_by("offset").select(("topic", "partition", "offset", "timestamp"))
    last = {(row["topic"], row["partition"]): row for row in rows.to_pylist()}
    return [(*place, row["offset"], row["timestamp"]) for place, row in last.items()]
