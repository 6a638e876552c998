"""The processes of `millpond work --processes`: started, watched, started again, and ended.

The parent process loads none of the user's modules and opens no connection. It forks workers, and
passes signals on to them. A worker that finds its parent gone drains.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from contextlib import suppress
from types import FrameType

from millpond.node.cli.exit_codes import ExitCode, Failure
from millpond.node.log_handler import write_error

PROCESSES_MAX = 128
"""The most processes of one command; the number of one fits a byte."""
RESTART_S = 1.0
"""The first delay before a worker that died is started again; doubled with each time."""
RESTART_S_MAX = 30.0
STEADY_S = 30.0
"""A worker that was ready for so long has its first delay again."""
ENDS = (signal.SIGTERM, signal.SIGINT)
CAUGHT = (*ENDS, signal.SIGCHLD)
PASSED_ON = (signal.SIGTERM, signal.SIGQUIT, signal.SIGKILL)
"""The signals to workers for the first, second and third one of the parent."""

log = logging.getLogger("millpond.node.jobs.processes")


class WorkerProcess:
    """One worker process, as it sees itself: its number, from 1, and its pipes with the parent."""

    def __init__(self, number: int, parent: int, ready: int) -> None:
        self.number = number
        self.parent = parent
        """A descriptor that is readable once the parent has gone."""
        self._ready = ready

    def ready(self) -> None:
        """Tell the parent that the worker is connected."""
        with suppress(OSError):  # it has gone
            os.write(self._ready, bytes([self.number]))


class _Place:
    """One of the processes, as the parent sees it, over its restarts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        """0: it does not run."""
        self.start_at: float | None = None
        """When it is to be started; None: it runs, or is to stay away."""
        self.started_at = 0.0
        self.ready_at: float | None = None
        self.delay_s = RESTART_S


class WorkerProcesses:
    """Runs `count` workers until they have ended.

    `is_burst`: a worker that ends with exit code 0 has done its work. `reloads`: a worker that ends
    so is to be started again, also before any has been ready.
    """

    def __init__(self, count: int, *, is_burst: bool, reloads: bool) -> None:
        self._places = [_Place(number) for number in range(1, count + 1)]
        self._is_burst = is_burst
        self._reloads = reloads
        self._signals = 0
        """The signals so far: drain, stop at once, kill."""
        self._code: int = ExitCode.OK
        self._was_ready = False

    def run(self) -> WorkerProcess | int:
        """In each worker: which one it is. In the parent, at the end: the exit code."""
        self._caught, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        self._told, self._ready = os.pipe()
        os.set_blocking(self._told, False)
        self._parent, self._alive = os.pipe()
        before = {number: signal.signal(number, _ignore) for number in CAUGHT}
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        # The first one alone: what keeps it from starting is then told once.
        self._places[0].start_at = time.monotonic()
        while True:
            for place in self._places:
                if place.start_at is not None and place.start_at <= time.monotonic():
                    worker = self._start(place)
                    if worker is not None:
                        signal.set_wakeup_fd(-1)
                        os.close(wakeup)
                        return worker
            if not any(place.pid or place.start_at is not None for place in self._places):
                break
            self._wait()
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        for pipe in (wakeup, self._caught, self._told, self._ready, self._parent, self._alive):
            os.close(pipe)
        return self._code

    def _start(self, place: _Place) -> WorkerProcess | None:
        place.start_at, place.ready_at, place.started_at = None, None, time.monotonic()
        signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
        try:
            pid = os.fork()
        except OSError as exc:  # no memory, or too many processes
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
            if not self._was_ready:
                raise Failure(f"cannot start a worker process: {exc.strerror}") from exc
            self._try_again(place, str(exc.strerror))
            return None
        if pid:
            place.pid = pid
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
            return None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A terminal sends SIGINT to all of them; the parent passes it on, as SIGTERM.
        signal.signal(signal.SIGINT, _ignore)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
        os.close(self._alive)
        os.close(self._told)
        os.close(self._caught)
        return WorkerProcess(place.number, self._parent, self._ready)

    def _wait(self) -> None:
        """Wait for a signal, for a worker that is ready or ended, or for the next start."""
        starts = [place.start_at for place in self._places if place.start_at is not None]
        timeout = max(0.0, min(starts) - time.monotonic()) if starts else None
        pipes = [self._caught, self._told]
        readable = select.select(pipes, [], [], timeout)[0]
        if self._caught in readable:
            for number in os.read(self._caught, 512):
                if number in ENDS:
                    self._end()
        self._reap()
        self._hear()

    def _hear(self) -> None:
        """Take note of the workers that are ready."""
        numbers = b""
        with suppress(BlockingIOError):
            numbers = os.read(self._told, 512)
        if not numbers:
            return
        for number in numbers:
            self._places[number - 1].ready_at = time.monotonic()
        if self._was_ready:
            return
        self._was_ready = True
        if not self._signals:
            for place in self._places[1:]:
                place.start_at = time.monotonic()

    def _end(self) -> None:
        """Pass a signal on. The first drains the workers, the second stops them at once."""
        self._signals += 1
        if self._signals > 1:
            self._code = self._code or ExitCode.FAILURE
        for place in self._places:
            place.start_at = None
            self._send(place, PASSED_ON[min(self._signals, len(PASSED_ON)) - 1])

    @staticmethod
    def _send(place: _Place, number: int) -> None:
        if place.pid:  # it is not reaped yet, so the id is not another process's
            os.kill(place.pid, number)

    def _reap(self) -> None:
        for place in self._places:
            if place.pid:
                pid, status = os.waitpid(place.pid, os.WNOHANG)
                if pid:
                    place.pid = 0
                    self._hear()  # it may have been ready before
                    self._ended(place, os.waitstatus_to_exitcode(status))

    def _ended(self, place: _Place, code: int) -> None:
        """A worker has ended, with this code, or by the signal -code."""
        if self._signals:
            # A worker that still loads has no jobs, and ends by the signal itself.
            if code not in (0, -signal.SIGTERM) and not self._code:
                self._code = code if code > 0 else ExitCode.FAILURE
            return
        if not self._was_ready and not (self._reloads and code == 0):
            self._code = code if code >= 0 else ExitCode.FAILURE
            return
        if code == 0 and self._is_burst:
            return
        now = time.monotonic()
        if code in (ExitCode.OK, ExitCode.HUNG):
            place.start_at = max(now, place.started_at + RESTART_S)
            if code == ExitCode.HUNG:
                log.warning("worker process ended, as a handler hung: number=%d", place.number)
            return
        if place.ready_at is not None and now - place.ready_at >= STEADY_S:
            place.delay_s = RESTART_S
        self._try_again(place, f"exit code {code}" if code > 0 else f"signal {-code}")

    @staticmethod
    def _try_again(place: _Place, how: str) -> None:
        place.start_at = time.monotonic() + place.delay_s
        text = "worker process ended: number=%d how=%s; it starts again in %g s"
        log.warning(text, place.number, how, place.delay_s)
        place.delay_s = min(RESTART_S_MAX, 2 * place.delay_s)


class ParentLog(logging.Handler):
    """Writes lines of the parent without a thread: a process with threads does not fork well."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it now, unless nobody reads."""
        write_error(self.format(record))


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """A handler, so that the signal wakes up the parent, and programs that a worker starts have the
    default again."""
