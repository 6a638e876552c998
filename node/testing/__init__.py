"""The testing toolkit: nodes in memory, virtual time and faults for tests of users' programs.

`World` is the place for all of it; the pytest plugin (`node.testing.plugin`) has it as fixtures.
docs/guides/testing.md tells how. The names are loaded on first use, because pytest loads the
plugin, and with it this module, wherever the package is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.node.testing.dialogue.protocol import BadScript, DialogueMismatch
    from millpond.node.testing.dialogue.script import Script
    from millpond.node.testing.disk.faults import DiskFault, SqlFault
    from millpond.node.testing.disk.simulated import SimulatedDisk
    from millpond.node.testing.failures import TookTooLong
    from millpond.node.testing.sealed_messages import SealedMessage
    from millpond.node.testing.sim_node import NotRunning, SimNode
    from millpond.node.testing.time.virtual_time import virtual
    from millpond.node.testing.world import World

_HOMES = {
    "BadScript": "millpond.node.testing.dialogue.protocol",
    "DialogueMismatch": "millpond.node.testing.dialogue.protocol",
    "DiskFault": "millpond.node.testing.disk.faults",
    "SealedMessage": "millpond.node.testing.sealed_messages",
    "NotRunning": "millpond.node.testing.sim_node",
    "Script": "millpond.node.testing.dialogue.script",
    "SimNode": "millpond.node.testing.sim_node",
    "SimulatedDisk": "millpond.node.testing.disk.simulated",
    "SqlFault": "millpond.node.testing.disk.faults",
    "TookTooLong": "millpond.node.testing.failures",
    "World": "millpond.node.testing.world",
    "virtual": "millpond.node.testing.time.virtual_time",
}

__all__ = [
    "BadScript",
    "DialogueMismatch",
    "DiskFault",
    "NotRunning",
    "Script",
    "SealedMessage",
    "SimNode",
    "SimulatedDisk",
    "SqlFault",
    "TookTooLong",
    "World",
    "virtual",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
