"""Checkpoint: the whole engine as sections of a snapshot, taken topic by topic while the engine goes on.

The state of a topic is captured in one step, so it is consistent; different topics are captured at different moments.
The Blocks of its tail follow one by one: their content never changes, and their delete flags are taken with the state.
The leases of a queue follow in pieces, each as it is by then (queue/image.py).
What is captured goes to the disk as it comes (SnapshotWriter), and a step takes about a millisecond, so neither the
memory nor the time of a checkpoint depends on how much there is.

The WAL up to `lsn` (taken at the start, when every write up to it has been committed) is not needed any more once the
snapshot is durable. Where a section already includes the effect of later frames, replaying them changes nothing: an
append of seqs that are there is skipped, a delete is idempotent, and a config carries its lsn.

A write that still waits for its sync is not part of the capture, and neither is its idempotency key: after a crash that
lost it, its retry must be appended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from topics.engine.engine import Engine
from topics.engine.queue.queue import queue_of
from topics.engine.restart.routers import capture as capture_routers
from topics.engine.router.forward import into
from topics.engine.topic import Topic
from topics.engine.write.dedupe import Dedupe
from topics.storage.block import Block
from topics.storage.checkpoint import Draft
from topics.storage.segment.format import SegmentName
from topics.storage.segment.segment import Segment
from topics.storage.snapshot import snapshot
from topics.storage.store import Store
from topics.storage.wal.frame import LARGE_BYTES

SLICE_NS: Final = 1_000_000
SLICE_TOPICS: Final = 100
LEASES_SECTION: Final = snapshot.FIRST_ENGINE_KIND + 1


class TopicExtra(msgspec.Struct, array_like=True):
    """What the engine keeps of a topic besides the fields that every snapshot has."""

    cap_evicted: int = 0
    ttl_expired: int = 0
    evicted_ts: int = 0
    config_lsn: int = 0
    last_write_ts: int | None = None
    count: int = 0
    # Up to here everything that takes effect when it is logged is included: leases, routers, dead letters.
    taken_lsn: int = 0
    queue: bytes = b""
    forward: bytes = b""
    # Where the Blocks after the state begin, 0 where there are none.
    tail_first: int = 0
    # When `erased_gone` records had left, at `erased_ts`, no text of them was on the disk.
    erased_gone: int = 0
    erased_ts: int = 0


_encode_extra = msgspec.msgpack.Encoder().encode
decode_extra = msgspec.msgpack.Decoder(TopicExtra).decode


# A Block of a tail, and its delete flags as they were when its topic was captured.
_Flagged = tuple[Block, bytes]


def capture(topic: Topic, lsn: int, taken_lsn: int) -> tuple[bytes, list[_Flagged]]:
    """The section of one topic's state, and the Blocks of its tail: none of an ephemeral topic."""
    log, queue, forward = topic.log, queue_of(topic), into(topic)
    ephemeral = topic.config.durability == "ephemeral"
    tail = [] if ephemeral else [(block, b"" if block.flags is None else bytes(block.flags)) for block in log.tail()]
    extra = TopicExtra(
        log.cap_evicted,
        log.ttl_expired,
        log.evicted_ts,
        topic.config_lsn,
        topic.last_write_ts,
        log.count,
        taken_lsn,
        b"" if queue is None else queue.capture(),
        b"" if forward is None else forward.capture(),
        tail[0][0].first_seq if tail else 0,
        topic.erasure.gone,
        topic.erasure.ts,
    )
    # What most topics do not have is not named: this is done for every topic, and each name takes its time.
    state = snapshot.TopicImage(
        topic.id,
        topic.name,
        msgspec.json.encode(topic.config),
        lsn,
        topic.created_ts,
        log.head,
        log.evict_floor,
        log.start,
        topic.last_ts,
        # The frame that raises the ceiling may be among those that the snapshot replaces.
        max(topic.ceiling.seq, topic.ceiling.asked),
        extra=_encode_extra(extra),
    )
    if log.lost:
        state.lost = [(first, last, reason) for first, last, reason in log.lost]
    if topic.dedupe is not None:
        _remember(state, topic.dedupe)
    if not ephemeral and topic.archive.segments:
        state.segments = [segment.ref for segment in topic.archive.segments]
    return snapshot.topic_section(state), tail


def _remember(state: snapshot.TopicImage, dedupe: Dedupe) -> None:
    # Where a producer's last write is not committed yet, everything below it is.
    state.producers = {
        producer: seq if write.ticket is None else seq - 1
        for producer, (seq, write) in dedupe.producers.items()
        if write.ticket is None or seq > 0
    }
    keys = [(key, write) for key, write in dedupe.keys.items() if write.ticket is None]
    state.dedupe = [(key, write.first_seq, write.count, write.ts) for key, write in keys]
    state.digests = [write.digest for _, write in keys]


class Capture:
    """A snapshot in the making. `step` is called until it returns True."""

    def __init__(
        self, engine: Engine, store: Store, lsn: int, draft: Draft, listed: dict[SegmentName, Segment] | None = None
    ) -> None:
        """`listed` gets every segment that the snapshot lists, for a backup."""
        self.lsn = lsn
        self.listed = listed
        self.draft = draft
        self._engine = engine
        self._store = store
        self._links_version = engine.routers.lineage.version
        self._rest: Iterator[Topic] = self._topics()
        self._routers = capture_routers(engine.routers.graph, lsn)
        # Of the topic that was captured last, what does not follow yet.
        self._tail: deque[_Flagged] = deque()
        self._tail_of = (0, 0)
        self._leases: Iterator[tuple[int, bytes]] | None = None
        # Every section is there, and their second copies are being made.
        self._all_there = False
        self.is_complete = False

    @property
    def is_outdated(self) -> bool:
        """Whether the order of topics has changed before all were captured, so that it has to begin again."""
        return not self._all_there and self._links_version != self._engine.routers.lineage.version

    def step(self) -> bool:
        """Capture for about a millisecond; returns whether that was all. Not to be called once it is outdated."""
        assert not self.is_outdated
        elapsed_ns, writer = self._engine.clock.elapsed_ns, self.draft.snapshot
        until_ns = elapsed_ns() + SLICE_NS
        topics = 0
        while topics < SLICE_TOPICS and not writer.is_full:
            if self._tail:
                self._add_block(*self._tail.popleft())
            elif self._leases is not None:
                self._next_leases(self._leases)
            elif not self._all_there:
                topics += 1
                self._all_there = not self._next_topic()
            elif not writer.copy_some():
                self.is_complete = True
                return True
            if elapsed_ns() >= until_ns:
                break
        return False

    def _topics(self) -> Iterator[Topic]:
        """Sources before their destinations: then a destination lacks nothing that its source no longer has."""
        yield from self._engine.routers.lineage.in_order(list(self._engine.topics.values()))

    def _next_topic(self) -> bool:
        topic = next((topic for topic in self._rest if not topic.deleted), None)
        if topic is None:
            return self._next_routers()
        taken_lsn = self._store.last_lsn
        lsn = self.lsn if topic.pending_records else taken_lsn
        section, tail = capture(topic, lsn, taken_lsn)
        self.draft.snapshot.add(section, essential=True)
        if self.listed is not None and topic.config.durability != "ephemeral":
            self.listed.update((segment.name, segment) for segment in topic.archive.segments)
        self._tail.extend(tail)
        self._tail_of = (lsn, topic.id)
        queue = queue_of(topic)
        if queue is not None and queue.leases and topic.config.durability != "ephemeral":
            self._leases = enumerate(queue.capture_leases())
        return True

    def _next_routers(self) -> bool:
        for section in self._routers:
            if section is not None:
                self.draft.snapshot.add(section, essential=True)
            return True
        return False

    def _next_leases(self, leases: Iterator[tuple[int, bytes]]) -> None:
        ordinal, piece = next(leases, (0, None))
        if piece is None:
            self._leases = None
            return
        lsn, topic_id = self._tail_of
        section = snapshot.engine_section(LEASES_SECTION, ordinal, piece, topic_id=topic_id, lsn=lsn)
        self.draft.snapshot.add(section, essential=True)

    def _add_block(self, block: Block, flags: bytes) -> None:
        lsn, topic_id = self._tail_of
        raw, flags, writer = block.raw, flags or bytes(block.n), self.draft.snapshot
        if len(raw) > LARGE_BYTES:
            writer.add_large(snapshot.LargeBlock(lsn, topic_id, block.first_seq, block.n, raw, flags))
        else:
            writer.add(snapshot.block_section(lsn, topic_id, block.first_seq, block.n, raw + flags))
