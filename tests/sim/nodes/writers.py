"""Senders and readers of sealed messages between nodes."""

from __future__ import annotations

import anyio

from millpond.actors.errors import RequestError
from millpond.testing import NotRunning
from tests.sim.nodes.notes import LetterRead, LetterSent
from tests.sim.nodes.plan import MailPlan
from tests.sim.nodes.stage import Stage

AGAIN_S = 0.5
SEND_S = 30.0
READ_S = 5.0
CHANNEL = "letters"


async def send(stage: Stage, plan: MailPlan, number: int) -> None:
    """All letters of a plan. What may be kept or not is not sent again."""
    who = f"mail-{number}"
    rng = stage.rng(who)
    node = stage.node(plan.source)
    async with stage.finishing(who):
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
                    stage.note(LetterSent(stage.now, plan.source, plan.target, data))
                    break
            await anyio.sleep(rng.uniform(0.0, plan.gap_s))


async def read(stage: Stage, name: str) -> None:
    """Read all letters that come to a node, until cancelled."""
    node = stage.node(name)
    while True:
        try:
            letter = await node.read(CHANNEL, timeout_s=READ_S)
        except (NotRunning, RequestError):
            await anyio.sleep(AGAIN_S)
        except TimeoutError:
            continue
        else:
            stage.note(LetterRead(stage.now, name, letter.sender, letter.data))
