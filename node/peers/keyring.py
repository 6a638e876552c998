"""The keyring of a node: identity, address book, prekeys, and the state of sealed messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from millpond.node.config import Config, ConfigError
from millpond.node.peers.address_book import FILE_NAME as BOOK_FILE
from millpond.node.peers.address_book import AddressBook, AddressBookError
from millpond.node.peers.data_key import DataKey
from millpond.node.peers.delivery_token import FILE_NAME as TOKENS_FILE
from millpond.node.peers.delivery_token import DeliveryTokens
from millpond.node.peers.identity import FILE_NAME as IDENTITY_FILE
from millpond.node.peers.identity import Identity, IdentityError, load_or_create
from millpond.node.peers.local_envelope import (
    LocalKey,
    LocalKeyError,
    load_or_create_local_key,
)
from millpond.node.peers.one_time_prekeys import OneTimePrekeys
from millpond.node.peers.peer_store import FILE_NAME as STORE_FILE
from millpond.node.peers.peer_store import PeerStore, PeerStoreError
from millpond.node.peers.prekey_cache import PrekeyCache
from millpond.node.peers.prekeys import CLOCKS_APART_S, Prekeys
from millpond.node.peers.succession import read_successions

PREKEYS_FOLDER = "prekeys"
KNOWN_FOLDER = "known-prekeys"


class Keyring(msgspec.Struct, frozen=True):
    """The keyring of a node. Without a data folder it is new at each start."""

    identity: Identity
    book: AddressBook
    prekeys: Prekeys
    prekey_cache: PrekeyCache
    store: PeerStore
    one_time: OneTimePrekeys
    local_key: LocalKey
    delivery_tokens: DeliveryTokens
    successions: tuple[bytes, ...] = ()
    """The statements that lead from earlier keys to the identity."""


def open_keyring(
    config: Config,
    now: Callable[[], float],
    entropy: Callable[[int], bytes],
    key: DataKey | None = None,
) -> Keyring:
    """Open the keyring in the data folder, and create what is missing. Raises ConfigError, OSError.

    `now` is asked in worker threads, so it cannot be the loop's clock. `entropy` gives as many
    unpredictable bytes as it is asked for. `key`: the data key of the folder, if it has one.
    """
    folder = Path(config.data) if config.data else None
    successions: tuple[bytes, ...] = ()
    try:
        if folder is None:
            identity = Identity.new(entropy)
            book = AddressBook(None, now)
        else:
            identity = load_or_create(folder / IDENTITY_FILE, entropy, key)
            book = AddressBook(folder / BOOK_FILE, now)
            successions = read_successions(folder, identity.public)
        had_prekeys = folder is not None and (folder / PREKEYS_FOLDER).is_dir()
        floor_ms = int((now() - CLOCKS_APART_S) * 1000) if had_prekeys else 0
        local_key = load_or_create_local_key(folder, entropy, key)
        store = PeerStore(None if folder is None else folder / STORE_FILE, floor_ms, key)
    except (IdentityError, AddressBookError, PeerStoreError, LocalKeyError) as error:
        raise ConfigError(str(error)) from error
    prekeys = Prekeys(
        None if folder is None else folder / PREKEYS_FOLDER,
        identity,
        now,
        entropy,
        config.ttl_max_s,
        key,
    )
    known = PrekeyCache(
        None if folder is None else folder / KNOWN_FOLDER, now, ttl_s_max=config.ttl_max_s
    )
    tokens = DeliveryTokens(None if folder is None else folder / TOKENS_FILE, now, entropy)
    one_time = OneTimePrekeys(store, identity, entropy)
    return Keyring(identity, book, prekeys, known, store, one_time, local_key, tokens, successions)
