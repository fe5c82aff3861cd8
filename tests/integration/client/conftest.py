"""Both kinds of client, so that each test runs with each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.client import Bridge
from topics import AsyncClient, Client
from topics.testing import ServerProcess

Connect = Callable[..., Any]


@pytest.fixture(params=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Make clients of one kind; they are closed after the test."""
    loop = asyncio.new_event_loop()
    with ExitStack() as stack:
        stack.callback(loop.close)

        def connect(url: str, **options: Any) -> Any:
            if request.param == "threads":
                return stack.enter_context(Client(url, **options))
            return stack.enter_context(Bridge(loop, AsyncClient(url, **options)))

        yield connect


@pytest.fixture
def client(connect: Connect, server: ServerProcess) -> Any:
    """A client of the shared server."""
    return connect(server.url)


@pytest.fixture
def free_port() -> int:
    """A port that nothing listens on: a server that is started again has to come back where it was."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
