"""Consumer: the records of topics, from where it has got to, with its progress kept. For threads.

A `for` loop over it, or `run` with a function. `stop` ends either, from another thread or a signal handler, after the
item in hand; so does SIGTERM while `run` runs in the main thread. Its cursors are committed as `consumption` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Self, TypeVar

from topics.client.errors import Closed
from topics.client.operations.call import log
from topics.client.operations.consumption import Consumption, Lag
from topics.client.operations.operation import run
from topics.client.signals import stops_thread
from topics.client.transport import blocking
from topics.errors import TopicsError

Item = TypeVar("Item")
"""What is delivered: records, or also tombstones."""


class Consumer(Generic[Item]):
    """A reader that remembers. It belongs to one thread; `stop` may be called from any."""

    def __init__(self, consumption: Consumption[Any], pool: blocking.Pool) -> None:
        self._consumption = consumption
        self._pool = pool
        self._courier = blocking.Courier(pool)

    @property
    def name(self) -> str:
        """The name under which it keeps its cursors."""
        return self._consumption.name

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while True:
            if self._courier.interrupted:
                self._consumption.handled()
                self._courier.close_stream()
                self.commit()
                raise StopIteration
            item: Any = self._consumption.pop()
            if item is not None:
                return item  # type: ignore[no-any-return]
            try:
                run(self._consumption.fetch(), self._courier)
            except Closed:
                if not self._courier.interrupted:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, handler: Callable[[Item], Any]) -> None:
        """Call a function with each item, until `stop` or SIGTERM; what it raises ends the run, after a commit."""
        with stops_thread(self.stop, self._consumption.signals):
            try:
                for item in self:
                    handler(item)
            except BaseException:
                # An item whose handler failed is delivered again, and what it raised matters more than a commit.
                self._consumption.put_back()
                try:
                    self.commit()
                except TopicsError as error:
                    log.error("the consumer %s could not commit at its end: %s", self.name, error.message)
                raise

    def commit(self) -> None:
        """Keep where it has got to, now."""
        run(self._consumption.commit(), blocking.SharedCourier(self._pool))

    def lag(self) -> dict[str, Lag]:
        """How far it is behind in each topic, in records and in seconds."""
        return self._consumption.lag()

    def stop(self) -> None:
        """End the iteration after the item in hand, and commit."""
        self._courier.interrupt()

    def close(self) -> None:
        """End it, and commit what was handled: every item but the last one, unless the iteration has ended."""
        self._consumption.put_back()
        self.commit()
        self._courier.interrupt()
        self._courier.close_stream()
