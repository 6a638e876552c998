"""A node in a process of its own: the pipeline's client blocks, and would block a node in ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

collect_ignore_glob: list[str] = []
try:
    from tests.pipeline.pipeline_nodes import NodeProcess
except ImportError:  # without the extra `spark` there is nothing to test
    collect_ignore_glob = ["*test_*.py"]


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for the tests of a module, which use streams of their own."""
    with NodeProcess(tmp_path_factory.mktemp("pond")) as node:
        yield node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that a test may kill and start again."""
    with NodeProcess(tmp_path / "pond") as node:
        yield node
