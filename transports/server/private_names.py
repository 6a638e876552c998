"""Private names: the chats and mailboxes of a node, which no right to everything includes."""

from __future__ import annotations

import re

PRIVATE_PREFIXES = (b"chat/", b"mail/")
_OF_A_PEER = re.compile(rb"[a-z2-7]{52}(?:!.*)?", re.DOTALL)


def is_private(name: bytes) -> bool:
    """True for a channel or stream with the chat, mail or prekeys of a peer: `chat/PEER-ID`,
    `mail/PEER-ID`, and these with a suffix behind `!`."""
    if not name.startswith(PRIVATE_PREFIXES):
        return False
    return _OF_A_PEER.fullmatch(name, len(PRIVATE_PREFIXES[0])) is not None
