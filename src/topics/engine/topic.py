"""Topic: one named log with its config, its recency clocks and what makes its writes safe to retry.

`next_seq` counts what was assigned, `log.head` what is visible; they differ only while writes wait for their WAL class
(`pending` of them). A topic's `id` is never used again, so a topic that was deleted and created anew has another one:
it is the epoch of DESIGN §5.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from topics.engine.config import TopicConfig
from topics.engine.dedupe import Dedupe
from topics.engine.log import Log, Totals
from topics.engine.priority import effective_priority
from topics.engine.tags import TagIndex
from topics.engine.ticket import Ticket
from topics.storage.block import HAS_TAG, Block

CEILING_STEP_MIN: Final = 16_384

Listener = Callable[["Topic"], None]


class Topic:
    """One topic instance, from create to delete."""

    __slots__ = (
        "ceiling",
        "ceiling_asked",
        "ceiling_step",
        "config",
        "config_lsn",
        "created_ts",
        "dedupe",
        "deleted",
        "id",
        "last_read_ts",
        "last_ticket",
        "last_ts",
        "last_write_ts",
        "listeners",
        "log",
        "name",
        "next_seq",
        "pending",
        "pending_bytes",
        "segments",
        "tags",
    )

    def __init__(self, name: str, id: int, config: TopicConfig, totals: Totals) -> None:
        self.name = name
        self.id = id
        self.config = config
        self.log = Log(totals)
        self.next_seq = 1
        self.pending = 0
        self.pending_bytes = 0
        self.last_ts = 0
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.tags: TagIndex | None = None
        self.dedupe: Dedupe | None = None
        self.last_ticket: Ticket | None = None
        self.listeners: list[Listener] = []
        self.deleted = False
        self.created_ts = 0
        self.config_lsn = 0
        # Up to `ceiling` a `disk` topic may hand out seqs without waiting for a sync (decision 37).
        self.ceiling = 0
        self.ceiling_asked = 0
        self.ceiling_step = CEILING_STEP_MIN
        self.segments: list[Any] = []

    def publish(self, ticket: Ticket) -> None:
        """Make a committed write visible, then hold the caps."""
        block = ticket.block
        if block is None:
            return
        log = self.log
        log.publish(block)
        self._settle(block)
        self.last_write_ts = block.last_ts
        if self.last_ticket is ticket:
            self.last_ticket = None
        if ticket.tags is not None:
            if self.tags is None:
                self.tags = TagIndex()
            self.tags.add(block.first_seq, ticket.tags)
        self._hold_caps()
        if self.listeners:
            for listener in tuple(self.listeners):
                listener(self)

    def await_commit(self, block: Block) -> None:
        """Count a write in that has its seqs and is not visible yet."""
        self.pending += block.n
        self.pending_bytes += block.live_bytes
        self.log.totals.pending_bytes += block.live_bytes

    def _settle(self, block: Block) -> None:
        self.pending -= block.n
        self.pending_bytes -= block.live_bytes
        self.log.totals.pending_bytes -= block.live_bytes

    def adopt(self, block: Block) -> None:
        """Take over records that the WAL holds: a restart, not a write."""
        self.log.publish(block)
        self.last_ts = max(self.last_ts, block.last_ts)
        self.last_write_ts = block.last_ts
        self.index_tags(block)
        self._hold_caps()

    def index_tags(self, block: Block) -> None:
        """Enter the tags of records that are not sealed."""
        if block.bits & HAS_TAG:
            if self.tags is None:
                self.tags = TagIndex()
            self.tags.add(block.first_seq, block.tags())

    def _hold_caps(self) -> None:
        config = self.config
        if config.cap_records or config.cap_bytes:
            # What has expired is gone already and takes no place under the cap.
            if config.ttl_ms:
                self.log.expire(self.last_ts - config.ttl_ms)
            self.log.evict(config.cap_records, config.cap_bytes)
            if self.tags is not None:
                self.tags.sweep(self.log.start, self.log.count)

    def reconfigure(self, config: TopicConfig, now_ms: int) -> None:
        """Apply the old TTL up to now, then the new rules: what is gone stays gone, a tightened rule shows at once."""
        self.expire(now_ms)
        self.config = config
        self.expire(now_ms)
        self._hold_caps()

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a write that the WAL refused; its seqs were never shown."""
        if ticket.block is not None:
            self._settle(ticket.block)
        if self.last_ticket is ticket:
            self.last_ticket = None
        if ticket.remembered is not None and self.dedupe is not None:
            self.dedupe.forget(ticket.remembered)

    def expire(self, now_ms: int) -> None:
        """Apply the TTL as of `now_ms`."""
        ttl_ms = self.config.ttl_ms
        if ttl_ms and self.log.count:
            self.log.expire(now_ms - ttl_ms)
            if self.tags is not None:
                self.tags.sweep(self.log.start, self.log.count)

    def touch(self, now_ms: int) -> None:
        """Count as consumed now: what the recency term of the priority looks at."""
        self.last_read_ts = now_ms

    def effective_priority(self, now_ms: int, waited_ms: int = 0) -> int:
        """The priority that the scheduler uses now."""
        return effective_priority(self.config.priority, self.config.auto_priority, self.last_read_ts, now_ms, waited_ms)
