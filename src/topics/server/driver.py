"""Driver: runs the engine on the event loop and the engine's disk jobs on threads.

Whatever needs a turn asks the `Wakeup` for one; the driver runs it at the end of that turn of the loop. A turn has a
fixed order: the small writes that were gathered go to the engine, acks are submitted, all frames are written in one
go, copies and jobs are handed on, and the jobs that are due go to the threads. The engine never calls the driver, it
only requests a turn.

Upkeep is no part of a turn: the loop sends answers when its callbacks have returned, and nobody waits for upkeep. It
does a slice after the answers of a turn, and goes on at once where there is more to do. Where there is not, it does the
next one a millisecond later at the earliest, however many turns there are.

Threads only ever wait for the disk: a job's `run` makes blocking calls, and its `done` comes back to the loop. Syncs
have a thread of their own, so that a slow read or a seal never delays an ack. What writes much and may take its time
has threads of its own too, so that neither a read nor the next file of the WAL waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from topics.engine import Engine
from topics.engine.upkeep.upkeep import Upkeep
from topics.server.flow.pressure import WIDEN_COMMITS
from topics.storage.job import Job, Task

log = logging.getLogger("topics.driver")

DISK_THREADS: Final = 3
BULK_THREADS: Final = 3
BULK_NICE: Final = 5
"""Where they share a core with the loop, it gets three times as much of it as each of them. Much less would not do:
a thread may hold the interpreter for a moment, and whoever waits for it then waits for the thread's turn."""
AWAITED: Final = frozenset(("read", "prepare"))
"""The jobs that requests wait for, besides syncs."""
UNFOLLOWED: Final = frozenset(("read", "sync"))
"""The jobs after which there is nothing more to do for the engine; syncs come by the hundred in a second."""
TICK_S: Final = 1.0
UPKEEP_S: Final = 0.005
"""How long upkeep rests that had nothing more to do at once."""
ENDING_S: Final = 2.0
COMMIT_WINDOW_S: Final = 0.002
COMMIT_BYTES: Final = 64 << 10
"""What is worth a commit of its own: a client that writes so much at a time and waits for each answer gains nothing
from a window."""


class Wakeup:
    """The request for a turn: made as often as needed, answered once at the end of this turn of the loop."""

    __slots__ = ("_later", "_loop", "_queued_bytes", "_window_s", "listeners", "pending")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.listeners: list[Callable[[], None]] = []
        """What is called for a turn: a driver, from its construction until it stops."""
        self.pending = False
        """Whether a turn was asked for that has not begun, or is being prepared."""
        self._loop = loop
        self._queued_bytes: Callable[[], int] = lambda: 0
        self._window_s = 0.0
        # The turns that wait until the window ends.
        self._later: list[asyncio.TimerHandle] = []

    def listen(self, turn: Callable[[], None], queued_bytes: Callable[[], int]) -> None:
        """Call `turn` for a turn; it writes `queued_bytes`."""
        self.listeners.append(turn)
        self._queued_bytes = queued_bytes

    def wake(self) -> None:
        """Ask for a turn."""
        if not self.pending:
            self._later.clear()
            for turn in self.listeners:
                self.pending = True
                if self._window_s and self._queued_bytes() < COMMIT_BYTES:
                    self._later.append(self._loop.call_later(self._window_s, turn))
                else:
                    self._loop.call_soon(turn)
        elif self._later and self._queued_bytes() >= COMMIT_BYTES:
            for timer in self._later:
                timer.cancel()
            self._later.clear()
            for turn in self.listeners:
                self._loop.call_soon(turn)

    def begun(self) -> None:
        """The turn that was asked for has begun, so no window is left to cut short."""
        self._later.clear()

    def set_level(self, level: int) -> None:
        """The pressure has changed: where it is high, small frames gather for a while, for fewer commits."""
        self._window_s = COMMIT_WINDOW_S if level >= WIDEN_COMMITS else 0.0


class Driver:
    """Gives the engine its turns and its threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        wakeup: Wakeup,
        engine: Engine,
        flush: Callable[[], None],
        upkeep: Upkeep | None = None,
    ) -> None:
        """`flush` hands the engine the small writes that were gathered for a turn."""
        self._loop = loop
        self._wakeup = wakeup
        self._engine = engine
        self._flush = flush
        self._upkeep = upkeep
        self._tick: asyncio.TimerHandle | None = None
        self._upkeep_due: asyncio.Handle | None = None
        # When upkeep last had nothing more to do at once.
        self._kept_up_s = -UPKEEP_S
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ns = 0
        self._running = 0
        self._idle: asyncio.Future[None] | None = None
        # Whether nothing new is begun any more: a stop does not wait until everything is copied and sealed.
        self._ending = False
        self._syncs: SimpleQueue[Job | None] = SimpleQueue()
        self._bulk: SimpleQueue[Job | None] = SimpleQueue()
        self._awaited: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # The threads that execute the jobs of each queue: their name, and how many.
        self._pools = (
            ("sync", self._syncs, 1),
            ("disk", self._awaited, DISK_THREADS),
            ("bulk", self._bulk, BULK_THREADS),
        )
        wakeup.listen(self._turn, engine.journal.queued_bytes)

    def begin(self) -> None:
        """Look after the data directory at least once per tick, also where nothing is written."""
        self._wakeup.wake()
        self._tick = self._loop.call_later(TICK_S, self.begin)

    def _turn(self) -> None:
        # What was gathered is written by the turn itself: nothing is to be asked for again.
        self._wakeup.begun()
        try:
            self._prepare()
        finally:
            self._wakeup.pending = False
        if self._ending:
            self._engine.store.write()
        else:
            self._engine.turn()
            if self._upkeep_due is None:
                self._plan_upkeep()
        self._start_jobs()

    def _plan_upkeep(self) -> None:
        """Have a slice of upkeep done, at once where the last one was a while ago."""
        if self._upkeep is not None:
            rest_s = self._kept_up_s + UPKEEP_S - self._loop.time()
            self._upkeep_due = (
                self._loop.call_later(rest_s, self._keep_up) if rest_s > 0 else self._loop.call_soon(self._keep_up)
            )

    def _keep_up(self) -> None:
        """Do a slice of upkeep."""
        self._upkeep_due = None
        if self._upkeep is None or self._ending:
            return
        if self._upkeep.step():
            self._upkeep_due = self._loop.call_soon(self._keep_up)
        else:
            self._kept_up_s = self._loop.time()
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
        # A turn of its own would come besides the one that is asked for already, and as long as there is work each turn
        # asks for the next one: with every timer, one turn more would run between two looks at the sockets.
        self._timer = None
        self._wakeup.wake()

    def start(self, job: Job) -> None:
        """Execute a job on a thread; its `done` runs on the loop."""
        if not self._threads:
            self._start_threads()
        self._running += 1
        queue = self._syncs if job.name == "sync" else self._awaited if job.name in AWAITED else self._bulk
        queue.put(job)

    def run_then(self, job: Job, then: Callable[[], None]) -> None:
        """Execute a job on a thread, then call `then` on the loop, whether the job failed or not."""

        def finish(error: BaseException | None) -> None:
            job.done(error)
            then()

        self.start(Task(job.name, job.run, finish))

    def _start_threads(self) -> None:
        for name, queue, count in self._pools:
            for i in range(count):
                title = name if count == 1 else f"{name}-{i}"
                thread = threading.Thread(target=self._execute, args=(queue,), name=title, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _execute(self, queue: SimpleQueue[Job | None]) -> None:
        """Execute jobs in order, until a None; runs on a thread."""
        if queue is self._bulk and sys.platform == "linux":
            # A nice value is a thread's own here.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BULK_NICE)
        while (job := queue.get()) is not None:
            error: BaseException | None = None
            try:
                job.run()
            except BaseException as exception:
                error = exception
            self._loop.call_soon_threadsafe(self._done, job, error)

    def _done(self, job: Job, error: BaseException | None) -> None:
        self._running -= 1
        try:
            job.done(error)
        except Exception:
            log.exception("the outcome of a %s job could not be applied", job.name)
        self._start_jobs()
        if job.name not in UNFOLLOWED:
            # Upkeep goes on where this job has ended, without a rest: with the next segments, or what was merged.
            self._kept_up_s = -UPKEEP_S
            self._wakeup.wake()
        elif self._engine.store.pending:
            self._wakeup.wake()
        elif job.name == "sync" and self._upkeep_due is None:
            # A checkpoint may have waited for it. What it has committed needs no turn.
            self._plan_upkeep()
        if not self._running and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    async def run_until_idle(self) -> None:
        """Return once nothing is queued, running or waiting for a sync; nothing new is begun after ENDING_S."""
        self._loop.call_later(ENDING_S, self._end)
        self._prepare()
        while self._engine.store.pending or self._running:
            self._turn()
            if self._running:
                self._idle = self._loop.create_future()
                await self._idle
            self._prepare()

    def _end(self) -> None:
        self._ending = True

    def stop(self) -> None:
        """End the threads once their queues are empty; there are no further turns."""
        self._wakeup.listeners.remove(self._turn)
        for due in (self._timer, self._tick, self._upkeep_due):
            if due is not None:
                due.cancel()
        if self._threads:
            for _, queue, count in self._pools:
                for _ in range(count):
                    queue.put(None)
            for thread in self._threads:
                thread.join()
