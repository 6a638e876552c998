"""Testing: nodes in memory, with virtual time, a simulated network and faults; and nodes on real
ports (docs/guides/testing.md).

`run_node` and the fixture `millpond_node` are for blocking clients and other processes. The other
fixtures of the pytest plugin give a `World` and nodes in it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.node.client.settings import SimulatedSettings
    from millpond.node.testing.dialogue.protocol import BadScript, DialogueMismatch
    from millpond.node.testing.dialogue.script import Script
    from millpond.node.testing.disk.faults import DiskFault, SqlFault
    from millpond.node.testing.disk.simulated import SimulatedDisk
    from millpond.node.testing.failures import TookTooLong
    from millpond.node.testing.real_node import NotReady, RealNode, run_node
    from millpond.node.testing.sealed_messages import SealedMessage
    from millpond.node.testing.sim_node import NotRunning, SimNode
    from millpond.node.testing.time.virtual_time import virtual
    from millpond.node.testing.world import World
else:
    from millpond.lazy import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "BadScript": "millpond.node.testing.dialogue.protocol",
            "DialogueMismatch": "millpond.node.testing.dialogue.protocol",
            "DiskFault": "millpond.node.testing.disk.faults",
            "NotReady": "millpond.node.testing.real_node",
            "NotRunning": "millpond.node.testing.sim_node",
            "RealNode": "millpond.node.testing.real_node",
            "Script": "millpond.node.testing.dialogue.script",
            "SealedMessage": "millpond.node.testing.sealed_messages",
            "SimNode": "millpond.node.testing.sim_node",
            "SimulatedDisk": "millpond.node.testing.disk.simulated",
            "SimulatedSettings": "millpond.node.client.settings",
            "SqlFault": "millpond.node.testing.disk.faults",
            "TookTooLong": "millpond.node.testing.failures",
            "World": "millpond.node.testing.world",
            "run_node": "millpond.node.testing.real_node",
            "virtual": "millpond.node.testing.time.virtual_time",
        },
    )

__all__ = [
    "BadScript",
    "DialogueMismatch",
    "DiskFault",
    "NotReady",
    "NotRunning",
    "RealNode",
    "Script",
    "SealedMessage",
    "SimNode",
    "SimulatedDisk",
    "SimulatedSettings",
    "SqlFault",
    "TookTooLong",
    "World",
    "run_node",
    "virtual",
]
