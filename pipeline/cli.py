"""`millpond pipeline ACTION`: tables of state from streams."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from millpond.pipeline.commands.run import run_pipeline, with_cli_options
from millpond.pipeline.commands.tables import (
    SHOWN_MAX,
    changes,
    compact,
    convert,
    query,
    show,
    vacuum,
)
from millpond.pipeline.errors import BadOption, PipelineError
from millpond.pipeline.spark.packaging import pack
from millpond.pipeline.spark.session import LOCAL
from millpond.pipeline.state.change_feed import BATCHES_KEPT
from millpond.pipeline.state.files import folder_of
from millpond.pipeline.state.formats import FORMATS
from millpond.pipeline.state.iceberg_table import BUCKETS
from millpond.pipeline.state.location import Location, location_of

OK, FAILURE, NOT_FOUND = 0, 1, 4
SECONDS_MAX = 10**9
_CONVERT = """Make a new table from one in the Parquet layout of earlier versions. Stop its job
first, then run it with the new table and its checkpoint: it goes on behind the last batch. A change
feed is a new folder. The old folder stays as it is."""
_NOT_THERE = ("no_table", "no_stream", "no_version", "feed_trimmed")


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `millpond pipeline` and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    running = actions.add_parser("run", help="keep a table of the state of streams")
    _add_source(running)
    _add_table(running)
    _add_spark(running)
    showing = actions.add_parser("show", help="show the entities of a table")
    showing.add_argument("table", type=_location, metavar="TABLE")
    showing.add_argument("-n", type=int, default=20, help="number of entities (%(default)s)")
    _add_as_of(showing)
    showing.add_argument("--json", action="store_true", help="one JSON object a line")
    querying = actions.add_parser("query", help="query a table, called `state`, with SQL")
    querying.add_argument("table", type=_location, metavar="TABLE")
    _add_as_of(querying)
    what = f"the query; at most {SHOWN_MAX} rows of its result are shown"
    querying.add_argument("sql", metavar="SQL", help=what)
    changing = actions.add_parser("changes", help="show the change feed of a table")
    changing.add_argument("feed", type=_location, metavar="DIR", help="the folder of --changes")
    what = "begin behind this batch (the first that is kept)"
    changing.add_argument("--after", type=_version, default=-1, metavar="BATCH", help=what)
    changing.add_argument("-n", type=int, default=1000, help="number of changes (%(default)s)")
    changing.add_argument("--json", action="store_true", help="one JSON object a line")
    compacting = actions.add_parser("compact", help="merge the files of a table")
    compacting.add_argument("table", type=_location, metavar="TABLE")
    vacuuming = actions.add_parser("vacuum", help="remove old versions of a table")
    vacuuming.add_argument("table", type=_location, metavar="TABLE")
    what = "keep the last N versions"
    vacuuming.add_argument("--keep", type=int, required=True, metavar="N", help=what)
    what = "make a new table from one in the Parquet layout of earlier versions"
    converting = actions.add_parser("convert", help=what, description=_CONVERT)
    converting.add_argument("old", type=Path, metavar="DIR", help="folder of the old table")
    what = "place of the new one, for `run` with the same checkpoint"
    converting.add_argument("new", type=_location, metavar="TABLE", help=what)
    converting.add_argument("--format", choices=FORMATS, help="format of the new table (delta)")
    packing = actions.add_parser("pack", help="write the file for Spark's --py-files")
    packing.add_argument("target", type=Path, metavar="FILE", help="such as millpond-pipeline.zip")


def _add_as_of(reading: argparse.ArgumentParser) -> None:
    add = reading.add_mutually_exclusive_group().add_argument
    what = "read a version that is still kept, instead of the last"
    add("--version", type=_version, metavar="N", help=what)
    what = "read the version of a time, such as 2026-11-24T12:00:00Z (UTC without an offset)"
    add("--timestamp", type=_time, metavar="TIME", help=what)


def _add_source(running: argparse.ArgumentParser) -> None:
    add = running.add_argument
    add(
        "--connect",
        action="append",
        metavar="URL",
        help="http://HOST:PORT of a node; may be given several times",
    )
    add("--subscribe", required=True, metavar="S[,S]", help="streams, separated by commas")
    add("--token-file", metavar="FILE", help="file whose first word is the access token")
    add("--ca", metavar="FILE", help="TLS: trust these certificates instead of the system's")
    add("--cert", metavar="FILE", help="TLS: client certificate, if the node requires one")
    add("--cert-key", metavar="FILE", help="TLS: key of --cert, unless it is in the same file")
    add(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="time limit for a node's answer (60)",
    )
    what = "skip records that were trimmed before they were read, and log it"
    add("--skip-lost", action="store_true", help=what)
    add("--max-per-batch", type=int, metavar="N", help="approximate records of a batch (1000000)")
    what = "approximate bytes of a batch (512 MiB)"
    add("--max-bytes", type=int, metavar="N", help=what)


def _add_table(running: argparse.ArgumentParser) -> None:
    add = running.add_argument
    what = (
        "folder of the table, the URL of an object store, such as s3://BUCKET/NAME, or a table of "
        "an Iceberg catalog, such as iceberg://CATALOG/NAMESPACE.NAME"
    )
    add("--table", required=True, type=_location, metavar="DIR", help=what)
    what = "folder of the job's progress, or a URL of a file system that Spark has"
    add("--checkpoint", required=True, type=folder_of, metavar="DIR", help=what)
    what = "folder for records that are no events, or a URL as of --checkpoint"
    add("--dead-letters", type=folder_of, metavar="DIR", help=what)
    what = (
        "folder of a change feed: what each batch inserts, updates and deletes; or a stream of the "
        "node for these changes as events, such as stream://NAME"
    )
    add("--changes", type=_location, metavar="DIR", help=what)
    what = "batches of the change feed to keep, except in a stream (%(default)s)"
    add("--keep-changes", type=int, default=BATCHES_KEPT, metavar="N", help=what)
    add("--schemas", type=Path, metavar="FILE", help="JSON Schema for each type")
    add("--format", choices=FORMATS, help="format of a new table (delta)")
    what = "buckets of a new Iceberg table; a batch writes those anew that it changes (%(default)s)"
    add("--buckets", type=int, default=BUCKETS, metavar="N", help=what)
    what = "versions to keep, at least (50 of Delta, 10 of Iceberg)"
    add("--keep", type=int, metavar="N", help=what)


def _add_spark(running: argparse.ArgumentParser) -> None:
    add = running.add_argument
    when = running.add_mutually_exclusive_group()
    when.add_argument(
        "--once", action="store_true", help="process existing records, then end (default)"
    )
    when.add_argument(
        "--every",
        type=_seconds,
        metavar="S",
        help="run until stopped, with a batch every S seconds",
    )
    add("--master", default=LOCAL, metavar="URL", help="Spark master (%(default)s)")
    add("--conf", action="append", default=[], metavar="NAME=VALUE", help="Spark setting")
    add("--report", type=Path, metavar="FILE", help="write a report as HTML")
    levels = ("off", "error", "warn", "info", "debug")
    add("--log-level", choices=levels, default="off", help="level of Spark's log (%(default)s)")
    add("--json", action="store_true", help="progress as lines of JSON")


def _version(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version")
    return int(text)


def _location(text: str) -> Location:
    try:
        return location_of(text)
    except BadOption as error:
        raise argparse.ArgumentTypeError(error.text) from None


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time of ISO 8601") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def run(args: argparse.Namespace) -> int:
    """Run a command; returns the exit code. A failure is one line on stderr."""
    try:
        match args.action:
            case "run":
                run_pipeline(args)
            case "show":
                show(args)
            case "query":
                query(args)
            case "changes":
                changes(args)
            case "compact":
                compact(args)
            case "vacuum":
                vacuum(args)
            case "convert":
                convert(args)
            case "pack":
                pack(args.target)
            case action:
                raise AssertionError(action)
    except PipelineError as error:
        print(with_cli_options(str(error)), file=sys.stderr)
        return NOT_FOUND if error.code in _NOT_THERE else FAILURE
    return OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run `millpond pipeline` as a program of its own."""
    parser = argparse.ArgumentParser(prog="millpond pipeline")
    add_commands(parser)
    return run(parser.parse_args(argv))
