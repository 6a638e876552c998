"""`millpond pipeline show|query|compact|vacuum`: commands on a table."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.spark.session import build_session, spark_errors
from millpond.pipeline.state.formats import existing
from millpond.pipeline.state.summary import StateTable

SHOWN_MAX = 1000
_NAMES = ("topic", "partition", "type", "key", "offset")


def show(args: argparse.Namespace) -> None:
    """Print the first entities of a table. Raises PipelineError."""
    table, summary = existing(args.table, args.version)
    rows, lines = 0, []
    for piece in table.buckets():
        shown = max(0, args.n - rows)
        lines += [_line(row, as_json=args.json) for row in piece.slice(0, shown).to_pylist()]
        rows += piece.num_rows
    if not args.json:
        print(
            f"version {summary.version}, batch {summary.batch}: {rows} entities"
            + ("" if summary.rejected is None else f", {summary.rejected} records rejected"),
            file=sys.stderr,
        )
    if lines:
        print("\n".join(lines))


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
    table, _ = existing(args.table, args.version)
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


def vacuum(args: argparse.Namespace) -> None:
    """Remove old versions of a table. Raises PipelineError."""
    if args.keep < 1:
        raise PipelineError("bad_option", "--keep: at least 1, the current version")
    table, _ = existing(args.table)
    with table.lock():
        print(f"{table.vacuum(args.keep)} files were removed")
