"""Checks of connections to peers on other machines, and of the encryption of the folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from millpond.node.cli.doctor.finding import Finding
from millpond.node.config import Config
from millpond.node.peers.address_book import FILE_NAME as BOOK_FILE
from millpond.node.peers.address_book import AddressBook, AddressBookError
from millpond.node.peers.data_key import FILE_NAME, FolderState, folder_state, is_encrypted
from millpond.node.peers.peer import Trust, plain_addresses


def plain_peer_findings(config: Config) -> Iterator[Finding]:
    """The finding about connections without TLS."""
    if config.allow_plain_peers:
        text = "allow_plain_peers: whoever is on the way can swallow messages and forge receipts"
        yield Finding("plain peers", "warn", text)


def encryption_findings(folder: Path) -> Iterator[Finding]:
    """The finding about keys and chat histories that are encrypted."""
    if not is_encrypted(folder):
        return
    match folder_state(folder):
        case FolderState.ENCRYPTED:
            text = "keys and chat histories; their contents are not looked at"
            yield Finding("encryption", "ok", text)
        case FolderState.ENCRYPTING:
            text = "interrupted; `millpond keys passphrase set` finishes it"
            yield Finding("encryption", "fail", text)
        case FolderState.DECRYPTING:
            text = "its removal was interrupted; `millpond keys passphrase remove` finishes it"
            yield Finding("encryption", "fail", text)
        case None:
            yield Finding("encryption", "fail", f"{folder / FILE_NAME}: damaged, or not private")


def peer_findings(folder: Path) -> Iterator[Finding]:
    """The findings about the addresses in the peer book of a data folder."""
    path = folder / BOOK_FILE
    if not path.exists():
        return
    try:
        peers = [each for each in AddressBook(path).peers if each.trust is not Trust.BLOCKED]
    except AddressBookError as exc:
        yield Finding("peers", "fail", str(exc))
        return
    plain = [(peer.name, url) for peer in peers for url in plain_addresses(peer)]
    if not plain:
        yield Finding(
            "peers", "ok", f"{len(peers)}, none with an address without TLS on another machine"
        )
    for name, url in plain:
        text = f"{name}: {url} does not say TLS; ask for a new card with tls://"
        yield Finding("peers", "warn", text)
