"""Chat records: the messages of a conversation, kept in its stream `chat/PEER`
(docs/guides/chat.md).

`decode_record` reads what `Stream.records` gives.
"""

from millpond.node.chat.records import (
    Kind,
    Record,
    State,
    Unreadable,
    conversation_stream,
    decode_record,
)

__all__ = [
    "Kind",
    "Record",
    "State",
    "Unreadable",
    "conversation_stream",
    "decode_record",
]
