"""Shared state: tables of values that a stream of change events makes (docs/reference/state.md).

`StateWriter` appends events, `follow_state` keeps a live copy, `Stream.state` asks the node.
"""

from millpond.actors.state.events import ChangeEvent, Control, ControlEvent, Event
from millpond.actors.state.fold import Changed, ControlApplied, OnInvalid, OnReset, Rejected
from millpond.actors.state.schema import Collection, StreamState
from millpond.actors.state.stats import EventStats
from millpond.node.client.state.changes import Changes, Missed, StateUpdate
from millpond.node.client.state.follower import FollowSettings, StateView, TableView, follow_state
from millpond.node.client.state.remote import NodeState, Row, StateInfo
from millpond.node.client.state.writer import StateWriter

__all__ = [
    "ChangeEvent",
    "Changed",
    "Changes",
    "Collection",
    "Control",
    "ControlApplied",
    "ControlEvent",
    "Event",
    "EventStats",
    "FollowSettings",
    "Missed",
    "NodeState",
    "OnInvalid",
    "OnReset",
    "Rejected",
    "Row",
    "StateInfo",
    "StateUpdate",
    "StateView",
    "StateWriter",
    "StreamState",
    "TableView",
    "follow_state",
]
