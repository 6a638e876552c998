"""Worker processes of a test run: forked after the collection, they take a file of tests at a time.

`python -m pytest -p tests.workers --workers 4` collects once; workers that collect for themselves,
as those of pytest-xdist do, need 7 s of CPU time each before their first test. Files are taken in
the order of the collection; tests with the marker `together` and one name count as one file. The
first process prints the reports of all.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

FORK = get_context("fork")
STOP_S = 30.0
"""Time that interrupted workers have to tear their fixtures down."""
LAST_FRAMES = 20
"""Frames of an interrupted test that are printed: those before them are pytest's."""
GC_THRESHOLD = (20_000, 20, 100)
"""A test leaves few objects in cycles: to look for them after each 700 takes 3 % of the time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--workers", type=int, default=0, help="processes that run the tests (0: this one does)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Let workers run the tests; without any, pytest's own loop does."""
    count: int = session.config.getoption("--workers")
    if not count or session.config.option.collectonly or session.testsfailed:
        return None
    files: dict[Path | str, list[pytest.Item]] = {}
    for item in session.items:
        together = item.get_closest_marker("together")
        files.setdefault(together.args[0] if together else item.path, []).append(item)
    terminal: Any = session.config.pluginmanager.getplugin("terminalreporter")
    terminal.showfspath = False  # tests of several files come in turns
    _Workers(session, list(files.values()), min(count, len(files))).run()
    return True


class _Workers:
    """The first process's side: starts workers, and hands their reports to pytest."""

    def __init__(
        self, session: pytest.Session, files: Sequence[list[pytest.Item]], count: int
    ) -> None:
        self._session = session
        self._files = files
        self._count = count
        self._running: dict[Connection, _Worker] = {}

    def run(self) -> None:
        """Run all files. Raises what pytest's own loop does where the run is to stop."""
        waiting = FORK.SimpleQueue()
        for number in (*range(len(self._files)), *[None] * self._count):
            waiting.put(number)  # some kilobytes, which a pipe holds
        # A folder of this run, which the workers' are in, is removed as that of any other.
        temporary = self._session.config._tmp_path_factory.getbasetemp()
        try:
            for number in range(self._count):
                worker = _Worker(self._session, self._files, waiting, temporary / f"{number}")
                self._running[worker.reports] = worker
            while self._running:
                for reports in wait(list(self._running)):
                    self._receive(self._running[reports])
        finally:
            for worker in self._running.values():
                worker.interrupt()
            ends = monotonic() + STOP_S
            for worker in self._running.values():
                worker.join(max(0.0, ends - monotonic()))

    def _receive(self, worker: _Worker) -> None:
        hooks = self._session.config.hook
        try:
            name, arguments = worker.reports.recv()
        except (EOFError, OSError):  # OSError: in the middle of a report
            self._end(worker)
        else:
            if name == "pytest_runtest_logstart":
                worker.test = arguments
            elif name == "pytest_runtest_logfinish":
                worker.test = None
            elif name == "pytest_runtest_logreport":
                data = arguments["report"]
                arguments["report"] = hooks.pytest_report_from_serializable(
                    config=self._session.config, data=data
                )
            hook = getattr(hooks, name)
            if hook.is_historic():
                hook.call_historic(kwargs=arguments)
            else:
                hook(**arguments)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _end(self, worker: _Worker) -> None:
        del self._running[worker.reports]
        worker.process.join()
        code = worker.process.exitcode
        if worker.test is None and code == 0:
            return
        test = worker.test or {"nodeid": "a worker", "location": ("", None, "")}
        said = f"The worker ended with exit code {code}. The rest of its file was not run."
        self._session.config.hook.pytest_runtest_logreport(
            report=pytest.TestReport(
                **test, keywords={}, outcome="failed", longrepr=said, when="call"
            )
        )


class _Worker:
    """A worker as the first process sees it: its process, its reports, the test it is at."""

    def __init__(
        self,
        session: pytest.Session,
        files: Sequence[list[pytest.Item]],
        waiting: Any,
        temporary: Path,
    ) -> None:
        self.reports, own = FORK.Pipe(duplex=False)
        self.test: dict[str, Any] | None = None
        self.process = FORK.Process(target=_work, args=(session, files, waiting, temporary, own))
        self.process.start()
        own.close()

    def interrupt(self) -> None:
        """Interrupt the test that runs: the worker prints where it was, and ends."""
        assert self.process.pid is not None
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)

    def join(self, limit_s: float) -> None:
        self.process.join(limit_s)
        self.process.kill()


def _work(
    session: pytest.Session,
    files: Sequence[list[pytest.Item]],
    waiting: Any,
    temporary: Path,
    reports: Connection,
) -> None:
    """Run files until there are no more, in a process of its own."""
    gc.freeze()  # what was collected stays, and is no work for the garbage collector
    gc.set_threshold(*GC_THRESHOLD)
    config = session.config
    config.pluginmanager.unregister(name="terminalreporter")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # into files that it would share with the others
    capture.start_global_capturing()
    config._tmp_path_factory._given_basetemp = temporary
    config._tmp_path_factory._basetemp = None
    config.pluginmanager.register(_Reports(config, reports))
    item: pytest.Item | None = None
    try:
        for number in iter(waiting.get, None):
            for item, following in pairwise([*files[number], session]):
                # After a file all but the session's fixtures is torn down: the next is not known.
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        capture.suspend_global_capture(in_=True)
        print(f"interrupted in {item.nodeid if item else 'no test'}:", file=sys.stderr)
        traceback.print_exc(limit=-LAST_FRAMES)
        raise SystemExit(1) from None
    finally:
        session._setupstate.teardown_exact(None)


class _Reports:
    """A plugin of a worker: sends what its tests report to the first process."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self._config = config
        self._pipe = pipe

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("pytest_runtest_logstart", nodeid=nodeid, location=location)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send("pytest_runtest_logreport", report=data)

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._send("pytest_runtest_logfinish", nodeid=nodeid, location=location)

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        message = str(warning_message.message)  # a warning may hold what cannot be sent
        place = (warning_message.category, warning_message.filename, warning_message.lineno)
        sent = warnings.WarningMessage(message, *place)
        self._send(
            "pytest_warning_recorded",
            warning_message=sent,
            when=when,
            nodeid=nodeid,
            location=location,
        )

    def _send(self, name: str, **arguments: Any) -> None:
        self._pipe.send((name, arguments))
