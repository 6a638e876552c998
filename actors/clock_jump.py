"""A jump of the wall clock that is not confirmed: how far it would move the node's time."""

from __future__ import annotations


class ClockJump:
    """The seconds that the node's time moves forward if the jump is confirmed; 0: no jump waits.

    Cells expire nothing by it. To what they give a deadline, or a time that age is counted from,
    they add it: so a confirmation cuts nothing short that arrived meanwhile.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0
