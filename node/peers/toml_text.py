"""Writes the little of TOML that our own files need; `tomllib` reads it back as it was."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

Value = str | int | datetime | Sequence[str]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_UNSAFE = re.compile(r'[\x00-\x1f"\\\x7f]')


def entry(name: str, fields: Mapping[str, Value]) -> str:
    """One element of the array of tables `name`: a block of lines that ends in a newline."""
    lines = [f"[[{_key(name)}]]", *(line(key, value) for key, value in fields.items())]
    return "\n".join(lines) + "\n"


def line(key: str, value: Value) -> str:
    """`key = value`. A datetime must have a zone, and a str no surrogates: ValueError."""
    return f"{_key(key)} = {_value(value)}"


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else _string(text)


def _value(value: Value) -> str:
    match value:
        case str():
            return _string(value)
        case int():
            return str(value)
        case datetime():
            if value.tzinfo is None:
                raise ValueError(f"{value}: of which zone?")
            return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
        case _:
            return f"[{', '.join(map(_string, value))}]"


def _string(text: str) -> str:
    text.encode("utf-8")  # a lone surrogate is no text: UnicodeEncodeError is a ValueError
    return f'"{_UNSAFE.sub(_escaped, text)}"'


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return f"\\{char}" if char in '"\\' else f"\\u{ord(char):04x}"
