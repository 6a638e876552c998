"""Settings of basins and streams in S2's JSON, what changes them, and what they come to (A.2, A.3).

A change says of each field: keep it (absent), back to the default (null), or a value. A basin or
stream keeps its settings as `StreamConfig` or `BasinConfig`; None: it was given none.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from millpond.actors.streams.messages import Settings, StreamOptions, Timestamping
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.errors import CodedError, ErrorCode, bad_header, bad_json, invalid
from millpond.transports.http.s2.model import check_basin, check_stream, check_u64

RETENTION_AGE_S = 604_800

T = TypeVar("T")
_encode = msgspec.json.Encoder().encode


class StorageClass(Enum):
    """The storage class; it has no effect here, and is returned and counted."""

    # Each is there once, and appends are counted by it.
    __hash__ = object.__hash__

    EXPRESS = "express"
    STANDARD = "standard"


class TimestampingMode(Enum):
    """The source of record timestamps (A.6)."""

    CLIENT_PREFER = "client-prefer"
    CLIENT_REQUIRE = "client-require"
    ARRIVAL = "arrival"


class Cipher(Enum):
    """The encryption of the records of new streams."""

    AEGIS_256 = "aegis-256"
    AES_256_GCM = "aes-256-gcm"


class RetentionPolicy(msgspec.Struct, frozen=True, gc=False):
    """Records go when they are older than so many seconds; None: never."""

    age_s: int | None


class StreamConfig(msgspec.Struct, frozen=True, gc=False):
    """The configuration given to a stream, or to a basin for its streams."""

    storage_class: StorageClass | None = None
    retention: RetentionPolicy | None = None
    timestamping_mode: TimestampingMode | None = None
    uncapped: bool | None = None
    delete_on_empty_s: int | None = None


class ResolvedConfig(msgspec.Struct, frozen=True, gc=False):
    """The configuration in force for a stream. The defaults are the system's; `delete_on_empty_s`
    0: never."""

    storage_class: StorageClass = StorageClass.EXPRESS
    retention: RetentionPolicy = RetentionPolicy(RETENTION_AGE_S)
    timestamping_mode: TimestampingMode = TimestampingMode.CLIENT_PREFER
    uncapped: bool = False
    delete_on_empty_s: int = 0


class BasinConfig(msgspec.Struct, frozen=True, gc=False):
    """The configuration of a basin."""

    default_stream_config: StreamConfig = StreamConfig()
    stream_cipher: Cipher | None = None
    create_stream_on_append: bool = False
    create_stream_on_read: bool = False


NOTHING = StreamConfig()
SYSTEM = ResolvedConfig()


# Request bodies.


class _Infinite(msgspec.Struct, frozen=True, gc=False):
    pass


class _Retention(msgspec.Struct, frozen=True, gc=False):
    age: int | UnsetType = UNSET
    infinite: _Infinite | UnsetType = UNSET


class _Timestamping(msgspec.Struct, frozen=True, gc=False):
    mode: TimestampingMode | UnsetType | None = UNSET
    uncapped: bool | UnsetType | None = UNSET


class _DeleteOnEmpty(msgspec.Struct, frozen=True, gc=False):
    min_age_secs: int | UnsetType | None = UNSET


class StreamChange(msgspec.Struct, frozen=True, gc=False):
    """A StreamConfig or StreamReconfiguration as it is sent."""

    storage_class: StorageClass | UnsetType | None = UNSET
    retention_policy: _Retention | UnsetType | None = UNSET
    timestamping: _Timestamping | UnsetType | None = UNSET
    delete_on_empty: _DeleteOnEmpty | UnsetType | None = UNSET


class BasinChange(msgspec.Struct, frozen=True, gc=False):
    """A BasinConfig or BasinReconfiguration as it is sent."""

    default_stream_config: StreamChange | UnsetType | None = UNSET
    stream_cipher: Cipher | UnsetType | None = UNSET
    create_stream_on_append: bool | UnsetType | None = UNSET
    create_stream_on_read: bool | UnsetType | None = UNSET


class CreateBasin(msgspec.Struct, frozen=True, gc=False):
    """The body of a POST of a basin, its name checked."""

    basin: str
    config: BasinConfig
    location: str | None


class CreateStream(msgspec.Struct, frozen=True, gc=False):
    """The body of a POST of a stream, its name checked."""

    stream: str
    config: StreamConfig


class _PutBasin(msgspec.Struct, frozen=True, gc=False):
    config: BasinChange | None = None
    location: str | None = None


class _PostBasin(msgspec.Struct, frozen=True, gc=False):
    basin: str
    config: BasinChange | None = None
    location: str | None = None


class _PostStream(msgspec.Struct, frozen=True, gc=False):
    stream: str
    config: StreamChange | None = None


_decode_stream = msgspec.json.Decoder(StreamChange).decode
_decode_basin = msgspec.json.Decoder(BasinChange).decode
_decode_put = msgspec.json.Decoder(_PutBasin).decode
_decode_post_basin = msgspec.json.Decoder(_PostBasin).decode
_decode_post_stream = msgspec.json.Decoder(_PostStream).decode


def read_post_basin(data: bytes) -> CreateBasin:
    """A basin to make. Raises CodedError (bad_json, invalid)."""
    found = decode_json(_decode_post_basin, data)
    check_basin(found.basin, ErrorCode.BAD_JSON)
    return CreateBasin(found.basin, _new_basin(found.config), found.location)


def read_put_basin(data: bytes) -> tuple[BasinConfig, str | None]:
    """The config and location of a PUT, whose body may be empty. Raises CodedError."""
    found = decode_json(_decode_put, data) if data else _PutBasin()
    return _new_basin(found.config), found.location


def read_post_stream(data: bytes) -> CreateStream:
    """A stream to make. Raises CodedError (bad_json, invalid)."""
    found = decode_json(_decode_post_stream, data)
    check_stream(found.stream.encode(), ErrorCode.BAD_JSON)
    config = NOTHING if found.config is None else change_stream(NOTHING, found.config)
    return CreateStream(found.stream, config)


def read_put_stream(data: bytes) -> StreamConfig:
    """The config of a PUT of a stream, whose body may be empty. Raises CodedError."""
    return change_stream(NOTHING, read_stream_change(data)) if data else NOTHING


def read_config_header(value: str) -> StreamConfig:
    """The header `s2-stream-config` (A.6). Raises CodedError (bad_header, invalid)."""
    try:
        return read_put_stream(value.encode())
    except CodedError as error:
        if error.code is ErrorCode.BAD_JSON:
            raise bad_header(f"s2-stream-config: {error}") from None
        raise


def read_stream_change(data: bytes) -> StreamChange:
    """The body of a PATCH of a stream. Raises CodedError (bad_json)."""
    return decode_json(_decode_stream, data)


def read_basin_change(data: bytes) -> BasinChange:
    """The body of a PATCH of a basin. Raises CodedError (bad_json)."""
    return decode_json(_decode_basin, data)


def _new_basin(given: BasinChange | None) -> BasinConfig:
    return BasinConfig() if given is None else change_basin(BasinConfig(), given)


def change_stream(config: StreamConfig, change: StreamChange) -> StreamConfig:
    """The config with a change. Raises CodedError (422 for values that cannot be)."""
    retention = config.retention
    if change.retention_policy is not UNSET:
        retention = _retention(change.retention_policy)
    mode, uncapped = config.timestamping_mode, config.uncapped
    match change.timestamping:
        case None:
            mode = uncapped = None
        case _Timestamping() as given:
            mode, uncapped = _changed(mode, given.mode), _changed(uncapped, given.uncapped)
    age_s = config.delete_on_empty_s
    match change.delete_on_empty:
        case None:
            age_s = None
        case _DeleteOnEmpty() as given_age:
            age_s = _changed(age_s, given_age.min_age_secs)
            check_u64(age_s, "delete_on_empty.min_age_secs", ErrorCode.BAD_JSON)
    storage_class = _changed(config.storage_class, change.storage_class)
    return StreamConfig(storage_class, retention, mode, uncapped, age_s)


def change_basin(config: BasinConfig, change: BasinChange) -> BasinConfig:
    """The config with a change. Raises CodedError (422 for values that cannot be)."""
    streams = config.default_stream_config
    match change.default_stream_config:
        case None:
            streams = NOTHING
        case StreamChange() as given:
            streams = change_stream(streams, given)
    return BasinConfig(
        streams,
        _changed(config.stream_cipher, change.stream_cipher),
        bool(_changed(config.create_stream_on_append, change.create_stream_on_append)),
        bool(_changed(config.create_stream_on_read, change.create_stream_on_read)),
    )


def _changed(now: T | None, given: T | UnsetType | None) -> T | None:
    return now if isinstance(given, UnsetType) else given


def _retention(given: _Retention | UnsetType | None) -> RetentionPolicy | None:
    if given is None or isinstance(given, UnsetType):
        return None
    if (given.age is UNSET) == (given.infinite is UNSET):
        raise bad_json("retention_policy: one of 'age' and 'infinite'")
    if isinstance(given.age, UnsetType):
        return RetentionPolicy(None)
    check_u64(given.age, "retention_policy.age", ErrorCode.BAD_JSON)
    if given.age == 0:
        raise invalid("retention_policy.age: at least one second")
    return RetentionPolicy(given.age)


# Effective settings.


def inherit(config: StreamConfig, basin: StreamConfig) -> StreamConfig:
    """The configuration of a stream, completed by the defaults of its basin (A.2)."""
    return StreamConfig(
        _first(config.storage_class, basin.storage_class),
        _first(config.retention, basin.retention),
        _first(config.timestamping_mode, basin.timestamping_mode),
        _first(config.uncapped, basin.uncapped),
        _first(config.delete_on_empty_s, basin.delete_on_empty_s),
    )


def _first(mine: T | None, other: T | None) -> T | None:
    return other if mine is None else mine


def resolve(config: StreamConfig, system: ResolvedConfig = SYSTEM) -> ResolvedConfig:
    """The configuration in force: the given one, completed by the system's."""
    return ResolvedConfig(
        config.storage_class or system.storage_class,
        config.retention or system.retention,
        config.timestamping_mode or system.timestamping_mode,
        system.uncapped if config.uncapped is None else config.uncapped,
        system.delete_on_empty_s if config.delete_on_empty_s is None else config.delete_on_empty_s,
    )


def encode_stream_config(config: ResolvedConfig) -> bytes:
    """A StreamConfig with all its fields."""
    return _encode(_shape(config))


def encode_stream_settings(config: StreamConfig) -> bytes:
    """The given configuration as JSON, for storage; `read_put_stream` reads it."""
    return _encode(_shape(config))


def completed(config: BasinConfig) -> BasinConfig:
    """The config with the storage class that its streams get where none was told: a config for
    streams that says anything says that too (S2X-40)."""
    streams = config.default_stream_config
    if streams == NOTHING or streams.storage_class is not None:
        return config
    streams = msgspec.structs.replace(streams, storage_class=SYSTEM.storage_class)
    return msgspec.structs.replace(config, default_stream_config=streams)


def show_basin_config(config: BasinConfig) -> bytes:
    """A BasinConfig for a client."""
    return encode_basin_config(completed(config))


def encode_basin_config(config: BasinConfig) -> bytes:
    """A BasinConfig; of the streams' config what was told (A.3). `read_basin_change` reads it."""
    streams, cipher = config.default_stream_config, config.stream_cipher
    return _encode(
        {
            "default_stream_config": _shape(streams) or None,
            "stream_cipher": None if cipher is None else cipher.value,
            "create_stream_on_append": config.create_stream_on_append,
            "create_stream_on_read": config.create_stream_on_read,
        }
    )


def _shape(config: StreamConfig | ResolvedConfig) -> dict[str, object]:
    """The values that are not None, nested as in S2's JSON."""
    found: dict[str, object] = {}
    if config.storage_class is not None:
        found["storage_class"] = config.storage_class.value
    if config.retention is not None:
        age_s = config.retention.age_s
        found["retention_policy"] = {"infinite": {}} if age_s is None else {"age": age_s}
    stamps: dict[str, object] = {}
    if config.timestamping_mode is not None:
        stamps["mode"] = config.timestamping_mode.value
    if config.uncapped is not None:
        stamps["uncapped"] = config.uncapped
    if stamps:
        found["timestamping"] = stamps
    if config.delete_on_empty_s is not None:
        found["delete_on_empty"] = {"min_age_secs": config.delete_on_empty_s}
    return found


def settings_of(config: ResolvedConfig, labels: dict[str, bytes]) -> Settings:
    """The settings of a stream's cell for a configuration, with labels that the cell keeps."""
    options = StreamOptions(
        _TIMESTAMPING[config.timestamping_mode],
        not config.uncapped,
        config.delete_on_empty_s,
        labels,
    )
    return Settings(age_s=config.retention.age_s or 0, options=options)


_TIMESTAMPING = {
    TimestampingMode.CLIENT_PREFER: Timestamping.PREFERRED,
    TimestampingMode.CLIENT_REQUIRE: Timestamping.REQUIRED,
    TimestampingMode.ARRIVAL: Timestamping.ARRIVAL,
}
