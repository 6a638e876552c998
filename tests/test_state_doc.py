"""docs/guides/streams.md: its Python runs as it stands, and its vectors are where it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from millpond.node.config import OFF, Config
from millpond.node.node import Node

PATH = Path(__file__).resolve().parents[1] / "docs" / "guides" / "streams.md"
PAGE = PATH.read_text()


async def test_the_example_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(block, "docs/guides/streams.md", "exec"), scope)
    config = Config(p2p="127.0.0.1:0", ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)
    async with Node(config) as node:
        await scope["main"](f"tcp://{node.listeners['p2p']}", tmp_path / "chat.state")
    assert (tmp_path / "chat.state").exists()
