"""A connection to Redis or Valkey, or to a cluster of them, by the package `redis` (extra `redis`).

It blocks: the store uses it in a thread of its own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from millpond.actors.messages import Durability
from millpond.actors.store.redis.commands import Command, key_of, packed
from millpond.actors.store.redis.errors import (
    RedisAway,
    RedisConfigError,
    RedisMoving,
    RedisRefused,
)

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

TIMEOUT_S = 5.0
MOVES_MAX = 4
"""So often are commands sent after the slot of their key within one call."""
MOVED_S = 0.05
PREFIX = "millpond"
VERSION_MIN = 7
SCAN_COUNT = 1000
HIDDEN = "***"
"""A password that was hidden where it was shown; it is none."""
BAD_HOST = "its host has characters that no host has, or a bracket alone"
SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_AWAY = ("LOADING", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "BUSY")
"""The errors with which a server says that it cannot serve now; nothing was done."""

Reply = Any
"""The answer of Redis, of any kind; a RedisRefused stands for an error of one command."""


class RedisUrl(NamedTuple):
    """`redis://HOST:PORT/DB?prefix=P`, `rediss://` with TLS, `unix:///PATH`, or
    `redis+cluster://HOST:PORT` for a cluster. `url` is without the prefix."""

    url: str
    prefix: str
    is_cluster: bool
    nodes: tuple[tuple[str, int], ...] = ()
    """More servers of the cluster, to be asked where the first one is away."""

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
    except ValueError:  # whose text may have the password
        raise RedisConfigError(f"this is no URL: {BAD_HOST}") from None
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
    nodes = tuple(map(_node, filter(None, query.pop("nodes", "").split(","))))
    if nodes and kind != "cluster":
        raise RedisConfigError("`nodes` names more servers of a cluster: write redis+cluster://")
    rest = f"?{urlencode(query)}" if query else ""
    url = f"{scheme}://{parts.netloc}{parts.path}{rest}"
    return RedisUrl(url, prefix, kind == "cluster", nodes)


def _node(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise RedisConfigError(f"{text!r} in `nodes` is not HOST:PORT")
    return host.strip("[]"), int(port)


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
        their answers. Those to one key are done in order. A RedisMoving stands for a command that
        was not done, because the slot of its keys is being moved."""

    def script(self, text: str) -> str:
        """Load a script; gives its hash."""

    def scan(self, key: str) -> dict[bytes, bytes]:
        """A whole hash, in pieces. Raises RedisRefused, RedisMoving."""

    def members(self, key: str) -> Iterator[bytes]:
        """The members of a set, in pieces. Raises RedisRefused, RedisMoving."""

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
        from redis.cluster import ClusterNode
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
            more = [ClusterNode(host, port) for host, port in url.nodes]  # type: ignore[no-untyped-call]
            cluster = redis.RedisCluster.from_url(url.url, startup_nodes=more, **settings)
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


class _Line:
    """A connection to one server, over which commands go together.

    The pipelines of redis-py do the same, for 80 us of CPU more in each of them.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._connection: Any = None

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands; `read` follows. Raises the errors of redis-py."""
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        elif self._is_ended():
            self._connection.disconnect()  # it connects anew
        self._connection.send_packed_command((b"".join(map(packed, commands)),))

    def _is_ended(self) -> bool:
        from redis.exceptions import RedisError

        try:
            return bool(self._connection.can_read(timeout=0))
        except (RedisError, OSError):
            return True

    def read(self, count: int) -> list[Any]:
        """The answers of so many commands; errors of one of them as they are."""
        from redis.exceptions import ResponseError

        read, found = self._connection.read_response, list[Any]()
        for _ in range(count):
            try:
                found.append(read())
            except ResponseError as error:
                found.append(error)
        return found

    def close(self) -> None:
        """Answers that were not read are lost."""
        if self._connection is not None:
            self._connection.disconnect()
            self._client.connection_pool.release(self._connection)
            self._connection = None


class _Connection:
    """By redis-py, to one server or to a cluster."""

    def __init__(self, client: Redis | RedisCluster, connects: _Connects) -> None:
        self._client: Any = client
        self._connects = connects
        self._is_cluster = hasattr(client, "nodes_manager")
        self._scripts: dict[str, str] = {}
        self._lines: dict[str, _Line] = {}
        """By the name of the server."""
        self._answered_by = ""
        """The server that has answered the last command."""

    @property
    def connects(self) -> int:
        return self._connects.count

    def run(self, commands: Sequence[Command]) -> list[Reply]:
        if self._is_cluster:
            return [self._checked(each) for each in self._run_in_cluster(commands)]
        line = self._line("", self._client)
        with _errors_as_away():
            line.send(commands)
            found = line.read(len(commands))
        return [self._checked(each) if isinstance(each, Exception) else each for each in found]

    def _line(self, name: str, client: Any) -> _Line:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = _Line(client)
        return line

    def _run_in_cluster(self, commands: Sequence[Command]) -> list[Any]:
        """Answers, with the errors of redis-py; commands go after the slot of their key."""
        from redis.exceptions import AskError, MovedError

        replies: list[Any] = [None] * len(commands)
        waiting = [*range(len(commands))]
        for attempt in range(MOVES_MAX):
            self._exchange(commands, waiting, replies)
            for index in waiting:
                reply = replies[index]
                if isinstance(reply, AskError) and not isinstance(reply, MovedError):
                    replies[index] = self._asked(commands[index], reply)
            moved = {
                key_of(commands[each]) for each in waiting if isinstance(replies[each], MovedError)
            }
            if not moved:
                break
            # Those behind one that was moved were done before it, if the slot came meanwhile.
            waiting = [each for each in waiting if key_of(commands[each]) in moved]
            if attempt:
                time.sleep(MOVED_S)  # the servers do not agree yet
            self._refresh()
        return replies

    def _exchange(
        self, commands: Sequence[Command], waiting: Sequence[int], replies: list[Any]
    ) -> None:
        """Send commands to the servers of their keys, to all before the answers are read."""
        by_server: dict[str, tuple[_Line, list[int]]] = {}
        try:
            with _errors_as_away():
                for index in waiting:
                    node = self._client.get_node_from_key(key_of(commands[index]))
                    if node.name not in by_server:
                        line = self._line(node.name, self._client.get_redis_connection(node))
                        by_server[node.name] = line, []
                    by_server[node.name][1].append(index)
                    self._answered_by = node.name
                for line, indexes in by_server.values():
                    line.send([commands[each] for each in indexes])
                for line, indexes in by_server.values():
                    for index, reply in zip(indexes, line.read(len(indexes)), strict=True):
                        replies[index] = reply
        except RedisAway:
            # The next attempt may find another server in its place, and reads no old answers.
            with suppress(RedisAway):
                self._refresh()
            raise

    def _asked(self, command: Command, error: Any) -> Any:
        """The answer of the server to which a key is being moved."""
        node = self._client.get_node(error.host, error.port)
        if node is None:  # it has no slot yet
            return error
        with _errors_as_away():
            line = self._line(node.name, self._client.get_redis_connection(node))
            line.send([("ASKING",), command])
            _, reply = line.read(2)
        self._answered_by = node.name
        return reply

    def _refresh(self) -> None:
        """Ask the cluster which server has which slot. Raises RedisAway."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        with _errors_as_away():
            self._client.nodes_manager.initialize()
        self._load_scripts()

    def _checked(self, reply: Reply) -> Reply:
        """An error of one command as a RedisRefused or a RedisMoving. Raises RedisAway."""
        from redis import exceptions

        if not isinstance(reply, exceptions.RedisError):
            return reply
        text = str(reply)
        if isinstance(reply, exceptions.NoScriptError):
            self._load_scripts()  # the server was started anew, or its scripts were flushed
            raise RedisAway(text)
        if isinstance(reply, exceptions.AskError | exceptions.TryAgainError):
            return RedisMoving(f"the slot of its keys is being moved: {text}")
        is_down = isinstance(reply, exceptions.ClusterDownError)
        is_away = isinstance(reply, exceptions.ConnectionError | exceptions.ReadOnlyError)
        if is_down or is_away or text.startswith(_AWAY):
            if self._is_cluster:
                self._refresh()
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
        items = self._scanned("HSCAN", key)
        return dict(zip(items[::2], items[1::2], strict=True))

    def members(self, key: str) -> Iterator[bytes]:
        yield from self._scanned("SSCAN", key)

    def _scanned(self, command: str, key: str) -> list[bytes]:
        """All of a key, in pieces. A cursor is of one server, so a key that is moved meanwhile is
        read anew. Raises RedisAway, RedisRefused."""
        for _ in range(MOVES_MAX):
            items, cursor, server = list[bytes](), b"0", ""
            while True:
                (reply,) = self.run([(command, key, cursor, "COUNT", SCAN_COUNT)])
                if isinstance(reply, RedisRefused | RedisMoving):
                    raise reply
                if cursor != b"0" and self._answered_by != server:
                    break
                server = self._answered_by
                cursor, some = reply
                items += some
                if cursor == b"0":
                    return items
        raise RedisAway(f"the key {key} is moved again and again")

    def facts(self) -> ServerFacts:
        try:
            found = [_facts_of(server, self._is_cluster) for server in self._servers()]
        except RedisAway:
            if self._is_cluster:  # another server may have taken its place
                with suppress(RedisAway):
                    self._refresh()
            raise
        least = min(found, key=lambda each: each.durability)
        return ServerFacts(
            least.durability, frozenset().union(*(each.runs for each in found)), least.reason
        )

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._client.close()


def _facts_of(server: Any, is_cluster: bool) -> ServerFacts:
    """The facts of one server. Raises RedisAway, RedisConfigError."""
    with _errors_as_away():
        info: Mapping[str, Any] = server.info("all")
    version = str(info["redis_version"])
    if int(version.partition(".")[0]) < VERSION_MIN:
        raise RedisConfigError(f"a store needs Redis {VERSION_MIN} or Valkey; this is {version}")
    if int(info.get("cluster_enabled", 0)) and not is_cluster:
        raise RedisConfigError("it is a server of a cluster: write redis+cluster://HOST:PORT")
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
