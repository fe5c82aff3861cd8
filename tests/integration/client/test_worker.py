"""Workers against a real server, in threads and on asyncio."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.harness.api import Api, StartServer, until
from topics import AsyncClient, Client, Job
from topics.errors import NotAQueue, TopicNotFound
from topics.testing import ServerProcess


class Order(msgspec.Struct):
    id: int


class Runner:
    """A worker that runs in a thread of its own, whichever kind it is."""

    def __init__(self, url: str, kind: str) -> None:
        self._url = url
        self._kind = kind
        self.client_options: dict[str, Any] = {}

    @contextmanager
    def running(
        self, queue: str, tasks: dict[str | None, Callable[[Job[Any]], Any]], type: Any = Any, **options: Any
    ) -> Iterator[Any]:
        """Run a worker with these tasks until the block ends; what it raised is raised then."""
        made = threading.Event()
        box: dict[str, Any] = {}

        def register(worker: Any) -> None:
            for tag, function in tasks.items():
                worker.task(function) if tag is None else worker.task(tag=tag)(function)
            box["worker"] = worker
            made.set()

        def in_threads() -> None:
            with Client(self._url, **self.client_options) as client:
                worker = client.worker(queue, type, **options)
                register(worker)
                box["stop"] = worker.stop
                worker.run()

        async def on_asyncio() -> None:
            async with AsyncClient(self._url, **self.client_options) as client:
                worker = client.worker(queue, type, **options)
                register(worker)
                loop = asyncio.get_running_loop()
                box["stop"] = lambda: loop.call_soon_threadsafe(worker.stop)
                await worker.run()

        def main() -> None:
            try:
                in_threads() if self._kind == "threads" else asyncio.run(on_asyncio())
            except BaseException as error:
                box["error"] = error

        thread = threading.Thread(target=main)
        thread.start()
        assert made.wait(10)
        worker = box["worker"]
        worker_stop = lambda: box["stop"]()  # noqa: E731
        try:
            yield _Running(worker, worker_stop, thread)
        finally:
            if thread.is_alive() and "stop" in box:
                worker_stop()
            thread.join(60)
            assert not thread.is_alive()
        if "error" in box:
            raise box["error"]


class _Running:
    def __init__(self, worker: Any, stop: Callable[[], None], thread: threading.Thread) -> None:
        self.worker = worker
        self.stop = stop
        self.thread = thread


@pytest.fixture(params=["threads", "asyncio"])
def runner(request: pytest.FixtureRequest, server: ServerProcess) -> Runner:
    return Runner(server.url, request.param)


def queue_of(api: Api, name: str, count: int, **config: Any) -> str:
    api.put(name, type="queue", **config)
    if count:
        api.fill(name, count)
    return name


def jobs(api: Api, queue: str) -> tuple[int, int, int]:
    """Ready, leased, and all jobs."""
    state = api.state(queue)
    return state["queue"]["ready"], state["queue"]["in_flight"], state["count"]


def test_every_job_is_done_and_acked(runner: Runner, api: Api, topic_name: str) -> None:
    """CLIENT-15."""
    queue_of(api, topic_name, 0)
    api.write(topic_name, *({"data": {"id": n}} for n in range(200)))
    seen: list[int] = []
    with runner.running(topic_name, {None: lambda job: seen.append(job.data.id)}, Order, concurrency=4) as run:
        until(lambda: api.state(topic_name)["count"] == 0, "every job is acked")
        assert run.worker.done == 200
    assert sorted(seen) == list(range(200))


def test_tasks_are_chosen_by_tag_and_may_be_async(runner: Runner, api: Api, topic_name: str) -> None:
    """CLIENT-15."""
    queue_of(api, topic_name, 0)
    api.write(topic_name, {"data": 1, "tag": "a"}, {"data": 2, "tag": "b"}, {"data": 3})
    seen: set[tuple[str, int]] = set()

    async def slow(job: Job[Any]) -> None:
        await asyncio.sleep(0.01)
        seen.add(("a", job.data))

    tasks: dict[str | None, Any] = {"a": slow, None: lambda job: seen.add(("other", job.data))}
    with runner.running(topic_name, tasks, concurrency=2):
        until(lambda: api.state(topic_name)["count"] == 0, "every job is acked")
    assert seen == {("a", 1), ("other", 2), ("other", 3)}


def test_a_job_that_fails_comes_again_later_and_more_and_more_so(runner: Runner, api: Api, topic_name: str) -> None:
    """CLIENT-16."""
    queue_of(api, topic_name, 2)
    times: list[float] = []
    others: list[int] = []

    def work(job: Job[Any]) -> None:
        if job.data == 2:
            others.append(2)
            return
        times.append(time.monotonic())
        if job.deliveries < 4:
            raise ValueError("not yet")

    with runner.running(topic_name, {None: work}, backoff_ms=100) as run:
        until(lambda: api.state(topic_name)["count"] == 0, "every job is acked")
        assert (run.worker.done, run.worker.failed) == (2, 3)
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2), strict=True)), pauses
    assert others == [2]


def test_a_job_without_a_task_or_with_bad_data_fails_and_becomes_a_dead_letter(
    runner: Runner, api: Api, topic_name: str
) -> None:
    """CLIENT-16."""
    dead = f"{topic_name}.dead"
    queue_of(api, topic_name, 0, max_deliveries=2, dead_letter=dead)
    api.write(topic_name, {"data": {"id": "x"}, "tag": "known"}, {"data": {"id": 2}, "tag": "unknown"})
    with runner.running(topic_name, {"known": lambda job: job.data.id}, Order, backoff_ms=1):
        until(lambda: api.exists(dead) and api.state(dead)["count"] == 2, "both are dead letters")


def test_a_lease_is_extended_while_a_job_runs(runner: Runner, api: Api, topic_name: str) -> None:
    """CLIENT-15: a job that takes several times its lease is done once."""
    queue_of(api, topic_name, 1)
    seen: list[int] = []

    def work(job: Job[Any]) -> None:
        seen.append(job.seq)
        begun = job.deadline
        until(lambda: job.deadline > begun + 2_500, "the lease was extended for longer than it was")

    with runner.running(topic_name, {None: work}, lease_ms=2_000, concurrency=2):
        until(lambda: api.state(topic_name)["count"] == 0, "the job is acked")
    assert seen == [1]


def test_a_stop_lets_jobs_finish_and_claims_no_more(runner: Runner, api: Api, topic_name: str) -> None:
    """CLIENT-17."""
    queue_of(api, topic_name, 5)
    begun, go = threading.Event(), threading.Event()
    done: list[int] = []

    def work(job: Job[Any]) -> None:
        begun.set()
        assert go.wait(20)
        done.append(job.seq)

    with runner.running(topic_name, {None: work}, prefetch=2) as run:
        assert begun.wait(20)
        run.stop()
        until(lambda: run.worker.stopping, "the worker has heard it")
        assert run.thread.is_alive()
        go.set()
        run.thread.join(20)
        assert not run.thread.is_alive()
    assert done == [1]
    assert jobs(api, topic_name) == (4, 0, 4)


def test_what_does_not_finish_within_the_grace_is_given_back(runner: Runner, api: Api, topic_name: str) -> None:
    """CLIENT-17: and so is what was only held ready."""
    queue_of(api, topic_name, 4)
    begun, go = threading.Event(), threading.Event()

    def work(job: Job[Any]) -> None:
        begun.set()
        go.wait(20)

    with runner.running(topic_name, {None: work}, grace_s=0.2, prefetch=2) as run:
        assert begun.wait(20)
        run.stop()
        run.thread.join(20)
        assert not run.thread.is_alive()
        assert jobs(api, topic_name) == (4, 0, 4)
        go.set()


def test_a_queue_that_is_none_ends_the_run(runner: Runner, api: Api, topic_name: str) -> None:
    with pytest.raises(TopicNotFound), runner.running(topic_name, {None: print}) as run:
        run.thread.join(20)
    api.fill(topic_name, 1)
    with pytest.raises(NotAQueue), runner.running(topic_name, {None: print}) as run:
        run.thread.join(20)
    with pytest.raises(ValueError, match=r"@worker\.task"), runner.running(topic_name, {}) as run:
        run.thread.join(20)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_worker_goes_on_after_a_crash_of_the_server(start_server: StartServer, free_port: int, kind: str) -> None:
    """CLIENT-15: acks that could not be sent are sent later."""
    server = start_server(port=free_port)
    api = Api(server.host, server.port)
    queue_of(api, "q", 20)
    seen: list[int] = []

    def work(job: Job[Any]) -> None:
        seen.append(job.seq)
        if len(seen) == 5:
            server.kill()
            server.start()

    with Runner(server.url, kind).running("q", {None: work}, concurrency=1):
        until(lambda: len(set(seen)) == 20, "every job is done")
        until(lambda: api.state("q")["count"] == 0, "every job is acked")
    assert sorted(set(seen)) == list(range(1, 21))
    api.close()


PROGRAM = """
import os, sys, time
from topics import Client
with Client(sys.argv[1]) as client:
    worker = client.worker(sys.argv[2], concurrency=2)
    @worker.task
    def work(job):
        os.write(1, b"%d\\n" % job.seq)  # in one piece: there are two threads
        while not worker.stopping:
            time.sleep(0.01)
    worker.run()
print("ended", flush=True)
"""


def test_sigterm_ends_a_worker_cleanly(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-17."""
    queue_of(api, topic_name, 10)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, topic_name], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert {program.stdout.readline(), program.stdout.readline()} == {"1\n", "2\n"}
    os.kill(program.pid, signal.SIGTERM)
    out, _ = program.communicate(timeout=30)
    assert (program.returncode, out) == (0, "ended\n")
    assert jobs(api, topic_name) == (8, 0, 8)


def test_a_task_is_told_that_its_lease_is_lost(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-15: another worker may have the job by now."""
    queue_of(api, topic_name, 1)
    lost = threading.Event()

    def work(job: Job[Any]) -> None:
        if job.deliveries > 1:
            # The worker may have it again before it is stopped, and nobody takes it away then.
            return
        api.post(f"{topic_name}/nack", {"node": "thief", "seqs": [job.seq], "lease_ids": [job.lease_id]}).ok()
        until(lambda: job.lost, "the task is told")
        lost.set()

    with Client(server.url, node="thief") as client:
        worker = client.worker(topic_name, lease_ms=1_000)
        worker.task(work)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert lost.wait(20)
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


def test_a_task_that_is_cancelled_by_itself_has_failed(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-16: it waits for its turn like any other failure, and is not taken for one that the worker has stopped."""
    queue_of(api, topic_name, 1)
    times: list[float] = []

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            worker = client.worker(topic_name, backoff_ms=400)

            @worker.task
            async def work(job: Job[Any]) -> None:
                times.append(time.monotonic())
                if job.deliveries == 2:
                    worker.stop()
                    return
                raise asyncio.CancelledError

            await worker.run()
            assert (worker.done, worker.failed) == (1, 1)

    asyncio.run(main())
    assert times[1] - times[0] >= 0.2


def test_a_stop_before_the_run_counts(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-17: and only for that run."""
    queue_of(api, topic_name, 1)

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            worker = client.worker(topic_name)
            worker.task(lambda job: worker.stop())
            worker.stop()
            await asyncio.wait_for(worker.run(), 10)
            assert worker.done == 0
            await asyncio.wait_for(worker.run(), 10)
            assert worker.done == 1

    asyncio.run(main())


def test_a_task_in_a_thread_stops_a_worker_on_asyncio(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-17: the event loop is told in a way that is allowed from a thread, which its debug mode checks."""
    queue_of(api, topic_name, 1)

    async def main() -> None:
        async with AsyncClient(server.url) as client:
            worker = client.worker(topic_name)
            worker.task(lambda job: worker.stop())
            await asyncio.wait_for(worker.run(), 20)
            assert (worker.done, worker.failed) == (1, 0)

    asyncio.run(main(), debug=True)


MANY = """
import asyncio, sys
from topics import AsyncClient

async def main():
    async with AsyncClient(sys.argv[1]) as client:
        workers = [client.worker(name) for name in sys.argv[2:]]
        for worker in workers:
            worker.task(lambda job: None)
        consumer = client.consumer(sys.argv[2], [sys.argv[2]], cursors="./cursors")
        runs = asyncio.gather(*(worker.run() for worker in workers), consumer.run(print))
        await asyncio.sleep(0)
        print("running", flush=True)
        await runs
        print("ended")

asyncio.run(main())
"""


def test_sigterm_ends_everything_on_an_event_loop(
    server: ServerProcess, api: Api, topic_name: str, tmp_path: Path
) -> None:
    """CLIENT-17: not only what began last."""
    names = [topic_name, f"{topic_name}.b"]
    for name in names:
        api.put(name, type="queue")
    with subprocess.Popen(
        [sys.executable, "-c", MANY, server.url, *names], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        program.terminate()
        assert program.wait(20) == 0
        assert program.stdout.read() == "ended\n"


def test_a_program_may_keep_its_own_handler_of_signals(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-17: `signals=False`."""
    queue_of(api, topic_name, 1)
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with Client(server.url) as client:
            worker = client.worker(topic_name, signals=False)

            @worker.task
            def work(job: Job[Any]) -> None:
                os.kill(os.getpid(), signal.SIGTERM)
                until(lambda: bool(seen), "the handler of the program is called")
                assert not worker.stopping
                worker.stop()

            worker.run()
            assert worker.done == 1
    finally:
        signal.signal(signal.SIGTERM, before)
