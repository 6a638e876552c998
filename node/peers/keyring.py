"""The keyring of a node: identity, address book, own prekeys and prekeys of peers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from millpond.node.config import Config, ConfigError
from millpond.node.peers.address_book import FILE_NAME as BOOK_FILE
from millpond.node.peers.address_book import AddressBook, AddressBookError
from millpond.node.peers.identity import FILE_NAME as IDENTITY_FILE
from millpond.node.peers.identity import Identity, IdentityError, load_or_create
from millpond.node.peers.prekey_cache import PrekeyCache
from millpond.node.peers.prekeys import Prekeys

PREKEYS_FOLDER = "prekeys"
KNOWN_FOLDER = "known-prekeys"


class Keyring(msgspec.Struct, frozen=True):
    """The keyring of a node. Without a data folder it is new at each start."""

    identity: Identity
    book: AddressBook
    prekeys: Prekeys
    prekey_cache: PrekeyCache


def open_keyring(
    config: Config, now: Callable[[], float], entropy: Callable[[int], bytes]
) -> Keyring:
    """Open the keyring in the data folder, and create what is missing. Raises ConfigError, OSError.

    `now` is asked in worker threads, so it cannot be the loop's clock. `entropy` gives as many
    unpredictable bytes as it is asked for.
    """
    folder = Path(config.data) if config.data else None
    try:
        if folder is None:
            identity = Identity.new(entropy)
            book = AddressBook(None, now)
        else:
            identity = load_or_create(folder / IDENTITY_FILE, entropy)
            book = AddressBook(folder / BOOK_FILE, now)
    except (IdentityError, AddressBookError) as error:
        raise ConfigError(str(error)) from error
    prekeys = Prekeys(
        None if folder is None else folder / PREKEYS_FOLDER,
        identity,
        now,
        entropy,
        config.ttl_max_s,
    )
    known = PrekeyCache(None if folder is None else folder / KNOWN_FOLDER)
    return Keyring(identity, book, prekeys, known)
