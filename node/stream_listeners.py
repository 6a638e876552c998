"""The listeners of S3P and RustLog: the session of a connection, and its limits.

The codecs are loaded with this module, which is that of the first connection.
"""

from __future__ import annotations

from millpond.node.config import Config
from millpond.node.connections import Services
from millpond.transports.io.interface import Session
from millpond.transports.rustlog.codec import RustlogLimits
from millpond.transports.rustlog.connection import rustlog_connection
from millpond.transports.rustlog.settings import ANSWER_S, RustlogSettings
from millpond.transports.s3p.commands import S3pLimits
from millpond.transports.s3p.connection import S3pSettings, s3p_connection
from millpond.transports.server.pipelined import FlowSettings


class StreamListeners:
    """The sessions of both listeners of one node."""

    def __init__(self, config: Config, services: Services) -> None:
        self._services = services
        self._s3p = s3p_settings(config)
        self._rustlog = rustlog_settings(config)

    def new_session(self, listener: str, number: int) -> Session:
        """The session of a connection that the listener `s3p` or `rustlog` just accepted."""
        if listener == "s3p":
            return s3p_connection(number, self._services, self._s3p)
        return rustlog_connection(number, self._services, self._rustlog)


def s3p_settings(config: Config) -> S3pSettings:
    """Limits of S3P connections."""
    return S3pSettings(
        limits=S3pLimits(
            name_bytes_max=config.s3p_name_bytes_max,
            records_max=config.s3p_records_max,
            record_bytes_max=config.s3p_record_bytes_max,
            append_bytes_max=config.s3p_append_bytes_max,
            count_default=config.s3p_count_default,
            count_max=config.s3p_count_max,
            block_ms_max=config.s3p_block_ms_max,
        ),
        flow=FlowSettings(idle_s=config.stream_idle_s),
        reply_bytes_max=config.s3p_reply_bytes_max,
    )


def rustlog_settings(config: Config) -> RustlogSettings:
    """Limits of RustLog connections."""
    return RustlogSettings(
        limits=RustlogLimits(
            frame_bytes_max=config.rustlog_frame_bytes_max,
            records_max=config.rustlog_records_max,
            partitions_max=config.rustlog_partitions_max,
        ),
        flow=FlowSettings(idle_s=config.stream_idle_s, answer_s=ANSWER_S),
    )
