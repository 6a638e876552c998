"""`millpond pipeline run`: a job, and what it tells while it runs."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from contextlib import closing
from queue import SimpleQueue
from typing import Any

from millpond.pipeline.commands.progress import Progress, progress
from millpond.pipeline.errors import BadOption, found_in
from millpond.pipeline.spark.session import build_session, failures_told
from millpond.pipeline.state.formats import table_in
from millpond.pipeline.state.job import BatchReport, JobOptions, run_job, source_of
from millpond.pipeline.state.progress import QueryProgress
from millpond.pipeline.state.report import Sample, added, report_page
from millpond.pipeline.state.schemas import load_schemas
from millpond.pipeline.state.table import write_whole

_OWN_WORDS = {
    "token and tokenFile": "--token-file",
    "failOnDataLoss=false": "--skip-lost",
    "timeoutMs": "--timeout",
    "tokenFile": "--token-file",
    "tlsCa": "--ca",
    "tlsCert": "--cert",
    "tlsKey": "--cert-key",
}
LOOK_S = 0.2
REPORT_S = 10.0


def run_pipeline(args: argparse.Namespace) -> None:
    """Run a job until it is through, or stopped. Raises PipelineError."""
    options = options_of(args)
    table = table_in(options.table, options.format)
    with table.lock(), closing(QueryProgress(source_of(options), options.checkpoint)) as course:
        course.begin()
        conf = dict(_setting(each) for each in args.conf)
        with closing(progress(as_json=args.json)) as telling:
            session = build_session(
                "millpond pipeline", args.master, conf, log_level=args.log_level
            )
            with failures_told():
                try:
                    _follow(session, options, _Seen(course, telling), args)
                finally:
                    session.stop()


def own_words(text: str) -> str:
    """An error that names options of the source, with the words of the command line for them."""
    for name, word in _OWN_WORDS.items():
        text = text.replace(name, word)
    return text


def options_of(args: argparse.Namespace) -> JobOptions:
    """What a command line asks for. Raises BadOption."""
    for name in ("keep", "buckets", "max_per_batch", "every"):
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
    }
    source = {name: value for name, value in given.items() if value}
    source["subscribe"] = args.subscribe
    source["failOnDataLoss"] = "false" if args.skip_lost else "true"
    source["timeoutMs"] = str(max(1, round(args.timeout * 1000)))
    return JobOptions(
        source,
        args.table.absolute(),
        args.checkpoint.absolute(),
        args.dead_letters and args.dead_letters.absolute(),
        args.every,
        load_schemas(args.schemas) if args.schemas else {},
        args.buckets,
        args.format,
        args.keep,
    )


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.startswith("spark."):
        raise BadOption(f"--conf {text!r}", "such as spark.executor.memory=2g")
    return name, value


def _follow(session: Any, options: JobOptions, seen: _Seen, args: argparse.Namespace) -> None:
    """See the query to its end. Raises PipelineError."""
    query = run_job(session, options, seen.came.put)
    stopped = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stopped.set())
    reported_at = time.monotonic()
    try:
        while query.isActive and not stopped.wait(LOOK_S):
            seen.look()
            if time.monotonic() > reported_at + REPORT_S:
                _report(args, seen)
                reported_at = time.monotonic()
        query.stop()
        seen.look()
    finally:
        _report(args, seen)
    error = query.exception()
    if error is not None and not stopped.is_set():
        raise found_in(str(error))


def _report(args: argparse.Namespace, seen: _Seen) -> None:
    if args.report is not None:
        page = report_page(f"state of {args.subscribe}", seen.samples)
        write_whole(args.report, page.encode())


class _Seen:
    """What became known of a job, told as it becomes known; batches come from another thread."""

    def __init__(self, course: QueryProgress, telling: Progress) -> None:
        self.came: SimpleQueue[BatchReport] = SimpleQueue()
        self.samples: list[Sample] = []
        self._telling = telling
        self._course = course
        self._began = time.monotonic()
        self._last = course.last()

    def look(self) -> None:
        """Tell of what came since the last time."""
        while not self.came.empty():
            done = self.came.get()
            self._last = done.batch
            records, left = self._course.records(done.batch), self._course.left(done.batch)
            at = time.monotonic() - self._began
            sample = Sample(done.batch, records, done.seconds, left, done.rejected, at)
            self.samples = added(self.samples, sample)
            self._telling.batch(sample)
        if self._telling.is_live:
            self._telling.left(self._course.done(self._last), self._course.left(self._last))
