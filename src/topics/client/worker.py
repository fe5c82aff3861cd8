"""Worker: the jobs of a queue, each given to a function in a thread, several at a time.

It is an `AsyncWorker` with an event loop of its own, so that claims, heartbeats and acks go on while functions run.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from topics.client.async_worker import AsyncWorker, WorkerOptions
from topics.client.endpoint import Endpoint
from topics.client.operations.topic_calls import TopicCalls
from topics.client.transport import waiting

T = TypeVar("T")


class Worker(Generic[T]):
    """Works off one queue. `run` blocks; `stop` may be called from any thread and from a task."""

    def __init__(self, calls: TopicCalls[T], endpoint: Endpoint, options: WorkerOptions) -> None:
        self._endpoint = endpoint
        self._worker: AsyncWorker[T] = AsyncWorker(calls, None, options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self.task = self._worker.task

    @property
    def done(self) -> int:
        """How many jobs were done."""
        return self._worker.done

    @property
    def failed(self) -> int:
        """How many times a job failed."""
        return self._worker.failed

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end: a long task may look at this, and hurry."""
        return self._worker.stopping

    def run(self) -> None:
        """Work until `stop` or SIGTERM; raises what no retry can change, such as a queue that does not exist."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        endpoint = self._endpoint
        pool = waiting.Pool(
            endpoint.address, size=endpoint.connections_max, connect_timeout_s=endpoint.connect_timeout_s
        )
        self._loop = asyncio.get_running_loop()
        try:
            if not self._stopped:
                await self._worker.run_with(pool)
        finally:
            self._loop = None
            self._stopped = False
            await pool.close()

    def stop(self) -> None:
        """End gracefully; a second time: give back at once what still runs."""
        self._stopped = True
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._worker.stop)
