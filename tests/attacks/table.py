"""The table of attacks: listener by listener, six kinds each."""

from __future__ import annotations

from tests.attacks.memory import ATTACKS, Attack
from tests.attacks.requests import MORE

ALL: dict[str, Attack] = {**ATTACKS, **MORE}
