"""Checkpoint: the whole engine as sections of a snapshot, taken topic by topic while the engine goes on.

A topic is captured in one step, so its own state is consistent; different topics are captured at different moments.
The WAL up to `lsn` (taken at the start, when every write up to it has been committed) is not needed any more once the
snapshot is durable. Where a section already includes the effect of later frames, replaying them changes nothing: an
append of seqs that are there is skipped, a delete is idempotent, and a config carries its lsn.

A write that still waits for its sync is not part of the capture, and neither is its idempotency key: after a crash that
lost it, its retry must be appended.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from topics.engine.engine import Engine
from topics.engine.queue.queue import queue_of
from topics.engine.restart.routers import capture as capture_routers
from topics.engine.router.forward import into
from topics.engine.topic import Topic
from topics.engine.write.dedupe import Dedupe, Remembered
from topics.storage.block import Block
from topics.storage.snapshot import snapshot
from topics.storage.store import Store


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


_encode_extra = msgspec.msgpack.Encoder().encode
decode_extra = msgspec.msgpack.Decoder(TopicExtra).decode


def capture(topic: Topic, lsn: int, taken_lsn: int) -> list[bytes]:
    """The sections of one topic: its state, then the Blocks of its tail. Of an ephemeral topic, only its state."""
    log, queue, forward = topic.log, queue_of(topic), into(topic)
    ephemeral = topic.config.durability == "ephemeral"
    tail = [] if ephemeral else [entry for entry in log.retained() if isinstance(entry, Block)]
    producers, keys = _remembered(topic.dedupe)
    state = snapshot.TopicImage(
        id=topic.id,
        name=topic.name,
        config=msgspec.json.encode(topic.config),
        lsn=lsn,
        created_ts=topic.created_ts,
        head_seq=log.head,
        evict_floor=log.evict_floor,
        earliest_seq=log.start,
        last_ts=topic.last_ts,
        # The frame that raises the ceiling may be among those that the snapshot replaces.
        ceiling=max(topic.ceiling.seq, topic.ceiling.asked),
        lost=[(first, last, reason) for first, last, reason in log.lost],
        producers=producers,
        dedupe=[(key, write.first_seq, write.count, write.ts) for key, write in keys],
        digests=[write.digest for _, write in keys],
        segments=[] if ephemeral else [segment.ref for segment in topic.archive.segments],
        extra=_encode_extra(
            TopicExtra(
                log.cap_evicted,
                log.ttl_expired,
                log.evicted_ts,
                topic.config_lsn,
                topic.last_write_ts,
                log.count,
                taken_lsn,
                b"" if queue is None else queue.capture(),
                b"" if forward is None else forward.capture(),
                tail[0].first_seq if tail else 0,
            )
        ),
    )
    sections = [snapshot.topic_section(state)]
    sections += [snapshot.block_section(lsn, topic.id, block.first_seq, block.n, block.encoded()) for block in tail]
    return sections


def _remembered(dedupe: Dedupe | None) -> tuple[dict[str, int], list[tuple[str, Remembered]]]:
    if dedupe is None:
        return {}, []
    # Where a producer's last write is not committed yet, everything below it is.
    producers = {
        producer: seq if write.ticket is None else seq - 1
        for producer, (seq, write) in dedupe.producers.items()
        if write.ticket is None or seq > 0
    }
    return producers, [(key, write) for key, write in dedupe.keys.items() if write.ticket is None]


class Capture:
    """The sections of a snapshot in the making. `step` is called until it returns True."""

    def __init__(self, engine: Engine, store: Store, lsn: int) -> None:
        self._engine = engine
        self._store = store
        self.lsn = lsn
        self.sections: list[bytes] = []
        self.essential: list[int] = []
        self._begin()

    def _begin(self) -> None:
        """Sources before their destinations: then a destination lacks nothing that its source no longer has."""
        routers = self._engine.routers
        self.sections = []
        self.essential = []
        self._links_version = routers.lineage.version
        self._rest: Iterator[Topic] = iter(routers.lineage.in_order(self._engine.topics.values()))

    def step(self, topics: int) -> bool:
        """Capture up to `topics` topics; returns whether that was all."""
        for _ in range(topics):
            topic = next(self._rest, None)
            if topic is None:
                if self._links_version != self._engine.routers.lineage.version:
                    self._begin()
                    return False
                self._capture_engine()
                return True
            if topic.deleted:
                continue
            taken_lsn = self._store.last_lsn
            self.essential.append(len(self.sections))
            self.sections += capture(topic, self.lsn if topic.pending_records else taken_lsn, taken_lsn)
        return False

    def _capture_engine(self) -> None:
        for section in capture_routers(self._engine.routers.graph, self.lsn):
            self.essential.append(len(self.sections))
            self.sections.append(section)
