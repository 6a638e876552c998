"""A node and its HTTP application in memory, and what `/metrics` tells of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from millpond.node.http.app import HttpServices
from millpond.transports.http.app import Application
from tests.transports.http.client import Client
from tests.transports.http.running_app import RunningApp, running_app

Samples = dict[tuple[str, tuple[str, ...]], float]
"""By name and the values of the labels."""


@asynccontextmanager
async def http_services(
    **settings: object,
) -> AsyncIterator[tuple[RunningApp, HttpServices, Application]]:
    """A node in memory without listeners, unless the settings say otherwise."""
    async with running_app({}, **settings) as running:
        node = running.node
        http = HttpServices(
            node.config,
            node.services,
            node._sources,
            node._streams.counters,
            node.browser_policy,
        )
        yield running, http, http.application()


async def samples(application: Application) -> Samples:
    """All samples of `/metrics`."""
    got = await Client(application).request("GET", "/metrics")
    assert got.headers[b"content-type"].startswith(b"text/plain; version=")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(got.body.decode())
        for sample in family.samples
    }


async def plain(application: Application) -> dict[str, float]:
    """Those without labels, by name without prefix."""
    told = await samples(application)
    return {name.removeprefix("millpond_"): each for (name, of), each in told.items() if not of}
