"""Commands of the shared server."""

from __future__ import annotations

import pytest

from tests.harness.commands import Shell
from topics.testing import ServerProcess


@pytest.fixture
def shell(server: ServerProcess) -> Shell:
    """Commands that talk to the shared server."""
    return Shell(server.url)
