"""One Spark session for the whole run, and a server to read from and write to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.spark import SETTINGS, Archives, Reader, Streams, option_text
from topics.testing import ServerProcess

# Short programs: optimising them would take longer than running them, and every JVM of a cluster test reads this.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# On a busy machine the start of a JVM alone may take a minute or two; and a test that is cut off inside a call to the
# JVM leaves the session of all others out of step.
TIMEOUT_S = 400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this directory more time than others have."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from topics.spark import session

    warehouse = tmp_path_factory.mktemp("warehouse")
    started = session(master="local[2]", config={**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)})
    started.sparkContext.setLogLevel("OFF")
    yield started
    started.stop()


@pytest.fixture
def load(spark: Any, server: ServerProcess, topic_name: str) -> Reader:
    """A DataFrame over the test's own topic, or over what the options say."""

    def load(**options: Any) -> Any:
        given = {
            "url": server.url,
            **({} if "topics" in options or "topicPrefix" in options else {"topic": topic_name}),
        }
        return spark.read.format("topics").options(**given, **{k: option_text(v) for k, v in options.items()}).load()

    return load


@pytest.fixture
def streams(spark: Any, server: ServerProcess, topic_name: str, tmp_path: Path) -> Streams:
    return Streams(spark, server.url, topic_name, tmp_path)


@pytest.fixture
def archives(spark: Any, server: ServerProcess, topic_name: str, tmp_path: Path) -> Archives:
    """Archives of the test's own topics."""
    return Archives(spark, server, topic_name, tmp_path)
