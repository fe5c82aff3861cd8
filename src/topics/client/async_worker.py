"""AsyncWorker: the jobs of a queue, each given to a function, several at a time. For asyncio; `Worker` for threads.

What it promises:

- A job whose function returns is acked. One whose function raises is nacked with the reason, to come again after a
  delay that doubles with each delivery and has some chance in it, so that jobs that failed together do not come back
  together.
- While a job is held its lease is extended, every third of its time. A job whose lease is lost all the same may be
  given to another worker; that is logged, `job.lost` tells its task, and its ack is refused by the server.
- `stop`, or SIGTERM while it runs on the main thread, ends it gracefully: no job is claimed any more, what runs gets
  `grace_s` to finish, and what has not finished by then is given back.
- A server that is away costs time and nothing else: acks that could not be sent are sent later.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Callable
from typing import Any, Final, Generic, TypedDict, TypeVar, overload

from topics.client.errors import Unreachable
from topics.client.job import Job
from topics.client.operations.call import pause_of
from topics.client.operations.operation import Operation, arun
from topics.client.operations.read import PASSING
from topics.client.operations.topic_calls import TopicCalls
from topics.client.options import check_options
from topics.client.signals import stops_task
from topics.client.thread_pool import ThreadPool
from topics.client.transport import waiting
from topics.errors import TopicsError

T = TypeVar("T")
R = TypeVar("R")
Task = TypeVar("Task", bound=Callable[[Any], Any])

WAIT_MS: Final = 2_000
"""How long a claim waits for a job: also the longest that a stop waits for a claim, so that no lease is left behind."""
ACKS_MAX: Final = 1_000
DELAY_MS_MAX: Final = 86_400_000
STOPPED: Final = "the worker was stopped"

log: Final = logging.getLogger("topics.client")


class WorkerOptions(TypedDict, total=False):
    """How a worker works.

    - `concurrency`: how many jobs at a time (1); `prefetch`: how many more to hold ready, for short jobs (0).
    - `lease_ms`: how long a job is leased without a sign of life (30000).
    - `backoff_ms`, `backoff_max_ms`: the delay after the first failure of a job (1000), and the longest (300000).
    - `grace_s`: how long jobs may take to finish after `stop` (30).
    - `signals`: False to leave SIGTERM to the program.
    """

    concurrency: int
    prefetch: int
    lease_ms: int
    backoff_ms: int
    backoff_max_ms: int
    grace_s: float
    signals: bool


class AsyncWorker(Generic[T]):
    """Works off one queue. Tasks are functions of a job, plain (each in a thread) or async."""

    def __init__(self, calls: TopicCalls[T], pool: waiting.Pool | None, options: WorkerOptions) -> None:
        self._calls = calls
        self._pool = pool
        check_options("worker", options, WorkerOptions)
        self.concurrency = max(1, options.get("concurrency", 1))
        self._capacity = self.concurrency + max(0, options.get("prefetch", 0))
        # Jobs that are held ready are claimed half of them at a time, not one by one.
        self._refill = max(1, (self._capacity - self.concurrency) // 2)
        self._lease_ms = options.get("lease_ms", 30_000)
        self._backoff_ms = options.get("backoff_ms", 1_000)
        self._backoff_max_ms = min(options.get("backoff_max_ms", 300_000), DELAY_MS_MAX)
        self._grace_s = options.get("grace_s", 30.0)
        self._signals = options.get("signals", True)
        self._tasks: dict[str | None, Callable[[Job[T]], Any]] = {}
        self._held: dict[int, Job[T]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._acks: list[Job[T]] = []
        self._nacks: list[tuple[Job[T], int, str]] = []
        self._stops = 0
        self._over = False
        self._changed: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: ThreadPool | None = None
        self._slots: asyncio.Semaphore | None = None
        self.done = self.failed = 0

    @overload
    def task(self, function: Task) -> Task: ...
    @overload
    def task(self, *, tag: str) -> Callable[[Task], Task]: ...
    def task(self, function: Any = None, *, tag: str | None = None) -> Any:
        """Use a function for all jobs, or for those with a tag: `@worker.task` or `@worker.task(tag="resize")`."""
        if function is None:
            return lambda given: self.task_for(tag, given)
        return self.task_for(None, function)

    def task_for(self, tag: str | None, function: Task) -> Task:
        """Use a function for the jobs with a tag; None for all that have no function of their own."""
        if tag in self._tasks:
            raise ValueError(f"there is a task already for {'all jobs' if tag is None else f'the tag {tag!r}'}")
        self._tasks[tag] = function
        return function

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end: a long task may look at this, and hurry."""
        return self._stops > 0

    def stop(self) -> None:
        """End gracefully; a second time: give back at once what still runs. Any thread may call it."""
        self._stops += 1
        self._over = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake)

    async def run(self) -> None:
        """Work until `stop` or SIGTERM; raises what no retry can change, such as a queue that does not exist."""
        assert self._pool is not None
        await self.run_with(self._pool)

    async def run_with(self, pool: waiting.Pool) -> None:
        """Work over these connections, as `run` does."""
        self._pool = pool
        if not self._tasks:
            raise ValueError("a worker needs a task: decorate a function with @worker.task")
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPool(f"topics-worker-{self._calls.name}", self.concurrency)
        self._slots = asyncio.Semaphore(self.concurrency)
        # A stop that came before the run counts; what ended the run before does not.
        self._stops = 0 if self._over else self._stops
        self._over = False
        settling = asyncio.create_task(self._settle(), name="topics-worker-settle")
        beating = asyncio.create_task(self._beat(), name="topics-worker-beat")
        try:
            with stops_task(self.stop, self._signals):
                try:
                    await self._claim()
                finally:
                    await self._finish()
                    await asyncio.wait({settling}, timeout=max(1.0, self._grace_s))
                    if self._held:
                        log.error("%d jobs of %s could not be given back in time", len(self._held), self._calls.name)
        finally:
            for each in (settling, beating):
                each.cancel()
            await asyncio.gather(settling, beating, return_exceptions=True)
            self._threads.close()
            self._loop = None
            self._over = True

    async def _claim(self) -> None:
        failures = 0
        while not self._stops:
            free = self._capacity - len(self._running)
            if free < self._refill:
                await self._wait(None)
                continue
            try:
                jobs = await self._run(self._calls.claim(free, WAIT_MS, self._lease_ms))
            except TopicsError as error:
                if not _is_passing(error):
                    raise
                failures += 1
                pause_s = pause_of(failures, (error.retry_after_ms or 0) / 1000)
                log.warning("worker of %s: trying again in %.2f s: %s", self._calls.name, pause_s, error.message)
                await self._wait(pause_s)
                continue
            failures = 0
            for job in jobs:
                self._held[job.seq] = job
                task = asyncio.create_task(self._work(job))
                self._running.add(task)
                task.add_done_callback(self._ended)
            self._wake()

    async def _work(self, job: Job[T]) -> None:
        assert self._slots is not None
        try:
            async with self._slots:
                if self._stops:
                    self._nacks.append((job, 0, STOPPED))
                    return
                await self._call(job)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                # Nobody has cancelled this: the task has waited for something else that was.
                self._failed(job, error)
                return
            self._nacks.append((job, 0, STOPPED))
            raise
        except Exception as error:
            self._failed(job, error)
        else:
            self.done += 1
            self._acks.append(job)

    def _failed(self, job: Job[T], error: BaseException) -> None:
        self.failed += 1
        delay_ms = self._delay_ms(job.deliveries)
        log.error(
            "job %d of %s failed, delivery %d; again in %d ms",
            job.seq, job.topic, job.deliveries, delay_ms, exc_info=error,
        )  # fmt: skip
        self._nacks.append((job, delay_ms, _reason(error)))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._wake()

    async def _call(self, job: Job[T]) -> None:
        function = self._tasks.get(job.tag, self._tasks.get(None))
        if function is None:
            raise LookupError(f"there is no task for the tag {job.tag!r}")
        if inspect.iscoroutinefunction(function):
            await function(job)
            return
        assert self._threads is not None
        result = await self._threads.run(function, job)
        if inspect.isawaitable(result):
            await result

    def _delay_ms(self, deliveries: int) -> int:
        grown = min(self._backoff_ms * 2 ** min(max(0, deliveries - 1), 30), self._backoff_max_ms)
        return int(grown * random.uniform(0.5, 1.0))  # noqa: S311

    async def _settle(self) -> None:
        """Send acks and nacks, until the worker has stopped and holds nothing."""
        failures = 0
        while not (self._stops and not self._running and not self._held):
            if not self._acks and not self._nacks:
                await self._wait(None)
                continue
            try:
                await self._send()
                failures = 0
            except TopicsError as error:
                if not _is_passing(error):
                    # Nobody can ack these now; their leases end by themselves.
                    log.error("jobs of %s could not be acked or nacked: %s", self._calls.name, error.message)
                    self._forget([*self._acks, *(job for job, _, _ in self._nacks)])
                    self._acks, self._nacks = [], []
                    continue
                failures += 1
                log.warning("jobs of %s are not acked yet: %s", self._calls.name, error.message)
                await asyncio.sleep(pause_of(failures))

    async def _send(self) -> None:
        """Ack everything that is done, together, and nack what has failed."""
        if jobs := self._acks[:ACKS_MAX]:
            settled = await self._run(self._calls.ack(jobs))
            del self._acks[: len(jobs)]
            self._forget(jobs)
            self._warn(settled.skipped)
        while self._nacks:
            job, delay_ms, reason = self._nacks[0]
            settled = await self._run(self._calls.nack([job], delay_ms, reason))
            self._nacks.pop(0)
            self._forget([job])
            self._warn(settled.skipped)

    def _forget(self, jobs: list[Job[T]]) -> None:
        for job in jobs:
            self._held.pop(job.seq, None)

    def _warn(self, skipped: list[int]) -> None:
        # Where an answer was lost, its repeat finds the job gone: that is no loss, but cannot be told apart.
        if skipped:
            log.info("jobs %s of %s were settled before, or their leases were lost", skipped, self._calls.name)

    async def _beat(self) -> None:
        """Keep the leases of what is held."""
        while True:
            await asyncio.sleep(self._lease_ms / 3000)
            jobs = [job for job in self._held.values() if not job.lost]
            for at in range(0, len(jobs), ACKS_MAX):
                try:
                    settled = await self._run(self._calls.extend(jobs[at : at + ACKS_MAX], self._lease_ms))
                except TopicsError as error:
                    log.warning("leases of %s could not be extended: %s", self._calls.name, error.message)
                else:
                    self._lose([job for job in jobs if job.seq in settled.skipped and self._held.get(job.seq) is job])

    def _lose(self, jobs: list[Job[T]]) -> None:
        for job in jobs:
            job.lost = True
            log.warning("the lease of job %d of %s is lost: another worker may have it", job.seq, job.topic)

    async def _finish(self) -> None:
        """Let what runs finish within the grace, and give back the rest."""
        self._stops = max(1, self._stops)
        self._wake()
        loop = asyncio.get_running_loop()
        until = loop.time() + self._grace_s
        while self._running and self._stops < 2 and loop.time() < until:
            await self._wait(until - loop.time())
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait until something has changed."""
        assert self._changed is not None
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _run(self, operation: Operation[R]) -> R:
        assert self._pool is not None
        return await arun(operation, waiting.Courier(self._pool))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _is_passing(error: TopicsError) -> bool:
    return isinstance(error, Unreachable) or error.status in PASSING
