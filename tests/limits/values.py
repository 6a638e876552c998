"""The values of docs/reference/limits.md as the code has them: the numbers of each row in their
order, in bytes and seconds."""

from __future__ import annotations

import inspect

from websockets import http11 as websocket_heads

from millpond.actors import queue_settings
from millpond.actors.channels import channel, dead_letters
from millpond.actors.channels import context as channel_context
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.jobs import dead_letters as dead_jobs
from millpond.actors.jobs import flows, recurrence, results, schedules
from millpond.actors.jobs import messages as jobs_messages
from millpond.actors.jobs import options as job_options
from millpond.actors.jobs import requests as jobs
from millpond.actors.runtime import scheduler
from millpond.actors.runtime.scheduler import WAKES_MAX, SchedulerSettings
from millpond.actors.runtime.supervisor import RestartPolicy
from millpond.actors.store import catalog_copy, changes, compaction, group_commit, snapshot
from millpond.actors.store.journal import segments
from millpond.actors.store.settings import StoreSettings
from millpond.actors.streams import (
    chunks,
    command_records,
    glob,
    idempotent_writers,
    metadata,
    producers,
    read,
    retention,
    trim_grace,
)
from millpond.actors.streams.catalogs import access_tokens, topics
from millpond.actors.streams.catalogs import channels as created_channels
from millpond.actors.subscriptions.messages import SHOWN_MAX
from millpond.node import activity, admin, events, log_handler, node_spans
from millpond.node.backup import service as backup_service
from millpond.node.backup import snapshots as backup_snapshots
from millpond.node.chat import (
    actions,
    chunk_transfer,
    files,
    invites,
    message_requests,
    payloads,
    pending_files,
    receiver,
    reorder,
    search,
    search_index,
    sender,
)
from millpond.node.chat.groups import conversation as group_conversation
from millpond.node.chat.groups import group_task, groups, membership, shared_files, signed
from millpond.node.cli import contexts, jsonl
from millpond.node.cli.chat import shown_messages
from millpond.node.cli.commands import import_
from millpond.node.cli.options import traces
from millpond.node.client import channel as client_channel
from millpond.node.client import connect, inbox, link, otel, questions
from millpond.node.client.channels import Channels
from millpond.node.client.retry import ReconnectBackoff
from millpond.node.client.settings import ConnectSettings
from millpond.node.config import MOST, Config
from millpond.node.discovery import announcement, discovery, found_nodes, multicast, networks
from millpond.node.http import listener as http_listener
from millpond.node.jobs.worker import outcome
from millpond.node.outbox import (
    deliveries,
    file_requests,
    file_store,
    given_prekeys,
    inbound,
    key_exchange,
    mailbox,
    own_addresses,
)
from millpond.node.peers import (
    contact_keys,
    data_key,
    delivery_token,
    file_format,
    lines,
    one_time_prekeys,
    peer_store,
    prekey_cache,
    prekeys,
    sealed_message,
)
from millpond.node.replica import cold as replica_cold
from millpond.node.replica import cold_objects, keys_shipping, shipping
from millpond.node.replica import keys as replica_keys
from millpond.node.replica import service as replica_service
from millpond.node.replica import snapshots as replica_snapshots
from millpond.transports import browser_policy
from millpond.transports.http.durable.subscriptions import codec as subscription_codec
from millpond.transports.http.request import HttpLimits
from millpond.transports.http.s2 import model as s2
from millpond.transports.http.s2.codecs import append_scan
from millpond.transports.http.server import head_cache, head_queue, http1, http2, server
from millpond.transports.http.server.settings import ServerSettings
from millpond.transports.http.state import append as state_append
from millpond.transports.http.transactions import app as transactions
from millpond.transports.http.transactions import publish
from millpond.transports.http.webhooks import destination
from millpond.transports.http.webhooks.post import ANSWER_BYTES_MAX
from millpond.transports.io import anyio_wire, tls_handshake, tls_hello, tls_optional
from millpond.transports.p2p import (
    admission,
    channel_operations,
    connection,
    framing,
    handshake,
)
from millpond.transports.p2p.interface import P2PSettings
from millpond.transports.p2p.jobs import bodies as job_bodies
from millpond.transports.p2p.jobs import bulk_puts
from millpond.transports.p2p.jobs import requests as job_requests
from millpond.transports.p2p.streams import bodies as stream_bodies
from millpond.transports.p2p.streams import requests as stream_requests
from millpond.transports.rustlog import json_fallback, metrics, responses, topic_requests
from millpond.transports.rustlog import settings as rustlog_settings
from millpond.transports.rustlog.codec import RustlogLimits
from millpond.transports.server import memory_budget as memory
from millpond.transports.server import pipelined
from millpond.transports.websocket import frames, http_pages

Numbers = tuple[float, ...]


def _of(function: object, name: str) -> float:
    """The default of an argument."""
    value = inspect.signature(function).parameters[name].default  # type: ignore[arg-type]
    return float(value)


p2p, store, http, restarts = P2PSettings(), StoreSettings(), ServerSettings(), RestartPolicy()
limits, config = HttpLimits(), Config()
LINK = link.LinkSettings

CONNECTIONS: dict[str, Numbers] = {
    "channel name": (1, admission.NAME_BYTES_MAX),
    "HELLO": (handshake.HANDSHAKE_BYTES_MAX,),
    "packet before READY, where a HELLO is required": (connection.FIRST_PACKET_BYTES_MAX,),
    "HTTP request of a WebSocket": (
        frames.HEAD_BYTES_MAX,
        websocket_heads.MAX_NUM_HEADERS,
        websocket_heads.MAX_LINE_LENGTH,
    ),
    "HTTP request of a page on the WebSocket listener": (
        http_pages.HEAD_BYTES_MAX,
        http_pages.HEADERS_MAX,
        http_pages.FORM_BYTES_MAX,
    ),
    "TLS handshakes in progress": (
        tls_handshake.HANDSHAKES_MAX,
        tls_hello.HELLO_BYTES_MAX,
        tls_handshake.HANDSHAKE_S,
    ),
    "clients that say nothing, where a listener takes TLS and plain TCP": (
        tls_handshake.HANDSHAKES_MAX,
        tls_optional.SILENT_S,
    ),
    "wrong token": (p2p.refusal_delay_s,),
    "silence of a bare client with a channel": (p2p.bare_push_after_s,),
    "packet size of a client (tag 08)": (admission.PACKET_BYTES_MIN,) * 2,
    "stream requests of a connection without an answer": (
        stream_requests.REQUESTS_MAX,
        stream_requests.ANSWERS_BYTES_MAX,
        stream_requests.READ_BYTES_MIN,
    ),
    "requests of an S3P or RustLog connection without an answer": (
        pipelined.FlowSettings().in_flight_max,
        pipelined.FlowSettings().in_flight_bytes_max,
        pipelined.DECODED_BYTES_MAX,
    ),
    "a RustLog request that no stream answers, as while a disk stalls": (
        rustlog_settings.ANSWER_S,
        2 * rustlog_settings.ANSWER_S,
    ),
    "a RustLog request that finds no room in the mailbox of its stream": (
        2 * rustlog_settings.ANSWER_S,
    ),
    "packets of a P2P connection, and WebSocket frames that are no packet, in one turn of the "
    "event loop": (connection.TURN_PACKETS_MAX, framing.FEED_BYTES_MAX, frames.FEED_BYTES_MAX),
    "requests of an S3P or RustLog connection in one turn of the event loop": (
        pipelined.PASS_REQUESTS_MAX,
        pipelined.FlowSettings().pass_bytes_max,
        pipelined.ANSWER_BYTES,
    ),
    "outgoing queue of a connection": (anyio_wire.HIGH_WATER_BYTES,),
    "unread answers of a connection": (p2p.unread_bytes_max,),
    "answers of one moment, beside receipts and pushes": (p2p.unsent_bytes_max,),
    "GET and LIST in progress together": (connection.LARGE_REPLIES_BYTES_MAX,),
    "closing": (anyio_wire.FLUSH_S, anyio_wire.LINGER_S, anyio_wire.LINGER_BYTES),
    "log lines that nobody has read": (log_handler.QUEUE_BYTES_MAX, log_handler.FLUSH_S),
    "file descriptors": (),
    "events that the node keeps": (events.EVENTS_MAX, events.TEXT_MAX),
    "rows of a list of `top`": (activity.ROWS_MAX, activity.LIST_BYTES_MAX),
}

MEMORY: dict[str, Numbers] = {
    "all connections": (),
    "a request that waits to be read on": (memory.REFUSED_AFTER_S,),
    "the next read of each connection that was let in": (
        memory.READ_BYTES,
        memory.MemorySettings().overrun_bytes_max,
    ),
    "one connection": (),
    "connections of one key or address": (),
    "a client that neither sends nor reads 16 KiB": (memory.STALLED_S, memory.TICK_S),
    "the work that waited longest": (memory.MemorySettings().overrun_bytes_max,),
    "open connections by themselves": (memory.CONNECTION_BYTES,),
    "work that needs more than half of it": (),
    "reads of streams and states over P2P": (),
    "bytes that are not counted": (memory.SMALL_BYTES,),
    "freed memory": (memory.TRIM_BYTES, memory.TRIM_S),
}

CHANNELS: dict[str, Numbers] = {
    "one channel's share of a turn": (_of(SchedulerSettings, "turn_messages"),),
    "deadlines of channels, streams and connections in one turn of the event loop": (WAKES_MAX,),
    "TOUCH, NACK 30 with a delay": (channel.TOUCH_MS_MAX / 1000,) * 2,
    "`due` of a job": (jobs.DUE_S_MAX,),
    "`unique` of a job; the reason of a rejection": (
        job_bodies.UNIQUE_BYTES_MAX,
        job_bodies.REASON_MAX,
    ),
    "job requests of a connection without an answer": (
        job_requests.REQUESTS_MAX,
        job_requests.READS_MAX,
    ),
    "a bulk put of jobs: jobs; bytes; incomplete ones of a connection": (
        bulk_puts.JOBS_MAX,
        bulk_puts.BYTES_MAX,
        bulk_puts.OPEN_MAX,
    ),
    "results and progress of a queue's jobs: records; bytes together": (
        results.COUNT_MAX,
        results.BYTES_MAX,
    ),
    "one result or progress: bytes; time": (results.RECORD_BYTES_MAX, results.KEEP_S_MAX),
    "flows of a node; steps of one; bytes of all": (
        flows.FLOWS_MAX,
        jobs_messages.STEPS_MAX,
        flows.BYTES_MAX,
    ),
    "a list of jobs": (job_bodies.PAGE_MAX, job_requests.PAGE_BYTES_MAX),
    "dead jobs retried or purged by one request": (dead_jobs.COUNT_MAX, dead_jobs.BYTES_MAX),
    "queues of a node with settings (a pause, limits)": (created_channels.QUEUES_MAX,),
    "limit keys of a queue whose bucket is not full; the bytes of one": (
        queue_settings.KEYS_MAX,
        job_options.LIMIT_KEY_BYTES_MAX,
    ),
    "schedules of a node": (schedules.COUNT_MAX,),
    "a schedule: its name; the bytes of its jobs; its cron expression; its interval": (
        job_bodies.SCHEDULE_NAME_BYTES_MAX,
        schedules.DATA_BYTES_MAX,
        recurrence.CRON_CHARACTERS_MAX,
        recurrence.EVERY_MS_MIN / 1000,
        recurrence.EVERY_MS_MAX / 1000,
    ),
    "moments of a schedule that were missed": (schedules.CATCH_UP_S, schedules.LATE_S),
    "channels that were created": (created_channels.CHANNELS_MAX,),
    "messages purged or deleted by one request": (channel.CLEARED_MAX, channel.CLEARED_BYTES_MAX),
    "requests about channels by name of a connection without an answer; their patterns": (
        connection.LATER_REQUESTS_MAX,
        channel_operations.PATTERNS_MAX,
    ),
    "idempotency key of a message": (changes.WINDOW_S_MIN, changes.WINDOW_S_MAX),
    "identities that a channel knows": (ChannelSettings().subscribers_max,),
    "subscriber with an identity (fanout)": (),
    "ids ahead of the clock": (4096, 0.001, 5),
    "the end of ids": (),
    "crashes of a channel": (
        restarts.restarts_max,
        restarts.window_s,
        restarts.backoff_s_base,
        restarts.backoff_s_max,
        restarts.quarantine_s,
    ),
    "dead letter that does not fit": (dead_letters.RETRY_S,),
    "moves of dead letters that are remembered": (),
    "`info`": (admin.PAGE_MAX, admin.PAGE_BYTES_MAX),
    "`export`": (admin.EXPORT_BYTES_MAX,),
}

PEERS: dict[str, Numbers] = {
    "messages of one sender in `mail/PEER`": (config.channel_bytes_max / 4,),
    "messages of all other nodes in `mail/PEER`": (),
    "senders in `mail/PEER` that a relay does not know, with the delivery token": (),
    "delivery tokens of a node": (delivery_token.TOKENS_MAX, delivery_token.OLD_TOKENS_S),
    "PUTs of one sender in `mail/PEER`": (mailbox.SENDER_PER_S, mailbox.SENDER_BURST),
    "data in `mail/PEER`": (),
    "`mail/PEER!keys`": (mailbox.PREKEYS_BYTES_MAX, mailbox.PREKEYS_MAX),
    "a sealed message": (sealed_message.PADDED_BYTES_MIN, 12, 300),
    "messages to a peer without a receipt": (deliveries.MESSAGES_MAX, deliveries.BYTES_MAX),
    "a message without a receipt": (deliveries.RETRY_S_MIN, deliveries.RETRY_S_MAX),
    "lines of a sender that are remembered": (
        sealed_message.SEEN_LINES_MAX,
        lines.LINES_MAX,
        lines.WINDOW,
        384,
    ),
    "channels that one sender may use": (peer_store.CHANNELS_MAX,),
    "bytes in the channels that one sender has used": (inbound.SENDER_BYTES_MAX,),
    "moves from the own mailbox that channels remember": (
        inbound.WINDOW,
        inbound.RECORDS_REMOVED_AFTER_S,
        prekeys.KEPT_BEYOND_TTL_S,
    ),
    "accepted messages of one sender that are in no channel yet": (inbound.UNFINISHED_MAX,),
    "a message that waits in the node's own mailbox": (
        inbound.LATER_MS / 1000,
        inbound.LATER_MS_PER_MESSAGE / 1000,
    ),
    "a message in a channel": (config.ttl_max_s,),
    "messages of version 1 of one sender": (inbound.V1_UUIDS_MAX, 9 * 86_400),
    "message requests (`message_requests`)": (
        message_requests.SENDERS_MAX,
        message_requests.BYTES_MAX,
    ),
    "messages of one sender in message requests": (
        message_requests.MESSAGES_MAX,
        message_requests.MESSAGE_BYTES_MAX,
        message_requests.INTRODUCED_MESSAGES_MAX,
    ),
    "refused senders that are remembered, stored or not yet": (
        message_requests.REFUSED_MAX,
        prekeys.TTL_S_MAX + prekeys.KEPT_BEYOND_TTL_S,
    ),
    "open invites": (invites.OPEN_MAX, invites.LIFE_S, invites.LIFE_S_MIN),
    "nodes that were found on the network (`discover`)": (
        found_nodes.FOUND_MAX,
        found_nodes.PER_ADDRESS_MAX,
        found_nodes.CHECK_EVERY_S,
        found_nodes.AGE_S_MAX,
    ),
    "announcements of nodes that wait to be checked": (
        found_nodes.WAITING_MAX,
        found_nodes.PER_ADDRESS_MAX,
        multicast.HEARD_MAX,
        multicast.AGAIN_MAX,
        discovery.NETWORKS_S,
        discovery.CHECKS_MAX,
        discovery.CHECK_S,
    ),
    "announcements of nodes that were refused": (found_nodes.FAILED_MAX, found_nodes.FAILED_S),
    "an announcement of a node": (
        announcement.INSTANCE_CHARS_MAX,
        announcement.VERSION_CHARS_MAX,
        announcement.ADDRESSES_READ_MAX,
        announcement.ADDRESSES_MAX,
        networks.NETWORKS_MAX,
    ),
    "used invites that are remembered": (invites.USED_MAX,),
    "a reaction to a message of a chat": (actions.REACTION_BYTES_MAX,),
    "texts that a search of chats looks at": (search.TEXT_BYTES_MAX, search.IDLE_S),
    "edits and deletions that a search has no message for": (search_index.CHANGES_MAX,),
    "a search of chats": (
        search.QUERY_CHARS_MAX,
        search.FOUND_MAX,
        search.OFFSET_MAX,
        search.INDEXED_S,
    ),
    "a file of a chat (`chat_file_bytes_max`)": (
        Config.chat_file_bytes_max,
        file_format.FILE_BYTES_MAX,
        file_format.CHUNK_BYTES,
        file_requests.CHUNKS_AT_ONCE,
    ),
    "files of chats on a node (`chat_files_bytes_max`)": (
        Config.chat_files_bytes_max,
        file_store.FILES_MAX,
    ),
    "files that a peer has announced and that are not there yet": (pending_files.PENDING_MAX,),
    "files that clients add at once": (files.UPLOADS_MAX, files.UPLOAD_IDLE_S),
    "files on their way at once": (
        files.TRANSFERS_AT_ONCE,
        chunk_transfer.TURN_S,
        file_requests.HANDLED_AT_ONCE,
    ),
    "a file at a relay (`relay_files_bytes_max`)": (
        Config.relay_files_bytes_max,
        file_store.FILES_MAX,
        Config.peer_ttl_s,
        file_requests.UNFINISHED_S,
    ),
    "the name of a file": (file_format.NAME_BYTES_MAX,),
    "kinds of messages that a receipt of a chat names": (payloads.KNOWN_MAX, 32),
    "notices that somebody writes to one peer": (
        sender.TYPING_EVERY_S,
        sender.TYPING_TTL_S,
        receiver.TYPING_S,
        group_task.TYPING_MEMBERS_MAX,
    ),
    "messages of a chat that a terminal knows": (shown_messages.MESSAGES_MAX,),
    "members of a group": (signed.MEMBERS_MAX,),
    "records of a group": (
        membership.RECORDS_MAX,
        membership.OTHERS_MAX,
        membership.STATEMENTS_MAX,
        membership.BYTES_MAX,
        membership.REMOVALS_MAX,
        membership.LEAVES_MAX,
        membership.SPARED_BYTES,
    ),
    "files of a group that a node gives to members": (shared_files.SHARED_MAX,),
    "groups of a node": (
        groups.GROUPS_MAX,
        groups.INVITATIONS_MAX,
        groups.INVITATIONS_OF_CONTACT_MAX,
        groups.LEFT_MAX,
    ),
    "a text to a group": (group_task.TEXT_BYTES_MAX,),
    "messages of a group that wait for earlier ones, or for a record": (
        group_conversation.HELD_MAX,
        group_conversation.HELD_OF_AUTHOR_MAX,
        group_task.HELD_OF_STRANGERS_MAX,
        reorder.GAP_WAIT_S,
        group_conversation.UNKNOWN_WAIT_S,
    ),
    "addresses of network interfaces in a card": (own_addresses.FOUND_MAX,),
    "keys for one contact": (contact_keys.KEPT_MAX,),
    "the node's own prekey": (prekeys.DAY_S / 86_400, prekeys.TTL_S_MAX),
    "a published prekey": (prekeys.PUBLISHED_BYTES_MAX,),
    "one-time prekeys of a node at a relay": (
        one_time_prekeys.GIVEN_MAX,
        prekeys.ROTATED_S / prekeys.DAY_S,
    ),
    "the answer of a relay that is asked for one-time prekeys": (key_exchange.TAKEN_WITHIN_S,),
    "private halves of one-time prekeys for one relay": (one_time_prekeys.HELD_MAX,),
    "one-time prekeys of one owner for one sender": (given_prekeys.TAKES_PER_DAY,),
    "unused one-time prekeys of others": (
        one_time_prekeys.TAKEN_MAX,
        one_time_prekeys.OWNERS_MAX,
    ),
    "a passphrase": (data_key.PASSPHRASE_BYTES_MIN, data_key.PASSPHRASE_BYTES_MAX),
    "memory of scrypt at the start of an encrypted folder": (
        data_key.ScryptCost().memory_bytes,
        data_key.SCRYPT_BYTES_MAX,
    ),
    "known prekeys of others": (prekey_cache.PREKEYS_PER_OWNER_MAX, prekey_cache.OWNERS_MAX),
}

STORE: dict[str, Numbers] = {
    "a channel's changes in the journal": (store.rewrite_bytes_max, store.settle_s),
    "rewritten from one segment": (),
    "deleted data in a channel's file": (store.waste_bytes_max,),
    "a slice of a compaction": (compaction.SLICE_ENTRIES, compaction.SLICE_BYTES),
    "replies of one channel that wait for the disk": (),
    "changes without a waiting client, while the disk fails": (group_commit.HELD_BACK_MAX,),
    "a failing disk": (store.retry_s,),
    "an unreadable file": (scheduler.LOAD_RETRY_S,),
    "names listed of one segment": (segments.NAMES_BYTES_MAX,),
    "the copy of the catalog at a stop": (catalog_copy.BYTES_MAX,),
    "message ids reserved ahead": ((segments.ID_STEP >> 22) / 1000,),
    "the scrub": (),
    "changes without a sync (`os`, acks)": (1.0,),
    "backups in progress": (1,),
    "a backup that its command does not ask for": (backup_service.ASKED_S_MAX,),
    "files that change before a backup has copied them": (
        snapshot.HELD_MAX,
        snapshot.SMALL_BYTES_MAX,
        snapshot.MEMORY_BYTES_MAX,
    ),
    "the moment of a backup on a disk that does not answer": (backup_snapshots.SNAPSHOT_S_MAX,),
    "bytes that wait for a replica": (config.replica_lag_bytes_max,),
    "an acknowledgement that waits for the replica (`replicated`)": (config.replica_ack_s,),
    "silence of the owner before a standby takes over": (config.takeover_s,),
    "a journal object of a replica": (shipping.OBJECT_BYTES, shipping.OBJECT_BYTES_MAX),
    "beats, owners of a replica": (shipping.BEATS_KEPT, replica_snapshots.OWNERS_KEPT),
    "upload of a file of a snapshot": (
        shipping.ANSWER_S,
        replica_service.UPLOAD_BYTES_S_MIN,
        replica_service.SNAPSHOT_RETRY_S,
        replica_service.SNAPSHOT_RETRY_S_MAX,
    ),
    "keys of a node in its replica": (
        replica_keys.KEYS_BYTES_MAX,
        keys_shipping.KEYS_BYTES_S,
    ),
    "drafts in a folder that is a replica": (replica_snapshots.BLOB_GRACE_S,),
    "blobs of a replica without a manifest": (replica_snapshots.BLOB_GRACE_S,),
    "bytes of a stream in its file, with a replica": (
        config.stream_local_bytes_max,
        cold_objects.OBJECT_BYTES,
    ),
    "a cold object of a replica": (cold_objects.OBJECT_BYTES, cold_objects.CHUNKS_MAX),
    "cache of cold objects": (config.stream_cold_cache_bytes_max,),
    "fetches of cold objects at the same time": (replica_cold.THREADS_MAX,),
    "a read that waits for a cold object": (
        replica_cold.FETCH_S,
        replica_cold.AWAY_S,
        replica_cold.DAMAGED_S,
    ),
    "names as labels in `/metrics`": (config.metrics_names_max, MOST["metrics_names_max"]),
    "queues with counters of their own in `/metrics`": (channel_context.QUEUES_COUNTED_MAX,),
    "tasks by name in the metrics of a worker": (outcome.TASKS_MAX,),
}

STREAMS: dict[str, Numbers] = {
    "topics with several partitions": (topics.TOPICS_MAX, topics.ALL_PARTITIONS_MAX),
    "access tokens issued by S2": (access_tokens.TOKENS_MAX, access_tokens.METADATA_BYTES_MAX),
    "records, headers of an append over P2P": (
        stream_bodies.RECORDS_MAX,
        stream_bodies.HEADERS_MAX,
    ),
    "strings of a Produce, fields of a RustLog request": (json_fallback.FIELDS_MAX,),
    "records of a Produce in RustLog's binary form": (RustlogLimits().binary_records_max,),
    "records of a RustLog Fetch": (
        rustlog_settings.RustlogSettings().fetch_records_max,
        RustlogLimits().frame_bytes_max,
    ),
    "consumer lag in a RustLog MetricsFetch": (
        responses.LAGS_MAX,
        topic_requests.LAG_PARTITIONS_MAX,
        metrics.GROUP_PARTITIONS_MAX,
    ),
    "records, headers, protobuf bytes of an S2 append": (
        s2.RECORDS_MAX,
        s2.HEADERS_MAX,
        append_scan.PROTOBUF_BYTES_MAX,
    ),
    "events of an append to a state": (state_append.EVENTS_MAX, state_append.BODY_BYTES_MAX),
    "JSON messages in one append of Durable Streams": (config.durable_messages_max,),
    "producers of Durable Streams": (producers.PRODUCERS_MAX,),
    "a subscription: id, pattern, URL, description, worker": (
        subscription_codec.ID_BYTES_MAX,
        glob.PATTERN_BYTES_MAX,
        destination.URL_BYTES_MAX,
        subscription_codec.DESCRIPTION_BYTES_MAX,
        subscription_codec.WORKER_BYTES_MAX,
    ),
    "a pattern: segments, `**`": (glob.SEGMENTS_MAX, glob.DEEP_MAX),
    "streams of one request about a subscription, its body": (
        subscription_codec.STREAMS_MAX,
        subscription_codec.BODY_BYTES_MAX,
    ),
    "streams of a subscription": (config.subscription_streams_max,),
    "subscriptions": (config.subscriptions_max,),
    "streams that a call of a webhook shows": (SHOWN_MAX,),
    "calls of webhooks at once": (config.webhook_deliveries_max,),
    "answer of a webhook": (config.webhook_timeout_s, ANSWER_BYTES_MAX),
    "offsets committed before their topic exists": (),
    "name of a consumer group": (metadata.GROUP_BYTES_MAX,),
    "fencing token": (command_records.FENCE_BYTES_MAX,),
    "records that share a chunk": (chunks.RECORDS_MAX, chunks.BYTES_MAX),
    "skipped ranges of one read": (read.SCANS_MAX,),
    "trims of a stream within their grace": (2 * trim_grace.STEPS + 2, trim_grace.STEPS),
    "a slice of retention": (retention.SLICE_BYTES,),
    "transactions: writers of a stream": (
        idempotent_writers.WRITERS_MAX,
        idempotent_writers.UNNAMED_MAX,
        idempotent_writers.IDLE_MS / 1000,
    ),
    "transactions: parts of a batch, and their list": (
        publish.PARTS_MAX,
        transactions.PLAN_BYTES_MAX,
    ),
    "transactions: an unpublished part": (),
    "transactions: a slice of a batch": (publish.SLICE_BYTES, publish.SLICE_ROWS),
    "headers of an HTTP request, `Host` included": (limits.headers_max,),
    "HTTP body behind its answer": (limits.linger_s, limits.linger_bytes_max),
    "HTTP windows": (
        http.window_bytes,
        http.connection_window_bytes,
        http_listener.HIGH_WATER_BYTES,
    ),
    "an HTTP answer above 16 KiB": (http1.PIECE_BYTES,),
    "HTTP body read ahead of the API": (http.unread_bytes_max, http1.BODY_PIECE_BYTES),
    "a request line that cannot be parsed": (http.url_bytes_max + http1.REQUEST_LINE_BYTES,),
    "HTTP/1.1 requests read ahead of their turn": (http1.AHEAD_MAX,),
    "cached HTTP/1.1 heads": (
        head_cache.HEADS_MAX,
        head_cache.HEAD_BYTES_MAX,
        head_cache.PARTS_MAX,
        8 * 2**20,
    ),
    "`Host`": (browser_policy.HOST_BYTES_MAX, browser_policy._HOSTS_CACHED),
    "HTTP/2 frames": (http2.FRAMES_PER_S, 5, 20, http2.UNREAD_REPLY_BYTES_MAX),
    "an HTTP/2 head in its frames": (2 * http2.FRAME_BYTES_MAX,),
    "HTTP/2 heads in a row above `http_header_bytes_max`, or with too many headers": (
        http2.OVERSIZED_HEADS_MAX,
    ),
    "HTTP/2 heads decoded in one turn of the event loop": (head_queue.TURN_BYTES,),
    "an HTTP/2 stream without a window": (),
    "HPACK table": (http2.HEADER_TABLE_BYTES,),
    "a stop as a whole": (config.drain_timeout_s + config.stop_timeout_s, 1),
    "HTTP sessions when the node stops": (1, server.STOP_S),
}

CLIENT: dict[str, Numbers] = {
    "puts in flight": (_of(ConnectSettings, "in_flight_max"), connect.IN_FLIGHT_BYTES_MAX),
    "pushed messages not taken yet": (),
    "acknowledged messages remembered": (inbox.SETTLED_MAX,),
    "acks that wait for a connection": (inbox.ACKS_MAX,),
    "questions without an answer": (questions.ASKS_MAX,),
    "channels of a receiver": (_of(Channels.receiver, "channels_max"),),
    "connecting": (_of(LINK, "dial_s"),),
    "handshake": (_of(LINK, "handshake_s"),),
    "delay between attempts": (
        _of(ReconnectBackoff, "base_s"),
        _of(ReconnectBackoff, "max_s"),
        _of(ReconnectBackoff, "stable_s"),
    ),
    "silence of the node": (_of(LINK, "idle_s"), _of(LINK, "pong_s")),
    "traces that the span of a read is linked to": (otel.LINKS_MAX,),
    "spans of a connection at a time, in the node": (node_spans.OPEN_SPANS_MAX,) * 2,
    "export of spans when `serve --traces` stops": (traces.FLUSH_S,),
    "contexts": (contexts.CONTEXTS_MAX, contexts.BYTES_MAX),
    "a line for `import`": (jsonl.LINE_BYTES_MAX,),
    "`import` into a full or failing node": (import_.RETRY_LIMIT_S,),
    "leaving the block of `connect`": (client_channel.DRAIN_S,),
}

NUMBERS: dict[str, dict[str, Numbers]] = {
    "Connections": CONNECTIONS,
    "Memory of connections": MEMORY,
    "Channels and jobs": CHANNELS,
    "Peers": PEERS,
    "Store": STORE,
    "Streams and HTTP": STREAMS,
    "Client": CLIENT,
}
