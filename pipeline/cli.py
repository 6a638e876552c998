"""`millpond pipeline run|show|query|compact|vacuum|pack`: tables of state from streams."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from millpond.pipeline.commands.run import own_words, run_pipeline
from millpond.pipeline.commands.tables import SHOWN_MAX, compact, query, show, vacuum
from millpond.pipeline.errors import PipelineError
from millpond.pipeline.spark.packaging import pack
from millpond.pipeline.spark.session import LOCAL
from millpond.pipeline.state.formats import FORMATS
from millpond.pipeline.state.table import BUCKETS, VERSIONS_KEPT

OK, FAILURE, NOT_FOUND = 0, 1, 4
SECONDS_MAX = 10**9


def add_commands(parser: argparse.ArgumentParser) -> None:
    """The family's commands and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    running = actions.add_parser("run", help="keep a table of the state of streams")
    _add_source(running)
    _add_table(running)
    _add_spark(running)
    showing = actions.add_parser("show", help="what a table has")
    showing.add_argument("table", type=Path, metavar="TABLE")
    showing.add_argument("-n", type=int, default=20, help="so many entities (%(default)s)")
    showing.add_argument("--json", action="store_true", help="one JSON object a line")
    asking = actions.add_parser("query", help="ask a table, called `state`, with SQL")
    asking.add_argument("table", type=Path, metavar="TABLE")
    what = f"what comes of it is shown, {SHOWN_MAX} rows at most"
    asking.add_argument("sql", metavar="SQL", help=what)
    compacting = actions.add_parser("compact", help="make few files of many in a table")
    compacting.add_argument("table", type=Path, metavar="TABLE")
    vacuuming = actions.add_parser("vacuum", help="remove old versions of a table")
    vacuuming.add_argument("table", type=Path, metavar="TABLE")
    what = "the last N versions stay"
    vacuuming.add_argument("--keep", type=int, required=True, metavar="N", help=what)
    packing = actions.add_parser("pack", help="write the file for --py-files")
    packing.add_argument("target", type=Path, metavar="FILE", help="such as millpond-pipeline.zip")


def _add_source(running: argparse.ArgumentParser) -> None:
    add = running.add_argument
    add("--connect", action="append", metavar="URL", help="http://H:P of a node; more than once")
    add("--subscribe", required=True, metavar="S[,S]", help="streams, with commas")
    add("--token-file", metavar="FILE", help="its first word is the access token")
    add("--ca", metavar="FILE", help="TLS: certificates to trust in the place of the system's")
    add("--cert", metavar="FILE", help="TLS: one of your own, where the node demands it")
    add("--cert-key", metavar="FILE", help="its key, unless it is in the same file")
    add("--timeout", type=_seconds, default=60.0, metavar="S", help="wait so long for a node (60)")
    what = "go on where records were trimmed before they were read, and log it"
    add("--skip-lost", action="store_true", help=what)
    add("--max-per-batch", type=int, metavar="N", help="records of a batch, about")


def _add_table(running: argparse.ArgumentParser) -> None:
    add = running.add_argument
    add("--table", required=True, type=Path, metavar="DIR", help="where it is, or will be")
    add("--checkpoint", required=True, type=Path, metavar="DIR", help="how far the job got")
    add("--dead-letters", type=Path, metavar="DIR", help="what is no event, and why")
    add("--schemas", type=Path, metavar="FILE", help="JSON Schema for each type")
    add("--format", choices=FORMATS, help="of a new table (parquet)")
    add("--buckets", type=int, default=BUCKETS, help="of a new table (%(default)s)")
    what = "versions in Parquet that stay, for slow readers (%(default)s)"
    add("--keep", type=int, default=VERSIONS_KEPT, metavar="N", help=what)


def _add_spark(running: argparse.ArgumentParser) -> None:
    add = running.add_argument
    when = running.add_mutually_exclusive_group()
    when.add_argument("--once", action="store_true", help="what there is now, and end (default)")
    when.add_argument("--every", type=_seconds, metavar="S", help="go on, every so many seconds")
    add("--master", default=LOCAL, metavar="URL", help="Spark's (%(default)s)")
    add("--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark's")
    add("--report", type=Path, metavar="FILE", help="what it did, as HTML")
    levels = ("off", "error", "warn", "info", "debug")
    add("--log-level", choices=levels, default="off", help="of Spark's own log (%(default)s)")
    add("--json", action="store_true", help="progress as lines of JSON")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def run(args: argparse.Namespace) -> int:
    """Do what is asked; gives the exit code. Failures are one line on stderr."""
    try:
        match args.action:
            case "run":
                run_pipeline(args)
            case "show":
                show(args)
            case "query":
                query(args)
            case "compact":
                compact(args)
            case "vacuum":
                vacuum(args)
            case "pack":
                pack(args.target)
            case action:
                raise AssertionError(action)
    except PipelineError as error:
        print(own_words(str(error)), file=sys.stderr)
        return NOT_FOUND if error.code in ("no_table", "no_stream") else FAILURE
    return OK


def main(argv: Sequence[str] | None = None) -> int:
    """The same as a program of its own."""
    parser = argparse.ArgumentParser(prog="millpond pipeline")
    add_commands(parser)
    return run(parser.parse_args(argv))
