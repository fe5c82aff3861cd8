"""Fixtures of the tests that speak to a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness.api import Api
from topics.testing import ServerProcess

StartApi = Callable[..., Api]


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    """The shared server, spoken to without a key."""
    client = Api(server.host, server.port)
    yield client
    client.close()


@pytest.fixture
def start_api(start_server: Callable[..., ServerProcess]) -> Iterator[StartApi]:
    """Start a server with settings of its own, and speak to it: `start_api(max_topics=2)`."""
    clients: list[Api] = []

    def start(key: str | None = None, **settings: object) -> Api:
        running = start_server(**settings)
        clients.append(Api(running.host, running.port, key))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
