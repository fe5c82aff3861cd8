"""What a change waits for: a Promise that the WAL commits or fails, once, and everything that follows it.

A `Receipt` is the ack of a change that appends nothing: it has taken effect in memory, and its frame is on its way.
That of a write is a `Ticket` (journal.py).

Either way `on_done` is called once, with the promise, and then whatever follows it finishes in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topics.errors import TopicsError

OnReceipt = Callable[["Receipt"], None]


class Promise:
    """Something that will be done or will have failed; `write_ns` and `sync_ns` are how long the WAL took for it."""

    __slots__ = ("context", "done", "error", "followers", "on_done", "sync_ns", "write_ns")

    def __init__(self, on_done: Callable[[Any], None] | None = None, context: Any = None) -> None:
        self.on_done = on_done
        self.context = context
        self.done = False
        self.error: TopicsError | None = None
        self.write_ns = 0
        self.sync_ns = 0
        self.followers: list[Promise] | None = None

    def follow(self, other: Promise | None) -> None:
        """Finish as `other` does and not before; at once where it is done, or where there is none to wait for."""
        if other is None:
            self.commit(0, 0)
        elif not other.done:
            if other.followers is None:
                other.followers = [self]
            else:
                other.followers.append(self)
        elif other.error is not None:
            self.fail(other.error)
        else:
            self.commit(0, 0)

    def follow_all(self, others: Sequence[Promise]) -> None:
        """Finish when all of these have; where one has failed, fail as it did."""
        for other in others:
            if not other.done:
                Promise(lambda _: self.follow_all(others)).follow(other)
                return
        self.follow(next((other for other in others if other.error is not None), None))

    def commit(self, write_ns: int, sync_ns: int) -> None:
        """The WAL holds the change as its class asks."""
        self.write_ns = write_ns
        self.sync_ns = sync_ns
        self._finish()

    def fail(self, error: TopicsError) -> None:
        """The WAL could not take the change."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self.on_done is not None:
            self.on_done(self)
        if self.followers is not None:
            self._release(self.followers)

    def _release(self, followers: list[Promise]) -> None:
        self.followers = None
        for follower in followers:
            if self.error is not None:
                follower.fail(self.error)
            else:
                follower.commit(self.write_ns, self.sync_ns)


class Receipt(Promise):
    """The ack of a change that appends nothing; `result` is what its command answers with."""

    __slots__ = ("result",)

    def __init__(self, result: Any = None, on_done: OnReceipt | None = None, context: Any = None) -> None:
        # Not by way of the base, as in a Ticket too: every command makes one.
        self.on_done = on_done
        self.context = context
        self.done = False
        self.error = None
        self.write_ns = 0
        self.sync_ns = 0
        self.followers = None
        self.result = result

    def waited(self, run_until_idle: Callable[[], None]) -> Receipt:
        """This receipt; where nothing is called when it is done, it is done now, and its error is raised."""
        if self.on_done is None:
            run_until_idle()
            if self.error is not None:
                raise self.error
        return self
