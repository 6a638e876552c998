"""The options of the source and the sink, named like those of Spark's Kafka source.

Spark passes names in lower case. An unknown option is refused: with a typing error a query would
read everything, or nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from millpond.pipeline.errors import BadOption
from millpond.pipeline.spark.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    TopicPartition,
    decode,
    from_nested,
)

ADDRESS = "http://127.0.0.1:7404"
BASIN = "millpond"
ALTERNATIVES_MAX = 16
"""The addresses of one node."""
NODE_STRIDE = 1000
"""Node i of `address` has the partitions from i * 1000 on: no topic has more."""

_CONNECTION = (
    "address", "basin", "timeoutMs", "token", "tokenFile", "tlsCa", "tlsCert", "tlsKey",
)  # fmt: skip
_SOURCE = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "minPartitions",
    "includeHeaders", "fetchRows", "fetchBytes", "pushdown", "mode", "storeOptions",
)  # fmt: skip
_SINK = ("topic", "writerId", "batchId", "checkpointLocation", "queryName")
"""The last two are options of Spark, which passes them on."""
_SUBSCRIPTIONS = ("subscribe", "subscribepattern", "assign")
_TIMES = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


@dataclass(frozen=True)
class Nodes:
    """The nodes and the connection options. Executors get this object.

    `addresses`: one text for each node, of one or several addresses with `|` between them.
    """

    addresses: tuple[str, ...] = (ADDRESS,)
    basin: str = BASIN
    timeout_ms: int = 60_000
    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


@dataclass(frozen=True)
class Subscription:
    """The streams of a query, by exactly one of the three fields."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class OffsetBound:
    """The begin or the end of a query, for all partitions or for each.

    `offset` and `offsets` are sequences, EARLIEST or LATEST. Times are in milliseconds, and take
    precedence.
    """

    offset: int
    offsets: Offsets = field(default_factory=dict)
    time_ms: int | None = None
    times: Offsets = field(default_factory=dict)
    is_strict: bool = False
    """A time behind the last record is an error; default it means the tail."""


@dataclass(frozen=True)
class SourceOptions:
    """All options of the source."""

    nodes: Nodes
    subscription: Subscription
    start: OffsetBound
    end: OffsetBound
    fail_on_data_loss: bool = True
    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_max_ms: int = 900_000
    partitions_min: int | None = None
    with_headers: bool = False
    fetch_rows: int = 10_000
    fetch_bytes: int = 8 * 2**20
    pushes_down: bool = False
    is_direct: bool = False
    """Settled records are read from the object store of the node's replica."""
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class SinkOptions:
    """All options of the sink."""

    nodes: Nodes
    topic: str | None = None
    writer: str | None = None
    batch: int | None = None


def source_options(given: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """The source's options. Raises BadOption."""
    reader = _OptionReader(given)
    start = _bound(reader, "starting", LATEST if is_streaming else EARLIEST)
    if start.offset == LATEST and not is_streaming:
        raise BadOption("startingOffsets: a batch query cannot begin at latest")
    end = _bound(reader, "ending", LATEST)
    if end.offset == EARLIEST or EARLIEST in end.offsets.values():
        raise BadOption("endingOffsets: a query cannot end at earliest")
    if is_streaming and any(name.startswith("ending") for name in reader.given):
        raise BadOption("ending...: a streaming query has no end")
    found = SourceOptions(
        nodes=_nodes(reader),
        subscription=_subscription(reader),
        start=start,
        end=end,
        fail_on_data_loss=reader.truth("failOnDataLoss", True),
        rows_max=reader.number("maxOffsetsPerTrigger"),
        bytes_max=reader.size("maxBytesPerTrigger"),
        rows_min=reader.number("minOffsetsPerTrigger"),
        delay_max_ms=_duration_ms(reader.text("maxTriggerDelay") or "15m"),
        partitions_min=reader.number("minPartitions"),
        with_headers=reader.truth("includeHeaders", False),
        fetch_rows=reader.number("fetchRows") or 10_000,
        fetch_bytes=reader.number("fetchBytes") or 8 * 2**20,
        pushes_down=reader.truth("pushdown", False),
        is_direct=_is_direct(reader),
        store_options=_store_options(reader),
    )
    if found.rows_min and found.rows_max and found.rows_min > found.rows_max:
        raise BadOption("minOffsetsPerTrigger: above maxOffsetsPerTrigger")
    return found


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The sink's options. Raises BadOption."""
    reader = _OptionReader(given)
    nodes = _nodes(reader)
    if len(nodes.addresses) > 1:
        raise BadOption("address: a sink writes to one node")
    writer = reader.text("writerId")
    if writer is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", writer) is None:
        raise BadOption("writerId: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    batch = reader.text("batchId")
    if batch is not None and writer is None:
        raise BadOption("batchId: needs writerId")
    if batch is not None and not (batch.isascii() and batch.isdigit() and int(batch) < 2**63):
        raise BadOption(f"batchId: a number, not {batch!r}")
    topic = reader.text("topic") or _single(reader.text("subscribe"))
    return SinkOptions(nodes, topic, writer, None if batch is None else int(batch))


def _single(subscribed: str | None) -> str | None:
    """The stream of a view of one stream, into which rows are inserted."""
    return subscribed if subscribed is not None and "," not in subscribed else None


def is_view(given: Mapping[str, str]) -> bool:
    """Whether these are the options of a view, which is read and written."""
    return any(name.lower() in _SUBSCRIPTIONS for name in given)


class _OptionReader:
    """A reader of options by their names in any case. A view is read and written with the same
    options, so each side passes those of the other."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in (*_CONNECTION, *_SOURCE, *_SINK)}
        for name in self.given:
            if name not in names:
                near = get_close_matches(name, names, 1)
                raise BadOption(f"unknown option {name!r}", f"{names[near[0]]}?" if near else "")

    def text(self, name: str) -> str | None:
        value = self.given.get(name.lower())
        if value is not None and not value.strip():
            raise BadOption(f"{name}: empty")
        return value

    def number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and 0 < int(value) < 2**63):
            raise BadOption(f"{name}: a number of at least 1, not {value!r}")
        return int(value)

    def size(self, name: str) -> int | None:
        """A number of bytes, such as 1048576, 512k, 64m or 2g."""
        value = (self.text(name) or "").strip().lower()
        if not value:
            return None
        found = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)b?", value)
        if found is None or not int(found[1]):
            raise BadOption(f"{name}: {value!r}", "such as 64m or 2g")
        return int(found[1]) * 1024 ** "_kmgt".index(found[2] or "_")

    def truth(self, name: str, default: bool) -> bool:
        value = self.text(name)
        found = {None: default, "true": True, "false": False}.get(value and value.lower())
        if found is None:
            raise BadOption(f"{name}: true or false, not {value!r}")
        return found


def _nodes(reader: _OptionReader) -> Nodes:
    addresses = tuple(map(_alternatives, (reader.text("address") or ADDRESS).split(",")))
    token, token_file = reader.text("token"), reader.text("tokenFile")
    if token_file is not None:
        try:
            token = Path(token_file).read_text("utf-8").split()[0]
        except (OSError, UnicodeDecodeError, IndexError):
            raise BadOption(f"tokenFile: no token in {token_file}") from None
    return Nodes(
        addresses,
        reader.text("basin") or BASIN,
        reader.number("timeoutMs") or 60_000,
        token,
        reader.text("tlsCa"),
        reader.text("tlsCert"),
        reader.text("tlsKey"),
    )


def _alternatives(text: str) -> str:
    """The addresses of one node, in their order."""
    found = tuple(map(_address, text.split("|")))
    if len(set(found)) < len(found):
        raise BadOption(f"address: {text!r} names an address twice")
    if len(found) > ALTERNATIVES_MAX:
        raise BadOption(f"address: a node has at most {ALTERNATIVES_MAX} addresses")
    return "|".join(found)


def _address(text: str) -> str:
    address = text.strip().rstrip("/")
    if "://" not in address:
        address = f"http://{address}"
    if re.fullmatch(r"https?://(\[[0-9a-fA-F:.]+\]|[^/:@\s]+)(:\d{1,5})?", address) is None:
        raise BadOption(f"address: {text!r}", f"such as {ADDRESS}")
    return address


def _subscription(reader: _OptionReader) -> Subscription:
    given = [each for each in ("subscribe", "subscribePattern", "assign") if reader.text(each)]
    if len(given) != 1:
        raise BadOption("exactly one of subscribe, subscribePattern and assign is needed")
    text = reader.text(given[0]) or ""
    if given[0] == "subscribe":
        names = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        if not names:
            raise BadOption("subscribe: no stream is named")
        return Subscription(topics=names)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise BadOption(f"subscribePattern: {error}") from None
        return Subscription(pattern=text)
    return Subscription(assigned=_assigned(text))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        found = json.loads(text)
        rows = {topic: {str(each): 0 for each in numbers} for topic, numbers in found.items()}
    except (ValueError, RecursionError, AttributeError, TypeError):
        raise BadOption("assign: not such JSON", 'such as {"orders":[0,1]}') from None
    partitions = tuple(sorted(from_nested(rows, "assign")))
    if not partitions:
        raise BadOption("assign: no partition is named")
    return partitions


def _is_direct(reader: _OptionReader) -> bool:
    mode = (reader.text("mode") or "node").lower()
    if mode not in ("node", "direct"):
        raise BadOption(f"mode: node or direct, not {mode!r}")
    return mode == "direct"


def _store_options(reader: _OptionReader) -> Mapping[str, str]:
    text = reader.text("storeOptions")
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        # Its text may be a secret.
        raise BadOption("storeOptions: not a JSON object of texts", 'such as {"aws_region":"eu"}')
    return found


def _bound(reader: _OptionReader, side: str, default: int) -> OffsetBound:
    strategy = (reader.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise BadOption(f"startingOffsetsByTimestampStrategy: error or latest, not {strategy!r}")
    is_strict = strategy == "error" and side == "starting"
    time = reader.text(f"{side}Timestamp")
    if time is not None:
        if not (time.isascii() and time.isdigit()):
            raise BadOption(f"{side}Timestamp: milliseconds since 1970, not {time!r}")
        return OffsetBound(default, time_ms=int(time), is_strict=is_strict)
    by_time = reader.text(f"{side}OffsetsByTimestamp")
    if by_time is not None:
        times = decode(by_time, f"{side}OffsetsByTimestamp")
        return OffsetBound(default, times=times, is_strict=is_strict)
    text = reader.text(f"{side}Offsets")
    if text is None:
        return OffsetBound(default)
    word = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if word is not None:
        return OffsetBound(word)
    return OffsetBound(default, offsets=decode(text, f"{side}Offsets", EARLIEST))


def _duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|min|h)", text.strip().lower())
    if found is None:
        raise BadOption(f"maxTriggerDelay: {text!r}", "such as 15m or 30s")
    return int(found[1]) * _TIMES[found[2]]
