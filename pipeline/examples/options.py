"""The options of the examples, and the run of their query to its end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.options import ADDRESS
from millpond.pipeline.spark.session import LOCAL, build_session, spark_errors

Start = Callable[[Any, argparse.Namespace], Any]


def parser(what: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every example."""
    made = argparse.ArgumentParser(description=what)
    made.add_argument("--connect", default=ADDRESS, metavar="URL", help="the node (%(default)s)")
    what = "how far it got"
    made.add_argument("--checkpoint", required=True, type=os.path.abspath, metavar="DIR", help=what)
    made.add_argument("--every", type=float, metavar="S", help="go on; else what there is now")
    made.add_argument("--master", default=LOCAL, metavar="URL", help="Spark's (%(default)s)")
    return made


def trigger(args: argparse.Namespace) -> dict[str, Any]:
    """The trigger of the query."""
    if args.every is None:
        return {"availableNow": True}
    return {"processingTime": f"{round(args.every * 1000)} milliseconds"}


def perform(start: Start, args: argparse.Namespace) -> int:
    """Run a query to its end; returns the exit code. An error is one line on stderr."""
    try:
        return _perform(start, args)
    except PipelineError as error:
        print(error, file=sys.stderr)
        return 1


def _perform(start: Start, args: argparse.Namespace) -> int:
    session = build_session("millpond example", args.master)
    with spark_errors():
        start(session, args).awaitTermination()
    return 0


Words = Sequence[str] | None
"""Arguments of a command line; None: those of this process."""
