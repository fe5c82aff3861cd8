"""One Spark session for the whole run, and a server to read from and write to."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api
from topics.testing import ServerProcess

# Short programs: optimising them would take longer than running them, and every JVM of a cluster test reads this.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.pollingDelay": "20ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # A few rows per query: generating code for them, and planning again with what was learnt, costs more than it gives.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


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
def api(server: ServerProcess) -> Iterator[Api]:
    client = Api(server.host, server.port)
    yield client
    client.close()


Reader = Callable[..., Any]


@pytest.fixture
def load(spark: Any, server: ServerProcess, topic_name: str) -> Reader:
    """A DataFrame over the test's own topic, or over what the options say."""

    def load(**options: Any) -> Any:
        given = {
            "url": server.url,
            **({} if "topics" in options or "topicPrefix" in options else {"topic": topic_name}),
        }
        return spark.read.format("topics").options(**given, **{k: _text(v) for k, v in options.items()}).load()

    return load


class Streams:
    """Starts streaming reads of the test's own topic and collects what they deliver."""

    def __init__(self, spark: Any, url: str, topic: str, directory: Path) -> None:
        self.spark = spark
        self.url = url
        self.topic = topic
        self.checkpoint = directory / "checkpoint"
        self.batches: list[list[Any]] = []

    def frame(self, **options: Any) -> Any:
        chosen = {} if "topics" in options or "topicPrefix" in options else {"topic": self.topic}
        given = {"url": self.url, **chosen, **{k: _text(v) for k, v in options.items()}}
        return self.spark.readStream.format("topics").options(**given).load()

    def run(self, **options: Any) -> list[Any]:
        """Run once over everything there is, from the checkpoint on; the rows in the order of arrival."""
        self.batches = []

        def keep(frame: Any, _: int) -> None:
            self.batches.append(frame.collect())

        query = (
            self.frame(**options)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(90)
        assert not query.isActive, "the stream did not finish"
        return [row for batch in self.batches for row in batch]


@pytest.fixture
def streams(spark: Any, server: ServerProcess, topic_name: str, tmp_path: Path) -> Streams:
    return Streams(spark, server.url, topic_name, tmp_path)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict) else str(value)


def records(api: Api, topic: str) -> list[dict[str, Any]]:
    """Every record of a topic."""
    found: list[dict[str, Any]] = []
    cursor = 0
    while True:
        page = api.read(topic, cursor, limit=1000, include_tags=True)
        found += page["records"]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return found


class Fuse:
    """A door to a server that kills and restarts it once so many bytes have come back; those last ones are lost.

    So a scan breaks off inside an answer, and a write is applied although its answer never arrives.
    """

    def __init__(self, server: ServerProcess, bytes_max: int) -> None:
        self._server = server
        self._left = bytes_max
        self.blown = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            try:
                behind = socket.create_connection((self._server.host, self._server.port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._pass, args=(client, behind, None), daemon=True).start()
            threading.Thread(target=self._pass, args=(behind, client, self._blow), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, check: Callable[[int], None] | None) -> None:
        try:
            while chunk := source.recv(1 << 16):
                if check is not None:
                    check(len(chunk))
                target.sendall(chunk)
        except OSError:
            pass
        finally:
            for end in (source, target):
                # A shutdown, unlike a close, also wakes the thread that reads from this socket.
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _blow(self, size: int) -> None:
        if self.blown.is_set():
            return
        self._left -= size
        if self._left < 0:
            self.blown.set()
            self._server.kill()
            self._server.start()
            raise OSError("blown")
