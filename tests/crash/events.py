"""Events of a run of the kill loop, as values, in the order of the run.

A PUT is known by its label: who wrote it, and the how manieth of its writer it is. The label stands
in the data, so that a message can be told wherever it turns up, whatever its id.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Label(NamedTuple):
    """The name of one PUT, retries included."""

    writer: str
    n: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """The node is started for the so manieth time, at this wall clock."""

    life: int
    at_ms: int


class Sent(msgspec.Struct, frozen=True, tag=True):
    """A PUT goes out. `is_brief`: it may have expired by the end of the run."""

    label: Label
    connection: int
    is_brief: bool = False


class Kept(msgspec.Struct, frozen=True, tag=True):
    """A PUT was acknowledged."""

    label: Label
    id: int
    connection: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A PUT was answered with a NACK: it is not kept."""

    label: Label
    code: int
    connection: int


class Got(msgspec.Struct, frozen=True, tag=True):
    """A message was pushed to a reader. `is_whole`: its data are what the label's writer sent."""

    id: int
    label: Label
    life: int
    is_whole: bool = True


class Done(msgspec.Struct, frozen=True, tag=True):
    """A reader acks a message; nothing answers that."""

    id: int
    life: int


class Settled(msgspec.Struct, frozen=True, tag=True):
    """These acks were in the node before a PUT that it has acknowledged as durable since."""

    ids: tuple[int, ...]


class Missed(msgspec.Struct, frozen=True, tag=True):
    """A LIST did not name a message that was acknowledged, and that nobody has acked."""

    id: int
    life: int


class Found(msgspec.Struct, frozen=True, tag=True):
    """A message that is still kept at the end."""

    id: int
    label: Label
    life: int
    is_whole: bool = True


Event = Started | Sent | Kept | Refused | Got | Done | Settled | Missed | Found
