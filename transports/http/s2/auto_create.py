"""Streams that appends and reads make where their basin says so, and how any stream is made."""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.messages import Failed
from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.s2.codecs.config import (
    NOTHING,
    BasinConfig,
    StreamConfig,
    inherit,
    read_config_header,
    resolve,
)
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.encryption import EncryptionKey, check_cipher, has_cipher
from millpond.transports.http.s2.errors import CodedError, ErrorCode, S2Error, error_of
from millpond.transports.http.s2.metadata import (
    StreamMetadata,
    basin_config,
    decode_basin_metadata,
    settings_of,
    stream_metadata,
)

CONFIG_HEADER = b"s2-stream-config"
TRIES = 3
"""A stream that is deleted as often as it is made is given up."""


def basin_of(context: S2Context, target: S2Target) -> BasinConfig:
    """The configuration of the stream's basin. Raises CodedError if there is no such basin."""
    return basin_config(decode_basin_metadata(context.require_basin(target.basin).metadata))


def creation(basin: BasinConfig, config: StreamConfig, key: bytes = b"") -> m.Settings:
    """The settings of a new stream."""
    metadata = StreamMetadata(cipher=basin.stream_cipher, creation=key)
    resolved = resolve(inherit(config, basin.default_stream_config))
    return settings_of(resolved, metadata, m.Settings())


async def make(cells: CellClient, target: S2Target, settings: m.Settings) -> bool:
    """Make a stream. False: there is one. Raises S2Error; CodedError (501) where there is none, and
    the cipher of a new one is not installed."""
    cipher = stream_metadata(settings).cipher
    if not has_cipher(cipher):
        if is_unknown(await cells.request(target.cell, m.Describe)):
            check_cipher(cipher)
        return False
    reply = await cells.request(target.cell, lambda number: m.Create(number, settings))
    match reply:
        case m.Done():
            return True
        case m.StreamFailed(code=Code.STREAM_EXISTS):
            return False
        case m.StreamFailed() | Failed():
            raise error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers no creation")


async def ensure(
    context: S2Context,
    cells: CellClient,
    target: S2Target,
    key: EncryptionKey | None,
    *,
    is_append: bool = False,
) -> None:
    """The stream is not there: make it, where its basin says so. Raises CodedError: 404; bad_header
    where the basin encrypts, and `key` is needed and not one (None: it is not needed)."""
    basin = basin_of(context, target)
    if not (basin.create_stream_on_append if is_append else basin.create_stream_on_read):
        raise stream_not_found(target)
    context.require(Operation.CREATE_STREAM, target)
    if key is not None and basin.stream_cipher is not None:
        key.for_cipher(basin.stream_cipher)
    given = context.header(CONFIG_HEADER)
    config = NOTHING if given is None else read_config_header(given)
    await make(cells, target, creation(basin, config))


async def describe(context: S2Context, cells: CellClient, target: S2Target) -> m.StreamDescription:
    """The stream's outline. Raises S2Error; stream_not_found names the stream."""
    context.require_basin(target.basin)
    return described(await cells.request(target.cell, m.Describe), target)


async def describe_or_make(
    context: S2Context,
    cells: CellClient,
    target: S2Target,
    key: EncryptionKey | None,
    *,
    is_append: bool = False,
) -> m.StreamDescription:
    """The description of a stream, which is created if its basin allows that for this request."""
    for _ in range(TRIES):
        context.require_basin(target.basin)
        reply = await cells.request(target.cell, m.Describe)
        if not is_unknown(reply):
            return described(reply, target)
        await ensure(context, cells, target, key, is_append=is_append)
    raise stream_not_found(target)


def described(reply: CellReply, target: S2Target) -> m.StreamDescription:
    """The description in a reply. Raises S2Error."""
    if isinstance(reply, m.StreamDescription):
        return reply
    raise failure(reply, target)


def is_encrypted(reply: CellReply) -> bool:
    """True if the stream takes encrypted records only."""
    return isinstance(reply, m.StreamFailed) and reply.code is Code.ENCRYPTED


def is_unknown(reply: CellReply) -> bool:
    """True if the stream does not exist."""
    return isinstance(reply, m.StreamFailed) and reply.code is Code.UNKNOWN_STREAM


def failure(reply: CellReply, target: S2Target) -> S2Error:
    """The error that a refusal is."""
    if is_unknown(reply):
        return stream_not_found(target)
    if isinstance(reply, m.StreamFailed | Failed):
        return error_of(reply)
    raise AssertionError(f"{reply} is no refusal")


def unlisted(reply: CellReply, target: S2Target) -> S2Error:
    """The error of a list with a stream that cannot be described, which it names."""
    error = failure(reply, target)
    if not isinstance(error, CodedError):
        return error
    shown = target.shown.decode("utf-8", "replace")
    return CodedError(error.code, f"the stream {shown!r}: {error}", error.delay_ms)


def stream_not_found(target: S2Target) -> CodedError:
    """404, with the name."""
    shown = target.shown.decode("utf-8", "replace")
    return CodedError(ErrorCode.STREAM_NOT_FOUND, f"the stream {shown!r} does not exist")
