"""Errors that a caller causes: one code each, which every protocol maps to its own form."""

from __future__ import annotations

from enum import Enum, auto


class Code(Enum):
    """The reason of a refusal. `transports.p2p.nacks` gives each its byte on the P2P wire."""

    NOT_FOUND = auto()
    TTL_REFUSED = auto()
    BAD_RANGE = auto()
    KEY_REUSED = auto()
    EMPTY_DATA = auto()
    DATA_TOO_LARGE = auto()
    WRONG_ROLE = auto()
    BUFFER_FULL = auto()
    TOO_LARGE_FOR_PEER = auto()
    LEASE_LOST = auto()
    SLOW_DOWN = auto()
    IDS_EXHAUSTED = auto()
    STORAGE_FAILED = auto()
    MALFORMED = auto()
    NOT_NEGOTIATED = auto()
    NOT_ALLOWED = auto()
    OUTCOME_UNKNOWN = auto()
    QUARANTINED = auto()
    STREAM_EXISTS = auto()
    UNKNOWN_STREAM = auto()
    NON_MONOTONIC_ID = auto()
    TRIMMED = auto()
    SEQUENCE_MISMATCH = auto()
    FENCED = auto()
    PART_OF_TOPIC = auto()
    GROUPS_FULL = auto()
    UNKNOWN_PEER = auto()
    NO_PREKEY = auto()
    NOT_A_QUEUE = auto()
    STATE_TOO_LARGE = auto()
    CLOSED = auto()
    ENCRYPTED = auto()
    CHANNEL_EXISTS = auto()
    UNKNOWN_CHANNEL = auto()
    NO_LISTENER = auto()


class MillpondError(Exception):
    """Any error that Millpond raises for its users; `millpond.errors` draws the tree."""


class RequestError(MillpondError):
    """A request failed, and the caller can do something about it. Base of all coded errors."""

    code: Code

    def __init__(self, text: str = "", delay_ms: int | None = None) -> None:
        super().__init__(text or type(self).__doc__ or self.code.name)
        self.delay_ms = delay_ms


class NotFound(RequestError):
    """no such message: never there, expired or acknowledged"""

    code = Code.NOT_FOUND


class TtlRefused(RequestError):
    """the time to live is not acceptable"""

    code = Code.TTL_REFUSED


class BadRange(RequestError):
    """the range of ids is not acceptable"""

    code = Code.BAD_RANGE


class KeyReused(RequestError):
    """the idempotency key was used before, with other data"""

    code = Code.KEY_REUSED


class EmptyData(RequestError):
    """the message has no data"""

    code = Code.EMPTY_DATA


class DataTooLarge(RequestError):
    """the data is larger than the node takes"""

    code = Code.DATA_TOO_LARGE


class WrongRole(RequestError):
    """not allowed in the role this connection chose"""

    code = Code.WRONG_ROLE


class BufferFull(RequestError):
    """the channel or the node is full; retry later"""

    code = Code.BUFFER_FULL


class TooLargeForPeer(RequestError):
    """the message does not fit the packets this connection accepts"""

    code = Code.TOO_LARGE_FOR_PEER


class LeaseLost(RequestError):
    """the message is no longer leased to this connection"""

    code = Code.LEASE_LOST


class SlowDown(RequestError):
    """too many requests; retry after the given delay"""

    code = Code.SLOW_DOWN


class IdsExhausted(RequestError):
    """message ids have ended: they reach to 2080, and the clock or the last id is later"""

    code = Code.IDS_EXHAUSTED


class StorageFailed(RequestError):
    """the store cannot read or write this; nothing is acknowledged"""

    code = Code.STORAGE_FAILED


class Malformed(RequestError):
    """the node could not read the request"""

    code = Code.MALFORMED


class NotNegotiated(RequestError):
    """the extension was not negotiated"""

    code = Code.NOT_NEGOTIATED


class NotAllowed(RequestError):
    """not allowed for this peer"""

    code = Code.NOT_ALLOWED


class OutcomeUnknown(RequestError):
    """the request may or may not have been carried out; retry with the same key"""

    code = Code.OUTCOME_UNKNOWN


class Quarantined(RequestError):
    """the channel failed too often and is quarantined; nothing was done"""

    code = Code.QUARANTINED


class StreamExists(RequestError):
    """a stream of this name exists"""

    code = Code.STREAM_EXISTS


class UnknownStream(RequestError):
    """no stream has this name"""

    code = Code.UNKNOWN_STREAM


class NonMonotonicId(RequestError):
    """the id is below the last one of the stream"""

    code = Code.NON_MONOTONIC_ID


class Trimmed(RequestError):
    """the requested records are trimmed"""

    code = Code.TRIMMED


class SequenceMismatch(RequestError):
    """the tail of the stream is not the one that the append expects"""

    code = Code.SEQUENCE_MISMATCH


class Fenced(RequestError):
    """the stream has another fencing token"""

    code = Code.FENCED


class PartOfTopic(RequestError):
    """the stream is a partition of a topic"""

    code = Code.PART_OF_TOPIC


class GroupsFull(RequestError):
    """the stream has too many consumer groups"""

    code = Code.GROUPS_FULL


class UnknownPeer(RequestError):
    """no contact has this name or key"""

    code = Code.UNKNOWN_PEER


class NoPrekey(RequestError):
    """no current key of this peer is known to encrypt for; retry later"""

    code = Code.NO_PREKEY


class NotAQueue(RequestError):
    """the channel is not in queue mode: it has no jobs"""

    code = Code.NOT_A_QUEUE


class StateTooLarge(RequestError):
    """the state of the stream is too large for the node"""

    code = Code.STATE_TOO_LARGE


class StreamClosed(RequestError):
    """the stream is closed: it accepts no more records"""

    code = Code.CLOSED


class StreamEncrypted(RequestError):
    """the stream is encrypted by S2: only S2 appends to it and reads it"""

    code = Code.ENCRYPTED


class ChannelExists(RequestError):
    """the channel was created before, or has another mode"""

    code = Code.CHANNEL_EXISTS


class UnknownChannel(RequestError):
    """no channel has this name"""

    code = Code.UNKNOWN_CHANNEL


class NoListener(RequestError):
    """nobody listens in the channel; nothing was put"""

    code = Code.NO_LISTENER


ERRORS: dict[Code, type[RequestError]] = {
    error.code: error
    for error in (
        NotFound,
        TtlRefused,
        BadRange,
        KeyReused,
        EmptyData,
        DataTooLarge,
        WrongRole,
        BufferFull,
        TooLargeForPeer,
        LeaseLost,
        SlowDown,
        IdsExhausted,
        StorageFailed,
        Malformed,
        NotNegotiated,
        NotAllowed,
        OutcomeUnknown,
        Quarantined,
        StreamExists,
        UnknownStream,
        NonMonotonicId,
        Trimmed,
        SequenceMismatch,
        Fenced,
        PartOfTopic,
        GroupsFull,
        UnknownPeer,
        NoPrekey,
        NotAQueue,
        StateTooLarge,
        StreamClosed,
        StreamEncrypted,
        ChannelExists,
        UnknownChannel,
        NoListener,
    )
}
