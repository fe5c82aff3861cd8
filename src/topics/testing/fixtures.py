"""Fixtures for pytest. In a `conftest.py`: `from topics.testing import server`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topics.testing.process import ServerProcess


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    """A real server on a free port with an empty data directory, for one test; `server.url` is its address."""
    with ServerProcess() as running:
        yield running
