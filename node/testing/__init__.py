"""What users test their own programs with: nodes in memory, time that need not pass, faults.

`World` is the place for all of it; the pytest plugin (`node.testing.plugin`) has it as fixtures.
docs/testing.md tells how. The names are loaded on first use, because pytest loads the plugin, and
with it this module, wherever the package is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from node.testing.dialogue.errors import BadScript, DialogueMismatch
    from node.testing.dialogue.script import Script
    from node.testing.disk.faults import DiskFault, SqlFault
    from node.testing.disk.simulated import SimulatedDisk
    from node.testing.failures import TookTooLong
    from node.testing.mail import Letter
    from node.testing.time.virtual_time import virtual
    from node.testing.sim_node import NotRunning, SimNode
    from node.testing.world import World

_HOMES = {
    "BadScript": "node.testing.dialogue.errors",
    "DialogueMismatch": "node.testing.dialogue.errors",
    "DiskFault": "node.testing.disk.faults",
    "Letter": "node.testing.mail",
    "NotRunning": "node.testing.sim_node",
    "Script": "node.testing.dialogue.script",
    "SimNode": "node.testing.sim_node",
    "SimulatedDisk": "node.testing.disk.simulated",
    "SqlFault": "node.testing.disk.faults",
    "TookTooLong": "node.testing.failures",
    "World": "node.testing.world",
    "virtual": "node.testing.time.virtual_time",
}

__all__ = [
    "BadScript",
    "DialogueMismatch",
    "DiskFault",
    "Letter",
    "NotRunning",
    "Script",
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
