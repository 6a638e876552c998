"""Senders and readers of sealed messages between nodes."""

from __future__ import annotations

import anyio

from millpond.actors.errors import RequestError
from millpond.testing import NotRunning
from tests.sim.nodes.client_events import MailRead, MailSent
from tests.sim.nodes.plan import MailPlan
from tests.sim.nodes.simulation import Simulation

AGAIN_S = 0.5
SEND_S = 30.0
READ_S = 5.0
CHANNEL = "letters"


async def send(sim: Simulation, plan: MailPlan, number: int) -> None:
    """Send all messages of a plan. One with an unknown outcome is not sent again."""
    who = f"mail-{number}"
    rng = sim.rng(who)
    node = sim.node(plan.source)
    async with sim.finishing(who):
        for each in range(plan.count):
            data = f"{plan.source}/{who}/{each}".encode()
            while True:
                try:
                    with anyio.fail_after(SEND_S):
                        await node.send(plan.target, CHANNEL, data)
                except (NotRunning, RequestError):
                    await anyio.sleep(AGAIN_S)
                except TimeoutError:
                    break
                else:
                    sim.record(MailSent(sim.now, plan.source, plan.target, data))
                    break
            await anyio.sleep(rng.uniform(0.0, plan.gap_s))


async def read(sim: Simulation, name: str) -> None:
    """Read all messages that come to a node, until cancelled."""
    node = sim.node(name)
    while True:
        try:
            envelope = await node.read(CHANNEL, timeout_s=READ_S)
        except (NotRunning, RequestError):
            await anyio.sleep(AGAIN_S)
        except TimeoutError:
            continue
        else:
            sim.record(MailRead(sim.now, name, envelope.sender, envelope.data))
