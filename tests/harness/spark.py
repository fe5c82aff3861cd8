"""What the Spark tests share: streams, archives, Blocks as a server sends them, and a server that dies on the way."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.harness.api import Api
from topics.spark import columns
from topics.spark.place import Place
from topics.storage import block as blocks
from topics.storage.block import Block
from topics.testing import ServerProcess

FINISH_S = 90
Reader = Callable[..., Any]

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
SCHEMA = pa.schema([(name, columns.TYPES[name]) for name in ("topic", "seq", "ts", "node", "tag", "meta", "data")])


def finish(query: Any) -> None:
    """Wait for a query that ends by itself."""
    query.awaitTermination(FINISH_S)
    assert not query.isActive, "the query did not finish"


class Streams:
    """Starts streaming reads of the test's own topic and collects what they deliver."""

    def __init__(self, spark: Any, url: str, topic: str, directory: Path) -> None:
        self.spark = spark
        self.url = url
        self.topic = topic
        self.checkpoint = directory / "checkpoint"
        self.batches: list[list[Any]] = []

    def frame(self, **options: Any) -> Any:
        """A DataFrame over the stream."""
        named = {"topics", "topicPrefix", "subscribePattern"} & options.keys()
        chosen = {} if named else {"topic": self.topic}
        given = {"url": self.url, **chosen, **{k: option_text(v) for k, v in options.items()}}
        return self.spark.readStream.format("topics").options(**given).load()

    def run(self, frame: Any = None, **options: Any) -> list[Any]:
        """Run a stream once over everything there is, from the checkpoint on; the rows in the order of arrival."""
        self.batches = []

        def keep(frame: Any, _: int) -> None:
            self.batches.append(frame.collect())

        query = (
            (self.frame(**options) if frame is None else frame)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)
        return [row for batch in self.batches for row in batch]


class Archives:
    """Runs archives of the test's topics into one lake."""

    def __init__(self, spark: Any, server: ServerProcess, topic: str, root: Path) -> None:
        self.spark = spark
        self.source = {"url": server.url, "topicPrefix": topic}
        self.root = root / "lake"
        self.place = Place(self.root)
        self.pause = root / "pause"

    def run(self, **options: Any) -> Any:
        """Archive everything there is; the archive."""
        from topics.pipeline.archive import Archive

        archive = Archive(self.source, self.place, **options)
        query = archive.start(self.spark, True, "1 second", self.pause)
        finish(query)
        archive.progress.take_all(query)
        return archive

    def events(self) -> list[dict[str, Any]]:
        """The rows of the table of records."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self.root / "events")).to_pyarrow_table()
        return sorted(table.to_pylist(), key=lambda row: (row["topic"], row["seq"]))

    def frame(self, topic: str, **options: Any) -> Any:
        """One table over the lake and the server."""
        from topics.spark import table

        return table(self.spark, topic, self.root, url=self.source["url"], **options)

    def held(self) -> list[Any]:
        """The files of the table of records."""
        from topics.pipeline.lake.contents import held

        return held(self.place)

    def copy(self, path: str) -> str:
        """The path of a copy of one of them."""
        target = path.replace("part-", "copy-")
        shutil.copy(self.root / "events" / path, self.root / "events" / target)
        return target

    def losses(self) -> list[tuple[Any, ...]]:
        """The rows of the table of gaps."""
        from deltalake import DeltaTable

        table = DeltaTable(str(self.root / "losses")).to_pyarrow_table()
        return [(row["topic"], row["gap_from"], row["gap_to"], row["reason"]) for row in table.to_pylist()]


def option_text(value: Any) -> str:
    """The value of an option as Spark takes it."""
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
    """A proxy that kills and restarts its server once `bytes_max` bytes have come back; the last of them are lost.

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
                upstream = socket.create_connection((self._server.host, self._server.port))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._pass, args=(client, upstream, None), daemon=True).start()
            threading.Thread(target=self._pass, args=(upstream, client, self._blow), daemon=True).start()

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


def encode(first_seq: int, ts: int, rows: list[Any]) -> tuple[Block, int]:
    """A Block of these records; each row's first element moves the time on."""
    times = []
    for row in rows:
        ts += row[0]
        times.append(ts)
    texts = [[row[k] for row in rows] for k in (1, 2)]
    metas = [None if row[3] is None else json.dumps(row[3]).encode() for row in rows]
    optional = [column if any(value is not None for value in column) else None for column in (*texts, metas)]
    made = blocks.encode(7, first_seq, times, [json.dumps(row[4]).encode() for row in rows], *optional)
    for i, row in enumerate(rows):
        if row[5]:
            made.delete(i, i + 1)
    return made, ts
