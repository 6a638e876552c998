"""Rules of the configuration: what holds for channels and streams whose names match a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Generic, TypeVar

import msgspec

from millpond.actors.errors import MillpondError
from millpond.actors.messages import Durability, Mode
from millpond.node.units import byte_count, duration_s

T = TypeVar("T")


class ConfigError(MillpondError):
    """A setting that the node cannot use; the text has its name and the reason."""


class ChannelRule(msgspec.Struct, frozen=True):
    """Settings of the channels that match a shell pattern; None: the node's default."""

    pattern: str
    mode: Mode | None = None
    ttl: int | None = None
    lease: float | None = None
    attempts: int | None = None
    durability: Durability | None = None
    tee: str | None = None

    @staticmethod
    def parse(text: str) -> ChannelRule:
        """Read `PATTERN=pair|fanout|queue[,OPTION...]`; options are `ttl=S`, `lease=S`,
        `attempts=N`, `durability=D` and `tee=STREAM`. Raises ConfigError."""
        pattern, _, rest = text.rpartition("=") if "," not in text else _split_rule(text)
        first, *options = rest.split(",")
        if not pattern or first.upper() not in Mode.__members__:
            raise ConfigError(f"channel rule {text!r}: want PATTERN=pair|fanout|queue[,ttl=S,...]")
        values = _options(f"channel rule {text!r}", options, ("ttl", "lease", "attempts", "tee"))
        return ChannelRule(pattern, Mode[first.upper()], **values)


class StreamRule(msgspec.Struct, frozen=True):
    """Settings of the streams that match a shell pattern; None: the node's default.

    Records go when they are older than `age` seconds, and the oldest when there are more than
    `bytes`. The newest `local` bytes stay in the stream's file, older records are in the replica.
    """

    pattern: str
    age: int | None = None
    bytes: int | None = None
    durability: Durability | None = None
    local: int | None = None

    @staticmethod
    def parse(text: str) -> StreamRule:
        """Read `PATTERN=OPTION[,OPTION...]`; options are `age=S`, `bytes=N`,
        `local=N` and `durability=D`. Raises ConfigError."""
        head, *options = text.split(",")
        pattern, equals, first = head.partition("=")
        if not pattern or not equals or "=" not in first:
            text = f"stream rule {text!r}: want PATTERN=age=S,bytes=N,local=N,durability=..."
            raise ConfigError(text)
        values = _options(f"stream rule {text!r}", [first, *options], ("age", "bytes", "local"))
        return StreamRule(pattern, **values)


class RuleTable(Generic[T]):
    """Settings by name: those of the first rule that matches, else `others`.

    `durability` holds where no rule sets another; no rule can add to MEMORY. The name None is that
    of a cell of the node itself, such as a catalog: no rule matches it.
    """

    def __init__(
        self, rules: Sequence[tuple[ChannelRule | StreamRule, T]], others: T, durability: Durability
    ) -> None:
        self._rules = [(rule.pattern, rule.durability, what) for rule, what in rules]
        self._others = others
        self._durability = durability

    def settings(self, name: bytes | None) -> T:
        return self._find(name)[1]

    def durability(self, name: bytes | None) -> Durability:
        """The durability that an acknowledgement of `name` promises."""
        durability = self._find(name)[0]
        if durability is None or self._durability is Durability.MEMORY:
            return self._durability
        return durability

    def _find(self, name: bytes | None) -> tuple[Durability | None, T]:
        if self._rules and name is not None:
            text = name.decode("utf-8", "surrogateescape")
            for pattern, durability, what in self._rules:
                if fnmatchcase(text, pattern):
                    return durability, what
        return None, self._others


def _options(rule: str, options: list[str], known: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for option in options:
        name, _, value = option.partition("=")
        if name == "durability":
            values[name] = durability_of(f"{rule}: durability", value)
        elif name == "tee" and name in known:
            values[name] = value
        elif name in known:
            values[name] = _positive(f"{rule}: {name}", value, name == "lease")
        else:
            raise ConfigError(f"{rule}: unknown option {name!r}")
    return values


def _split_rule(text: str) -> tuple[str, str, str]:
    head, comma, options = text.partition(",")
    pattern, equals, mode = head.rpartition("=")
    return pattern, equals, mode + comma + options


def durability_of(what: str, text: str) -> Durability:
    """The durability of that name. Raises ConfigError."""
    if text.upper() not in Durability.__members__:
        raise ConfigError(f"{what} must be replicated, disk, os or memory, not {text!r}")
    return Durability[text.upper()]


def _positive(what: str, text: str, is_fraction: bool) -> float | int:
    sizes = ("bytes", "local")
    found: float | None = byte_count(text) if what.endswith(sizes) else None
    if found is None and not what.endswith((*sizes, "attempts")):
        found = duration_s(text)
    try:
        value = float(text) if found is None else found
        if not is_fraction:
            if value != int(value):
                raise ValueError(text)
            value = int(value)
    except (ValueError, OverflowError) as exc:
        raise ConfigError(f"{what} must be a number, not {text!r}") from exc
    if not 0 < value < float("inf"):
        raise ConfigError(f"{what} must be above 0, not {text!r}")
    return value
