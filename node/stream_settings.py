"""What the configuration says of streams, and of the connections that serve them."""

from __future__ import annotations

from millpond.actors.streams.settings import StreamLimits
from millpond.node.config import Config
from millpond.node.config_rules import RuleTable, StreamRule
from millpond.transports.rustlog.codec import RustlogLimits
from millpond.transports.rustlog.connection import RustlogSettings
from millpond.transports.s3p.commands import S3pLimits
from millpond.transports.s3p.connection import S3pSettings
from millpond.transports.server.pipelined import FlowSettings


def stream_rules(config: Config) -> RuleTable[StreamLimits]:
    """The limits of each stream by its name."""
    rules = [(rule, _limits(config, rule)) for rule in config.streams]
    return RuleTable(rules, _limits(config, StreamRule("*")), config.default_durability)


def _limits(config: Config, rule: StreamRule) -> StreamLimits:
    return StreamLimits(
        age_s=rule.age or config.stream_age_s,
        keep_bytes=rule.bytes or 0,
        bytes_max=config.stream_bytes_max,
        node_bytes_max=config.node_stream_bytes_max,
        groups_max=config.stream_groups_max,
        node_groups_max=config.node_groups_max,
    )


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
        flow=FlowSettings(idle_s=config.stream_idle_s),
    )
