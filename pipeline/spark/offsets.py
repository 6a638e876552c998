"""Offsets of a query: sequences by topic and partition, and their canonical JSON.

The JSON is that of Spark's Kafka source, `{"orders":{"0":23}}`. Spark compares offsets as text, so
equal offsets always have the same bytes. In a checkpoint the identities of the streams stand beside
their sequences, under the name that no stream has: `{"":{"orders":{"0":"18f"}},"orders":{"0":23}}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from math import ceil, floor
from typing import Any, NamedTuple, TypeVar

from millpond.pipeline.errors import BadOption

V = TypeVar("V")

LATEST, EARLIEST = -1, -2
OFFSET_MAX = 2**63 - 1


class TopicPartition(NamedTuple):
    """The name of a stream in Spark."""

    topic: str
    partition: int


Offsets = dict[TopicPartition, int]
Identities = dict[TopicPartition, str]
"""The identities of streams; a stream that is deleted and made again has another one."""
IDENTITIES = ""


def encode(offsets: Mapping[TopicPartition, int]) -> str:
    """The canonical JSON of offsets."""
    return json.dumps(to_nested(offsets), sort_keys=True, separators=(",", ":"))


def to_nested(
    offsets: Mapping[TopicPartition, int], identities: Mapping[TopicPartition, str] | None = None
) -> dict[str, Any]:
    """Offsets as nested objects, for Spark."""
    return {**({IDENTITIES: _nested(identities)} if identities else {}), **_nested(offsets)}


class _Order(NamedTuple):
    """Partitions in the order of a checkpoint: by topic, and by the text of their numbers."""

    given: list[TopicPartition]
    topics: list[tuple[str, list[str], list[TopicPartition]]]


_orders: list[_Order] = []
"""The last two: partitions rarely change, and identities can be of fewer than offsets."""


def _nested(values: Mapping[TopicPartition, V]) -> dict[str, dict[str, V]]:
    value_of = values.__getitem__
    return {
        topic: dict(zip(texts, map(value_of, partitions), strict=True))
        for topic, texts, partitions in _order_of(list(values)).topics
    }


def _order_of(given: list[TopicPartition]) -> _Order:
    for order in _orders:
        if order.given == given:
            return order
    topics: dict[str, tuple[list[str], list[TopicPartition]]] = {}
    for each in sorted(given, key=_by_text):
        texts, partitions = topics.setdefault(each.topic, ([], []))
        texts.append(str(each.partition))
        partitions.append(each)
    order = _Order(given, [(topic, *columns) for topic, columns in topics.items()])
    _orders[:] = [order, *_orders[:1]]
    return order


def _by_text(each: TopicPartition) -> tuple[str, str]:
    return each.topic, str(each.partition)


def identities_of(found: Mapping[str, Any]) -> Identities:
    """The identities in the nested objects of a checkpoint; those of earlier versions have none."""
    return {
        TopicPartition(topic, partition_number(partition, "identities")): identity
        for topic, partitions in found.get(IDENTITIES, {}).items()
        for partition, identity in partitions.items()
    }


def decode(text: str, option: str = "offsets", lowest: int = 0) -> Offsets:
    """Offsets from JSON. Raises BadOption. `lowest`: EARLIEST if that is allowed."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BadOption(f"{option}: not JSON", 'such as {"orders":{"0":23}}') from None
    return from_nested(found, option, lowest)


def from_nested(found: object, option: str = "offsets", lowest: int = 0) -> Offsets:
    """Offsets from nested objects. Raises BadOption."""
    if not isinstance(found, dict):
        raise BadOption(f"{option}: not an object", 'such as {"orders":{"0":23}}')
    offsets: Offsets = {}
    for topic, partitions in found.items():
        if topic == IDENTITIES:
            continue
        if not isinstance(partitions, dict):
            raise BadOption(f"{option}: {topic!r} has no object of partitions")
        for partition, offset in partitions.items():
            is_number = isinstance(offset, int) and not isinstance(offset, bool)
            if not is_number or not lowest <= offset <= OFFSET_MAX:
                raise BadOption(f"{option}: {topic!r} {partition} has {offset!r}")
            offsets[TopicPartition(topic, partition_number(partition, option))] = offset
    return offsets


@lru_cache(maxsize=4096)
def partition_number(text: object, option: str) -> int:
    """A partition's number. Raises BadOption."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10):
        raise BadOption(f"{option}: {text!r} is not a partition")
    return int(text)


def end_of_batch(
    begin: Offsets,
    end: Offsets,
    rows_max: int | None,
    bytes_max: int | None = None,
    record_bytes: Mapping[TopicPartition, float] | None = None,
) -> Offsets:
    """The end of a batch of about `rows_max` records, in proportion to the size of each partition,
    or of about `bytes_max`, by the size of a record in each.

    Each partition that has records gets at least one, so it may be a few more.
    """
    if rows_max is None and bytes_max is None:
        return dict(end)
    sizes = {each: max(0, end[each] - begin.get(each, 0)) for each in end}
    total = sum(sizes.values())
    part = 1.0 if rows_max is None or total <= rows_max else rows_max / total
    if bytes_max is not None:
        means = record_bytes or {}
        total_bytes = sum(size * means.get(each, 0.0) for each, size in sizes.items())
        part = min(part, bytes_max / max(total_bytes, bytes_max))
    if part >= 1.0:
        return dict(end)
    found: Offsets = {}
    for each, size in sizes.items():
        share = size * part
        taken = ceil(share) if share < 1 else floor(share)
        found[each] = min(end[each], begin.get(each, 0) + taken) if size else end[each]
    return found


def lag(begin: Offsets, end: Offsets) -> int:
    """The number of records between two offsets."""
    return sum(max(0, end[each] - begin.get(each, 0)) for each in end)
