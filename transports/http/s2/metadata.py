"""Metadata of S2: values of basins and streams that the node keeps and does not interpret."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import msgspec

from millpond.actors.streams.messages import Settings, StreamOptions, Timestamping
from millpond.transports.http.s2.codecs.config import (
    BasinConfig,
    Cipher,
    ResolvedConfig,
    RetentionPolicy,
    StorageClass,
    StreamConfig,
    TimestampingMode,
    change_basin,
    encode_basin_config,
    encode_stream_settings,
    read_basin_change,
)

LABEL = "s2"
KEPT_MAX = 1024

_MODES = {
    TimestampingMode.CLIENT_PREFER: Timestamping.PREFERRED,
    TimestampingMode.CLIENT_REQUIRE: Timestamping.REQUIRED,
    TimestampingMode.ARRIVAL: Timestamping.ARRIVAL,
}
_TIMESTAMPINGS = {mine: theirs for theirs, mine in _MODES.items()}


class BasinMetadata(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A basin's configuration as S2's JSON, and which call made it (`creation_key`)."""

    config: bytes = b""
    creation: bytes = b""
    location: str | None = None


class StreamMetadata(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The metadata of a stream."""

    storage_class: StorageClass = StorageClass.EXPRESS
    cipher: Cipher | None = None
    creation: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode_basin = msgspec.msgpack.Decoder(BasinMetadata).decode
_decode_stream = msgspec.msgpack.Decoder(StreamMetadata).decode


def decode_basin_metadata(data: bytes) -> BasinMetadata:
    """The metadata of a basin; empty bytes are the defaults."""
    return _decode_basin(data) if data else BasinMetadata()


def encode_basin_metadata(
    config: BasinConfig, creation: bytes, location: str | None = None
) -> bytes:
    """The bytes that `decode_basin_metadata` reads."""
    return _encode(BasinMetadata(encode_basin_config(config), creation, location))


def basin_config(metadata: BasinMetadata) -> BasinConfig:
    """The configuration of a basin."""
    if not metadata.config:
        return BasinConfig()
    return change_basin(BasinConfig(), read_basin_change(metadata.config))


def stream_metadata(settings: Settings) -> StreamMetadata:
    """The metadata of a stream; a stream that another API created has the defaults."""
    found = settings.options and settings.options.labels.get(LABEL)
    return _decode_stream(found) if found else StreamMetadata()


def storage_class_of(options: StreamOptions) -> StorageClass:
    """The storage class of a stream with these options."""
    found = options.labels.get(LABEL)
    return StorageClass.EXPRESS if found is None else _stored_class(found)


@lru_cache(maxsize=KEPT_MAX)
def _stored_class(data: bytes) -> StorageClass:
    return _decode_stream(data).storage_class


def creation_key(token: str | None, config: bytes) -> bytes:
    """A hash of a request token and the requested configuration; empty without a token."""
    if token is None:
        return b""
    return sha256(b"%d:%b%b" % (len(token.encode()), token.encode(), config)).digest()[:16]


def stream_key(token: str | None, config: StreamConfig) -> bytes:
    """The creation key of a stream."""
    return creation_key(token, encode_stream_settings(config))


def settings_of(config: ResolvedConfig, metadata: StreamMetadata, before: Settings) -> Settings:
    """The settings of a stream with this configuration; settings of other APIs stay."""
    labels = {} if before.options is None else dict(before.options.labels)
    labels[LABEL] = _encode(msgspec.structs.replace(metadata, storage_class=config.storage_class))
    options = StreamOptions(
        _MODES[config.timestamping_mode],
        not config.uncapped,
        config.delete_on_empty_s,
        labels,
        is_encrypted=metadata.cipher is not None,
    )
    age_s = config.retention.age_s or 0
    return Settings(age_s, before.bytes_max, before.content_type, options)


def config_of(settings: Settings, node_age_s: int) -> ResolvedConfig:
    """The configuration in force for a stream. One that no S2 client made takes any timestamp."""
    age_s = node_age_s if settings.age_s is None else settings.age_s
    options = settings.options or StreamOptions()
    return ResolvedConfig(
        stream_metadata(settings).storage_class,
        RetentionPolicy(age_s or None),
        _TIMESTAMPINGS[options.timestamping],
        not options.is_capped,
        options.empty_s,
    )


def as_given(config: ResolvedConfig) -> StreamConfig:
    """The configuration in force as a given one, which a reconfiguration starts from."""
    return StreamConfig(
        config.storage_class,
        config.retention,
        config.timestamping_mode,
        config.uncapped,
        config.delete_on_empty_s,
    )
