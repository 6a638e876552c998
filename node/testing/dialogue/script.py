"""The player of dialogues with a node, over the real codecs of its protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from millpond.node.error_groups import single_errors
from millpond.node.testing.dialogue.client import DialogueClient
from millpond.node.testing.dialogue.packets import PACKETS
from millpond.node.testing.dialogue.protocol import BadScript, DialogueMismatch, DialogueProtocol
from millpond.node.testing.dialogue.rustlog import RUSTLOG
from millpond.node.testing.dialogue.s3p import S3P
from millpond.node.testing.dialogue.transcript import CLOSED, ScriptLine, read_lines

if TYPE_CHECKING:
    from millpond.node.testing.sim_node import SimNode

Received = TypeVar("Received")
TIMEOUT_S = 60.0
QUIET = "(nothing)"


class Script:
    """A player of dialogues, each on new connections; it returns the captured placeholders.

    `known` are values of placeholders from the start. Raises DialogueMismatch, BadScript, and
    OSError if the node cannot be reached.
    """

    def __init__(self, node: SimNode, timeout_s: float = TIMEOUT_S) -> None:
        self._node = node
        self._timeout_s = timeout_s

    async def packets(self, text: str, **known: object) -> dict[str, object]:
        """Play a dialogue in packets; see `dialogue.packets`."""
        return await self._play(PACKETS, text, known)

    async def s3p(self, text: str, **known: object) -> dict[str, object]:
        """Play a dialogue in S3P; see `dialogue.s3p`."""
        return await self._play(S3P, text, known)

    async def rustlog(self, text: str, **known: object) -> dict[str, object]:
        """Play a dialogue in RustLog; see `dialogue.rustlog`."""
        return await self._play(RUSTLOG, text, known)

    async def _play(
        self, protocol: DialogueProtocol[Received], text: str, known: dict[str, object]
    ) -> dict[str, object]:
        lines = read_lines(text)
        with single_errors():
            async with anyio.create_task_group() as tasks:
                play = _Play(self._node, protocol, tasks, self._timeout_s, dict(known))
                await play.run(lines)
                tasks.cancel_scope.cancel()
        return play.captures


class _Play(Generic[Received]):
    """One dialogue under way."""

    def __init__(
        self,
        node: SimNode,
        protocol: DialogueProtocol[Received],
        tasks: TaskGroup,
        timeout_s: float,
        captures: dict[str, object],
    ) -> None:
        self.captures = captures
        self._node = node
        self._protocol = protocol
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._clients: dict[str, DialogueClient[Received]] = {}
        self._so_far: list[str] = []

    async def run(self, lines: list[ScriptLine]) -> None:
        for line in lines:
            try:
                await self._step(line)
            except ValueError as error:
                raise BadScript(f"line {line.number}: {line}: {error}") from error
            self._so_far.append(f"  {line}")
        await self._node.idle()
        for who, client in self._clients.items():
            if client.received_messages:
                received = self._protocol.show(client.received_messages[0])
                raise self._mismatch(
                    "the node sends more than the script expects", f"{who}< {received}"
                )
            client.close()

    async def _step(self, line: ScriptLine) -> None:
        client = self._clients.get(line.who) or await self._connect(line.who)
        match line.mark:
            case ">":
                client.send(self._protocol.write(line.text, self.captures))
            case "<":
                await self._receive(line, client)
            case "~":
                await anyio.sleep(float(line.text))
                if client.received_messages:
                    received = self._protocol.show(client.received_messages[0])
                    reason = f"line {line.number}: silence was expected"
                    raise self._mismatch(reason, f"{line.who}< {received}", line)

    async def _connect(self, who: str) -> DialogueClient[Received]:
        client = self._clients[who] = DialogueClient(self._protocol.decoder())
        dial = self._node.dialer(who or "script")
        await dial(self._tasks, self._node.name, self._protocol.port, client)
        return client

    async def _receive(self, line: ScriptLine, client: DialogueClient[Received]) -> None:
        received: Received | None = None
        with anyio.move_on_after(self._timeout_s) as scope:
            received = await client.receive()
        if received is not None:
            found = None
            if line.text != CLOSED:
                found = self._protocol.match(line.text, received, self.captures)
            if found is not None:
                self.captures.update(found)
                return
            shown = self._protocol.show(received)
        elif scope.cancelled_caught:
            shown = QUIET
        elif line.text == CLOSED:
            return
        else:
            shown = CLOSED
        reason = f"line {line.number}: the node sends something else"
        raise self._mismatch(reason, f"{line.who}< {shown}", line)

    def _mismatch(
        self, reason: str, received: str, line: ScriptLine | None = None
    ) -> DialogueMismatch:
        wanted = [] if line is None else [f"- {line}"]
        known = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in self.captures.items()
        }
        notes = [f"  where {known}"] if known else []
        return DialogueMismatch(
            "\n".join([reason, *self._so_far, *wanted, f"+ {received}", *notes])
        )
