"""The programs of docs/guides/clients.md that are not in Python, with what they print. Those in
Python are run with the page (tests/documents.py)."""

from __future__ import annotations

import re
from itertools import pairwise

from tests.documents import ROOT, blocks_of

PAGE = (ROOT / "docs" / "guides" / "clients.md").read_text("utf-8")
SHOWN_NODE = "127.0.0.1:7404"
_NAMED = re.compile(r"(?://|#) (\S+)\n")
_ROW = re.compile(r"^\| `([^`]+)` \| ([0-9.]+) \| (PyPI|npm|cargo) \|$", re.MULTILINE)

VERSIONS = {(package, where): number for package, number, where in _ROW.findall(PAGE)}
"""The versions that the page names, by package and registry."""


def programs(language: str) -> dict[str, tuple[str, str]]:
    """The programs in a language and what they print, by the package that the first line names."""
    found = {}
    for block, after in pairwise(blocks_of(PAGE)):
        if block.language == language:
            named = _NAMED.match(block.text)
            assert named is not None and after.language == "text", block.text
            found[named[1]] = (block.text, after.text)
    return found
