"""The log as lines of JSON, for programs that collect logs.

A line has `time` (UTC), `level`, `logger`, `event`, `message`, the fields of the event, and
`traceback` where there is one. The event and the names of its fields are those of the text in the
source, without its values: they are the same in each line of one kind.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

FIELDS_MAX = 32
RESERVED = frozenset({"time", "level", "logger", "event", "message", "traceback"})
_DIRECTIVE = re.compile(r"(?:\b(\w+)=)?%[-#0 +]*[\d*]*(?:\.\d+)?([a-zA-Z%])")
_KINDS_MAX = 4096


class JsonFormatter(logging.Formatter):
    """Formats a record as an object of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        event, fields = event_of(record)
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
            "message": record.getMessage(),
        }
        for name, value in fields.items():
            line[f"{name}_" if name in RESERVED else name] = shown(value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def event_of(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    """The event of a record, and its fields."""
    event, names = _kind_of(str(record.msg))
    values = record.args if isinstance(record.args, tuple) else ()
    return event, {name: value for name, value in zip(names, values, strict=False) if name}


@lru_cache(_KINDS_MAX)
def _kind_of(template: str) -> tuple[str, tuple[str, ...]]:
    """The event of a text of the source, and the name of each of its values ("": none)."""
    names = tuple(name for name, kind in _DIRECTIVE.findall(template) if kind != "%")[:FIELDS_MAX]
    words = _DIRECTIVE.sub(" ", template.partition(": ")[0]).split()
    return " ".join(words) or "log", names


def shown(value: object) -> object:
    """A value as JSON has it."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0.0 else str(value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case _:
            return str(value)
