"""Driver: runs the engine on the event loop and the engine's disk jobs on threads.

The engine asks for a turn when something waits; all frames of one turn of the loop are written in one go. Threads only
ever wait for the disk: a job's `run` makes blocking calls and its `done` comes back to the loop. Syncs have a thread
of their own each, so that a slow read or a seal never stands in front of an ack.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from topics.engine import Engine
    from topics.engine.upkeep.upkeep import Upkeep
    from topics.storage.job import Job

log = logging.getLogger("topics.driver")

RunThen = Callable[["Job", Callable[[], None]], None]

POOL_THREADS: Final = 3
TICK_S: Final = 1.0


class Worker:
    """One thread that executes jobs in order."""

    def __init__(self, driver: Driver, name: str, queue: SimpleQueue[Job | None]) -> None:
        self._driver = driver
        self.queue = queue
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self.queue.get()) is not None:
            error: BaseException | None = None
            try:
                job.run()
            except BaseException as exception:
                error = exception
            self._driver.finished(job, error)

    def join(self) -> None:
        """Wait for the thread to end; it does once it takes a None."""
        self._thread.join()


class _Followed:
    """A job and what comes after it."""

    __slots__ = ("_job", "_then", "name")

    def __init__(self, job: Job, then: Callable[[], None]) -> None:
        self.name = job.name
        self._job = job
        self._then = then

    def run(self) -> None:
        self._job.run()

    def done(self, error: BaseException | None) -> None:
        self._job.done(error)
        self._then()


class Driver:
    """Gives the engine its turns and its threads."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        upkeep: Upkeep | None = None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        """`flush` hands the engine the small writes that were gathered for a turn."""
        self._engine = engine
        self._flush = flush
        self._loop = loop
        self._upkeep = upkeep
        self._tick: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._window_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns = 0
        self._running = 0
        self._syncs: SimpleQueue[Job | None] = SimpleQueue()
        self._others: SimpleQueue[Job | None] = SimpleQueue()
        self._workers = [Worker(self, "sync", self._syncs)]
        self._workers += [Worker(self, f"disk-{i}", self._others) for i in range(POOL_THREADS)]
        self._idle: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Look after the data directory at least once per tick, also where nobody writes."""
        self.wake()
        self._tick = self._loop.call_later(TICK_S, self.begin)

    def wake(self) -> None:
        """Have a turn at the end of this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            if self._window_s:
                self._loop.call_later(self._window_s, self._turn)
            else:
                self._loop.call_soon(self._turn)

    def widen(self, window_s: float) -> None:
        """Gather frames for this long before they are committed: fewer and larger commits under pressure."""
        self._window_s = window_s

    def _turn(self) -> None:
        # What was gathered is written by the turn itself: nothing is to be asked for again.
        try:
            self._prepare()
        finally:
            self._scheduled = False
        self._engine.turn()
        if self._upkeep is not None and self._upkeep.step():
            self.wake()
        self._start_jobs()

    def _prepare(self) -> None:
        self._flush()
        self._engine.prepare()

    def _start_jobs(self) -> None:
        for job in self._engine.store.jobs():
            self.start(job)
        due_ns = self._engine.next_due_ns()
        if due_ns is None:
            return
        if self._timer is not None:
            if due_ns >= self._timer_due_ns:
                return
            self._timer.cancel()
        self._timer_due_ns = due_ns
        delay_s = max(0.0, (due_ns - self._engine.clock.elapsed_ns()) / 1e9)
        self._timer = self._loop.call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._turn()

    def start(self, job: Job) -> None:
        """Execute a job on a thread; its `done` runs on the loop."""
        self._running += 1
        (self._syncs if job.name == "sync" else self._others).put(job)

    def run_then(self, job: Job, then: Callable[[], None]) -> None:
        """Execute a job on a thread, then call `then` on the loop, whatever came of the job: it left that behind."""
        self.start(_Followed(job, then))

    def finished(self, job: Job, error: BaseException | None) -> None:
        """Called by a worker: bring the outcome back to the loop."""
        self._loop.call_soon_threadsafe(self._done, job, error)

    def _done(self, job: Job, error: BaseException | None) -> None:
        self._running -= 1
        try:
            job.done(error)
        except Exception:
            log.exception("a %s job could not be taken over", job.name)
        self._start_jobs()
        if self._engine.store.pending:
            self.wake()
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def run_until_idle(self) -> None:
        """Return once nothing is queued, running or waiting for a sync."""
        self._prepare()
        while self._engine.store.pending or self._running:
            self._turn()
            if self._running:
                self._idle = self._loop.create_future()
                await self._idle
            self._prepare()

    def stop(self) -> None:
        """End the threads once their queues are empty."""
        # No further turn is to be asked for.
        self._scheduled = True
        for timer in (self._timer, self._tick):
            if timer is not None:
                timer.cancel()
        self._syncs.put(None)
        for _ in range(POOL_THREADS):
            self._others.put(None)
        for worker in self._workers:
            worker.join()
