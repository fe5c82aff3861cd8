"""The Python library: what a program gets, beside the raw protocol and beside the clients of Redis and NATS.

One process on the generator core, as a user would write it. `client-raw-write` is wrk on one connection, the most that
awaited single writes can reach. redis-py and nats-py take part if they are installed (`pip install redis nats-py`) and
their servers are. `CPU us` is the server's; the note has the client's own, which bounds what one core can do.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

import topics
from bench import records
from bench.bed import Bench, Process, cpu_s
from bench.load import quantiles
from bench.row import Row, Target, at_least
from topics.testing import ServerProcess

ROWS = (
    "client-raw-write", "redis-py-write", "nats-py-write", "redis-py-pipeline", "redis-py-follow", "redis-py-work",
    "client-write", "client-write-async", "client-producer", "client-producer-async",
    "client-follow", "client-follow-async", "client-latency", "client-work", "client-work-async",
)  # fmt: skip
DATA: Any = msgspec.json.decode(records.DATA)
FOLLOWED = 200_000
JOBS = 20_000
PIPELINED = 1_000
LOOK_EVERY = 64
"""How many records go between two looks at the clock."""


def measure(bench: Bench) -> Iterator[Row]:
    """Every row of the library and its peers."""
    yield from _redis(bench)
    if bench.wants("nats-py-write"):
        yield from _nats(bench)
    if bench.wants("client-raw-write"):
        with bench.server() as server:
            title = "POST one record with wrk, one connection"
            yield bench.measure("client-raw-write", title, server, records.post("t", connections=1))
    for name, title, target, peer, work in (
        ("client-write", "Topic.write, awaited, one connection", at_least(8_000), "redis-py-write", _write),
        ("client-write-async", "AsyncTopic.write, awaited, one connection", at_least(8_000), "nats-py-write", _awrite),
        ("client-producer", "Producer.write", at_least(200_000, "records_s"), "redis-py-pipeline", _produce),
        ("client-producer-async", "AsyncProducer.write", at_least(200_000, "records_s"), None, _aproduce),
        ("client-follow", "Topic.follow over a backlog, data decoded", None, "redis-py-follow", _follow),
        ("client-follow-async", "AsyncTopic.follow over a backlog, data decoded", None, None, _afollow),
        ("client-latency", "Topic.write until Topic.follow has it, in another thread", None, None, _latency),
        ("client-work", "Worker, empty tasks in 8 threads", None, "redis-py-work", _work),
        ("client-work-async", "AsyncWorker, empty tasks, 8 at a time", None, None, _awork),
    ):
        if bench.wants(name):
            with bench.server() as server:
                yield _row(
                    bench,
                    name,
                    title,
                    server,
                    lambda work=work, server=server: work(server, bench.seconds),
                    target,
                    peer,
                )  # type: ignore[misc]


def _row(
    bench: Bench,
    name: str,
    title: str,
    server: ServerProcess | Process,
    work: Callable[[], tuple[Any, ...]],
    target: Target | None = None,
    peer: str | None = None,
) -> Row:
    """A row of what `work` did: requests, records, latencies in ms, and the seconds if not all of them count."""
    used, own, begin = cpu_s(server.pid), time.process_time(), time.monotonic()
    requests, done, latencies_ms, *measured = work()
    took = measured[0] if measured else time.monotonic() - begin
    used, own = cpu_s(server.pid) - used, time.process_time() - own
    row = Row(name, title, target=target, peer=peer, core=used / took)
    row.requests_s = requests / took if requests else None
    row.records_s = done / took
    row.cpu_us = used / (requests or done) * 1e6
    if latencies_ms:
        row.p50_ms, row.p99_ms = quantiles(latencies_ms, 1)
    row.note = f"client: {own / (requests or done) * 1e6:.1f} us of CPU"
    return row


def _timed(write: Callable[[], Any], seconds: float) -> tuple[int, int, list[float]]:
    latencies_ms = []
    end = time.perf_counter() + seconds
    now = time.perf_counter()
    while now < end:
        write()
        before, now = now, time.perf_counter()
        latencies_ms.append((now - before) * 1000)
    return len(latencies_ms), len(latencies_ms), latencies_ms


async def _atimed(write: Callable[[], Awaitable[Any]], seconds: float) -> tuple[int, int, list[float]]:
    latencies_ms = []
    end = time.perf_counter() + seconds
    now = time.perf_counter()
    while now < end:
        await write()
        before, now = now, time.perf_counter()
        latencies_ms.append((now - before) * 1000)
    return len(latencies_ms), len(latencies_ms), latencies_ms


def _write(server: ServerProcess, seconds: float) -> tuple[int, int, list[float]]:
    with topics.Client(server.url) as client:
        topic = client.topic("t")
        return _timed(lambda: topic.write(DATA), seconds)


def _awrite(server: ServerProcess, seconds: float) -> tuple[int, int, list[float]]:
    async def main() -> tuple[int, int, list[float]]:
        async with topics.AsyncClient(server.url) as client:
            topic = client.topic("t")
            return await _atimed(lambda: topic.write(DATA), seconds)

    return asyncio.run(main())


def _produce(server: ServerProcess, seconds: float) -> tuple[int, int, list[float]]:
    with topics.Client(server.url) as client, client.producer("t") as producer:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(LOOK_EVERY):
                producer.write(DATA)
        producer.flush()
        return 0, producer.written, []


def _aproduce(server: ServerProcess, seconds: float) -> tuple[int, int, list[float]]:
    async def main() -> tuple[int, int, list[float]]:
        async with topics.AsyncClient(server.url) as client, client.producer("t") as producer:
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                for _ in range(LOOK_EVERY):
                    await producer.write(DATA)
            await producer.flush()
            return 0, producer.written, []

    return asyncio.run(main())


def _follow(server: ServerProcess, seconds: float) -> tuple[Any, ...]:
    records.fill(server, "t", FOLLOWED)
    seen, begin = 0, time.monotonic()
    with topics.Client(server.url) as client:
        for record in client.topic("t").follow():
            seen += 1
            _ = record.data
            if seen == FOLLOWED:
                break
    return 0, seen, [], time.monotonic() - begin


def _afollow(server: ServerProcess, seconds: float) -> tuple[Any, ...]:
    records.fill(server, "t", FOLLOWED)

    async def main() -> int:
        seen = 0
        async with topics.AsyncClient(server.url) as client:
            async for record in client.topic("t").follow():
                seen += 1
                _ = record.data
                if seen == FOLLOWED:
                    break
        return seen

    begin = time.monotonic()
    return 0, asyncio.run(main()), [], time.monotonic() - begin


def _latency(server: ServerProcess, seconds: float) -> tuple[int, int, list[float]]:
    latencies_ms: list[float] = []
    with topics.Client(server.url) as client:
        topic = client.topic("t")
        topic.write(0)
        follower = topic.follow(tail=True)
        seen = threading.Semaphore(0)

        def read() -> None:
            for record in follower:
                latencies_ms.append((time.perf_counter() - record.data) * 1000)
                seen.release()

        reader = threading.Thread(target=read)
        reader.start()
        end = time.monotonic() + seconds
        time.sleep(0.2)
        while time.monotonic() < end:
            topic.write(time.perf_counter())
            assert seen.acquire(timeout=10)
            time.sleep(0.002)
        follower.close()
        reader.join()
    return len(latencies_ms), len(latencies_ms), latencies_ms


def _work(server: ServerProcess, seconds: float) -> tuple[Any, ...]:
    records.create(server, "q", type="queue")
    records.fill(server, "q", JOBS)
    with topics.Client(server.url) as client:
        worker = client.worker("q", concurrency=8, prefetch=248)
        done = threading.Lock()
        times: list[float] = []

        @worker.task
        def task(job: Any) -> None:
            with done:
                times.append(time.monotonic())
                if len(times) == JOBS:
                    worker.stop()

        worker.run()
        return 0, worker.done, [], times[-1] - times[0]


def _awork(server: ServerProcess, seconds: float) -> tuple[Any, ...]:
    records.create(server, "q", type="queue")
    records.fill(server, "q", JOBS)

    times: list[float] = []

    async def main() -> int:
        async with topics.AsyncClient(server.url) as client:
            worker = client.worker("q", concurrency=8, prefetch=248)

            @worker.task
            async def task(job: Any) -> None:
                times.append(time.monotonic())
                if len(times) == JOBS:
                    worker.stop()

            await worker.run()
            return worker.done

    return 0, asyncio.run(main()), [], times[-1] - times[0]


def _redis(bench: Bench) -> Iterator[Row]:
    names = [name for name in ROWS if name.startswith("redis-py") and bench.wants(name)]
    if not names:
        return
    if shutil.which("redis-server") is None or importlib.util.find_spec("redis") is None:
        print("redis-py: not measured, redis-server and the package redis are not installed")
        return
    import redis

    command = ("redis-server", "--port", "{port}", "--bind", "127.0.0.1", "--dir", "{dir}", "--save", "",
               "--appendonly", "yes", "--appendfsync", "everysec")  # fmt: skip
    for name in names:
        with bench.peer(*command) as process:
            client = redis.Redis(process.host, process.port)
            yield {
                "redis-py-write": lambda: _row(
                    bench, name, "redis-py XADD, awaited, one connection", process,  # noqa: B023
                    lambda: _timed(lambda: client.xadd("t", {"data": msgspec.json.encode(DATA)}), bench.seconds),  # noqa: B023
                ),
                "redis-py-pipeline": lambda: _row(
                    bench, name, f"redis-py XADD, pipelined by {PIPELINED:,}", process,  # noqa: B023
                    lambda: _redis_pipeline(client, bench.seconds),  # noqa: B023
                ),
                "redis-py-follow": lambda: _redis_follow(bench, name, process, client),  # noqa: B023
                "redis-py-work": lambda: _redis_work(bench, name, process, client),  # noqa: B023
            }[name]()  # fmt: skip
            client.close()


def _redis_pipeline(client: Any, seconds: float) -> tuple[int, int, list[float]]:
    done = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pipeline = client.pipeline(transaction=False)
        for _ in range(PIPELINED):
            pipeline.xadd("t", {"data": msgspec.json.encode(DATA)})
        pipeline.execute()
        done += PIPELINED
    return 0, done, []


def _redis_fill(client: Any, count: int) -> None:
    for _ in range(count // PIPELINED):
        pipeline = client.pipeline(transaction=False)
        for _ in range(PIPELINED):
            pipeline.xadd("t", {"data": records.DATA})
        pipeline.execute()


def _redis_follow(bench: Bench, name: str, process: Process, client: Any) -> Row:
    _redis_fill(client, JOBS)

    def follow() -> tuple[int, int, list[float]]:
        seen, cursor = 0, "0"
        while seen < JOBS:
            [(_, entries)] = client.xread({"t": cursor}, count=1000)
            for cursor, fields in entries:  # noqa: B007
                msgspec.json.decode(fields[b"data"])
            seen += len(entries)
        return 0, seen, []

    return _row(bench, name, "redis-py XREAD by 1,000 over a backlog, data decoded", process, follow)


def _redis_work(bench: Bench, name: str, process: Process, client: Any) -> Row:
    _redis_fill(client, JOBS)
    client.xgroup_create("t", "g", "0")

    def work() -> tuple[int, int, list[float]]:
        done = 0
        while done < JOBS:
            [(_, entries)] = client.xreadgroup("g", "w", {"t": ">"}, count=256)
            client.xack("t", "g", *[id for id, _ in entries])
            client.xdel("t", *[id for id, _ in entries])
            done += len(entries)
        return 0, done, []

    return _row(bench, name, "redis-py XREADGROUP of 256, XACK and XDEL", process, work)


def _nats(bench: Bench) -> Iterator[Row]:
    if shutil.which("nats-server") is None or importlib.util.find_spec("nats") is None:
        print("nats-py: not measured, nats-server and the package nats-py are not installed")
        return
    import nats

    async def work(process: Process) -> tuple[int, int, list[float]]:
        client = await nats.connect(f"nats://{process.host}:{process.port}")
        stream = client.jetstream()
        await stream.add_stream(name="bench", subjects=["bench"])
        found = await _atimed(lambda: stream.publish("bench", msgspec.json.encode(DATA)), bench.seconds)
        await client.close()
        return found

    command = ("nats-server", "-a", "127.0.0.1", "-p", "{port}", "-js", "-sd", "{dir}")
    with bench.peer(*command) as process:
        title = "nats-py JetStream publish, awaited, one connection"
        yield _row(bench, "nats-py-write", title, process, lambda: asyncio.run(work(process)))
