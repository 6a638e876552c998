"""The plugin, for these tests, also where the package is not installed; both libraries."""

from __future__ import annotations

import pytest

from millpond.node.testing import plugin

node = plugin.node
"""Nearer than that of tests/node, which is a process."""


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin, "millpond")
    config.option.millpond_backends = "asyncio,trio"
