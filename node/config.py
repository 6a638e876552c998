"""The node's configuration: one frozen dataclass; flags win over environment, file and defaults.

Every field is a key of the TOML file, a variable `MILLPOND_<FIELD>` and, where `serve` has it, a
flag. `docs/reference/limits.md` explains the limits.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.actors.channels.delivery_settings import DeliverySettings
from millpond.actors.channels.settings import ChannelSettings, EmptyPolicy, NodeLimits
from millpond.actors.messages import Durability
from millpond.actors.runtime.scheduler import SchedulerSettings
from millpond.actors.state.messages import StateLimits
from millpond.actors.store.settings import StoreSettings
from millpond.node.config_rules import ChannelRule as ChannelRule
from millpond.node.config_rules import ConfigError as ConfigError
from millpond.node.config_rules import RuleTable, StreamRule, durability_of
from millpond.transports.p2p.admission import LoginSettings
from millpond.transports.server.interface import ConnectionSettings

LISTENERS = ("p2p", "ws", "s3p", "rustlog", "http")
"""The settings that are addresses to listen on, or `OFF`."""
OFF = "off"
TLS_CLIENT = ("required", "optional")
"""Whether clients need a certificate, where there is an authority for theirs."""
ENVIRONMENT_PREFIX = "MILLPOND_"
PACKET_BYTES_CEILING = 2**24 - 1
PACKET_OVERHEAD_BYTES = 64
TEE_BYTES_MAX = 250


MAY_BE_ZERO = frozenset(
    {
        *("drain_timeout_s", "passivate_after_s", "rate_refusals_max", "requests_per_s_max"),
        "requests_per_s_per_peer_max",
        *("state_disk_bytes_max", "stream_age_s", "stream_shelf_bytes_max", "window"),
    }
)


U16_MAX, U32_MAX = 2**16 - 1, 2**32 - 1
MOST_OF_ALL = 2.0**53
MOST = {
    **dict.fromkeys(("ttl_default_s", "ttl_max_s", "dead_letter_ttl_s", "peer_ttl_s"), U32_MAX),
    **dict.fromkeys(("window", "window_max", "window_queue_max", "list_page"), U16_MAX),
    "attempts_max": U16_MAX,
    "keep_alive_s": U32_MAX // 1000,
    "s3p_name_bytes_max": 4000,
    "rustlog_frame_bytes_max": 10 * 2**20,
    **dict.fromkeys(("http_url_bytes_max", "http_header_bytes_max"), 2**16),
    "http_streams_max": 2**16,
    **dict.fromkeys(("http_head_s", "http_idle_s", "http_ping_s", "http_long_poll_s"), 86_400),
    "http_heartbeat_s": 86_400,
}
"""What the fields of the packets and of the journal can carry, and what HTTP takes."""


def _check_rule(rule: ChannelRule) -> None:
    if (rule.ttl or 0) > U32_MAX or (rule.attempts or 0) > U16_MAX:
        raise ConfigError(f"channel rule for {rule.pattern!r}: ttl or attempts is too large")
    if rule.tee is not None:
        _check_tee(f"channel rule for {rule.pattern!r}: tee", rule.tee)


def _check_tee(what: str, stream: str) -> None:
    """The name of a stream that every protocol can say."""
    size = len(stream.encode("utf-8", "surrogatepass"))
    if not 0 < size <= TEE_BYTES_MAX:
        raise ConfigError(f"{what} must have 1 to {TEE_BYTES_MAX} bytes, not {size}")
    if not stream.isprintable() or " " in stream:
        raise ConfigError(f"{what} must have no blanks and nothing unprintable, not {stream!r}")


def _check_tls(config: Config) -> None:
    needy = ("tls_key", "tls_client_ca", "tls_listeners")
    given = [name for name in needy if getattr(config, name)]
    if given and not config.tls_cert:
        raise ConfigError(f"{given[0]} means nothing without tls_cert")
    if config.tls_client not in TLS_CLIENT:
        raise ConfigError(f"tls_client must be one of {', '.join(TLS_CLIENT)}")
    unknown = [name for name in config.tls_listeners if name not in LISTENERS]
    if unknown:
        raise ConfigError(f"tls_listeners: {unknown[0]!r} is none of {', '.join(LISTENERS)}")


@dataclass(frozen=True)
class Config:
    """Everything a node can be told. Sizes in bytes, times in seconds unless the name says so."""

    p2p: str = "127.0.0.1:7400"
    ws: str = "127.0.0.1:7401"
    s3p: str = "127.0.0.1:7402"
    rustlog: str = "127.0.0.1:7403"
    http: str = "127.0.0.1:7404"
    data: str = ""
    durability: Durability = Durability.DISK
    default_channel: str = ""
    basin: str = "millpond"
    require_hello: bool = False
    channels: tuple[ChannelRule, ...] = ()
    streams: tuple[StreamRule, ...] = ()
    access_file: str = ""
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tls_client: str = "required"
    tls_listeners: tuple[str, ...] = ()
    insecure_public: bool = False
    origins: tuple[str, ...] = ()
    drain_timeout_s: float = 5.0

    relay: bool = False
    via: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    peer_ttl_s: int = 604_800
    carriers_max: int = 64
    fetchers_max: int = 64

    packet_bytes_max: int = 2**20
    keep_alive_s: float = 20.0
    handshake_s: float = 5.0
    stalled_s: float = 30.0
    malformed_max: int = 10
    requests_per_s_max: int = 0
    rate_refusals_max: int = 1000
    connections_max: int = 10_000
    requests_per_s_per_peer_max: int = 0
    connections_per_address_max: int = 256
    connections_per_peer_max: int = 64
    connections_before_ready_max: int = 512
    handshakes_per_s_max: int = 200
    handshakes_per_address_max: int = 20

    ttl_default_s: int = 86_400
    ttl_max_s: int = 604_800
    ttl_strict: bool = False
    dead_letter_ttl_s: int = 604_800
    empty_put: EmptyPolicy = EmptyPolicy.IGNORE
    list_page: int = 1000
    window: int = 32
    window_max: int = 1024
    window_queue_max: int = 8
    window_bytes: int = 2**20
    ack_timeout_s: float = 30.0
    attempts_max: int = 10
    channel_messages_max: int = 100_000
    channel_bytes_max: int = 64 * 2**20
    keys_max: int = 65_536
    node_messages_max: int = 1_000_000
    node_bytes_max: int = 2**30
    node_keys_max: int = 2_000_000
    mailbox_bytes_max: int = 2**20
    passivate_after_s: float = 60.0
    segment_bytes: int = 16 * 2**20
    journal_bytes_max: int = 64 * 2**20
    partition_handles_max: int = 256

    stream_age_s: int = 0
    stream_bytes_max: int = 2**30
    node_stream_bytes_max: int = 2**32
    stream_shelf_bytes_max: int = 2**26
    stream_groups_max: int = 1000
    state_bytes_max: int = 64 * 2**20
    node_state_bytes_max: int = 256 * 2**20
    state_idle_s: float = 600.0
    state_disk_bytes_max: int = 2**30
    state_save_every: int = 20_000
    node_groups_max: int = 100_000
    stream_idle_s: float = 300.0
    s3p_name_bytes_max: int = 256
    s3p_records_max: int = 1000
    s3p_record_bytes_max: int = 2**20
    s3p_append_bytes_max: int = 8 * 2**20
    s3p_count_default: int = 100
    s3p_count_max: int = 1000
    s3p_block_ms_max: int = 60_000
    s3p_reply_bytes_max: int = 4 * 2**20
    rustlog_frame_bytes_max: int = 10 * 2**20
    rustlog_records_max: int = 1000
    rustlog_partitions_max: int = 1000

    http_connections_max: int = 10_000
    http_streams_max: int = 200
    http_url_bytes_max: int = 16 * 2**10
    http_header_bytes_max: int = 32 * 2**10
    http_body_bytes_max: int = 16 * 2**20
    http_body_s: float = 30.0
    http_head_s: float = 30.0
    http_idle_s: float = 120.0
    http_ping_s: float = 30.0
    http_long_poll_s: float = 20.0
    http_heartbeat_s: float = 15.0

    def __post_init__(self) -> None:
        if not 1024 <= self.packet_bytes_max <= PACKET_BYTES_CEILING:
            raise ConfigError(f"packet_bytes_max must be within 1024..{PACKET_BYTES_CEILING}")
        if len(self.default_channel.encode()) > 250:
            raise ConfigError("default_channel must be at most 250 bytes")
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, int | float) or isinstance(value, bool | Durability):
                continue
            is_positive = value >= 0 if each.name in MAY_BE_ZERO else value > 0
            if not is_positive or value > MOST.get(each.name, MOST_OF_ALL):
                raise ConfigError(f"{each.name} cannot be {value}")
        if self.s3p_count_default > self.s3p_count_max:
            raise ConfigError("s3p_count_default must be at most s3p_count_max")
        if self.s3p_record_bytes_max > self.s3p_append_bytes_max:
            raise ConfigError("s3p_record_bytes_max must be at most s3p_append_bytes_max")
        if self.journal_bytes_max < 2 * self.segment_bytes:
            raise ConfigError("journal_bytes_max must be at least twice segment_bytes")
        for rule in self.channels:
            _check_rule(rule)
        _check_tls(self)

    @property
    def tls_names(self) -> tuple[str, ...]:
        """The listeners that speak TLS."""
        if not self.tls_cert:
            return ()
        names = self.tls_listeners or LISTENERS
        return tuple(name for name in names if getattr(self, name) != OFF)

    @property
    def default_durability(self) -> Durability:
        """What an acknowledgement promises where no rule says otherwise; without a data folder
        nothing is more than memory."""
        return self.durability if self.data else Durability.MEMORY

    @property
    def connection(self) -> ConnectionSettings:
        return ConnectionSettings(
            login=LoginSettings(
                default_channel=self.default_channel.encode() or None,
                require_hello=self.require_hello,
                packet_bytes_max=self.packet_bytes_max,
                keep_alive_ms=int(self.keep_alive_s * 1000),
            ),
            handshake_s=self.handshake_s,
            stalled_s=self.stalled_s,
            malformed_max=self.malformed_max,
            requests_per_s_max=self.requests_per_s_max,
            rate_refusals_max=self.rate_refusals_max,
            handshakes_per_s_max=self.handshakes_per_s_max,
            handshakes_per_address_max=self.handshakes_per_address_max,
        )

    @property
    def scheduler(self) -> SchedulerSettings:
        return SchedulerSettings(
            mailbox_bytes=self.mailbox_bytes_max, passivate_after_s=self.passivate_after_s
        )

    @property
    def store(self) -> StoreSettings:
        return StoreSettings(
            segment_bytes=self.segment_bytes,
            journal_bytes_max=self.journal_bytes_max,
            handles_max=self.partition_handles_max,
        )

    @property
    def node_limits(self) -> NodeLimits:
        return NodeLimits(
            messages_max=self.node_messages_max,
            bytes_max=self.node_bytes_max,
            keys_max=self.node_keys_max,
        )

    @property
    def states(self) -> StateLimits:
        return StateLimits(
            bytes_max=self.state_bytes_max,
            node_bytes_max=self.node_state_bytes_max,
            idle_s=self.state_idle_s,
            disk_bytes_max=self.state_disk_bytes_max,
            save_every=self.state_save_every,
        )

    def channel_settings(self, rule: ChannelRule | None) -> ChannelSettings:
        """The settings of the channels under a rule; None: of those without one."""
        rule = rule or ChannelRule("*")
        return ChannelSettings(
            mode=rule.mode,
            ttl_default=rule.ttl or self.ttl_default_s,
            ttl_max=self.ttl_max_s,
            ttl_strict=self.ttl_strict,
            dead_ttl=self.dead_letter_ttl_s,
            empty=self.empty_put,
            data_bytes_max=self.packet_bytes_max - PACKET_OVERHEAD_BYTES,
            messages_max=self.channel_messages_max,
            bytes_max=self.channel_bytes_max,
            tee=(rule.tee or "").encode(),
            is_kept=Durability.MEMORY not in (self.default_durability, rule.durability),
            keys_max=self.keys_max,
            list_page=self.list_page,
            delivery=DeliverySettings(
                ack_timeout_s=rule.lease or self.ack_timeout_s,
                attempts_max=rule.attempts or self.attempts_max,
                window=self.window,
                window_max=self.window_max,
                window_queue_max=self.window_queue_max,
                window_bytes=self.window_bytes,
            ),
        )


def channel_rules(config: Config) -> RuleTable[ChannelSettings]:
    """The settings of each channel by its name."""
    rules = [(rule, config.channel_settings(rule)) for rule in config.channels]
    return RuleTable(rules, config.channel_settings(None), config.default_durability)


PARSERS: dict[str, Callable[[str], Any]] = {
    "channels": ChannelRule.parse,
    "streams": StreamRule.parse,
}
"""Of settings that are lists."""


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration, and where each field came from: flag, environment, file or default."""

    config: Config
    origins: dict[str, str] = field(default_factory=dict)


def load_config(
    flags: Mapping[str, Any], environment: Mapping[str, str], path: Path | None
) -> LoadedConfig:
    """Put the sources together. `flags`: fields that were given. Raises ConfigError."""
    kinds = {each.name: each for each in dataclasses.fields(Config)}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(kinds, "default")
    for name, value in (_read_file(path) if path else {}).items():
        if name not in kinds:
            raise ConfigError(f"{path}: unknown setting {name!r}")
        values[name] = _convert(name, kinds[name].default, value)
        origins[name] = f"file {path}"
    for name, each in kinds.items():
        variable = ENVIRONMENT_PREFIX + name.upper()
        if variable in environment:
            values[name] = _convert(name, each.default, environment[variable])
            origins[name] = f"environment {variable}"
    for name, value in flags.items():
        values[name] = _convert(name, kinds[name].default, value)
        origins[name] = "flag"
    return LoadedConfig(Config(**values), origins)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc


def _convert(name: str, default: Any, value: Any) -> Any:
    """Bring text from any source to the type of the field's default. Raises ConfigError."""
    try:
        match default:
            case bool():
                return _boolean(value)
            case EmptyPolicy():
                return EmptyPolicy(value)
            case Durability():
                return durability_of(name, str(value))
            case int():
                return int(value)
            case float():
                return float(value)
            case tuple():
                separators = ",;" if name == "tls_listeners" else ";"
                parts = re.split(f"[{separators}]", value) if isinstance(value, str) else value
                parts = [part for part in parts if part]
                return tuple(map(PARSERS.get(name, str), parts))
            case _:
                return str(value)
    except (ValueError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{name}: cannot use {value!r}") from exc


def _boolean(value: Any) -> bool:
    match str(value).lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off" | "":
            return False
        case _:
            raise ValueError(value)
