"""Commands of a server that a module of tests has for itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.commands import Shell
from topics.testing import ServerProcess


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """A server of this module: some commands look at all topics, of which the shared one has very many."""
    with ServerProcess() as running:
        yield running


@pytest.fixture
def shell(server: ServerProcess) -> Shell:
    """Commands that talk to it."""
    return Shell(server.url)
