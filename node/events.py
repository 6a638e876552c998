"""Events of a node: connections, refusals, crashes, damage, takeovers; the last ones are kept.

An event is what a line of the log says: its name and its fields are those of the log in JSON
(docs/guides/monitoring.md). Connections and their ends are events alone. Each event has a number;
a reader asks for those behind the last one it has, and learns how many it has missed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from itertools import islice
from threading import Lock

import msgspec

from millpond.node.json_log import event_of, shown

EVENTS_MAX = 1000
"""The events that are kept; one more drops the oldest."""
TEXT_MAX = 500
"""The characters of a field, and of a traceback's last line."""
PAGE_MAX = 200
PAGE_BYTES_MAX = 48 * 1024

Field = str | int | float | bool | None


class Event(msgspec.Struct, frozen=True):
    """Something that happened at `at`, in seconds since 1970. `level` is that of the log."""

    number: int
    at: float
    level: str
    event: str
    fields: dict[str, Field]


class EventPage(msgspec.Struct, frozen=True):
    """Events behind a number, the oldest first. `run`: the node's run, whose numbers these are.
    `missed`: events in between that are not kept any more. `more`: there are others behind."""

    run: str
    events: list[Event]
    missed: int
    more: bool


class EventLog:
    """The last events of a node. Any thread may record one."""

    def __init__(self, run: str, now: Callable[[], float]) -> None:
        self._run = run
        self._now = now
        self._kept: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._last = 0
        self._lock = Lock()

    def record(self, event: str, fields: Mapping[str, Field], level: str = "info") -> None:
        """Keep one more event. Text is cut at 500 characters."""
        short = {
            name: value[:TEXT_MAX] if isinstance(value, str) else value
            for name, value in fields.items()
        }
        with self._lock:
            self._last += 1
            self._kept.append(Event(self._last, self._now(), level, event[:TEXT_MAX], short))

    def after(self, number: int, limit: int = PAGE_MAX, run: str = "") -> EventPage:
        """The events behind a number, so many at most, fewer if they are large. A number of another
        run is behind all of this one."""
        with self._lock:
            kept = list(self._kept)
        after = number if run in ("", self._run) else 0
        first = kept[0].number if kept else self._last + 1
        later = kept[max(0, after + 1 - first) :]
        page: list[Event] = []
        size = 0
        for each in islice(later, max(1, min(limit, PAGE_MAX))):
            size += len(msgspec.msgpack.encode(each))
            if size > PAGE_BYTES_MAX and page:
                break
            page.append(each)
        missed = max(0, first - after - 1)
        return EventPage(self._run, page, missed, len(page) < len(later))


class EventHandler(logging.Handler):
    """A handler of the log that records the lines of the node as events, from "info" on."""

    def __init__(self, events: EventLog) -> None:
        super().__init__(logging.INFO)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        try:
            event, fields = event_of(record)
            shown = {name: _field(value) for name, value in fields.items()}
            if record.exc_info and (error := record.exc_info[1]) is not None:
                shown["error"] = f"{type(error).__name__}: {error}"
            elif not fields:
                shown["text"] = record.getMessage()
            self._events.record(event, shown, record.levelname.lower())
        except Exception:  # as `logging` has it: on stderr, and no log line fails what it tells of
            self.handleError(record)


@contextmanager
def log_as_events() -> Generator[Callable[[EventLog], None]]:
    """A context in which lines of the log are events of a node, once the node is given to the
    function that this yields. The lines are made whatever the level of the log is."""
    log = logging.getLogger("millpond")
    level, handlers = log.level, list[EventHandler]()
    if log.getEffectiveLevel() > logging.INFO:
        log.setLevel(logging.INFO)

    def record(events: EventLog) -> None:
        handlers.append(EventHandler(events))
        log.addHandler(handlers[-1])

    try:
        yield record
    finally:
        log.setLevel(level)
        for each in handlers:
            log.removeHandler(each)


def _field(value: object) -> Field:
    found = shown(value)
    return found if isinstance(found, str | int | float | bool | None) else str(found)
