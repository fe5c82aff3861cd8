"""Fixtures for every kind of test: a shared server, servers of one's own, and names that no other test uses."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.harness.api import Api, StartServer
from topics.testing import ServerProcess

# A run is the same every time, whatever the machine is busy with: a failure is a defect and not the weather. Long
# searches for new examples set HYPOTHESIS_PROFILE=search.
hypothesis.settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# The longest first, so that none of them is left for the end.
_ROOMS = ("spark", "durability", "property", "hostile", "integration", "acceptance", "unit")
# Of the Spark tests, those that start JVMs of their own.
_OWN_JVM = frozenset(
    ("test_cluster.py", "test_connect.py", "test_declarative.py", "test_demo.py", "test_fleet.py", "test_java.py")
)

_serial = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=lambda item: _ROOMS.index(item.path.relative_to(Path(__file__).parent).parts[0]))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes run the tests: keep together what shares a Spark session, or one file's fixtures."""
    from xdist.scheduler import LoadScopeScheduling

    class Rooms(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::")[0]
            _, room, *_, file = path.split("/")
            if room == "spark" and file not in _OWN_JVM:
                return "spark"
            return nodeid if room in ("durability", "property") else path

    config.option.loadscopereorder = False
    return Rooms(config, log)


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    """One server with default settings for the whole run; use `topic_name` so that tests do not meet."""
    with ServerProcess() as running:
        yield running


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    """A client of the shared server, without a key."""
    client = Api(server.host, server.port)
    yield client
    client.close()


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Start servers with settings of their own: `start_server(max_topics=3)`. They are stopped after the test."""
    with ExitStack() as stack:

        def start(**settings: object) -> ServerProcess:
            return stack.enter_context(ServerProcess(**settings))  # type: ignore[arg-type]

        yield start


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test of this run uses."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:200]
    return f"{stem}.{next(_serial)}"
