"""S3P as text: `APPEND orders [] [tea "green tea"]`, answered by `{id}`.

A word or a text in quotes is a bulk string, brackets are an array, and a client's line is an array
by itself. An answer is a bulk string, an array, `+OK`, `:NUMBER` or an error, `-CODE ...`.
Placeholders may be parts of a word (`{ms}-{seq}`); `...` is the rest of an array or of an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from millpond.node.testing.dialogue.protocol import (
    ANYTHING,
    PLACEHOLDER,
    REST,
    Captures,
    DialogueProtocol,
    known,
)

PORT = 7402
Word = str
Shape = Word | list["Shape"]
Reply = bytes | list["Reply"]
"""A line (`+OK`) with its mark, or a bulk string behind `$`, as bytes; an array as a list."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]]|[^\s\[\]]+')
CRLF = b"\r\n"


def write_command(text: str, captures: Captures) -> bytes:
    """A command's bytes. Raises ValueError."""
    shapes = _shapes(text)
    if not shapes:
        raise ValueError("an empty command")
    return _written(shapes, captures)


def match_reply(text: str, reply: Reply, captures: Captures) -> dict[str, Any] | None:
    """See `DialogueProtocol.match`."""
    shapes = _shapes(text)
    found: dict[str, str] = {}
    if isinstance(reply, bytes) and reply[:1] in b"+-:":
        line = " ".join(map(str, shapes))
        does = _matches_text(line, reply.decode(errors="replace"), captures, found)
    elif len(shapes) != 1:
        raise ValueError("an answer is one string, array, number or error")
    else:
        does = _matches(shapes[0], reply, captures, found)
    return found if does else None


def show_reply(reply: Reply) -> str:
    """A reply as text of a dialogue."""
    if isinstance(reply, list):
        return f"[{' '.join(map(show_reply, reply))}]"
    text = reply.decode(errors="backslashreplace")
    if not text.startswith("$"):
        return text
    word = text[1:]
    return word if _TOKEN.fullmatch(word) and word[0] not in '"[]+-:' else json.dumps(word)


def _shapes(text: str) -> list[Shape]:
    stack: list[list[Shape]] = [[]]
    for token in _TOKEN.findall(text):
        if token == "[":
            stack.append([])
        elif token == "]":
            if len(stack) == 1:
                raise ValueError("a ] without a [")
            inner = stack.pop()
            stack[-1].append(inner)
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise ValueError("a [ without a ]")
    return stack[0]


def _plain(word: Word) -> str:
    text: str = json.loads(word) if word.startswith('"') else word
    return text


def _written(shape: Shape, captures: Captures) -> bytes:
    if isinstance(shape, list):
        inner = b"".join(_written(each, captures) for each in shape)
        return b"*%d\r\n%b" % (len(shape), inner)
    text = PLACEHOLDER.sub(lambda found: str(known(captures, found["name"])), _plain(shape))
    data = text.encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def _matches(shape: Shape, reply: Reply, captures: Captures, found: dict[str, str]) -> bool:
    if shape == REST:
        return True
    if isinstance(reply, bytes):
        text = reply[1:].decode(errors="replace")
        return isinstance(shape, str) and _matches_text(_plain(shape), text, captures, found)
    if isinstance(shape, str):
        return False
    wanted = shape[:-1] if shape[-1:] == [REST] else shape
    if len(wanted) > len(reply) or (wanted is shape and len(shape) != len(reply)):
        return False
    return all(_matches(*pair, captures, found) for pair in zip(wanted, reply, strict=False))


def _matches_text(wanted: str, text: str, captures: Captures, found: dict[str, str]) -> bool:
    pattern, at = "", 0
    for placeholder in PLACEHOLDER.finditer(wanted):
        pattern += re.escape(wanted[at : placeholder.start()])
        at, name = placeholder.end(), placeholder["name"]
        given = found.get(name, captures.get(name))
        pattern += f"(?P<{name}>.+)" if given is None else re.escape(str(given))
    pattern += re.escape(wanted[at:])
    if wanted.endswith(REST):
        pattern = pattern.removesuffix(re.escape(REST)) + ".*"
    match = re.fullmatch(pattern, text, re.DOTALL)
    if match is not None:
        found.update({name: x for name, x in match.groupdict().items() if name != ANYTHING})
    return match is not None


class _Decoder:
    """A decoder of replies, nested to any depth."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[Reply]:
        self._data += data
        return list(self._replies())

    def _replies(self) -> Iterator[Reply]:
        while (read := _read(self._data, 0)) is not None:
            reply, end = read
            self._data = self._data[end:]
            yield reply


def _read(data: bytes, at: int) -> tuple[Reply, int] | None:
    end = data.find(CRLF, at)
    if end < 0:
        return None
    line, at = data[at:end], end + len(CRLF)
    match line[:1]:
        case b"$":
            stop = at + int(line[1:])
            return (b"$" + data[at:stop], stop + 2) if len(data) >= stop + 2 else None
        case b"*":
            items: list[Reply] = []
            for _ in range(int(line[1:])):
                if (read := _read(data, at)) is None:
                    return None
                item, at = read
                items.append(item)
            return items, at
        case _:
            return line, at


S3P: DialogueProtocol[Reply] = DialogueProtocol(
    PORT, _Decoder, write_command, match_reply, show_reply
)
