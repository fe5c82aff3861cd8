"""Job: one piece of disk work that may wait, kept away from the thread that owns the state.

Storage starts no threads and knows no event loop. Whatever may wait for a disk is handed out as a Job, and a driver
executes it: the server on a few threads, tests and embedded engines inline. `run` makes disk calls only and
touches no state that the engine's thread uses; `done` is called afterwards on the engine's thread with the exception
that `run` raised, or None, and is where state changes. So a crash test on a fake disk is a plain sequence of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Job(Protocol):
    """Disk work in two halves: `run` anywhere, then `done` on the engine's thread."""

    @property
    def name(self) -> str:
        """What kind of work this is ("sync", "prepare", "read", ...), for choosing a thread and for the log."""

    def run(self) -> None:
        """Do the blocking disk calls. Called once, on any thread."""

    def done(self, error: BaseException | None) -> None:
        """Take the result over. Called once, on the engine's thread, with what `run` raised, or None."""


class Miss(Exception):
    """The bytes are not in memory: run `job`, then execute the command again."""

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__("the bytes have to be read first")


class Task:
    """A Job made of two functions."""

    __slots__ = ("done", "name", "run")

    def __init__(self, name: str, run: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self.name = name
        self.run = run
        self.done = done


def run_inline(jobs: Iterable[Job]) -> int:
    """Execute each job here and now, `run` then `done`; how many there were. What `run` raises goes to `done`."""
    count = 0
    for job in jobs:
        error: BaseException | None = None
        try:
            job.run()
        except Exception as exception:
            error = exception
        job.done(error)
        count += 1
    return count
