"""`millpond work`: a worker that runs a function, or tasks, until a signal."""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from traceback import format_exception
from types import TracebackType
from typing import Any

import anyio

from millpond.node.cli.connection import explain_errors
from millpond.node.cli.exit_codes import ExitCode, Failure, usage_error
from millpond.node.cli.jobs.options import connection_options, queue_name
from millpond.node.cli.jobs.source_files import EVERY_S, SourceFiles
from millpond.node.cli.jobs.work_status import WorkStatus
from millpond.node.cli.jobs.worker_processes import (
    PROCESSES_MAX,
    ParentLog,
    WorkerProcess,
    WorkerProcesses,
)
from millpond.node.cli.jobs.worker_processes import log as parent_log
from millpond.node.cli.options.node import add_node_options, positive
from millpond.node.cli.options.units import seconds
from millpond.node.cli.output import write_async
from millpond.node.cli.progress import CLEAR
from millpond.node.error_groups import single_errors
from millpond.node.jobs.connector import ConnectionOptions
from millpond.node.jobs.errors import HandlersHang
from millpond.node.jobs.task import ATTEMPTS, LEASE_S, LEASE_S_MAX, Backoff, Task
from millpond.node.jobs.worker.outcome import AttemptResult
from millpond.node.jobs.worker.weighted_queues import parse_queues
from millpond.node.jobs.worker.worker import CONCURRENCY, GRACE_S, Worker
from millpond.node.log_handler import FORMAT, LOG_THREAD, flush_log, set_up_logging, write_error
from millpond.transports.io.address import parse_address

EPILOG = """\
examples:
  millpond work tasks:send --queue mail        run `send` of tasks.py for the jobs of mail
  millpond work tasks                          run the tasks of tasks.py (@task)
  millpond work tasks:send --queue high=3 --queue low=1 --concurrency 8
                                               three jobs of `high` for one of `low`
  millpond work tasks:send --queue mail --burst     end when nothing is due (exit code 0)
  millpond work tasks --queues high:3,low:1 --processes 4
                                               four processes, with 8 jobs at once each

    # tasks.py
    def send(mail, job):                       # or async def; the argument `job` is optional
        print(job.id, mail["to"])

After an exception the job is retried with a growing delay; after the last attempt it becomes a dead
letter (`millpond jobs dead ls`). The lease is renewed while the function runs. See
docs/guides/jobs.md.

After SIGTERM or SIGINT no more jobs start. Running jobs have --grace seconds, then they return to
the queue; the exit code is 0. A second signal returns all jobs at once; the exit code is 1. With
--processes or --reload the parent passes them on to its workers, as SIGTERM and SIGQUIT, and a
third one kills them. SIGTERM to a worker itself drains it, however often it comes.
"""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
FROM_PARENT = (signal.SIGTERM, signal.SIGQUIT)
"""The signals of one of several processes. The first drains it, however often it comes: a service
manager sends it to the whole group, and the parent passes it on. The second stops it at once."""
PORT_MAX = 2**16 - 1


def add_parser(subparsers: Any) -> None:
    """Add `work` to the command line."""
    parser = subparsers.add_parser(
        "work",
        description="Run jobs with a Python function.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "handler", metavar="MODULE[:HANDLER]", help="module with tasks, or MODULE:FUNCTION"
    )
    parser.add_argument(
        "--queue",
        dest="queues",
        action="append",
        metavar="Q[=WEIGHT]",
        default=[],
        help="queue to take jobs from; repeatable (default: the queues of the tasks)",
    )
    parser.add_argument(
        "--queues",
        dest="queues",
        action="extend",
        type=_queues,
        metavar="Q[:WEIGHT],...",
        help="several queues with their weights: `a:3,b:1` is --queue a=3 --queue b=1",
    )
    shape = {"type": positive, "metavar": "N"}
    parser.add_argument(
        "--concurrency", **shape, default=CONCURRENCY, help="jobs at once (default %(default)s)"
    )
    parser.add_argument(
        "--lease",
        type=seconds,
        metavar="S",
        default=LEASE_S,
        help="of a function that is no task; renewed each third of it (default %(default)g)",
    )
    parser.add_argument(
        "--attempts", **shape, default=ATTEMPTS, help="of a function (default %(default)s)"
    )
    parser.add_argument(
        "--backoff",
        type=seconds,
        metavar="S",
        default=Backoff().base_s,
        help="first rest of a function, doubled with each attempt (default %(default)g)",
    )
    parser.add_argument(
        "--processes",
        type=_processes,
        metavar="N",
        default=1,
        help="worker processes, each with --concurrency jobs at once; one that dies is started"
        " again (default %(default)s)",
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="start again when a file of the loaded modules changes; for development",
    )
    parser.add_argument("--burst", action="store_true", help="end when no job is due")
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="S",
        default=GRACE_S,
        help="for running jobs when it ends (default %(default)g)",
    )
    parser.add_argument(
        "--wait",
        type=seconds,
        metavar="S",
        default=0.0,
        help="for a node that is not there yet (default %(default)g); later always",
    )
    parser.add_argument(
        "--name", help="name of the worker, in lists and in the history (default: host:process)"
    )
    parser.add_argument(
        "--lifespan",
        metavar="NAME",
        help="async context manager of the module, entered once: its value is `job.state`",
    )
    parser.add_argument(
        "--middleware",
        action="append",
        metavar="NAME",
        default=[],
        help="function of the module that is called around each handler; repeatable",
    )
    parser.add_argument("--no-history", action="store_true", help="do not write a history")
    parser.add_argument(
        "--log-done", action="store_true", help="write successes to the history, too"
    )
    parser.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve the worker's metrics for Prometheus there, as http://HOST:PORT/metrics; with"
        " --processes each process has a port: PORT, PORT + 1, ...",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"))
    parser.add_argument("--log-format", choices=("text", "json"), default="text")
    add_node_options(parser)


def _queues(text: str) -> list[str]:
    """`Q[:WEIGHT],...` as values of --queue."""
    queues = []
    for each in text.split(","):
        head, colon, tail = each.rpartition(":")
        name, weight = (head, tail) if colon else (tail, "1")
        queues.append(f"{queue_name(name)}={weight}")
    try:
        parse_queues(queues)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    return queues


def _processes(text: str) -> int:
    count = positive(text)
    if count > PROCESSES_MAX:
        raise argparse.ArgumentTypeError(f"there are at most {PROCESSES_MAX} processes")
    return count


def run(args: argparse.Namespace) -> int:
    """Run the worker until a signal, or until no job is due; with --processes and --reload in
    processes of their own."""
    args.timeout = None
    if args.metrics is not None:
        _metrics_address(args)
    if args.burst and args.reload:
        raise usage_error("--burst ends and --reload does not: give one of them")
    try:
        parse_queues(args.queues)
        if not 0 < args.lease <= LEASE_S_MAX:
            raise ValueError(f"--lease has up to {LEASE_S_MAX:g} seconds")
    except ValueError as exc:
        raise usage_error(str(exc)) from exc
    if args.processes == 1 and not args.reload:
        return _run_worker(args, None)
    _log_without_thread(args)
    processes = WorkerProcesses(args.processes, is_burst=args.burst, reloads=args.reload)
    process = processes.run()
    return process if isinstance(process, int) else _run_worker(args, process)


def _run_worker(args: argparse.Namespace, process: WorkerProcess | None) -> int:
    """Run one worker, in this process."""
    if process is not None and args.processes > 1 and args.name is not None:
        args.name = f"{args.name}-{process.number}"
    args.sources = SourceFiles(Path.cwd()) if args.reload else None
    try:
        work = _found(args)
        level = (args.log_level or "warning").upper()
        before = CLEAR if _has_status(args) else ""
        set_up_logging(level, as_json=args.log_format == "json", before=before)
        with explain_errors(args):
            code = anyio.run(partial(_work, args, work, process))
    except LoadFailure as failure:
        if process is None or args.sources is None:
            raise
        if process.number == 1:  # all load the same
            write_error(f"millpond work: {failure}\nmillpond work: waits for a change")
        _wait_for_change(args.sources, process, failure)
        code = ExitCode.OK
    return _ended(code)


class LoadFailure(Failure):
    """The module does not load, or has not what the arguments say; another version may."""


def _unusable(text: str) -> LoadFailure:
    return LoadFailure(text, ExitCode.USAGE)


def _wait_for_change(sources: SourceFiles, process: WorkerProcess, error: LoadFailure) -> None:
    """Wait until a file changes, or the parent has gone."""
    sources.failed(error)
    while sources.changed() is None:
        if select.select([process.parent], [], [], EVERY_S)[0]:
            return


def _log_without_thread(args: argparse.Namespace) -> None:
    """The log of the parent of worker processes."""
    handler = ParentLog((args.log_level or "warning").upper())
    if args.log_format == "json":
        from millpond.node.json_log import JsonFormatter

        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter(FORMAT))
    parent_log.addHandler(handler)
    parent_log.propagate = False


def _has_status(args: argparse.Namespace) -> bool:
    """One process has a line of status, on a terminal."""
    return args.processes == 1 and not args.json and sys.stderr.isatty()


def _found(args: argparse.Namespace) -> Any:
    """The tasks that `MODULE[:HANDLER]` names; a plain function becomes a task."""
    name, colon, attribute = args.handler.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = import_module(name)
    except Exception as exc:  # the border to code that is not ours
        is_absent = isinstance(exc, ModuleNotFoundError) and exc.name and name.startswith(exc.name)
        if is_absent:
            raise _unusable(f"there is no module {name!r} in {Path.cwd()}") from exc
        # The frames before those of the module are the command's own.
        trace = exc.__traceback__
        while trace is not None and not _is_users(trace):
            trace = trace.tb_next
        shown = "".join(format_exception(exc.with_traceback(trace))).rstrip()
        raise LoadFailure(f"module {name!r} does not load:\n{shown}") from exc
    if not colon:
        tasks = [each for each in vars(module).values() if isinstance(each, Task)]
        if not tasks:
            raise _unusable(f"module {name!r} has no tasks; give a function as {name}:FUNCTION")
        return list(dict.fromkeys(tasks))
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _unusable(f"module {name!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def _of_module(args: argparse.Namespace, name: str) -> Any:
    """The function of this name in the module of the handler."""
    module = args.handler.partition(":")[0]
    found = getattr(sys.modules[module], name, None)
    if not callable(found):
        raise _unusable(f"module {module!r} has no function {name!r}")
    return found


def _is_users(trace: TracebackType) -> bool:
    """Is this frame neither the command's nor the import system's?"""
    file = trace.tb_frame.f_code.co_filename
    own = (__file__, inspect.getfile(import_module))
    return not file.startswith("<frozen ") and file not in own


def _worker(args: argparse.Namespace, work: Any, view: WorkStatus) -> Worker:
    if callable(work) and not isinstance(work, Task):
        options = {"attempts": args.attempts, "backoff": Backoff(args.backoff)}
        work = Task(work, lease=args.lease, any_name=True, **options)
    try:
        return Worker(
            args.connect,
            work,
            queues=args.queues,
            concurrency=args.concurrency,
            grace=args.grace,
            name=args.name,
            history=not args.no_history,
            log_done=args.log_done,
            on_end=partial(_on_attempt_end, args, view),
            middleware=[_of_module(args, each) for each in args.middleware],
            lifespan=None if args.lifespan is None else _of_module(args, args.lifespan),
            **_options(args),
        )
    except (TypeError, ValueError) as exc:
        raise _unusable(f"{args.handler}: {exc}") from exc


def _options(args: argparse.Namespace) -> ConnectionOptions:
    options = connection_options(args)
    options["wait_s"] = args.wait
    return options


async def _work(args: argparse.Namespace, work: Any, process: WorkerProcess | None) -> int:
    view = WorkStatus(is_wanted=_has_status(args), number=_number(args, process))
    worker = _worker(args, work, view)
    stopped = anyio.Event()
    hang: Failure | None = None
    async with AsyncExitStack() as stack:
        stack.enter_context(single_errors())
        ends: list[Callable[[], object]] = []
        if process is not None:
            watching = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(watching.cancel_scope.cancel)
            ends.append(watching.cancel_scope.cancel)
            watching.start_soon(_watch_parent, process, ends)
        await stack.enter_async_context(worker)
        ends.append(worker.drain)
        args.channel = worker.subscriptions[0].name
        if args.metrics is not None:
            stack.enter_context(_metrics(args, worker, process))
        if process is not None:
            process.ready()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(view.ready, worker)
            signals = SIGNALS if process is None else FROM_PARENT
            tasks.start_soon(_watch_signals, worker, signals, stopped)
            if args.sources is not None:
                is_told = process is None or process.number == 1
                tasks.start_soon(_watch_sources, worker, args.sources, is_told)
            tasks.start_soon(view.run)
            try:
                await worker.run(burst=args.burst)
            except HandlersHang as exc:
                hang = Failure(str(exc), ExitCode.HUNG)
            finally:
                view.close()
            tasks.cancel_scope.cancel()
    if hang is not None:
        _write_hang(args, hang)
        return hang.code
    return ExitCode.FAILURE if stopped.is_set() else ExitCode.OK


def _write_hang(args: argparse.Namespace, hang: Failure) -> None:
    """Write the failure that ends this process. It cannot be raised: the interpreter would wait for
    the thread that hangs."""
    if args.json:
        write_error(json.dumps(hang.fields(), ensure_ascii=False))
    else:
        write_error(f"millpond work: {hang}")


def _metrics_address(args: argparse.Namespace) -> tuple[str, int]:
    try:
        host, port = parse_address(args.metrics)
        if port and port + args.processes - 1 > PORT_MAX:
            raise ValueError(f"there are not {args.processes} ports from {port} on")
        return host, port
    except ValueError as exc:
        raise usage_error(f"--metrics: {exc}") from exc


@contextmanager
def _metrics(
    args: argparse.Namespace, worker: Worker, process: WorkerProcess | None
) -> Iterator[None]:
    """The metrics of the worker, for the block."""
    from millpond.node.cli.jobs.work_metrics import worker_metrics  # it takes time to load

    host, port = _metrics_address(args)
    if port and process is not None:
        port += process.number - 1
    try:
        served = worker_metrics(worker, host, port)
        found = served.__enter__()
    except OSError as exc:
        raise Failure(f"--metrics: cannot listen on {host}:{port}: {exc.strerror}") from exc
    try:
        print(f"millpond work: metrics at http://{host}:{found}/metrics", file=sys.stderr)
        yield
    finally:
        served.__exit__(None, None, None)


async def _watch_parent(process: WorkerProcess, ends: list[Callable[[], object]]) -> None:
    """A worker without its parent ends, by the last of `ends`: nobody would pass signals on to
    it."""
    await anyio.wait_readable(process.parent)
    ends[-1]()


async def _watch_sources(worker: Worker, sources: SourceFiles, is_told: bool) -> None:
    while True:
        changed = sources.changed()
        if changed is not None:
            break
        await anyio.sleep(EVERY_S)
    if is_told:
        message = f"millpond work: {Path(changed).name} changed, starts again\n"
        await write_async(message.encode("utf-8", "backslashreplace"), sys.stderr)
    worker.drain()


def _number(args: argparse.Namespace, process: WorkerProcess | None) -> int:
    """The number of the process among several; 0 if it is the only one."""
    return 0 if process is None or args.processes == 1 else process.number


async def _watch_signals(
    worker: Worker, caught: Sequence[signal.Signals], stopped: anyio.Event
) -> None:
    """Drain the worker; then stop it, by a second signal, or by SIGQUIT alone where that counts."""
    is_draining = False
    with anyio.open_signal_receiver(*caught) as signals:
        async for number in signals:
            if number == signal.SIGQUIT or (is_draining and signal.SIGQUIT not in caught):
                stopped.set()
                worker.stop()
            else:
                is_draining = True
                worker.drain()


def _on_attempt_end(args: argparse.Namespace, view: WorkStatus, ended: AttemptResult) -> None:
    view.ended()
    if args.json:
        from millpond.node.cli.output import print_json

        fields: dict[str, Any] = {"id": str(ended.job), "queue": ended.queue, "task": ended.task}
        fields |= {"attempt": ended.attempt, "what": ended.what, "error": ended.error}
        print_json(fields | {"seconds": round(ended.seconds, 6)})


def _ended(code: int) -> int:
    """End the process even if threads of handlers still run."""
    if {each.name for each in threading.enumerate()} - {"MainThread", LOG_THREAD}:
        sys.stdout.flush()
        flush_log()
        sys.stderr.flush()
        os._exit(code)
    return code
