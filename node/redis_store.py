"""The store in Redis as a part of a node: made of the configuration, owned by its data folder."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import anyio

from millpond.actors.messages import Durability
from millpond.actors.store.redis.connection import connect_redis, parse_redis_url
from millpond.actors.store.redis.errors import RedisConfigError, StoreLost
from millpond.actors.store.redis.store import RedisStore
from millpond.actors.store.settings import StoreEnvironment
from millpond.node.atomic_files import read_private, replace
from millpond.node.config import Config, ConfigError

OWNER_FILE = "store.owner"
OWNER_BYTES = 16


def make_redis_store(
    config: Config, environment: StoreEnvironment, durability: Callable[[bytes], Durability]
) -> RedisStore:
    """Raises ConfigError."""
    if not config.data:
        raise ConfigError("store: a node needs a data folder for its keys as well (--data)")
    if config.is_replicated:
        raise ConfigError("durability: replicated needs a replica, and a store in Redis has none")
    try:
        url = parse_redis_url(config.store)
    except RedisConfigError as error:
        raise ConfigError(f"store: {error}") from error
    return RedisStore(url, connect_redis, environment, durability)


def store_owner(folder: Path, entropy: Callable[[int], bytes]) -> str:
    """The name under which the node of this data folder owns keys in Redis: the same after a
    restart, so that a node that was killed need not wait for itself. The folder is locked."""
    path = folder / OWNER_FILE
    try:
        run = read_private(path, 2 * OWNER_BYTES).decode("ascii")
    except FileNotFoundError:
        run = entropy(OWNER_BYTES).hex()
        replace(path, run.encode("ascii"))
    return f"{run} {socket.gethostname()} {folder.resolve()}"


async def end_when_lost(store: RedisStore) -> None:
    """Raises StoreLost once the store has to be given up."""
    found: list[StoreLost] = []
    is_lost = anyio.Event()

    def lost(error: StoreLost) -> None:
        found.append(error)
        is_lost.set()

    store.on_lost = lost
    if store.lost is not None:
        raise store.lost
    await is_lost.wait()
    raise found[0]
