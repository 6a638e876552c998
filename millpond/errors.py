"""Errors that users of the library catch: one tree.

`RequestError` is the base of what a node refuses, `ConnectionLost` of what a lost connection ends,
`ClientClosed` of the use of a client that is not open. `+` is a further base. `ChannelClosed` is
the former name of `ClientClosed`. Wrong arguments are TypeError and ValueError, as elsewhere; a
time that is over is TimeoutError.

    MillpondError
      AskFailed
      AttemptTimedOut
      BadCheckpoint + ValueError
      BadReply
      BadSchema + ValueError
      BadValue + ValueError
      ClientClosed
        ClientForked
      ConfigError
      ConnectionLost + ConnectionError
        HandshakeRefused
          ModeMismatch
          NotEncrypted
          PeerMismatch
            SelfConnection
        NotDone
          NotSent
      DuplicateType + ValueError
      FolderInUse
      HandlersHang
      InvalidEvent
      JobCancelled
      JobFailed
      LeaseExpired
      PayloadRefused
      Reject
      RequestError
        BadRange
        BufferFull
        ChannelExists
        DataTooLarge
        EmptyData
        Fenced
        GroupsFull
        IdsExhausted
        KeyReused
        LeaseLost
        LimitExceeded
        Malformed
        NoListener
        NoPrekey
        NonMonotonicId
        NotAQueue
        NotAllowed
        NotFound
        NotNegotiated
        OutcomeUnknown
        PartOfTopic
        Quarantined
        RustlogRefused
          InvalidRequest + Malformed
          NoSpace + BufferFull
          OffsetOutOfRange + Trimmed
          RecordTooLarge + DataTooLarge
          ServerFailed + OutcomeUnknown
          StoreFailed + StorageFailed
          UnknownPartition + UnknownStream
          UnknownTopic + UnknownStream
        SequenceMismatch
        SlowDown
        StateTooLarge
        StorageFailed
        StreamClosed
        StreamEncrypted
        StreamExists
          TopicExists
        TooLargeForPeer
        Trimmed
        TtlRefused
        UnknownChannel
        UnknownPeer
        UnknownStream
        WrongRole
      Retry
      SnapshotOpen + ValueError
      StateReset
      StopTimedOut
"""

from millpond.actors.errors import (
    BadRange,
    BufferFull,
    ChannelExists,
    Code,
    DataTooLarge,
    EmptyData,
    Fenced,
    GroupsFull,
    IdsExhausted,
    KeyReused,
    LeaseLost,
    Malformed,
    MillpondError,
    NoListener,
    NonMonotonicId,
    NoPrekey,
    NotAllowed,
    NotAQueue,
    NotFound,
    NotNegotiated,
    OutcomeUnknown,
    PartOfTopic,
    Quarantined,
    RequestError,
    SequenceMismatch,
    SlowDown,
    StateTooLarge,
    StorageFailed,
    StreamClosed,
    StreamEncrypted,
    StreamExists,
    TooLargeForPeer,
    Trimmed,
    TtlRefused,
    UnknownChannel,
    UnknownPeer,
    UnknownStream,
    WrongRole,
)
from millpond.actors.state.errors import BadSchema, BadValue, DuplicateType
from millpond.actors.state.fold import BadCheckpoint, InvalidEvent, StateReset
from millpond.node.client.errors import (
    AskFailed,
    ChannelClosed,
    ClientClosed,
    ClientForked,
    ConnectionLost,
    HandshakeRefused,
    ModeMismatch,
    NotEncrypted,
    PeerMismatch,
    SelfConnection,
)
from millpond.node.client.requests.errors import (
    BadReply,
    InvalidRequest,
    LimitExceeded,
    NoSpace,
    NotDone,
    NotSent,
    OffsetOutOfRange,
    RecordTooLarge,
    RustlogRefused,
    ServerFailed,
    StoreFailed,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from millpond.node.client.state.writer import SnapshotOpen
from millpond.node.config_rules import ConfigError
from millpond.node.data_folder import FolderInUse, StopTimedOut
from millpond.node.jobs.errors import (
    AttemptTimedOut,
    HandlersHang,
    JobCancelled,
    JobFailed,
    LeaseExpired,
    PayloadRefused,
    Reject,
    Retry,
)
from millpond.transports.p2p.nacks import HelloCode

__all__ = [
    "AskFailed",
    "AttemptTimedOut",
    "BadCheckpoint",
    "BadRange",
    "BadReply",
    "BadSchema",
    "BadValue",
    "BufferFull",
    "ChannelClosed",
    "ChannelExists",
    "ClientClosed",
    "ClientForked",
    "Code",
    "ConfigError",
    "ConnectionLost",
    "DataTooLarge",
    "DuplicateType",
    "EmptyData",
    "Fenced",
    "FolderInUse",
    "GroupsFull",
    "HandlersHang",
    "HandshakeRefused",
    "HelloCode",
    "IdsExhausted",
    "InvalidEvent",
    "InvalidRequest",
    "JobCancelled",
    "JobFailed",
    "KeyReused",
    "LeaseExpired",
    "LeaseLost",
    "LimitExceeded",
    "Malformed",
    "MillpondError",
    "ModeMismatch",
    "NoListener",
    "NoPrekey",
    "NoSpace",
    "NonMonotonicId",
    "NotAQueue",
    "NotAllowed",
    "NotDone",
    "NotEncrypted",
    "NotFound",
    "NotNegotiated",
    "NotSent",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "PartOfTopic",
    "PayloadRefused",
    "PeerMismatch",
    "Quarantined",
    "RecordTooLarge",
    "Reject",
    "RequestError",
    "Retry",
    "RustlogRefused",
    "SelfConnection",
    "SequenceMismatch",
    "ServerFailed",
    "SlowDown",
    "SnapshotOpen",
    "StateReset",
    "StateTooLarge",
    "StopTimedOut",
    "StorageFailed",
    "StoreFailed",
    "StreamClosed",
    "StreamEncrypted",
    "StreamExists",
    "TooLargeForPeer",
    "TopicExists",
    "Trimmed",
    "TtlRefused",
    "UnknownChannel",
    "UnknownPartition",
    "UnknownPeer",
    "UnknownStream",
    "UnknownTopic",
    "WrongRole",
]
