"""What a change waits for: a Promise that the WAL commits or fails, once, and everything that follows it.

A `Ticket` is one write on its way from its seqs to its ack. The seqs are assigned when the ticket is made, in the same
step that puts the frame into the WAL's queue, so seq order and WAL order cannot disagree. The records become visible
when the WAL calls `commit`, because the write is as safe as its topic's class asks; after `fail` none of them does.

A `Receipt` is the ack of a change that appends nothing: it has taken effect in memory, and its frame is on its way.

Either way `on_done` is called once, with the promise, and then whatever follows it finishes in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from topics.engine.config import TopicConfig
from topics.engine.log.log import Log
from topics.engine.write.dedupe import Remembered
from topics.errors import TopicsError
from topics.storage.block import Block

OnDone = Callable[["Ticket"], None]
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
        # Not by way of the base, here and in Ticket: every command makes one.
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


class Target(Protocol):
    """The topic that a write is for, as far as its ticket and its answer need it."""

    id: int
    config: TopicConfig
    log: Log

    def publish(self, ticket: Ticket) -> None:
        """Make a committed write visible."""

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a write that failed."""


class Ticket(Promise):
    """What a write answers with, complete once `done`."""

    __slots__ = (
        "apart",
        "before",
        "block",
        "count",
        "created",
        "deduped",
        "first_seq",
        "gated",
        "head_seq",
        "key_reused",
        "remembered",
        "tags",
        "topic",
    )

    def __init__(self, topic: Target, on_done: OnDone | None, context: Any) -> None:
        self.on_done = on_done
        self.context = context
        self.done = False
        self.error = None
        self.write_ns = 0
        self.sync_ns = 0
        self.followers = None
        self.topic = topic
        self.block: Block | None = None
        self.tags: list[bytes | None] | None = None
        self.first_seq = 0
        self.count = 0
        self.head_seq = 0
        self.created = False
        self.deduped = False
        self.key_reused = False
        self.gated = False
        self.remembered: Remembered | None = None
        # Whether it waits for something other than its turn in the topic's own shard, as does everything after it:
        # then the order of the shard is not enough, and each names the one before it.
        self.apart = False
        self.before: Ticket | None = None

    @property
    def last_seq(self) -> int:
        """The seq of the write's last record."""
        return self.first_seq + self.count - 1

    def commit(self, write_ns: int, sync_ns: int) -> None:
        """The WAL holds the write as its class asks: publish it after the one before it, and answer."""
        if self.before is not None:
            before, self.before = self.before, None
            if not before.done:
                self.follow(before)
                return
        self.write_ns = write_ns
        self.sync_ns = sync_ns
        self.topic.publish(self)
        self._finish()

    def fail(self, error: TopicsError) -> None:
        """The WAL could not take the write: none of it becomes visible."""
        self.error = error
        self.topic.withdraw(self)
        self._finish()

    def _finish(self) -> None:
        self.done = True
        self.head_seq = self.topic.log.head
        if self.remembered is not None:
            self.remembered.ticket = None
        if self.on_done is not None:
            self.on_done(self)
        if self.followers is not None:
            self._release(self.followers)
