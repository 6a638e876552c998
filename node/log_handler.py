"""The log of a process: lines that a thread writes to standard error.

A pipe that nobody reads would hold up whoever writes to it, and with it the event loop and all
clients. So records wait in a queue with a limit. Records beyond it are dropped and counted; a line
says how many, at their place, once the pipe is read again.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from collections import deque
from contextlib import suppress
from threading import Condition, Thread

QUEUE_BYTES_MAX = 2**20
"""The most bytes of lines that wait to be written."""
FLUSH_S = 1.0
"""The longest wait for the queue to be written when the process ends."""
WRITE_BYTES = 2**16
LOG_THREAD = "millpond log"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def set_up_logging(level: str, *, as_json: bool = False, before: str = "") -> None:
    """Log to standard error from this level on, unless the program has set up a log.

    `before` is written before each line of text: it clears a line of status.
    """
    handler: logging.Handler
    try:
        handler = LogHandler(sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):
        handler = logging.StreamHandler(sys.stderr)  # it is closed, or a stream of the program
    handler.setLevel(level)
    handler.setFormatter(_json_formatter() if as_json else logging.Formatter(before + FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    # It logs each header field that it decodes, with tokens, at the level "debug".
    logging.getLogger("hpack").setLevel(logging.INFO)


def _json_formatter() -> logging.Formatter:
    from millpond.node.json_log import JsonFormatter  # few need it, and msgspec takes time

    return JsonFormatter()


def flush_log() -> None:
    """Wait until the log is written, FLUSH_S at most."""
    for handler in _handlers():
        handler.flush()


def dropped_records() -> int:
    """The records that were dropped, as nobody read the log."""
    return sum([each.dropped for each in _handlers()])


def write_error(text: str) -> None:
    """Write lines to standard error behind the log, unless nobody reads them for FLUSH_S: the
    process ends."""
    ends_at = time.monotonic() + FLUSH_S
    flush_log()
    try:
        fd = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"{text}\n")  # a stream of the program; else it was closed
        return
    data = text.encode("utf-8", "backslashreplace") + b"\n"
    with suppress(OSError):
        for start in range(0, len(data), select.PIPE_BUF):
            if not select.select([], [fd], [], max(0.0, ends_at - time.monotonic()))[1]:
                return
            os.write(fd, data[start : start + select.PIPE_BUF])  # a writable pipe takes so much


class LogHandler(logging.Handler):
    """Writes records to a file descriptor in a thread, which starts with the first record.

    `dropped` counts the records that were dropped.
    """

    def __init__(self, fd: int, queue_bytes_max: int = QUEUE_BYTES_MAX) -> None:
        super().__init__()
        self.dropped = 0
        self._fd = fd
        self._queue_bytes_max = queue_bytes_max
        self._start_anew()
        os.register_at_fork(after_in_child=self._start_anew)

    def _start_anew(self) -> None:
        """Begin with an empty queue; a forked process has no thread, and its parent's lines."""
        self._changed = Condition()
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        """The bytes of the lines that are not written, with those that are being written."""
        self._untold = 0
        """The dropped records that no line has told of."""
        self._thread: Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, formatted now: its arguments may change."""
        try:
            self._add((self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        except Exception:  # as `logging` has it: on stderr, and no log line fails what it tells of
            self.handleError(record)

    def _add(self, line: bytes) -> None:
        with self._changed:
            if self._waiting_bytes and self._waiting_bytes + len(line) > self._queue_bytes_max:
                self.dropped += 1
                self._untold += 1
                return
            self._tell_dropped()
            self._queue(line)
            if self._thread is None:
                self._thread = Thread(target=self._run, name=LOG_THREAD, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written, FLUSH_S at most."""
        with self._changed:
            if self._thread is not None:
                self._changed.wait_for(lambda: not (self._waiting_bytes or self._untold), FLUSH_S)

    def _queue(self, line: bytes) -> None:
        self._lines.append(line)
        self._waiting_bytes += len(line)

    def _tell_dropped(self) -> None:
        if self._untold:
            text = "log records dropped: %d, as nobody read the log"
            arguments = (self._untold,)
            record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, arguments, None)
            self._untold = 0
            self._queue((self.format(record) + "\n").encode())

    def _run(self) -> None:
        while True:
            lines = self._take()
            data = b"".join(lines)
            is_written = _write_all(self._fd, data)
            with self._changed:
                self._waiting_bytes -= len(data)
                self.dropped += 0 if is_written else len(lines)
                self._changed.notify_all()

    def _take(self) -> list[bytes]:
        """The next lines, whole; waits until there are any."""
        lines: list[bytes] = []
        size = 0
        with self._changed:
            while not self._lines:
                self._tell_dropped()
                if not self._lines:
                    self._changed.wait()
            while self._lines and size < WRITE_BYTES:
                line = self._lines.popleft()
                lines.append(line)
                size += len(line)
        return lines


def _handlers() -> list[LogHandler]:
    return [each for each in logging.getLogger().handlers if isinstance(each, LogHandler)]


def _write_all(fd: int, data: bytes) -> bool:
    """Write, however long it takes. False: there is nobody to read it."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])  # whoever shares the descriptor has made it so
        except OSError:
            return False
    return True
