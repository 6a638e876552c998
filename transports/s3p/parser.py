"""The exact S3P parser: one command after the other, by its schema, from any split of the input.

Every header is checked before the bytes it declares are kept (S3A-22), each byte as soon as it is
there, so that the same bytes give the same commands and the same error however they come. An
unfinished command keeps its place: bytes that were read are not read again.
"""

from __future__ import annotations

from collections.abc import Iterator

from millpond.transports.s3p.commands import (
    COMMAND_BYTES_MAX,
    KEY_BYTES_MAX,
    OPTIONS_MAX,
    VALUE_BYTES_MAX,
    AppendRecords,
    Command,
    Options,
    S3pLimits,
    Schema,
    append_too_large,
    bad_format,
    key_too_long,
    name_too_long,
    over_limit,
    record_too_large,
    schema_of,
    verb_too_long,
)
from millpond.transports.s3p.fast_parser import RepeatedAppend
from millpond.transports.s3p.scanner import ARRAY, InputBuffer


def parse_command(source: InputBuffer, limits: S3pLimits) -> Iterator[Command | None]:
    """Read one command; gives None as often as more bytes are needed, then the command.

    Raises S3pError at the first byte that makes it impossible.
    """
    while (elements := source.number(ARRAY, "command")) < 0:
        yield None
    if elements not in (3, 4):
        raise bad_format(f"no command has {elements} elements")
    while (verb := source.bulk("command name", COMMAND_BYTES_MAX, verb_too_long)) is None:
        yield None
    schema = schema_of(verb, elements)
    while (name := source.bulk("stream name", limits.name_bytes_max, name_too_long)) is None:
        yield None
    options = Options(limits.count_default)
    while (count := source.number(ARRAY, "options")) < 0:
        yield None
    if count:
        yield from _parse_options(source, limits, schema, count, options)
    records: list[bytes] = []
    if elements == 4:
        yield from _parse_records(source, limits, records)
    yield schema.build(name, options, records)


def _parse_options(
    source: InputBuffer, limits: S3pLimits, schema: Schema, count: int, options: Options
) -> Iterator[None]:
    if count % 2:
        raise bad_format(f"options array has an odd number of elements ({count})")
    if count > OPTIONS_MAX:
        raise over_limit(f"options array of {count} elements, at most {OPTIONS_MAX} are allowed")
    for _ in range(count // 2):
        while (key := source.bulk("option key", KEY_BYTES_MAX, key_too_long)) is None:
            yield None
        option = schema.option(key)
        while (value := source.bulk("option value", VALUE_BYTES_MAX, option.too_long)) is None:
            yield None
        option.read(options, value, limits)


def _parse_records(source: InputBuffer, limits: S3pLimits, records: list[bytes]) -> Iterator[None]:
    while (count := source.number(ARRAY, "records")) < 0:
        yield None
    if not count:
        raise bad_format("records array is empty")
    if count > limits.records_max:
        raise over_limit(f"{count} records, at most {limits.records_max} are allowed")
    record_max, left = limits.record_bytes_max, limits.append_bytes_max
    while True:
        left = source.whole_records(records, count, record_max, left)
        if len(records) == count:
            return
        size_max, too_long = record_max, record_too_large
        if left < record_max:
            size_max, too_long = left, append_too_large
        while (record := source.bulk("record", size_max, too_long)) is None:
            yield None
        records.append(record)
        left -= len(record)
        if len(records) == count:
            return


def _parse_append(source: InputBuffer, limits: S3pLimits, name: bytes) -> Iterator[Command | None]:
    records: list[bytes] = []
    yield from _parse_records(source, limits, records)
    yield AppendRecords(name, None, records)


class IncrementalParser:
    """Commands from any split of the bytes; it decides what is S3P and what is not."""

    __slots__ = ("_limits", "_source", "_steps", "buffered_bytes", "is_midway")

    def __init__(self, limits: S3pLimits) -> None:
        self._limits = limits
        self._source = InputBuffer()
        self._steps: Iterator[Command | None] = iter(())
        self.is_midway = False
        self.buffered_bytes = 0
        """The bytes of the unfinished command that came so far."""

    def clear(self) -> None:
        """Discard the unfinished command: nothing more is fed."""
        self._source = InputBuffer()
        self._steps = iter(())
        self.is_midway = False
        self.buffered_bytes = 0

    def finish(self, data: bytes, found: list[Command]) -> bytes:
        """Go on with the unfinished command, and no further; gives what is behind its end."""
        source = self._source
        self.buffered_bytes += len(data)
        if not source.feed(data):
            return b""
        if (command := next(self._steps)) is None:
            source.compact()
            return b""
        self._steps = iter(())
        self.is_midway = False
        self.buffered_bytes = 0
        found.append(command)
        return source.take_unused()

    def feed(self, data: bytes, found: list[Command], last: RepeatedAppend) -> None:
        """Put the commands that `data` completes into `found`, from the beginning of a command on;
        raises S3pError after the last one before the error."""
        source, limits = self._source, self._limits
        source.feed(data)
        while not source.is_empty:
            unused_bytes = source.unused_bytes
            if last.name and source.skip(last.opening):
                steps = _parse_append(source, limits, last.name)
            else:
                steps = parse_command(source, limits)
            if (command := next(steps)) is None:
                self._steps = steps
                self.is_midway = True
                self.buffered_bytes = unused_bytes
                break
            found.append(command)
        source.compact()
