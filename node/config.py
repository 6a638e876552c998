"""The node's configuration: one frozen dataclass; flags win over environment, file and defaults.

Every field is a key of the TOML file, a variable `MILLPOND_<FIELD>` and, where `serve` has it, a
flag. `docs/reference/limits.md` explains the limits.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, dataclass_transform

import msgspec

from millpond.actors.channels.settings import (
    TTL_UNLIMITED,
    ChannelSettings,
    DeliverySettings,
    EmptyPolicy,
    NodeLimits,
)
from millpond.actors.messages import Durability
from millpond.actors.runtime.scheduler import SchedulerSettings
from millpond.actors.state.messages import StateLimits
from millpond.actors.store.settings import StoreSettings
from millpond.node.client.url import parse_url
from millpond.node.config_rules import ChannelRule as ChannelRule
from millpond.node.config_rules import ConfigError as ConfigError
from millpond.node.config_rules import RuleTable, StreamRule, durability_of
from millpond.node.credentials import hide_credentials
from millpond.node.ip import ip_of, is_loopback
from millpond.node.replica.interface import ReplicaSettings
from millpond.node.units import byte_count, duration_s
from millpond.transports.browser_policy import host_name_of, origin_of
from millpond.transports.io.address import parse_address
from millpond.transports.p2p.admission import LoginSettings
from millpond.transports.p2p.interface import P2PSettings
from millpond.transports.server.memory_budget import MemorySettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
LISTENERS = ("p2p", "ws", "s3p", "rustlog", "http")
"""The settings that are addresses to listen on, or `OFF`."""
OFF = "off"
TLS_CLIENT = ("required", "optional")
"""Whether clients need a certificate, where there is an authority for theirs."""
ENVIRONMENT_PREFIX = "MILLPOND_"
PACKET_BYTES_CEILING = 2**24 - 1
PACKET_OVERHEAD_BYTES = 64
TEE_BYTES_MAX = 250
MEMORY_BYTES_DEFAULT = 2**30
MESSAGES_IN_MEMORY = 4
"""So many of the longest messages fit into the memory of all connections."""


MAY_BE_ZERO = frozenset(
    {
        *(
            "drain_timeout_s",
            "memory_bytes_max",
            "metrics_names_max",
            "passivate_after_s",
            "rate_refusals_max",
            "requests_per_s_max",
        ),
        "relay_files_bytes_max",
        "requests_per_s_per_peer_max",
        "scrub_bytes_s",
        *("s2_trim_grace_s", "state_disk_bytes_max", "stream_age_s", "stream_local_bytes_max"),
        "stream_shelf_bytes_max",
        "window",
    }
)


U16_MAX, U32_MAX = 2**16 - 1, 2**32 - 1
MOST_OF_ALL = 2.0**53
MOST = {
    **dict.fromkeys(("ttl_default_s", "ttl_max_s", "dead_letter_ttl_s", "peer_ttl_s"), U32_MAX),
    **dict.fromkeys(("window", "window_max", "window_queue_max", "list_page"), U16_MAX),
    "attempts_max": U16_MAX,
    "metrics_names_max": 1000,
    "keep_alive_s": U32_MAX // 1000,
    "s3p_name_bytes_max": 4000,
    "rustlog_frame_bytes_max": 10 * 2**20,
    **dict.fromkeys(("http_url_bytes_max", "http_header_bytes_max"), 2**16),
    "http_streams_max": 2**16,
    **dict.fromkeys(("http_head_s", "http_idle_s", "http_ping_s", "http_long_poll_s"), 86_400),
    "http_heartbeat_s": 86_400,
    "durable_messages_max": 100_000,
    "s2_trim_grace_s": 60,
    "webhook_deliveries_max": 4096,
    "webhook_timeout_s": 600,
    "webhook_key": U32_MAX,
    "chat_file_bytes_max": 2**29,
}
"""The largest values that fields of packets and of the journal, and HTTP, can carry."""


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


def _check_addresses(config: Config) -> None:
    for url in config.addresses:
        try:
            parse_url(url)
        except ValueError as exc:
            raise ConfigError(f"addresses: {exc}") from exc
    for each in config.via:
        head, _, url = each.partition("@")
        if "://" not in each:
            continue  # the name of a peer
        try:
            parse_url(each if "://" in head else url)
        except ValueError as exc:
            raise ConfigError(f"via: {exc}") from exc


def _check_discovery(config: Config) -> None:
    for each in config.discover_interfaces:
        number = ip_of(each)
        if number is None or str(number) != each:
            raise ConfigError(f"discover_interfaces: {each!r} is no IP address")
        is_link_local = number.version == 6 and number.is_link_local
        if number.is_global or number.is_unspecified or number.is_multicast or is_link_local:
            raise ConfigError(f"discover_interfaces: {each} is not on a private network")
    if not config.discover:
        return
    if config.p2p == OFF:
        raise ConfigError("discover: there is no P2P listener; give --p2p ADDRESS:PORT")
    try:
        host = parse_address(config.p2p)[0].strip("[]")
    except ValueError:
        return  # the listener itself reports it
    number = ip_of(host)
    if is_loopback(host) and host not in config.discover_interfaces:
        raise ConfigError(
            f"discover: no other machine reaches the P2P listener at {host};"
            " give --p2p 0.0.0.0:7400, or [::]:7400"
        )
    if number is not None and number.is_global:
        raise ConfigError(f"discover: the P2P listener is on no private network: {host}")


def _check_webhooks(config: Config) -> None:
    url = config.public_url
    if url and re.fullmatch(r"https?://[!-.0-?A-~]+", url.rstrip("/")) is None:
        shown = hide_credentials(repr(url))
        raise ConfigError(f"public_url: {shown} is no URL like https://mill.example")


def _check_browsers(config: Config) -> None:
    for name, parse in (("host_names", host_name_of), ("origins", origin_of)):
        for each in getattr(config, name):
            try:
                parse(each)
            except ValueError as exc:
                raise ConfigError(f"{name}: {exc}") from exc


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _frozen_dataclass(cls: type[T]) -> type[T]:
    """A frozen dataclass with the methods below; those of `dataclass` are source text that is
    compiled at every start, 10 ms for this many fields."""
    cls = dataclass(init=False, repr=False, eq=False)(cls)
    fields = dataclasses.fields(cast("type[DataclassInstance]", cls))
    defaults = {each.name: each.default for each in fields}

    def init(self: Any, **values: Any) -> None:
        if unknown := values.keys() - defaults.keys():
            raise TypeError(
                f"{cls.__name__}.__init__() got an unexpected keyword argument {min(unknown)!r}"
            )
        self.__dict__.update(defaults | values)
        self.__post_init__()

    def repr_(self: Any) -> str:
        text = ", ".join(f"{k}={hide_credentials(repr(v))}" for k, v in self.__dict__.items())
        return f"{cls.__name__}({text})"

    def eq(self: Any, other: object) -> object:
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def hash_(self: Any) -> int:
        return hash(tuple(self.__dict__.values()))

    def setattr_(self: Any, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def delattr_(self: Any, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    for name, method in (
        *(("__init__", init), ("__repr__", repr_), ("__eq__", eq), ("__hash__", hash_)),
        *(("__setattr__", setattr_), ("__delattr__", delattr_)),
    ):
        setattr(cls, name, method)
    return cls


@_frozen_dataclass
class Config:
    """Everything a node can be told. Sizes in bytes, times in seconds unless the name says so."""

    p2p: str = "127.0.0.1:7400"
    """Address of the TCP listener for P2P clients. Port 0 takes any free port; `off` disables the
    listener."""
    ws: str = "127.0.0.1:7401"
    """Address of the WebSocket listener for P2P clients and the chat page."""
    s3p: str = "127.0.0.1:7402"
    """Address of the S3P listener."""
    rustlog: str = "127.0.0.1:7403"
    """Address of the RustLog listener."""
    http: str = "127.0.0.1:7404"
    """Address of the HTTP listener (HTTP/1.1 and HTTP/2): S2, Durable Streams, states, `/metrics`.
    """
    data: str = ""
    """Data folder. `millpond serve` without it uses `$XDG_DATA_HOME/millpond` or
    `~/.local/share/millpond`. Empty in a program's `Config`: nothing is written to disk."""
    passphrase_file: str = ""
    """File with the passphrase of the data folder, which only its owner may read. Keys and chat
    histories are then stored encrypted. A folder that has some in clear text is encrypted by
    `millpond keys passphrase set`, and a new folder by its first start."""
    durability: Durability = Durability.DISK
    """The promise of an acknowledgement: `replicated` (in the object store of the replica), `disk`
    (synced), `os` (written, synced within a second) or `memory`. Without a data folder it is always
    `memory`."""
    default_channel: str = ""
    """Channel of clients that name none. Empty: such clients are refused (NACK f6, `ff ff ff`)."""
    basin: str = "millpond"
    """S2 basin whose streams are those of the other protocols."""
    require_hello: bool = False
    """Refuse clients whose first packet is not a HELLO."""
    channels: tuple[ChannelRule, ...] = ()
    """Rules for channels,
    `PATTERN=pair|fanout|queue[,ttl=S,lease=S,attempts=N,durability=D,tee=STREAM]`, where D is a
    durability as above. The first rule that matches a name applies. `tee` appends each message to
    that stream; its name has 1 to 250 bytes without blanks."""
    streams: tuple[StreamRule, ...] = ()
    """Rules for streams, `PATTERN=OPTION[,OPTION...]` with `age=S`, `bytes=N` and
    `durability=D`. The first rule that matches a name applies."""
    access_file: str = ""
    """File with the access rules. Empty: `access.conf` in the data folder, if it exists. Without
    one, this machine may do everything, and others nothing except what contacts and
    relays may do."""
    token_file: str = ""
    """Older form of access rules, with the tokens themselves. Both files apply together."""
    tls_cert: str = ""
    """TLS certificate (PEM) with its chain. Empty: no listener uses TLS."""
    tls_key: str = ""
    """Private key of the certificate. Empty: in the certificate's file, or for `millpond serve`
    beside it with the ending `.key`."""
    tls_client_ca: str = ""
    """Client certificates must be in this file or be signed by one that is."""
    tls_client: str = "required"
    """`required`: clients without a certificate are refused. `optional`: they are admitted."""
    tls_listeners: tuple[str, ...] = ()
    """Listeners that use TLS. Empty: all."""
    insecure_public: bool = False
    """Allow listening on an address that other machines reach while no access rules exist."""
    host_names: tuple[str, ...] = ()
    """Names by which HTTP and WebSocket clients reach the node (`mill.lan`, `*.mill.lan`), besides
    `localhost`, IP addresses, and names in `addresses`, `origins`, addresses of listeners and the
    TLS certificate. A request to another name gets HTTP 421."""
    origins: tuple[str, ...] = ()
    """Web origins (`https://app.example`) whose pages may use the node, besides the node's own
    pages. Pages of other origins get HTTP 403."""
    drain_timeout_s: float = 5.0
    """Time that a stopping node waits for acknowledgements before it closes what is left."""
    stop_timeout_s: float = 20.0
    """Time for the rest of a stop, behind `drain_timeout_s`. A process that has not ended by then,
    such as with a disk that does not answer, exits at once with 1. A `Node` in a program raises
    `StopTimedOut`; its folder stays locked until the disk answers."""
    clock_confirm_s: float = 600.0
    """Time for which a wall clock that jumped ahead by more than 5 minutes must stay ahead before
    anything expires by it. `millpond doctor --confirm-clock` confirms it at once."""

    relay: bool = False
    """Store encrypted messages for contacts until they fetch them."""
    via: tuple[str, ...] = ()
    """Relays that store messages for this node: the name of one, a URL or `PEER-ID@URL`."""
    addresses: tuple[str, ...] = ()
    """Addresses at which peers can reach this node. They are in its contact card."""
    peer_channels: tuple[str, ...] = ()
    """Channels (patterns) to which all contacts may send messages, besides `chat/<their id>`."""
    message_requests: bool = True
    """Keep first chat messages of unknown senders that have the node's card as requests, up to 4 of
    each of 32 senders, until they are accepted, ignored or blocked (`millpond chat requests`).
    Without it they are dropped."""
    discover: bool = False
    """Announce the node by mDNS on its private networks, and list nodes that are announced there
    (`millpond peer discovered`). Needs the extra `discovery`, and a P2P listener that other
    machines reach. Everybody on these networks can then read the node's contact card."""
    discover_interfaces: tuple[str, ...] = ()
    """Addresses of this machine, private or loopback, on whose networks `discover` works. Empty:
    all private ones that the P2P listener has."""
    chat_typing: bool = True
    """Tell a contact whose node is connected when somebody writes a chat message to it."""
    chat_file_bytes_max: int = 100 * 2**20
    """Largest file of a chat, sent or received, up to 512 MiB. A larger one is refused, and its
    sender told."""
    chat_files_bytes_max: int = 2**30
    """Bytes of all files of chats, half of which may be of one peer. A file above it is refused,
    and its sender told. They also count in `node_stream_bytes_max`."""
    chat_files_age_s: int = 7_776_000
    """Time for which files of chats are kept (90 days). Their messages stay."""
    relay_files_bytes_max: int = 2**30
    """Bytes of all files that a relay stores for others, a quarter of which may be of one sender.
    It refuses files above it. 0: it stores none."""
    allow_plain_peers: bool = False
    """Exchange messages with peers on other machines without TLS where they have none (earlier
    versions). An attacker on the way can then swallow messages and forge receipts. Without it a
    peer that connects so is refused (`ff 80 f8`), and none is connected to so."""
    delivery_tokens_required: bool = False
    """A relay takes messages for its contacts only from nodes that have the delivery token of the
    recipient, from its card. Without it contacts and relays of the relay may leave messages for all
    its contacts; the log says `mail without a delivery token`. A later release requires tokens."""
    peer_ttl_s: int = 604_800
    """Longest time that a message to a peer waits. Then it becomes a dead letter and its sender is
    told. Never more than `ttl_max_s`."""
    carriers_max: int = 64
    """Connections that forward messages to peers at once. More peers wait until one is idle."""
    fetchers_max: int = 64
    """Peers and relays from which messages are fetched. Messages of others arrive when those peers
    forward them."""

    memory_bytes_max: int = 0
    """Memory of all connections: input under way and answers that are not read. Above it new work
    waits, HTTP requests get 503 after 5 s, and connections that do not move are closed, the largest
    first. At least four times the longest message of any listener. 0: a quarter of the machine's
    memory or of its control group's, at most 1 GiB. Counter: `millpond_memory_used_bytes`."""
    packet_bytes_max: int = 2**20
    """Longest packet. A longer one: `ff ff ff` and close, WebSocket close code 1009, before its
    body is read. A PUT with more data than this less 64 bytes: NACK 24. Range: 1024 to 16777215.
    Counter: `wire.aborted`."""
    keep_alive_s: float = 20.0
    """Silence after which the node sends PING; a second PING after half of it, and `ff ff 00` and
    close after half again. Any byte counts as life. A HELLO may ask for 1 s to 5 min."""
    handshake_s: float = 5.0
    """Time for a HELLO or a first packet. Later: `ff ff ff`, close. Counter: `wire.aborted`."""
    stalled_s: float = 30.0
    """Time that the outgoing queue of a connection may stay full. Then the connection is reset, and
    its leased messages are ready again. Counter: `wire.stalled`."""
    malformed_max: int = 10
    """Malformed requests of one connection within 60 s. Each gets NACK f0; at this number: `ff ff
    ff`, close. Counter: `wire.malformed`."""
    requests_per_s_max: int = 0
    """PUT, GET and LIST per second on one connection, with a burst of one second. More: NACK a0
    with the delay in milliseconds. 0: no limit. Counter: `wire.slowed`."""
    rate_refusals_max: int = 1000
    """Requests in a row that the rate limit may refuse. More: `ff ff ff`, close. Counter:
    `wire.aborted`."""
    connections_max: int = 10_000
    """Connections of all listeners. One more: `ff 80 f7`, `ff ff ff`, close; a WebSocket closes
    before its upgrade; HTTP 503. Counter: `wire.refused`."""
    requests_per_s_per_peer_max: int = 0
    """Requests per second of all connections of one key, or of one address other than this
    machine's. P2P: NACK a0; HTTP: 429; S3P and RustLog are read later. 0: no limit. Counter:
    `wire.slowed`."""
    connections_per_address_max: int = 256
    """Connections of one address. Addresses of this machine are not counted; an IPv6 /64 network
    counts as one address. Refused as for `connections_max`. Counter: `wire.refused`."""
    connections_per_peer_max: int = 64
    """Connections that proved one key. Refused as for `connections_max`. Counter: `wire.refused`.
    """
    connections_before_ready_max: int = 512
    """Connections that have not finished their handshake. One more: the oldest of them is closed.
    Counter: `wire.reasons`."""
    handshakes_per_s_max: int = 200
    """HELLOs with an identity that are answered per second. More: `ff 80 f7`, `ff ff ff`, close.
    Counter: `wire.challenges_refused`."""
    handshakes_per_address_max: int = 20
    """The same for one address. Addresses of this machine are not counted. Counter:
    `wire.challenges_refused`."""

    ttl_default_s: int = 86_400
    """Time to live of a PUT with ttl 0, except in queue mode: jobs without a ttl do not expire,
    unless a rule for their channel has one (`ttl=`). The receipt has the ttl that applies."""
    ttl_max_s: int = 604_800
    """Longest time to live. A longer one is cut to this; the receipt has the ttl that applies."""
    ttl_strict: bool = False
    """Refuse ttl 0 and a ttl above the maximum (NACK 20) in place of adjusting them."""
    dead_letter_ttl_s: int = 604_800
    """Time that a dead letter is kept."""
    empty_put: EmptyPolicy = EmptyPolicy.IGNORE
    """Policy for a PUT without data: `ignore` (no answer), `refuse` (NACK 23) or `store`."""
    list_page: int = 1000
    """Ids in the answer to a LIST with limit 0. A LIST may ask for up to 65535, and gets what fits
    one packet."""
    window: int = 32
    """Messages pushed to a connection ahead of their acks if its HELLO asks for nothing (a worker:
    1). 0: none until CREDIT. Counter: `page[].leased`."""
    window_max: int = 1024
    """Largest window that a HELLO gets. READY has the window that applies. CREDIT adds to it, up to
    65535. Counter: `page[].credit`."""
    window_queue_max: int = 8
    """The same in queue mode. Counter: `page[].credit`."""
    window_bytes: int = 2**20
    """Unacknowledged bytes of a connection. Above it nothing is pushed until an ack; the message
    that passes it still goes. Counter: `page[].leased`."""
    ack_timeout_s: float = 30.0
    """Lease of a push. Afterwards the message is ready again. Each further attempt waits 1.5 times
    as long, at most 10 minutes, with 20 % of jitter."""
    attempts_max: int = 10
    """Failed attempts in queue mode after which a message moves to `<channel>!dead`. Other modes go
    on until the ttl."""
    channel_messages_max: int = 100_000
    """Messages kept in one channel. Full: a PUT gets NACK 26; kept messages are never evicted.
    Counter: `page[].messages`."""
    channel_bytes_max: int = 64 * 2**20
    """Bytes of data kept in one channel. Full: NACK 26. Counter: `page[].bytes`."""
    keys_max: int = 65_536
    """Idempotency keys that a channel remembers. Above it the oldest sixteenth is forgotten, and a
    later retry is a new message. Counter: `page[].keys`."""
    node_messages_max: int = 1_000_000
    """Messages kept in all channels. Full: NACK 26. Counter: `usage.messages`."""
    node_bytes_max: int = 2**30
    """Bytes of data kept in all channels. Full: NACK 26. Counter: `usage.bytes`."""
    node_keys_max: int = 2_000_000
    """Idempotency keys of messages that are gone, in all channels. Above it a PUT makes its own
    channel forget a sixteenth of them if it has more than 16. Counter: `usage.keys`."""
    mailbox_bytes_max: int = 2**20
    """Bytes of input that wait for a busy channel or stream. Above it the connections that feed it
    are not read until half is done. Counter: `scheduler.queued`."""
    passivate_after_s: float = 60.0
    """Idle time after which a channel without connections leaves memory. The next message loads it
    from the store. Counter: `scheduler.passivations`."""
    segment_bytes: int = 16 * 2**20
    """Size of a journal segment. Its space is reserved in advance. Counter:
    `store.counters.segments`."""
    journal_bytes_max: int = 64 * 2**20
    """Size of the journal from which its oldest segment is compacted. Above twice this, commits are
    reported as room is made; above four times this, PUT gets NACK e1. At least twice
    `segment_bytes`. It bounds memory as well: about four times this for messages of 100 bytes that
    are not in a file yet. Counter: `store.counters.journal_bytes`."""
    metrics_names: tuple[str, ...] = ("*",)
    """Patterns of channels, queues and streams whose names may be labels in `/metrics`. Chats,
    mailboxes and mailboxes of results never are."""
    metrics_names_max: int = 50
    """The most channels, queues, streams, consumer groups and peers, of each, that `/metrics` shows
    by name: those with the most messages, jobs, bytes or lag. The others are one row, `_other`. 0:
    no names."""
    scrub_bytes_s: int = 2**20
    """Bytes a second that the scrub reads: once a day it reads all files and complete segments, and
    checks what nobody requests. 0: off. Counters: `store.counters.scrub_bytes`, `scrub_passes`."""
    store: str = ""
    """The Redis or Valkey that keeps all channels and streams (`redis://host:6379/0?prefix=p`,
    `rediss://`, `unix:///path`, `redis+cluster://`). Empty: files of the data folder do. The data
    folder has the keys and the address book of the node in either case."""
    replica: str = ""
    """Address of the replica (`s3://bucket/prefix`, `gs://`, `az://`, `file:///folder`), to which
    the journal is shipped as it is written. Empty: there is none. The guide of replicas has the
    rest."""
    replica_lag_bytes_max: int = 64 * 2**20
    """Bytes of the journal that wait in memory for the replica. Above this, commits are reported as
    objects are made; while none are made at all, what waits is given up, and a snapshot follows.
    Counter: `millpond_replica_lag_bytes`."""
    replica_snapshot_bytes: int = 256 * 2**20
    """Bytes of shipped journal after which a snapshot of the store is uploaded."""
    replica_snapshot_s: float = 86_400.0
    """Time after which a snapshot of the store is uploaded in any case."""
    replica_keep_s: float = 7 * 86_400.0
    """The moments of the last so many seconds can be restored; older objects are removed."""
    replica_ack_s: float = 10.0
    """Time that an acknowledgement with durability `replicated` waits for the object store. Then it
    is refused with `storage failed`, and others at once, until the object store is back."""
    replica_keys: str = ""
    """File with a passphrase, which only its owner may read: the identity, keys, address book and
    access rules of the node are in its replica too, sealed under that. Empty: they are not."""
    without_cold: bool = False
    """Serve without the replica that older records of streams are in: reads of these are refused.
    Otherwise such a node does not start."""
    standby: bool = False
    """Follow the replica of another node, and take over when that gives no sign of life."""
    takeover_s: float = 10.0
    """Time without a sign of life of the owner after which a standby takes over. The owner tells of
    itself four times as often while there is a standby."""
    partition_handles_max: int = 256
    """Partition files kept open, about 130 KiB of memory and 3 descriptors each. The least recently
    used one is closed. Half of them are closed when the process runs out of descriptors."""

    stream_age_s: int = 0
    """Age at which records of a stream expire. 0: never. A rule (`age=`) or the stream's own
    setting overrides it. Counter: `usage.log_bytes`."""
    stream_bytes_max: int = 2**30
    """Bytes of one stream. An append above it is refused: S3P `ERR_LIMITS` and close, RustLog 507.
    It does not apply where `bytes=` is set: there the oldest records are trimmed. Counter:
    `usage.log_bytes`."""
    node_stream_bytes_max: int = 2**32
    """Bytes of all streams. An append above it is refused. Counter: `usage.log_bytes`."""
    stream_shelf_bytes_max: int = 2**26
    """Cache of records that were read lately, in the form that protocols write. The oldest entry is
    evicted. 0: no cache."""
    stream_local_bytes_max: int = 0
    """Bytes of one stream that stay in its file; older records are in the replica alone, and are
    read there. 0: all stay. A rule (`local=`) overrides it. Needs `replica`. Counter:
    `millpond_replica_cold_bytes`."""
    stream_cold_cache_bytes_max: int = 64 * 2**20
    """Cache in memory of what is read of the replica, in objects of up to 8 MiB. The least recently
    used one is evicted; one always stays. Counter: `millpond_replica_cold_cache_bytes`."""
    stream_groups_max: int = 1000
    """Consumer groups of one stream. A commit of one more is refused, RustLog 507. Counter:
    `millpond_stream_groups`."""
    state_bytes_max: int = 64 * 2**20
    """Memory of the materialized state of one stream, estimated. A larger state is dropped and
    refused for a minute: NACK 50, HTTP 507."""
    node_state_bytes_max: int = 256 * 2**20
    """Memory of all materialized states. The state that grew is dropped."""
    state_idle_s: float = 600.0
    """Time without a query after which a materialized state is dropped. The next query reads the
    stream again."""
    state_disk_bytes_max: int = 2**30
    """Bytes of state checkpoints in the folder `states`. The least recently used ones are removed.
    0: none is written."""
    state_save_every: int = 20_000
    """Records between two checkpoints of a state; at least four times as many as it has values."""
    node_groups_max: int = 100_000
    """Consumer groups of all streams in use since the start. A commit of one more is refused,
    RustLog 507."""
    stream_idle_s: float = 300.0
    """Silence after which an S3P or RustLog connection is closed, also within a command. A READ
    that waits is not silence."""
    s3p_name_bytes_max: int = 256
    """Longest stream name in S3P. Longer: `ERR_LIMITS`, close, before it is read. At most 4000.
    Counter: `wire.malformed`."""
    s3p_records_max: int = 1000
    """Records of one APPEND. More: `ERR_LIMITS`, close. Counter: `wire.malformed`."""
    s3p_record_bytes_max: int = 2**20
    """Bytes of one record. More: `ERR_LIMITS`, close. At most `s3p_append_bytes_max`. Counter:
    `wire.malformed`."""
    s3p_append_bytes_max: int = 8 * 2**20
    """Bytes of all records of one APPEND. More: `ERR_LIMITS`, close. Counter: `wire.malformed`."""
    s3p_count_default: int = 100
    """Records in the answer to a READ without COUNT."""
    s3p_count_max: int = 1000
    """Largest COUNT. More: `ERR_LIMITS`, close. Counter: `wire.malformed`."""
    s3p_block_ms_max: int = 60_000
    """Longest BLOCK. More: `ERR_LIMITS`, close. Counter: `wire.malformed`."""
    s3p_reply_bytes_max: int = 4 * 2**20
    """Approximate size of the answer to a READ; it has at least one record."""
    rustlog_frame_bytes_max: int = 10 * 2**20
    """Longest RustLog frame. Longer: Error 413, close, before it is read. A record above three
    quarters of this less 1024 bytes could not be fetched: Error 413, open. At most 10485760.
    Counter: `wire.malformed`."""
    rustlog_records_max: int = 1000
    """Records of one Produce. More: Error 400, open."""
    rustlog_partitions_max: int = 1000
    """Partitions of a topic. More: Error 400, open."""

    http_connections_max: int = 10_000
    """HTTP connections. One more closes the oldest connection without a request in progress; where
    all have one, it is closed itself."""
    http_streams_max: int = 200
    """Concurrent requests on one HTTP/2 connection. One more is reset with REFUSED_STREAM."""
    http_url_bytes_max: int = 16 * 2**10
    """Longest URL. Longer: 414. Counter: `millpond_http_answers_total`."""
    http_header_bytes_max: int = 32 * 2**10
    """Bytes of request headers. More, or more than 256 headers: 431. Counter:
    `millpond_http_answers_total`."""
    http_body_bytes_max: int = 16 * 2**20
    """Longest body where an API has no limit of its own. Longer: 413. Counter:
    `millpond_http_answers_total`."""
    http_body_s: float = 30.0
    """Time for a body that is read as a whole. Later: 408. Sessions have no such limit."""
    http_head_s: float = 30.0
    """Time for a request head on a connection. Later the connection is closed."""
    http_idle_s: float = 120.0
    """Idle time after which an HTTP connection is closed, with GOAWAY on HTTP/2. The same holds for
    a connection that reads nothing of 256 KiB that wait for it."""
    http_ping_s: float = 30.0
    """HTTP/2: silence after which the node sends PING. The connection is closed if no answer comes
    within 20 s."""
    http_long_poll_s: float = 20.0
    """Durable Streams: time that a long-poll request is held before it is answered with 204."""
    durable_messages_max: int = 10_000
    """Durable Streams: JSON messages in one append. More: 413 `too_many_messages`, before they are
    decoded."""
    http_heartbeat_s: float = 15.0
    """Server-sent events of Durable Streams and states: silence after which a comment is sent, so
    that proxies keep the connection. S2 has pings of its own."""
    public_url: str = ""
    """URL of the HTTP listener (`https://mill.example`), as workers of subscriptions reach it.
    Empty: the address by which the client that made the subscription reached the node. A standby
    redirects requests to that of the owner."""
    webhooks: bool = True
    """Call webhooks. Without it subscriptions of this type are refused (400), and deliveries of
    those that exist fail; pull-wake works."""
    webhook_hosts: tuple[str, ...] = ()
    """Hosts that webhooks may call whatever their addresses are, with or without TLS. Others need
    TLS and public addresses; a node whose HTTP listener only this machine reaches also calls this
    machine, without TLS."""
    webhook_key: int = 1
    """Number of the key that signs webhooks. A higher number rotates the key; the one before it
    stays in the JWK set."""
    webhook_timeout_s: float = 10.0
    """Time for one call of a webhook, connection and answer together; never above the lease. Later
    it has failed, and is repeated. Counter: `millpond_webhook_deliveries_total`."""
    webhook_deliveries_max: int = 64
    """Calls of webhooks at once; others wait. A subscription makes one at a time. Receivers take
    turns, and half of the calls are for those that answered the last one within a second."""
    subscriptions_max: int = 1000
    """Subscriptions of the node. One more: 400."""
    subscription_streams_max: int = 10_000
    """Streams of one subscription. A request for more: 400; a new stream that its pattern matches
    is not followed. Counter: `millpond_subscription_streams_refused_total`."""
    s2_trim_grace_s: float = 10.0
    """Time from the commit of a trim by a command record (S2) to its effect, for readers that are a
    little behind. A restart ends it. 0: at once. At most 60. Trims by requests (S3P, `millpond
    stream trim`) take effect at once."""

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
        if 0 < self.memory_bytes_max < MESSAGES_IN_MEMORY * self.message_bytes_max:
            least = MESSAGES_IN_MEMORY * self.message_bytes_max
            raise ConfigError(
                f"memory_bytes_max must be at least {least}: {MESSAGES_IN_MEMORY} times the longest"
                " message (packet_bytes_max, s3p_append_bytes_max, rustlog_frame_bytes_max,"
                " http_body_bytes_max)"
            )
        for rule in self.channels:
            _check_rule(rule)
        _check_tls(self)
        _check_browsers(self)
        _check_webhooks(self)
        _check_addresses(self)
        _check_discovery(self)

    @property
    def message_bytes_max(self) -> int:
        """The longest message that any listener accepts."""
        return max(
            self.packet_bytes_max,
            self.s3p_append_bytes_max,
            self.rustlog_frame_bytes_max,
            self.http_body_bytes_max,
        )

    def memory_settings(self, machine_bytes: int) -> MemorySettings:
        """The memory of all connections, on a machine with so much memory."""
        given = self.memory_bytes_max or min(machine_bytes // 4, MEMORY_BYTES_DEFAULT)
        bytes_max = max(given, MESSAGES_IN_MEMORY * self.message_bytes_max)
        return MemorySettings.of(bytes_max, self.message_bytes_max)

    def is_reachable(self, listener: str) -> bool:
        """True for a listener that other machines reach; an invalid address is no listener's."""
        try:
            host, _ = parse_address(getattr(self, listener))
        except ValueError:  # `off`, or what the listener itself reports
            return False
        return not is_loopback(host)

    @property
    def tls_names(self) -> tuple[str, ...]:
        """The listeners that speak TLS."""
        if not self.tls_cert:
            return ()
        names = self.tls_listeners or LISTENERS
        return tuple(name for name in names if getattr(self, name) != OFF)

    @property
    def default_durability(self) -> Durability:
        """The durability where no rule sets another; without a data folder always memory."""
        return self.durability if self.data else Durability.MEMORY

    @property
    def highest_durability(self) -> Durability:
        """The highest durability that the node promises, for some channel or stream."""
        given = [each.durability for each in self.channels]
        given += [each.durability for each in self.streams]
        return max([self.durability, *(each for each in given if each is not None)])

    @property
    def is_replicated(self) -> bool:
        """True: acknowledgements, or some of them, wait for the replica."""
        return bool(self.data) and self.highest_durability is Durability.REPLICATED

    @property
    def p2p_settings(self) -> P2PSettings:
        return P2PSettings(
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
    def scheduler_settings(self) -> SchedulerSettings:
        return SchedulerSettings(
            mailbox_bytes=self.mailbox_bytes_max, passivate_after_s=self.passivate_after_s
        )

    @property
    def store_settings(self) -> StoreSettings:
        return StoreSettings(
            segment_bytes=self.segment_bytes,
            journal_bytes_max=self.journal_bytes_max,
            handles_max=self.partition_handles_max,
            scrub_bytes_s=self.scrub_bytes_s,
        )

    @property
    def has_cold_streams(self) -> bool:
        """True: older records of some streams are to be in the replica alone."""
        return any(each.local for each in self.streams) or self.stream_local_bytes_max > 0

    @property
    def replica_settings(self) -> ReplicaSettings | None:
        """None: the node has no replica."""
        if not self.replica:
            return None
        return ReplicaSettings(
            url=self.replica,
            lag_bytes_max=self.replica_lag_bytes_max,
            snapshot_bytes=self.replica_snapshot_bytes,
            snapshot_every_s=self.replica_snapshot_s,
            keep_s=self.replica_keep_s,
            ack_s=self.replica_ack_s,
            public_url=self.public_url,
            keys=self.replica_keys,
            cold_cache_bytes_max=self.stream_cold_cache_bytes_max,
        )

    @property
    def node_limits(self) -> NodeLimits:
        return NodeLimits(
            messages_max=self.node_messages_max,
            bytes_max=self.node_bytes_max,
            keys_max=self.node_keys_max,
        )

    @property
    def state_limits(self) -> StateLimits:
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
            ttl_queue=min(rule.ttl, self.ttl_max_s) if rule.ttl else TTL_UNLIMITED,
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


def local_bytes_rules(config: Config) -> RuleTable[int]:
    """The bytes of each stream that stay in its file, by its name; 0: all."""
    default = config.stream_local_bytes_max
    rules = [(rule, rule.local or default) for rule in config.streams]
    return RuleTable(rules, default, config.default_durability)


PARSERS: dict[str, Callable[[str], Any]] = {
    "channels": ChannelRule.parse,
    "streams": StreamRule.parse,
}
"""Of settings that are lists."""


class LoadedConfig(msgspec.Struct, frozen=True):
    """A configuration, and where each field came from: flag, environment, file or default."""

    config: Config
    origins: dict[str, str] = msgspec.field(default_factory=dict)


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
    import tomllib  # most nodes have no file

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
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
            case int() | float():
                return _number(name, default, value)
            case tuple():
                separators = ",;" if name == "tls_listeners" else ";"
                parts = re.split(f"[{separators}]", value) if isinstance(value, str) else value
                parts = [part for part in parts if part]
                return tuple(map(PARSERS.get(name, str), parts))
            case _:
                return str(value)
    except (ValueError, TypeError, AttributeError) as exc:
        raise ConfigError(f"{name}: cannot use {value!r}") from exc


def _number(name: str, default: int | float, value: Any) -> int | float:
    """A number; times also as `90s`, `15m` or `1h30m`, sizes as `64KiB` or `2GB`."""
    read = float if isinstance(default, float) else int
    if isinstance(value, str):
        is_time = name.endswith(("_s", "_ms")) and not name.endswith("_bytes_s")
        found = duration_s(value) if is_time else byte_count(value) if "bytes" in name else None
        if found is not None and value[-1:].isalpha():
            amount = found * (1000 if name.endswith("_ms") else 1)
            if read is int and amount != int(amount):
                raise ValueError(value)
            return read(amount)
    return read(value)


def _boolean(value: Any) -> bool:
    match str(value).lower():
        case "true" | "1" | "yes" | "on":
            return True
        case "false" | "0" | "no" | "off" | "":
            return False
        case _:
            raise ValueError(value)
