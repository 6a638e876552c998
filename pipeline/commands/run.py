"""`millpond pipeline run`: a job with its progress and report."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from contextlib import closing
from queue import SimpleQueue
from typing import Any

from millpond.pipeline.commands.progress import Progress, progress
from millpond.pipeline.errors import NO_WORKER, BadOption, PipelineError, found_in
from millpond.pipeline.spark.session import build_session, spark_errors
from millpond.pipeline.state.disk import write_whole
from millpond.pipeline.state.files import files_in
from millpond.pipeline.state.job import BatchReport, JobOptions, open_table, run_job, source_of
from millpond.pipeline.state.progress import QueryProgress
from millpond.pipeline.state.report import Sample, report_page, with_sample
from millpond.pipeline.state.schemas import load_schemas

_CLI_OPTIONS = {
    "token and tokenFile": "--token-file",
    "failOnDataLoss=false": "--skip-lost",
    "timeoutMs": "--timeout",
    "tokenFile": "--token-file",
    "tlsCa": "--ca",
    "tlsCert": "--cert",
    "tlsKey": "--cert-key",
}
POLL_S = 0.2
REPORT_S = 10.0
STARTS_MAX = 4
"""Starts of a query in a row of which Spark got no Python process."""


def run_pipeline(args: argparse.Namespace) -> None:
    """Run a job to its end, or until it is stopped. Raises PipelineError."""
    options = options_of(args)
    table = open_table(options)
    with table.lock(), closing(QueryProgress(source_of(options))) as query:
        query.check()
        conf = dict(_setting(each) for each in args.conf)
        with closing(progress(as_json=args.json)) as display:
            session = build_session(
                "millpond pipeline", args.master, conf, log_level=args.log_level
            )
            with spark_errors():
                try:
                    query.begin(files_in(options.checkpoint, session))
                    _run(session, options, _BatchLog(query, display), args)
                finally:
                    session.stop()


def with_cli_options(text: str) -> str:
    """An error text with command-line options in place of options of the source."""
    for name, option in _CLI_OPTIONS.items():
        text = text.replace(name, option)
    return text


def options_of(args: argparse.Namespace) -> JobOptions:
    """The options of a job from the command line. Raises BadOption."""
    for name in ("keep", "keep_changes", "buckets", "max_per_batch", "max_bytes", "every"):
        value = getattr(args, name)
        least = 0.1 if name == "every" else 1
        if value is not None and value < least:
            raise BadOption(f"--{name.replace('_', '-')}: at least {least}")
    if args.report is not None and (args.report.is_dir() or not args.report.parent.is_dir()):
        raise BadOption(f"--report: {args.report} cannot be written")
    given = {
        "address": ",".join(args.connect or ()),
        "tokenFile": args.token_file,
        "tlsCa": args.ca,
        "tlsCert": args.cert,
        "tlsKey": args.cert_key,
        "maxOffsetsPerTrigger": args.max_per_batch and str(args.max_per_batch),
        "maxBytesPerTrigger": args.max_bytes and str(args.max_bytes),
    }
    source = {name: value for name, value in given.items() if value}
    source["subscribe"] = args.subscribe
    source["failOnDataLoss"] = "false" if args.skip_lost else "true"
    source["timeoutMs"] = str(max(1, round(args.timeout * 1000)))
    return JobOptions(
        source,
        args.table,
        args.checkpoint,
        args.dead_letters,
        args.every,
        load_schemas(args.schemas) if args.schemas else {},
        args.format,
        args.keep,
        args.buckets,
        args.changes,
        args.keep_changes,
    )


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise BadOption(f"--conf {text!r}", "such as spark.executor.memory=2g")
    return name, value


def _run(session: Any, options: JobOptions, batches: _BatchLog, args: argparse.Namespace) -> None:
    """Run the query to its end, again if Spark did not get a Python process of its own, for which
    it waits 10 s: on a busy machine that can happen more than once. Raises PipelineError."""
    for _ in range(STARTS_MAX - 1):
        try:
            with spark_errors():
                return _watch(session, options, batches, args)
        except PipelineError as error:
            if error.code != NO_WORKER:
                raise
            print(f"{error}; trying again", file=sys.stderr, flush=True)
    _watch(session, options, batches, args)


def _watch(session: Any, options: JobOptions, batches: _BatchLog, args: argparse.Namespace) -> None:
    """Run the query to its end. Raises PipelineError."""
    query = run_job(session, options, batches.reports.put)
    stopped = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stopped.set())
    reported_at = time.monotonic()
    try:
        while query.isActive and not stopped.wait(POLL_S):
            batches.update()
            if time.monotonic() > reported_at + REPORT_S:
                _report(args, batches)
                reported_at = time.monotonic()
        query.stop()
        batches.update()
    finally:
        _report(args, batches)
    error = query.exception()
    if error is not None and not stopped.is_set():
        raise found_in(str(error))


def _report(args: argparse.Namespace, batches: _BatchLog) -> None:
    if args.report is not None:
        page = report_page(f"state of {args.subscribe}", batches.samples)
        write_whole(args.report, page.encode())


class _BatchLog:
    """The finished batches of a job, displayed as they come from another thread."""

    def __init__(self, query: QueryProgress, display: Progress) -> None:
        self.reports: SimpleQueue[BatchReport] = SimpleQueue()
        self.samples: list[Sample] = []
        self._display = display
        self._query = query
        self._began = time.monotonic()
        self._last = query.last()

    def update(self) -> None:
        """Display the batches that are new."""
        while not self.reports.empty():
            done = self.reports.get()
            self._last = done.batch
            records, left = self._query.records(done.batch), self._query.left(done.batch)
            at = time.monotonic() - self._began
            sample = Sample(done.batch, records, done.seconds, left, done.rejected, at)
            self.samples = with_sample(self.samples, sample)
            self._display.batch(sample)
        if self._display.is_live:
            self._display.left(self._query.done(self._last), self._query.left(self._last))
