"""Topic: one named log with its config, and what its writes and readers need to know about it.

`next_seq` is the next seq to hand out, `log.head` the last one that is visible. `next_seq` is above `log.head + 1` only
while writes wait for their class. Such writes are pending: they count towards the caps of a topic that rejects and
towards the quota over all topics, so whatever is acked later had room when it was taken.

A topic's `id` is never used again, so a topic that was deleted and created anew has another one: it is the epoch of
WATCH-18.

A topic knows no queue and no router. What it asks of them, where it has any, is in the protocols below.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, TypeVarTuple

from topics.engine.config import TopicConfig
from topics.engine.journal import Ticket
from topics.engine.log.archive import Archive, Shelf
from topics.engine.log.erasure import Erasure, gone
from topics.engine.log.log import ANYWHERE, Log
from topics.engine.log.loss import CORRUPTION
from topics.engine.priority import effective_priority
from topics.engine.promise import Receipt
from topics.engine.slices import Work
from topics.engine.write.ceiling import Ceiling
from topics.engine.write.dedupe import Dedupe
from topics.engine.write.unkept import Unkept
from topics.errors import StorageUnreadable, TopicsError
from topics.storage.block import Block
from topics.storage.damage import Corrupt
from topics.storage.job import Miss
from topics.storage.memory import MemoryShard
from topics.storage.segment.segment import SealedBlock
from topics.storage.wal.shard import Shard

logger = logging.getLogger("topics.topic")

T = TypeVar("T")
Args = TypeVarTuple("Args")
Listener = Callable[["Topic"], None]


class Jobs(Protocol):
    """What a queue topic and its writes ask of the leases on its records."""

    leaving: int
    """How many jobs are acked and still in the log."""

    def delay(self, seqs: Sequence[int], due_ms: int, since_ms: int | None) -> None:
        """Hide jobs that were just written: from `since_ms` until `due_ms`, or until the date `due_ms` (None)."""

    def forget(self, seqs: Iterable[int]) -> None:
        """These jobs have left the log."""

    def forgetting(self, runs: Iterable[range]) -> Work:
        """As `forget`, in slices."""

    def clear(self) -> Work:
        """Give everything back, in slices: the topic is gone."""


class Inbound(Protocol):
    """What a topic and its writes ask of the router that copies into it."""

    source: Topic
    """The topic that is copied from."""

    @property
    def cursor(self) -> int:
        """The source seq up to which records were copied."""

    def catch_up(self) -> None:
        """Copy what the source has."""

    def mark(self, leaves: str = "ephemeral") -> None:
        """Log where the copies are, for a frame after it that cannot say so itself."""

    def end_run(self) -> tuple[int, int]:
        """Where the last uninterrupted copies began, as (seq, source seq before the first); a frame ends them here."""

    def note_stamps(self, block: Block) -> None:
        """A direct write came between the copies."""


class Outbound(Protocol):
    """What a topic and its writes ask of the routers that copy out of it."""

    @property
    def forwards(self) -> Sequence[Inbound]:
        """The ways out of the topic, one per destination."""

    def published(self, topic: Topic) -> None:
        """The topic has something new."""

    @property
    def behind(self) -> int:
        """About how many copies are still to be made."""

    @property
    def rests(self) -> bool:
        """Whether writes wait because copies have just held up everybody else."""

    def before_eviction(self) -> None:
        """A cap is about to take the oldest records."""

    def catch_up(self) -> None:
        """Copy everything: something is about to leave the topic."""

    def catching_up(self, upto: int) -> Work:
        """As `catch_up`, in slices: copy everything up to the seq `upto`."""

    def lagging(self) -> list[tuple[int, int]]:
        """(destination id, cursor) of each destination that does not have everything."""

    def mark(self) -> None:
        """Log where the copies in each destination are."""


class Topic:
    """One topic instance, from create to delete."""

    __slots__ = (
        "archive",
        "ceiling",
        "config",
        "config_lsn",
        "created_ts",
        "dedupe",
        "deleted",
        "erasure",
        "id",
        "inbound",
        "last_change",
        "last_config",
        "last_read_ts",
        "last_ticket",
        "last_ts",
        "last_write_ts",
        "letters",
        "listeners",
        "log",
        "name",
        "next_seq",
        "outbound",
        "pending_bytes",
        "pending_records",
        "queue",
        "shard",
        "unkept",
    )

    def __init__(
        self,
        name: str,
        id: int,
        config: TopicConfig,
        created_ts: int,
        log: Log,
        queue: Jobs | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self.name = name
        self.id = id
        self.config = config
        self.config_lsn = 0
        self.created_ts = created_ts
        self.deleted = False
        self.log = log
        # Before it was created, nothing was deleted from it.
        self.erasure = Erasure(created_ts)
        self.archive = Archive(log, shelf)
        self.next_seq = 1
        self.last_ts = 0
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        self.pending_records = 0
        self.pending_bytes = 0
        self.dedupe: Dedupe | None = None
        self.ceiling = Ceiling()
        self.unkept = Unkept()
        # Where its frames go, once there was one.
        self.shard: Shard | MemoryShard | None = None
        # The last write that is not visible yet.
        self.last_ticket: Ticket | None = None
        # The last config, and the last change of any kind but a write: they may be on their way to the disk.
        self.last_config: Receipt | None = None
        self.last_change: Receipt | None = None
        # In the order in which they came. A dict, because thousands may wait for one topic and leave at once.
        self.listeners: dict[Listener, None] = {}
        self.queue = queue
        # What is forwarded into this topic, and out of it; and whether dead letters were put into it.
        self.inbound: Inbound | None = None
        self.outbound: Outbound | None = None
        self.letters = False
        self.count_tail()

    # Writes

    def assign(self, block: Block) -> None:
        """Give a Block the seqs that it has been made with, which are the next ones; its records are pending."""
        self.last_ts = block.last_ts
        self.next_seq = block.first_seq + block.n
        size = block.live_bytes
        self.pending_records += block.n
        self.pending_bytes += size
        self.log.totals.pending_bytes += size

    def publish(self, ticket: Ticket) -> None:
        """Make a committed write visible, then hold the caps."""
        block = ticket.block
        if block is None:
            return
        log = self.log
        log.publish(block)
        self._end_pending(block)
        self.last_write_ts = block.last_ts
        if self.last_ticket is ticket:
            self.last_ticket = None
        archive = self.archive
        if ticket.tags is not None:
            archive.index(block.first_seq, ticket.tags)
        if self.config.cap_records or self.config.cap_bytes:
            self.hold_caps(at_ms=block.last_ts)
        shelf = archive.shelf
        if shelf is not None and (log.tail_records >= shelf.max_events or log.tail_bytes >= shelf.max_bytes):
            shelf.ask(self)
        if self.listeners:
            self.notify()
        if self.deleted:
            # It was on its way when the topic was deleted: it is acked, and gone.
            log.clear()

    def notify(self) -> None:
        """Call the listeners: the topic has changed."""
        for listener in tuple(self.listeners):
            listener(self)

    def withdraw(self, ticket: Ticket) -> None:
        """Forget a write that the WAL refused; its seqs were never shown."""
        if ticket.block is not None:
            self._end_pending(ticket.block)
        if self.last_ticket is ticket:
            self.last_ticket = None
        if ticket.remembered is not None and self.dedupe is not None:
            self.dedupe.forget(ticket.remembered)

    def _end_pending(self, block: Block) -> None:
        size = block.live_bytes
        self.pending_records -= block.n
        self.pending_bytes -= size
        self.log.totals.pending_bytes -= size

    # Retention

    def hold_caps(
        self, besides: int = 0, besides_bytes: int = 0, at_ms: int | None = None, upto: int = ANYWHERE
    ) -> None:
        """Evict what is beyond the caps; where a sealed Block has to be read for that first, with the next write.

        The newest `besides` records, of `besides_bytes`, which lie after `upto`, do not count. `at_ms` is when the
        write was that has made it too much, where it was one: what had expired by then was not evicted.
        """
        config = self.config
        if not (config.cap_records or config.cap_bytes):
            return
        try:
            self.reading(self._evict, besides, besides_bytes, self.last_ts if at_ms is None else at_ms, upto)
        except Miss as miss:
            self.read_then(miss, lambda: None)
        except TopicsError:
            logger.warning("topic %s: evicting waits for a cold store that cannot be read", self.name)
        self.archive.trim()

    def _evict(self, besides: int, besides_bytes: int, at_ms: int, upto: int) -> None:
        config = self.config
        if self.outbound is not None:
            self.outbound.before_eviction()
        # What has expired is gone already and takes no place under the cap.
        if config.ttl_ms:
            self._expire(at_ms - config.ttl_ms, upto)
        self.log.evict(
            config.cap_records + besides if config.cap_records else 0,
            config.cap_bytes + besides_bytes if config.cap_bytes else 0,
        )

    def expire(self, now_ms: int, upto: int = ANYWHERE) -> None:
        """Apply the TTL as of `now_ms` to the records up to the seq `upto`.

        Where a Block that cannot be read now has expired in part, only who reads that Block learns of it (STORE-4).
        Nothing that has expired is delivered: it is in that Block alone, since what comes after it is newer.
        """
        try:
            self.expire_or_fail(now_ms, upto)
        except StorageUnreadable as error:
            # A failure is raised once. This one is for the read that comes to the Block, in the same command perhaps.
            first = next(self.log.retained())
            assert isinstance(first, SealedBlock)
            first.keep_failure(error)

    def expire_or_fail(self, now_ms: int, upto: int = ANYWHERE) -> None:
        """As `expire`, for upkeep: it raises where a Block cannot be read, and tries to read it again."""
        ttl_ms = self.config.ttl_ms
        if ttl_ms and self.log.count:
            self.reading(self._expire, now_ms - ttl_ms, upto)
            self.archive.trim()

    def _expire(self, cutoff: int, upto: int) -> None:
        log, shelf = self.log, self.archive.shelf
        before = log.ttl_expired
        try:
            log.expire(cutoff, upto)
        finally:
            # Also where it came to a Block that has to be read first.
            if shelf is not None and log.ttl_expired > before:
                shelf.expired[self] = None

    def expire_if_at_hand(self, now_ms: int) -> None:
        """Apply the TTL, unless a part of a Block has expired that would have to be read first: upkeep has it read.

        For streams and figures, which wait for no disk. Nothing that has expired is delivered: to deliver a record of
        that Block it has to be read, and once it is at hand this comes first.
        """
        with contextlib.suppress(Miss):
            self.expire(now_ms)

    def reconfigure(self, config: TopicConfig, now_ms: int) -> None:
        """Apply the old TTL up to now, then the new rules: what is gone stays gone, a tightened rule shows at once."""
        self.expire(now_ms)
        self.config = config
        self.count_tail()
        self.expire(now_ms)
        self.hold_caps()

    def configure(self, config: TopicConfig, now_ms: int) -> None:
        """As `reconfigure`, for a change that is logged already; what has to be read first goes with the next look."""
        try:
            self.reconfigure(config, now_ms)
        except Miss as miss:
            self.read_then(miss, self.hold_caps)

    def erased_before(self, now_ms: int) -> int:
        """Text of what was deleted, evicted or had expired before this time is not on the disk (SPACE-5)."""
        return now_ms if self.archive.shelf is None else self.erasure.before(gone(self.log), now_ms)

    def count_tail(self) -> None:
        """Count the tail among those that will be sealed, or that stay in memory, as the class says."""
        totals = self.log.totals
        sealable = self.archive.shelf is not None and self.config.durability != "ephemeral"
        self.log.hold_in(totals.unsealed if sealable else totals.resident)

    def ask_seal(self) -> None:
        """Have the tail sealed if it is large enough."""
        shelf, log = self.archive.shelf, self.log
        if shelf is None or self.deleted:
            return
        if log.tail_records >= shelf.max_events or log.tail_bytes >= shelf.max_bytes:
            shelf.ask(self)

    # Reading

    def reading(self, read: Callable[[*Args], T], *args: *Args) -> T:
        """What `read` gives; damage that it meets becomes a lost range, and it is called again."""
        while True:
            try:
                return read(*args)
            except Corrupt as corrupt:
                self.lose(corrupt)

    def cursor_at_ts(self, ts: int) -> int:
        """The cursor before the first record with a `$ts` of at least `ts` (READ-14). Raises Miss as a read does."""
        return self.reading(self.log.cursor_at_ts, ts)

    def read_then(self, miss: Miss, then: Callable[[], None]) -> None:
        """Have the Block that is missing read by a job, then call `then`, whether or not the job succeeded."""
        assert self.archive.shelf is not None
        self.archive.shelf.read_then(miss, then)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have the sealed Blocks that hold these seqs in memory. Raises Miss where one has to be read first."""
        self.reading(self.log.fetch, ranges)

    def lose(self, corrupt: Corrupt) -> None:
        """A sealed Block turned out to be damaged: its records become a lost range."""
        self.log.totals.corruption_total += 1
        lost = self.log.drop_extent(corrupt.lost.first_seq, CORRUPTION) if corrupt.lost.n else None
        logger.error(
            "%s: corruption at offset %d, %d bytes, kept in %s; topic %s loses %s",
            corrupt.path, corrupt.offset, corrupt.length, corrupt.quarantined or "-", self.name,
            f"seqs {lost[0]} to {lost[1]}" if lost else "nothing",
        )  # fmt: skip
        if lost is not None and self.queue is not None:
            self.queue.forget(range(lost[0], lost[1] + 1))

    def catch_up(self) -> None:
        """Forward what the source has for this topic, so that a client that wrote there reads the copies here."""
        if self.inbound is not None:
            self.inbound.catch_up()

    def touch(self, now_ms: int) -> None:
        """Count as consumed now: the recency term of the priority depends on it."""
        self.last_read_ts = now_ms

    def effective_priority(self, now_ms: int, waited_ms: int = 0) -> int:
        """The priority that the scheduler uses now."""
        return effective_priority(self.config.priority, self.config.auto_priority, self.last_read_ts, now_ms, waited_ms)
