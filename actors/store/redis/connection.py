"""A connection to Redis or Valkey, or to a cluster of them, by the package `redis` (extra `redis`).

It blocks: the store uses it in a thread of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from millpond.actors.messages import Durability
from millpond.actors.store.redis.errors import RedisAway, RedisConfigError, RedisRefused

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

TIMEOUT_S = 5.0
PREFIX = "millpond"
VERSION_MIN = 7
SCAN_COUNT = 1000
HIDDEN = "***"
"""A password that was hidden where it was shown; it is none."""
SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_AWAY = ("LOADING", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "BUSY")
"""The errors with which a server says that it cannot serve now; nothing was done."""

Command = tuple[str | bytes | int, ...]
Reply = Any
"""The answer of Redis, of any kind; a RedisRefused stands for an error of one command."""


class RedisUrl(NamedTuple):
    """`redis://HOST:PORT/DB?prefix=P`, `rediss://` with TLS, `unix:///PATH`, or
    `redis+cluster://HOST:PORT` for a cluster. `url` is without the prefix."""

    url: str
    prefix: str
    is_cluster: bool

    @property
    def shown(self) -> str:
        """The URL without a password, for people."""
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]
        return f"{parts.scheme}://{host}{parts.path}?prefix={self.prefix}"


def parse_redis_url(text: str) -> RedisUrl:
    """Raises RedisConfigError."""
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise RedisConfigError(f"this is no URL: {error}") from None
    if parts.scheme not in SCHEMES or not text[len(parts.scheme) :].startswith("://"):
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise RedisConfigError(f"a store begins with one of {known}")
    if parts.password == HIDDEN:
        raise RedisConfigError(f"its password is {HIDDEN}, as `config show` prints it")
    try:
        parts.port  # noqa: B018  it is read here to be checked
    except ValueError:  # the text of which has what may be a part of a password
        text = (
            "the port must be a number; `/`, `?` and `#` in a password are written as %2F, %3F, %23"
        )
        raise RedisConfigError(text) from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    prefix = query.pop("prefix", PREFIX)
    if not prefix or not prefix.isascii() or any(each in prefix for each in "{} \r\n"):
        raise RedisConfigError("the prefix of a store has letters, digits and `:_-.` only")
    scheme, _, kind = parts.scheme.partition("+")
    rest = f"?{urlencode(query)}" if query else ""
    return RedisUrl(f"{scheme}://{parts.netloc}{parts.path}{rest}", prefix, kind == "cluster")


class ServerFacts(NamedTuple):
    """The servers at the other end: what they promise of a write that they answered, and the ids
    of their runs."""

    durability: Durability
    runs: frozenset[str]
    reason: str


class RedisConnection(Protocol):
    """Commands to Redis. All methods block, and raise RedisAway."""

    @property
    def connects(self) -> int:
        """The connections that were made so far: a new one may be to another server, or to one that
        was started anew."""

    def run(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands at once, each with its key in second place (EVALSHA: in fourth), and give
        their answers. Those to one key are done in order."""

    def script(self, text: str) -> str:
        """Load a script; gives its hash."""

    def scan(self, key: str) -> dict[bytes, bytes]:
        """A whole hash, in pieces."""

    def members(self, key: str) -> Iterator[bytes]:
        """The members of a set, in pieces."""

    def facts(self) -> ServerFacts:
        """Ask the servers about themselves. Raises RedisConfigError."""

    def close(self) -> None:
        """Close all connections."""


Connect = Callable[[RedisUrl], RedisConnection]


def connect_redis(url: RedisUrl) -> RedisConnection:
    """Raises RedisConfigError, RedisAway."""
    try:
        import redis  # an extra
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError:
        text = "a store in Redis needs the package redis: pip install 'millpond[redis]'"
        raise RedisConfigError(text) from None
    settings: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    # Nothing is sent twice but by the store, which knows what came before.
    settings |= {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
    connects = _Connects(is_cluster=url.is_cluster)
    settings["redis_connect_func"] = connects.made
    try:
        if url.is_cluster:
            cluster = redis.RedisCluster.from_url(url.url, **settings)
            return _Connection(cluster, connects)
        client = redis.Redis.from_url(url.url, **settings)
    except (redis.RedisError, redis.exceptions.RedisClusterException, OSError) as error:
        raise RedisAway(str(error)) from error
    except ValueError as error:
        raise RedisConfigError(str(error)) from error
    try:
        client.connection_pool.make_connection()  # does not connect: it reads the options
    except (TypeError, ValueError, redis.RedisError) as error:
        option = re.search(r"argument '(\w+)'", str(error))
        text = str(error) if option is None else f"its URL has an unknown option: {option[1]}"
        raise RedisConfigError(text) from error
    return _Connection(client, connects)


class _Connects:
    """Counts the connections that redis-py makes: it replaces one that has ended by itself."""

    def __init__(self, *, is_cluster: bool) -> None:
        self._is_cluster = is_cluster
        self.count = 0

    def made(self, connection: Any) -> None:
        """A socket is connected."""
        if not self._is_cluster:  # there the client greets the server before this
            connection.on_connect()
        self.count += 1


class _Connection:
    """By redis-py, to one server or to a cluster."""

    def __init__(self, client: Redis | RedisCluster, connects: _Connects) -> None:
        self._client: Any = client
        self._connects = connects
        self._is_cluster = hasattr(client, "nodes_manager")
        self._scripts: dict[str, str] = {}

    @property
    def connects(self) -> int:
        return self._connects.count

    def run(self, commands: Sequence[Command]) -> list[Reply]:
        replies: list[Reply] = [None] * len(commands)
        for server, indexes in self._by_server(commands):
            with _errors_as_away():
                pipeline = server.pipeline(transaction=False)
                for index in indexes:
                    pipeline.execute_command(*commands[index])
                found = pipeline.execute(raise_on_error=False)
            for index, reply in zip(indexes, found, strict=True):
                replies[index] = self._checked(reply)
        return replies

    def _by_server(self, commands: Sequence[Command]) -> Iterator[tuple[Any, list[int]]]:
        """The servers that have the keys, with the commands for each."""
        if not self._is_cluster:
            yield self._client, list(range(len(commands)))
            return
        found: dict[str, tuple[Any, list[int]]] = {}
        with _errors_as_away():
            for index, command in enumerate(commands):
                key = command[3] if command[0] == "EVALSHA" else command[1]
                node = self._client.get_node_from_key(key)
                _, indexes = found.setdefault(node.name, (node, []))
                indexes.append(index)
            for node, _ in found.values():
                self._client.get_redis_connection(node)
        yield from ((node.redis_connection, indexes) for node, indexes in found.values())

    def _checked(self, reply: Reply) -> Reply:
        """An error of one command as a RedisRefused. Raises RedisAway."""
        from redis import exceptions

        if not isinstance(reply, exceptions.RedisError):
            return reply
        text = str(reply)
        if isinstance(reply, exceptions.NoScriptError):
            self._load_scripts()  # the server was started anew, or its scripts were flushed
            raise RedisAway(text)
        is_moved = isinstance(reply, exceptions.AskError | exceptions.ClusterDownError)
        is_away = isinstance(reply, exceptions.ConnectionError | exceptions.ReadOnlyError)
        if is_moved or is_away or text.startswith(_AWAY):
            if self._is_cluster:
                with _errors_as_away():
                    self._client.nodes_manager.initialize()
                    self._load_scripts()
            raise RedisAway(text)
        return RedisRefused(text)

    def script(self, text: str) -> str:
        for server in self._servers():
            with _errors_as_away():
                found = server.script_load(text)
                self._scripts[text] = found.decode() if isinstance(found, bytes) else found
        return self._scripts[text]

    def _load_scripts(self) -> None:
        for text in [*self._scripts]:
            self.script(text)

    def _servers(self) -> list[Any]:
        """All servers that take writes."""
        if not self._is_cluster:
            return [self._client]
        with _errors_as_away():
            nodes = self._client.get_primaries()
            return [self._client.get_redis_connection(node) for node in nodes]

    def scan(self, key: str) -> dict[bytes, bytes]:
        with _errors_as_away():
            return dict(self._client.hscan_iter(key, count=SCAN_COUNT))

    def members(self, key: str) -> Iterator[bytes]:
        with _errors_as_away():
            yield from self._client.sscan_iter(key, count=SCAN_COUNT)

    def facts(self) -> ServerFacts:
        found = [_facts_of(server) for server in self._servers()]
        least = min(found, key=lambda each: each.durability)
        return ServerFacts(
            least.durability, frozenset().union(*(each.runs for each in found)), least.reason
        )

    def close(self) -> None:
        self._client.close()


def _facts_of(server: Any) -> ServerFacts:
    """The facts of one server. Raises RedisAway, RedisConfigError."""
    with _errors_as_away():
        info: Mapping[str, Any] = server.info("all")
    version = str(info["redis_version"])
    if int(version.partition(".")[0]) < VERSION_MIN:
        raise RedisConfigError(f"a store needs Redis {VERSION_MIN} or Valkey; this is {version}")
    if info.get("loading"):
        raise RedisAway("it loads its data")
    if info.get("role") not in ("master", None):
        raise RedisAway("it is a replica, which takes no writes")
    if str(info.get("maxmemory_policy", "")).startswith("allkeys-"):
        raise RedisConfigError(
            f"its maxmemory-policy is {info['maxmemory_policy']}, so it removes messages when it is"
            " full: set maxmemory-policy noeviction"
        )
    run = str(info["run_id"])
    if not int(info.get("aof_enabled", 0)):
        return ServerFacts(Durability.MEMORY, frozenset({run}), "it has no append-only file")
    sync = _setting(server, "appendfsync")
    if sync == "always" and _setting(server, "no-appendfsync-on-rewrite") == "yes":
        return ServerFacts(Durability.OS, frozenset({run}), "no-appendfsync-on-rewrite yes")
    if sync == "always":
        return ServerFacts(Durability.DISK, frozenset({run}), "appendfsync always")
    reason = f"appendfsync {sync}" if sync else "it does not tell its appendfsync"
    return ServerFacts(Durability.OS, frozenset({run}), reason)


def _setting(server: Any, name: str) -> str:
    """A setting of the server; empty where it is kept from clients."""
    from redis import exceptions

    try:
        return str(server.config_get(name).get(name, ""))
    except exceptions.ResponseError:
        return ""
    except (exceptions.RedisError, OSError) as error:
        raise RedisAway(str(error)) from error


class _errors_as_away:
    """Errors of the package as RedisAway."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        from redis.exceptions import RedisClusterException, RedisError

        if isinstance(error, RedisError | RedisClusterException | OSError):
            raise RedisAway(str(error)) from error
