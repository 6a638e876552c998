"""The options of the source and the sink: named as Spark's Kafka source names them, checked once.

Spark hands them over in lower case. One that nobody knows is refused: a typing error would read
everything, or nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from millpond.pipeline.errors import BadOption
from millpond.pipeline.spark.offsets import EARLIEST, LATEST, Offsets, TopicPartition, decode, flat

ADDRESS = "http://127.0.0.1:7404"
BASIN = "millpond"
NODE_STRIDE = 1000
"""The node at place i of `address` has the partitions from i * 1000 on: no topic has more."""

_CONNECTION = (
    "address", "basin", "timeoutMs", "token", "tokenFile", "tlsCa", "tlsCert", "tlsKey",
)  # fmt: skip
_SOURCE = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "includeHeaders", "fetchRows", "fetchBytes", "pushdown",
)  # fmt: skip
_SINK = ("topic", "writerId", "batchId", "checkpointLocation", "queryName")
"""The last two are Spark's own, which it hands on."""
_TIMES = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


@dataclass(frozen=True)
class Nodes:
    """Where the nodes are, and how they are spoken to. Goes to the executors as it is."""

    addresses: tuple[str, ...] = (ADDRESS,)
    basin: str = BASIN
    timeout_ms: int = 60_000
    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


@dataclass(frozen=True)
class Subscription:
    """Which streams: exactly one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class OffsetBound:
    """Where a query begins or ends: for all partitions, or for some of them one by one.

    `offset` and `offsets` are sequences, EARLIEST or LATEST; times are in milliseconds and win.
    """

    offset: int
    offsets: Offsets = field(default_factory=dict)
    time_ms: int | None = None
    times: Offsets = field(default_factory=dict)
    is_strict: bool = False
    """A time behind the last record is an error; else it means the tail."""


@dataclass(frozen=True)
class SourceOptions:
    """All of them."""

    nodes: Nodes
    subscription: Subscription
    start: OffsetBound
    end: OffsetBound
    fail_on_data_loss: bool = True
    rows_max: int | None = None
    rows_min: int | None = None
    delay_max_ms: int = 900_000
    partitions_min: int | None = None
    with_headers: bool = False
    fetch_rows: int = 10_000
    fetch_bytes: int = 8 * 2**20
    pushes_down: bool = False


@dataclass(frozen=True)
class SinkOptions:
    """All of them."""

    nodes: Nodes
    topic: str | None = None
    writer: str | None = None
    batch: int | None = None


def source_options(given: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """The source's options. Raises BadOption."""
    take = _Taken(given, (*_CONNECTION, *_SOURCE))
    start = _edge(take, "starting", LATEST if is_streaming else EARLIEST)
    if start.offset == LATEST and not is_streaming:
        raise BadOption("startingOffsets: a batch query cannot begin at latest")
    end = _edge(take, "ending", LATEST)
    if end.offset == EARLIEST or EARLIEST in end.offsets.values():
        raise BadOption("endingOffsets: a query cannot end at earliest")
    if is_streaming and any(name.startswith("ending") for name in take.given):
        raise BadOption("ending...: a streaming query has no end")
    found = SourceOptions(
        nodes=_nodes(take),
        subscription=_subscription(take),
        start=start,
        end=end,
        fail_on_data_loss=take.truth("failOnDataLoss", True),
        rows_max=take.number("maxOffsetsPerTrigger"),
        rows_min=take.number("minOffsetsPerTrigger"),
        delay_max_ms=_duration_ms(take.text("maxTriggerDelay") or "15m"),
        partitions_min=take.number("minPartitions"),
        with_headers=take.truth("includeHeaders", False),
        fetch_rows=take.number("fetchRows") or 10_000,
        fetch_bytes=take.number("fetchBytes") or 8 * 2**20,
        pushes_down=take.truth("pushdown", False),
    )
    if found.rows_min and found.rows_max and found.rows_min > found.rows_max:
        raise BadOption("minOffsetsPerTrigger: above maxOffsetsPerTrigger")
    return found


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The sink's options. Raises BadOption."""
    take = _Taken(given, (*_CONNECTION, *_SINK))
    nodes = _nodes(take)
    if len(nodes.addresses) > 1:
        raise BadOption("address: a sink writes to one node")
    writer = take.text("writerId")
    if writer is not None and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", writer) is None:
        raise BadOption("writerId: 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'")
    batch = take.text("batchId")
    if batch is not None and writer is None:
        raise BadOption("batchId: whose batch?", "with writerId")
    if batch is not None and not (batch.isascii() and batch.isdigit() and int(batch) < 2**63):
        raise BadOption(f"batchId: a number, not {batch!r}")
    return SinkOptions(nodes, take.text("topic"), writer, None if batch is None else int(batch))


class _Taken:
    """Options by their names, whatever the case."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name in self.given:
            if name not in names:
                near = get_close_matches(name, names, 1)
                raise BadOption(
                    f"there is no option {name!r}", f"{names[near[0]]}?" if near else ""
                )

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

    def truth(self, name: str, otherwise: bool) -> bool:
        value = self.text(name)
        found = {None: otherwise, "true": True, "false": False}.get(value and value.lower())
        if found is None:
            raise BadOption(f"{name}: true or false, not {value!r}")
        return found


def _nodes(take: _Taken) -> Nodes:
    addresses = tuple(map(_address, (take.text("address") or ADDRESS).split(",")))
    token, token_file = take.text("token"), take.text("tokenFile")
    if token_file is not None:
        try:
            token = Path(token_file).read_text("utf-8").split()[0]
        except (OSError, UnicodeDecodeError, IndexError):
            raise BadOption(f"tokenFile: there is no token in {token_file}") from None
    return Nodes(
        addresses,
        take.text("basin") or BASIN,
        take.number("timeoutMs") or 60_000,
        token,
        take.text("tlsCa"),
        take.text("tlsCert"),
        take.text("tlsKey"),
    )


def _address(text: str) -> str:
    address = text.strip().rstrip("/")
    if "://" not in address:
        address = f"http://{address}"
    if re.fullmatch(r"https?://(\[[0-9a-fA-F:.]+\]|[^/:@\s]+)(:\d{1,5})?", address) is None:
        raise BadOption(f"address: {text!r}", f"such as {ADDRESS}")
    return address


def _subscription(take: _Taken) -> Subscription:
    given = [each for each in ("subscribe", "subscribePattern", "assign") if take.text(each)]
    if len(given) != 1:
        raise BadOption("exactly one of subscribe, subscribePattern and assign is needed")
    text = take.text(given[0]) or ""
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
    places = tuple(sorted(flat(rows, "assign")))
    if not places:
        raise BadOption("assign: no partition is named")
    return places


def _edge(take: _Taken, side: str, otherwise: int) -> OffsetBound:
    strategy = (take.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise BadOption(f"startingOffsetsByTimestampStrategy: error or latest, not {strategy!r}")
    is_strict = strategy == "error" and side == "starting"
    time = take.text(f"{side}Timestamp")
    if time is not None:
        if not (time.isascii() and time.isdigit()):
            raise BadOption(f"{side}Timestamp: milliseconds since 1970, not {time!r}")
        return OffsetBound(otherwise, time_ms=int(time), is_strict=is_strict)
    by_time = take.text(f"{side}OffsetsByTimestamp")
    if by_time is not None:
        times = decode(by_time, f"{side}OffsetsByTimestamp")
        return OffsetBound(otherwise, times=times, is_strict=is_strict)
    text = take.text(f"{side}Offsets")
    if text is None:
        return OffsetBound(otherwise)
    word = {"earliest": EARLIEST, "latest": LATEST}.get(text.strip().lower())
    if word is not None:
        return OffsetBound(word)
    return OffsetBound(otherwise, offsets=decode(text, f"{side}Offsets", EARLIEST))


def _duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d{1,12})\s*(ms|s|m|min|h)", text.strip().lower())
    if found is None:
        raise BadOption(f"maxTriggerDelay: {text!r}", "such as 15m or 30s")
    return int(found[1]) * _TIMES[found[2]]
