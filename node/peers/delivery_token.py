"""Delivery tokens: the secret of a contact card with which messages are left at the owner's relays.

It is never sent: `delivery_proof` says what relays and senders show each other.

The tokens of a node are in the file `delivery-tokens` of its data folder. A new token takes the
place of the current one; the old one is good for OLD_TOKENS_S more, so that contacts have time to
get the new card.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from millpond.node.atomic_files import UnsafeFile, read_private, replace, write_new
from millpond.node.peers.address_book_file import AddressBookFile
from millpond.node.peers.card import TOKEN_BYTES, BadCard, decode_card
from millpond.node.peers.errors import DeliveryTokenError

FILE_NAME = "delivery-tokens"
FILE_BYTES_MAX = 4096
TOKENS_MAX = 4
"""Tokens that are good at once: the current one, and old ones."""
OLD_TOKENS_S = 30 * 86_400
"""The time for which an old token is good after it was replaced."""
CARDS_CACHED = 256

_VERSION_LINE = "millpond delivery tokens 1"
_LINE = re.compile(r"([0-9a-f]{32}) (?:current|until ([0-9]{1,15}))")


class DeliveryToken(msgspec.Struct, frozen=True):
    """A token of this node; `until` (seconds since 1970) is the end of an old one."""

    token: bytes
    until: float | None = None

    def __repr__(self) -> str:
        """Without the token: this may end up in a log."""
        return f"<DeliveryToken until {self.until}>"


@lru_cache(maxsize=CARDS_CACHED)
def token_in_card(line: str) -> bytes:
    """The token in the line of a card; empty if it has none."""
    try:
        return decode_card(line).delivery_token if line else b""
    except BadCard:
        return b""


class DeliveryTokens:
    """The tokens of this node, in a file or (`path` None) in memory.

    All methods read or write the file, which commands may change at any moment: an event loop calls
    them in a worker thread. They raise DeliveryTokenError and OSError, and `rotate` BookBusy.
    """

    def __init__(
        self, path: Path | None, now: Callable[[], float], entropy: Callable[[int], bytes]
    ) -> None:
        self._path = path
        self._now = now
        self._entropy = entropy
        self._in_memory: Sequence[DeliveryToken] = ()

    def current(self) -> bytes:
        """The token for the card of this node; the first one is made here."""
        return self.valid()[0].token

    def valid(self) -> list[DeliveryToken]:
        """The tokens that are good now, the current one first."""
        if not self._read():
            self._create()
        return self.existing()

    def existing(self) -> list[DeliveryToken]:
        """The tokens that are good now; none if no card with one was ever made."""
        now = self._now()
        return [each for each in self._read() if each.until is None or each.until > now]

    def rotate(self, *, end_old: bool = False) -> bytes:
        """Replace the current token, and return the new one.

        The old one is good for OLD_TOKENS_S more, unless `end_old` ends all old ones at once.
        """
        if self._path is None:
            self._in_memory = self._rotated(end_old)
            return self._in_memory[0].token
        with AddressBookFile(self._path).locked():  # against another command
            tokens = self._rotated(end_old)
            replace(self._path, _text(tokens))
        return tokens[0].token

    def _rotated(self, end_old: bool) -> Sequence[DeliveryToken]:
        until = self._now() + OLD_TOKENS_S
        old = [
            DeliveryToken(each.token, until if each.until is None else each.until)
            for each in self.valid()
        ]
        kept = [] if end_old else old[: TOKENS_MAX - 1]
        return [DeliveryToken(self._entropy(TOKEN_BYTES)), *kept]

    def _create(self) -> None:
        tokens = [DeliveryToken(self._entropy(TOKEN_BYTES))]
        if self._path is None:
            self._in_memory = tokens
            return
        # Another process may have made one in between.
        with suppress(FileExistsError):
            write_new(self._path, _text(tokens), f".{FILE_NAME}.{self._entropy(8).hex()}")

    def _read(self) -> Sequence[DeliveryToken]:
        if self._path is None:
            return self._in_memory
        try:
            text = read_private(self._path, FILE_BYTES_MAX).decode("ascii")
        except FileNotFoundError:
            return ()
        except UnsafeFile as error:
            raise DeliveryTokenError(str(error)) from error
        except UnicodeDecodeError as error:
            raise DeliveryTokenError(f"{self._path}: damaged: not text") from error
        version, *lines = text.splitlines() or [""]
        found = [_LINE.fullmatch(line) for line in lines]
        tokens = [_parsed(match) for match in found if match is not None]
        is_whole = len(tokens) == len(lines) and [each.until for each in tokens].count(None) == 1
        if version != _VERSION_LINE or not is_whole or tokens[0].until is not None:
            raise DeliveryTokenError(f"{self._path}: damaged, or of a later version")
        return tokens


def _parsed(match: re.Match[str]) -> DeliveryToken:
    token, until = match.groups()
    return DeliveryToken(bytes.fromhex(token), None if until is None else int(until) / 1000)


def _text(tokens: Iterable[DeliveryToken]) -> bytes:
    ends = (
        (each.token.hex(), "current" if each.until is None else f"until {int(each.until * 1000)}")
        for each in tokens
    )
    return "\n".join((_VERSION_LINE, *(" ".join(each) for each in ends), "")).encode("ascii")
