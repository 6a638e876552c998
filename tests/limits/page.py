"""The tables of docs/reference/limits.md: rows, and the numbers in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/limits.md"
_UNITS = {
    "KiB": 2**10,
    "MiB": 2**20,
    "hour": 3600,
    "hours": 3600,
    "minutes": 60,
    "days": 86_400,
    "ms": 0.001,
}
_CODES = re.compile(
    r"`[^`]*`"  # settings, and packets in hexadecimal digits
    r"|\]\([^)]*\)"
    r"|\b(?:NACK|HTTP|WebSocket|RustLog|Error|GOAWAY) [0-9a-f]{2,4}(?:, [0-9]{3})*"
    r"|\bHTTP/[0-9.]+|\bS2S?\b|\bP2P\b"
    r"|\b(?:400|403|409|413|421|422|431|503)\b|\(500\)"
    r"|\btag [0-9]{2}\b|\b[0-9]{4}-[0-9]{2}-[0-9]{2}\b|, [0-9a-f]{2} and [0-9a-f]{2}\b"
)
_NUMBER = re.compile(r"(?<![\w.,])([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:\.[0-9]+)?)(?: ([A-Za-z]+))?")


class Row(msgspec.Struct, frozen=True):
    """A row of the page. `numbers` are those of its limit and policy, in bytes and seconds."""

    section: str
    name: str
    limit: str
    policy: str

    @property
    def numbers(self) -> list[float]:
        text = _CODES.sub(" ", f"{self.limit} | {self.policy}")
        return [
            float(digits.replace(",", "")) * _UNITS.get(unit, 1)
            for digits, unit in _NUMBER.findall(text)
        ]


def rows() -> Iterator[Row]:
    """All rows, in their order."""
    section = ""
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| what", "| ---")):
            name, limit, policy, *_ = line.strip("|").split(" | ")
            yield Row(section, name.strip(), limit.strip(), policy.strip(" |"))
