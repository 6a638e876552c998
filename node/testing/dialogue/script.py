"""Plays dialogues with a node, over the real codecs of its protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from millpond.node.error_groups import single_errors
from millpond.node.testing.dialogue.client import DialogueClient
from millpond.node.testing.dialogue.errors import BadScript, DialogueMismatch
from millpond.node.testing.dialogue.packets import PACKETS
from millpond.node.testing.dialogue.protocol import DialogueProtocol
from millpond.node.testing.dialogue.rustlog import RUSTLOG
from millpond.node.testing.dialogue.s3p import S3P
from millpond.node.testing.dialogue.transcript import CLOSED, ScriptLine, read_lines

if TYPE_CHECKING:
    from millpond.node.testing.sim_node import SimNode

Heard = TypeVar("Heard")
PATIENCE_S = 60.0
QUIET = "(nothing)"


class Script:
    """Each call plays one dialogue on connections of its own, and gives what placeholders stood
    for; `known` is what they stand for from the beginning.

    Raises DialogueMismatch, BadScript, and OSError where the node cannot be reached.
    """

    def __init__(self, node: SimNode, patience_s: float = PATIENCE_S) -> None:
        self._node = node
        self._patience_s = patience_s

    async def packets(self, text: str, **known: Any) -> dict[str, Any]:
        """In packets, see `packet_lines`."""
        return await self._play(PACKETS, text, known)

    async def s3p(self, text: str, **known: Any) -> dict[str, Any]:
        """In S3P, see `s3p_lines`."""
        return await self._play(S3P, text, known)

    async def rustlog(self, text: str, **known: Any) -> dict[str, Any]:
        """In RustLog, see `rustlog_lines`."""
        return await self._play(RUSTLOG, text, known)

    async def _play(
        self, language: DialogueProtocol[Heard], text: str, known: dict[str, Any]
    ) -> dict[str, Any]:
        lines = read_lines(text)
        with single_errors():
            async with anyio.create_task_group() as tasks:
                play = _Play(self._node, language, tasks, self._patience_s, dict(known))
                await play.run(lines)
                tasks.cancel_scope.cancel()
        return play.captures


class _Play(Generic[Heard]):
    """One dialogue."""

    def __init__(
        self,
        node: SimNode,
        language: DialogueProtocol[Heard],
        tasks: TaskGroup,
        patience_s: float,
        captures: dict[str, Any],
    ) -> None:
        self.captures = captures
        self._node = node
        self._language = language
        self._tasks = tasks
        self._patience_s = patience_s
        self._speakers: dict[str, DialogueClient[Heard]] = {}
        self._so_far: list[str] = []

    async def run(self, lines: list[ScriptLine]) -> None:
        for line in lines:
            try:
                await self._step(line)
            except ValueError as error:
                raise BadScript(f"line {line.number}: {line}: {error}") from error
            self._so_far.append(f"  {line}")
        await self._node.idle()
        for who, speaker in self._speakers.items():
            if speaker.heard:
                said = self._language.show(speaker.heard[0])
                raise self._mismatch("the node says more than the script", f"{who}< {said}")
            speaker.close()

    async def _step(self, line: ScriptLine) -> None:
        speaker = self._speakers.get(line.who) or await self._enter(line.who)
        match line.mark:
            case ">":
                speaker.say(self._language.write(line.text, self.captures))
            case "<":
                await self._hear(line, speaker)
            case "~":
                await anyio.sleep(float(line.text))
                if speaker.heard:
                    said = self._language.show(speaker.heard[0])
                    why = f"line {line.number}: there was to be silence"
                    raise self._mismatch(why, f"{line.who}< {said}", line)

    async def _enter(self, who: str) -> DialogueClient[Heard]:
        speaker = self._speakers[who] = DialogueClient(self._language.decoder())
        dial = self._node.dialer(who or "script")
        await dial(self._tasks, self._node.name, self._language.port, speaker)
        return speaker

    async def _hear(self, line: ScriptLine, speaker: DialogueClient[Heard]) -> None:
        said: Heard | None = None
        with anyio.move_on_after(self._patience_s) as scope:
            said = await speaker.listen()
        if said is not None:
            found = None
            if line.text != CLOSED:
                found = self._language.match(line.text, said, self.captures)
            if found is not None:
                self.captures.update(found)
                return
            shown = self._language.show(said)
        elif scope.cancelled_caught:
            shown = QUIET
        elif line.text == CLOSED:
            return
        else:
            shown = CLOSED
        why = f"line {line.number}: the node says something else"
        raise self._mismatch(why, f"{line.who}< {shown}", line)

    def _mismatch(self, why: str, said: str, line: ScriptLine | None = None) -> DialogueMismatch:
        wanted = [] if line is None else [f"- {line}"]
        known = {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in self.captures.items()
        }
        notes = [f"  where {known}"] if known else []
        return DialogueMismatch("\n".join([why, *self._so_far, *wanted, f"+ {said}", *notes]))
