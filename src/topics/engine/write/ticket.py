"""Ticket: one write on its way from its seqs to its ack.

The seqs are assigned when the ticket is made, in the same step that puts the frame into the WAL's queue, so seq order
and WAL order cannot disagree. The records become visible when the WAL says so: `commit` for a write whose class is
satisfied, `fail` where the disk was not. Whoever waits is called once, with the ticket, after either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from topics.errors import TopicsError

if TYPE_CHECKING:
    from topics.engine.topic import Topic
    from topics.engine.write.dedupe import Remembered
    from topics.storage.block import Block

OnDone = Callable[["Ticket"], None]
OnReceipt = Callable[["Receipt"], None]


class Ticket:
    """What a write answers with, complete once `done`."""

    __slots__ = (
        "apart",
        "before",
        "block",
        "context",
        "count",
        "created",
        "deduped",
        "done",
        "error",
        "first_seq",
        "followers",
        "gated",
        "head_seq",
        "on_done",
        "remembered",
        "sync_ns",
        "tags",
        "topic",
        "write_ns",
    )

    def __init__(self, topic: Topic, on_done: OnDone | None, context: Any) -> None:
        self.topic = topic
        self.on_done = on_done
        self.context = context
        self.block: Block | None = None
        self.tags: list[bytes | None] | None = None
        self.first_seq = 0
        self.count = 0
        self.head_seq = 0
        self.created = False
        self.deduped = False
        self.done = False
        self.gated = False
        self.error: TopicsError | None = None
        self.write_ns = 0
        self.sync_ns = 0
        self.remembered: Remembered | None = None
        self.followers: list[Ticket] | None = None
        # Whether it waits for something else than its turn in the topic's own shard, as does everything behind it:
        # then the order of the shard is not enough, and each names the one before it.
        self.apart = False
        self.before: Ticket | None = None

    @property
    def last_seq(self) -> int:
        """The seq of the write's last record."""
        return self.first_seq + self.count - 1

    def follow(self, other: Ticket) -> None:
        """Finish when `other` does, and not before."""
        if other.followers is None:
            other.followers = []
        other.followers.append(self)

    def after(self, receipt: Receipt) -> None:
        """Finish as a receipt did."""
        if receipt.error is not None:
            self.fail(receipt.error)
        else:
            self.commit(receipt.write_ns, receipt.sync_ns)

    def commit(self, write_ns: int, sync_ns: int) -> None:
        """The WAL holds the write as its class asks: publish it behind the one before it, and answer."""
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
        """The WAL could not take the write: nothing of it becomes visible."""
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
            _release(self)


class Receipt:
    """The ack of a change that appends nothing: it has taken effect in memory, and its frame is on its way."""

    __slots__ = ("context", "done", "error", "followers", "on_done", "result", "sync_ns", "write_ns")

    def __init__(self, result: Any, on_done: Callable[[Receipt], None] | None, context: Any) -> None:
        self.result = result
        self.on_done = on_done
        self.context = context
        self.done = False
        self.error: TopicsError | None = None
        self.write_ns = 0
        self.sync_ns = 0
        self.followers: list[Receipt] | None = None

    def follow(self, other: Receipt | None) -> None:
        """Finish when `other` does, at once where it has: what it found already done is no safer than `other` is."""
        if other is not None and not other.done:
            other.followers = [*(other.followers or ()), self]
        elif other is not None and other.error is not None:
            self.fail(other.error)
        else:
            self.commit(0, 0)

    def follow_all(self, others: Sequence[Receipt]) -> None:
        """Finish when all of these have; where one has failed, fail as it did."""
        for other in others:
            if not other.done:
                Receipt(None, lambda _: self.follow_all(others), None).follow(other)
                return
        error = next((other.error for other in others if other.error is not None), None)
        if error is None:
            self.commit(0, 0)
        else:
            self.fail(error)

    def waited(self, run_until_idle: Callable[[], None]) -> Receipt:
        """This receipt; where nothing is called when it is done, it is done now, and its error is raised."""
        if self.on_done is None:
            run_until_idle()
            if self.error is not None:
                raise self.error
        return self

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
            _release(self)


def _release(done: Ticket | Receipt) -> None:
    """Let everyone who follows finish in the same way."""
    followers, done.followers = done.followers or [], None
    for follower in followers:
        if done.error is not None:
            follower.fail(done.error)
        else:
            follower.commit(done.write_ns, done.sync_ns)
