"""`millpond pipeline show|query|changes|compact|vacuum|convert`: commands on a table."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.spark.session import build_session, spark_errors
from millpond.pipeline.state.formats import existing, existing_feed, table_in
from millpond.pipeline.state.parquet_layout import read_old_table
from millpond.pipeline.state.table import At, StateTable

SHOWN_MAX = 1000
_NAMES = ("topic", "partition", "type", "key", "offset")


def show(args: argparse.Namespace) -> None:
    """Print the first entities of a table. Raises PipelineError."""
    table, summary = existing(args.table, _at(args))
    rows, lines = 0, []
    for piece in table.pieces():
        shown = max(0, args.n - rows)
        lines += [_line(row, as_json=args.json) for row in piece.slice(0, shown).to_pylist()]
        rows += piece.num_rows
    if not args.json:
        print(
            f"version {summary.version}, batch {summary.batch}: {rows} entities",
            file=sys.stderr,
        )
    if lines:
        print("\n".join(lines))


def _at(args: argparse.Namespace) -> At | None:
    """The version or the time to read, or neither."""
    return args.timestamp if args.version is None else int(args.version)


def changes(args: argparse.Namespace) -> None:
    """Print changes of a table, oldest first. Raises PipelineError."""
    left = max(0, args.n)
    for batch, rows in existing_feed(args.feed).batches(args.after):
        lines = [
            _change_line(batch, row, as_json=args.json) for row in rows.slice(0, left).to_pylist()
        ]
        if lines:
            print("\n".join(lines))
        left -= len(lines)
        if not left:
            return


def _change_line(batch: int, row: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        fields: dict[str, Any] = {name: row[name] for name in ("operation", *_NAMES)}
        fields["timestamp"] = row["timestamp"] and row["timestamp"].isoformat()
        sides = [name for name in ("before", "after") if row[name] is not None]
        values = {name: json.loads(row[name]) for name in sides}
        return json.dumps({"batch": batch, **fields, **values})
    texts = [(row[name] or b"").decode("utf-8", "replace") for name in ("before", "after")]
    cells = (str(batch), row["operation"], row["type"], row["key"], *texts)
    return "\t".join(map(_printable, cells))


def _line(row: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        fields = {name: row[name] for name in _NAMES}
        return json.dumps({**fields, "value": json.loads(row["value"])})
    value = row["value"].decode("utf-8", "replace")
    return "\t".join(_printable(each) for each in (row["type"], row["key"], value))


def _printable(text: str) -> str:
    """A text without control characters: a line stays a line, and a terminal is safe."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


def query(args: argparse.Namespace) -> None:
    """Run a SQL query on a table. Raises PipelineError."""
    table, _ = existing(args.table, _at(args))
    session = build_session("millpond pipeline query")
    with spark_errors():
        try:
            _answer(session, table, args.sql)
        finally:
            session.stop()


def _answer(session: Any, table: StateTable, sql: str) -> None:
    from pyspark.errors import PySparkException

    frame = session.createDataFrame(table.read())
    names = ("topic", "partition", "type", "key", "offset", "timestamp")
    frame.selectExpr(*names, "CAST(value AS STRING) AS value").createOrReplaceTempView("state")
    try:
        session.sql(sql).show(SHOWN_MAX, truncate=False)
    except PySparkException as error:
        text = str(error).strip().splitlines()[0]
        raise PipelineError("bad_query", text) from None


def compact(args: argparse.Namespace) -> None:
    """Merge the files of a table. Raises PipelineError."""
    table, _ = existing(args.table)
    with table.lock():
        print(f"{table.compact()} files were merged into others")


def convert(args: argparse.Namespace) -> None:
    """Make a new table from one in the Parquet layout. Raises PipelineError."""
    batch = read_old_table(args.old)
    table = table_in(args.new, args.format)
    with table.lock():
        if table.summary() is not None:
            raise BadOption(f"{args.new} has a table already", "name a new place")
        table.commit(batch)
    print(f"{batch.changes.num_rows} entities after batch {batch.number} are in {args.new}")


def vacuum(args: argparse.Namespace) -> None:
    """Remove old versions of a table. Raises PipelineError."""
    if args.keep < 1:
        raise PipelineError("bad_option", "--keep: at least 1, the current version")
    table, _ = existing(args.table)
    with table.lock():
        print(f"{table.vacuum(args.keep)} files were removed")
