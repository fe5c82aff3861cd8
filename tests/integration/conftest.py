"""Fixtures of the tests that talk to a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.api import Api, StartApi, StartServer


@pytest.fixture
def start_api(start_server: StartServer) -> Iterator[StartApi]:
    """Start a server with settings of its own, and talk to it: `start_api(max_topics=2)`."""
    clients: list[Api] = []

    def start(key: str | None = None, **settings: object) -> Api:
        running = start_server(**settings)
        clients.append(Api(running.host, running.port, key))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
