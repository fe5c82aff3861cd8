"""Chaos: the library at work while its server is killed again and again; `judge` tells whether every promise was kept.

Producers (in threads and on asyncio), a writer of single records, consumers (one topic by long-poll with cursors in a
file, several over a stream with cursors in a topic), a follower of a topic that loses records to its cap, and workers
of both kinds all run at once, each in a thread of its own. They know nothing of the kills.
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from topics import AsyncClient, Client, Record, Tombstone
from topics.testing import ServerProcess

DEADLINE_S = 90.0
JOIN_S = 30.0
CAP = 50


class Chaos:
    """One run. `run` kills the server `restarts` times, and ends everything cleanly."""

    def __init__(self, directory: Path, restarts: int, seed: int = 0) -> None:
        self._restarts = restarts
        self._rng = random.Random(seed)
        self._directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.server = ServerProcess(port=port)
        self.writing = threading.Event()
        self.writing.set()
        self.errors: list[BaseException] = []
        self.produced: dict[str, int] = {}
        self.singles: list[int] = []
        self.consumed: dict[str, list[tuple[str, int]]] = {"file": [], "topic": []}
        self.gaps: dict[str, list[tuple[str, int, int]]] = {"file": [], "topic": []}
        self.followed: list[Record[Any] | Tombstone] = []
        self.jobs_written = 0
        self.worked: Counter[int] = Counter()
        self._stops: list[Callable[[], object]] = []

    def run(self) -> None:
        """Load, kill, restart; then let everything drain and stop."""
        with self.server:
            with Client(self.server.url) as client:
                client.topic("jobs").configure(type="queue")
                client.topic("capped").configure(cap_records=CAP)
                for topic in ("threads", "asyncio", "singles"):
                    client.topic(topic).configure(idempotency_window_ms=3_600_000)
            writers = [
                self._start(each)
                for each in (
                    self._produce,
                    self._produce_on_asyncio,
                    self._write_singles,
                    self._write_capped,
                    self._add_jobs,
                )
            ]
            readers = [
                self._start(each)
                for each in (self._consume, self._consume_on_asyncio, self._follow, self._work, self._work_on_asyncio)
            ]
            for _ in range(self._restarts):
                time.sleep(self._rng.uniform(0.1, 0.7))
                self.server.kill()
                time.sleep(self._rng.uniform(0.0, 0.2))
                self.server.start()
            time.sleep(0.3)
            self.writing.clear()
            _join(writers)
            self._drain()
            for stop in self._stops:
                stop()
            _join(readers)
            self._read_back()

    def _start(self, target: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                target()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded, name=target.__name__, daemon=True)
        thread.start()
        return thread

    # What writes.

    def _produce(self) -> None:
        with Client(self.server.url) as client, client.producer("threads", linger_ms=2) as producer:
            n = 0
            while self.writing.is_set():
                for _ in range(20):
                    producer.write(n)
                    n += 1
                time.sleep(0.005)
            self.produced["threads"] = n

    def _produce_on_asyncio(self) -> None:
        async def main() -> None:
            async with AsyncClient(self.server.url) as client, client.producer("asyncio", linger_ms=2) as producer:
                n = 0
                while self.writing.is_set():
                    for _ in range(20):
                        await producer.write(n)
                        n += 1
                    await asyncio.sleep(0.005)
                self.produced["asyncio"] = n

        asyncio.run(main())

    def _write_singles(self) -> None:
        with Client(self.server.url, deadline_s=DEADLINE_S) as client:
            topic = client.topic("singles")
            n = 0
            while self.writing.is_set():
                topic.write(n)
                self.singles.append(n)
                n += 1
                time.sleep(0.002)

    def _write_capped(self) -> None:
        with Client(self.server.url, deadline_s=DEADLINE_S) as client:
            n = 0
            while self.writing.is_set():
                client.topic("capped").write_many(range(n, n + CAP // 2))
                n += CAP // 2
                time.sleep(0.005)

    def _add_jobs(self) -> None:
        with Client(self.server.url, deadline_s=DEADLINE_S) as client:
            while self.writing.is_set():
                client.topic("jobs").write_many(range(self.jobs_written, self.jobs_written + 10))
                self.jobs_written += 10
                time.sleep(0.01)

    # What reads.

    def _note(self, kept: str, item: Record[Any] | Tombstone) -> None:
        if isinstance(item, Tombstone):
            self.gaps[kept].append((item.topic, item.gap_from, item.gap_to))
        else:
            self.consumed[kept].append((item.topic, item.seq))

    def _consume(self) -> None:
        with Client(self.server.url, deadline_s=DEADLINE_S) as client:
            cursors = self._directory / "cursors.json"
            consumer = client.consumer("file", ["threads"], cursors=cursors, on_loss="yield", commit_ms=100)
            self._stops.append(consumer.stop)
            consumer.run(lambda item: self._note("file", item))

    def _consume_on_asyncio(self) -> None:
        async def main() -> None:
            async with AsyncClient(self.server.url, deadline_s=DEADLINE_S) as client:
                consumer = client.consumer("topic", ["threads", "asyncio", "singles"], on_loss="yield", commit_ms=100)
                loop = asyncio.get_running_loop()
                self._stops.append(lambda: loop.call_soon_threadsafe(consumer.stop))
                await consumer.run(lambda item: self._note("topic", item))

        asyncio.run(main())

    def _follow(self) -> None:
        with Client(self.server.url) as client, client.topic("capped").follow(on_loss="yield") as follower:
            self._stops.append(follower.close)
            for item in follower:
                self.followed.append(item)
                # Too slow for the cap, so that there is something to lose.
                time.sleep(0.001)

    def _work(self) -> None:
        with Client(self.server.url) as client:
            worker = client.worker("jobs", concurrency=4, lease_ms=3_000)
            worker.task(lambda job: self.worked.update((job.seq,)))
            self._stops.append(worker.stop)
            worker.run()

    def _work_on_asyncio(self) -> None:
        async def main() -> None:
            async with AsyncClient(self.server.url) as client:
                worker = client.worker("jobs", concurrency=4, lease_ms=3_000)

                @worker.task
                async def work(job: Any) -> None:
                    self.worked.update((job.seq,))

                loop = asyncio.get_running_loop()
                self._stops.append(lambda: loop.call_soon_threadsafe(worker.stop))
                await worker.run()

        asyncio.run(main())

    # The end.

    def _drain(self) -> None:
        """Wait until everything that was written is read and worked off."""
        end = time.monotonic() + DEADLINE_S
        with Client(self.server.url) as client:
            heads = {name: client.topic(name).state().head_seq for name in ("threads", "asyncio", "singles", "capped")}
            while not self.errors:
                file = {seq for _, seq in self.consumed["file"][-1:]}
                several = dict(self.consumed["topic"])
                last = self.followed[-1].next_from_seq if self.followed else 0
                if (
                    heads["threads"] in file
                    and all(several.get(name) == heads[name] for name in ("threads", "asyncio", "singles"))
                    and last == heads["capped"]
                    and client.topic("jobs").state().count == 0
                ):
                    return
                if time.monotonic() > end:
                    raise AssertionError(f"not everything arrived: {heads} {file} {several} {last}")
                time.sleep(0.05)

    def _read_back(self) -> None:
        with Client(self.server.url) as client:
            self.stored = {
                name: [record.data for record in client.topic(name).read() if isinstance(record, Record)]
                for name in ("threads", "asyncio", "singles")
            }
            self.heads = {name: client.topic(name).state().head_seq for name in (*self.stored, "capped")}
            self.jobs = client.topic("jobs").state().queue

    def judge(self) -> None:
        """Assert every promise."""
        assert not self.errors, self.errors
        for name, count in self.produced.items():
            assert self.stored[name] == list(range(count)), f"{name}: a record is missing, doubled or out of order"
        assert self.stored["singles"] == self.singles
        assert self.gaps == {"file": [], "topic": []}, "a kill lost what was acknowledged"
        assert self.consumed["file"] == [("threads", seq) for seq in range(1, self.heads["threads"] + 1)]
        for name in self.stored:
            seen = [seq for topic, seq in self.consumed["topic"] if topic == name]
            assert seen == list(range(1, self.heads[name] + 1)), f"{name} was not consumed once and in order"
        self._judge_losses()
        assert self.jobs_written > 0
        assert sorted(self.worked) == list(range(1, self.jobs_written + 1)), "a job was never done"
        assert self.jobs is not None
        assert (self.jobs.ready, self.jobs.in_flight) == (0, 0)

    def _judge_losses(self) -> None:
        """Every seq of the capped topic was delivered once, or is in one tombstone."""
        cursor = 0
        for item in self.followed:
            if isinstance(item, Tombstone):
                assert item.gap_from == cursor + 1, f"{item} after {cursor}"
                assert item.gap_to >= item.gap_from
                assert item.reason == "cap"
            else:
                assert item.seq == cursor + 1, f"{item} after {cursor}"
            cursor = item.next_from_seq
        assert cursor == self.heads["capped"]
        assert any(isinstance(item, Tombstone) for item in self.followed), "nothing was lost, so nothing was tested"


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(JOIN_S)
        if thread.is_alive():
            frame = sys._current_frames().get(thread.ident or 0)
            where = "".join(traceback.format_stack(frame)) if frame is not None else ""
            raise AssertionError(f"{thread.name} does not stop:\n{where}")
