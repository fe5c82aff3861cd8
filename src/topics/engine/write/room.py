"""Room: whether a topic has room for a write, checked before anything changes (RETAIN-5, LIMIT-5).

A topic that rejects does so before any seq is assigned, so nothing is ever acked and then dropped. The error says
whether the write can never fit or may fit later.

There is also the memory of all topics together: what is not sealed yet has a bound, and a write beyond it waits until
the sealer has made room (PRESSURE-8). A small write goes on for a while: it would wait for what others have filled.

And there are the copies that routers have not made yet. They are in no file, so a restart has to make them before it
serves; a write to a source that is too far ahead of its copies waits for them (ROUTER-34), and so does one to a source
whose cap has just demanded many at once (ROUTER-35).
"""

from __future__ import annotations

from typing import ClassVar, Final

from topics.engine.config import TopicConfig
from topics.engine.requests import Write
from topics.engine.topic import Topic
from topics.errors import RETRY_AFTER_MS, HeadMismatch, RecordTooLarge, TopicFull
from topics.storage.wal.shard import QueueFull

# A write up to this size is small, and may take the bound this part further.
SMALL_BYTES: Final = 16 << 10
SMALL_PART: Final = 8
# A restart makes about this many copies in a second.
COPIES_BEHIND_MAX: Final = 1_000_000


class TailsFull(QueueFull):
    """Records arrive faster than they can be sealed; retry shortly."""


class CopiesBehind(QueueFull):
    """Records arrive faster than the routers of this topic copy them; retry shortly. Other topics are not concerned."""

    of_topic: ClassVar[bool] = True


def check_copies(topic: Topic) -> None:
    """Raise CopiesBehind where the copies of a source are too far behind for a restart, or have just held up others."""
    assert topic.outbound is not None
    behind = topic.outbound.behind
    if behind >= COPIES_BEHIND_MAX:
        raise CopiesBehind(
            f'the routers of topic "{topic.name}" are {behind} copies behind; retry when they have caught up',
            retry_after_ms=RETRY_AFTER_MS,
            limit="copies_behind",
            max=COPIES_BEHIND_MAX,
        )
    if topic.outbound.rests:
        raise CopiesBehind(
            f'topic "{topic.name}" evicts faster than its routers copy; retry shortly, or give it a larger cap',
            retry_after_ms=RETRY_AFTER_MS,
            limit="copies_behind",
            max=COPIES_BEHIND_MAX,
        )


def check_head(name: str, head_seq: int, write: Write) -> None:
    """Raise HeadMismatch where a conditional write expects another head."""
    expected = write.expected_head_seq
    if expected is not None and expected != head_seq:
        raise HeadMismatch(
            f'the head of topic "{name}" is {head_seq}, not {expected}; nothing was appended',
            topic=name,
            head_seq=head_seq,
            expected_head_seq=expected,
        )


def check_fits(config: TopicConfig, n: int, size_bytes: int) -> None:
    """Raise RecordTooLarge where a topic that rejects could never take this much, however empty it is."""
    if config.discard != "reject":
        return
    for name, cap, size in (("cap_records", config.cap_records, n), ("cap_bytes", config.cap_bytes, size_bytes)):
        if cap and size > cap:
            raise RecordTooLarge(
                f"the write alone ({size}) exceeds the topic's {name} of {cap}; it can never be taken",
                limit=name,
                max=cap,
            )


def check_topic(topic: Topic, n: int, size_bytes: int, now: int) -> None:
    """Raise TopicFull where a topic that rejects has no room for this much, RecordTooLarge where it never has."""
    config = topic.config
    if config.discard != "reject":
        return
    check_fits(config, n, size_bytes)
    topic.expire(now)
    log = topic.log
    if (config.cap_records and log.count + topic.pending_records + n > config.cap_records) or (
        config.cap_bytes and log.bytes + topic.pending_bytes + size_bytes > config.cap_bytes
    ):
        raise TopicFull(
            f'topic "{topic.name}" is full and refuses new records until some are deleted or expire',
            topic=topic.name,
            cap_records=config.cap_records,
            cap_bytes=config.cap_bytes,
            head_seq=log.head,
            earliest_seq=log.start,
            count=log.count,
            bytes=log.bytes,
        )


def freed_bytes(topic: Topic, n: int, size_bytes: int) -> int:
    """How much the caps of a topic evict for a write: a topic that trims itself does not grow with it."""
    config, log = topic.config, topic.log
    if config.discard != "old":
        return 0
    over = log.count + topic.pending_records + n - config.cap_records if config.cap_records else 0
    over_bytes = log.bytes + topic.pending_bytes + size_bytes - config.cap_bytes if config.cap_bytes else 0
    return log.evictable_bytes(over, over_bytes)


def check_memory(topic: Topic | None, unsealed_bytes: int, max_unsealed_bytes: int, write: Write) -> None:
    """Raise TailsFull where a write has to wait for the sealer; `unsealed_bytes` have reached the bound.

    An ephemeral topic is never sealed: its caps, and the quota over all topics, bound what it holds.
    """
    if topic is not None and topic.config.durability == "ephemeral":
        return
    size = sum(len(record.data) for record in write.records)
    if size <= SMALL_BYTES and unsealed_bytes < max_unsealed_bytes + max_unsealed_bytes // SMALL_PART:
        return
    raise _tails_full(unsealed_bytes, max_unsealed_bytes)


def check_large(topic: Topic | None, unsealed_bytes: int, max_unsealed_bytes: int, size_bytes: int) -> None:
    """Raise TailsFull where a write of many MiB would fill the memory that the small writes of others need.

    It is not refused where it is most of what there is: it would never fit.
    """
    if topic is not None and topic.config.durability == "ephemeral":
        return
    if size_bytes < unsealed_bytes and unsealed_bytes + size_bytes > max_unsealed_bytes:
        raise _tails_full(unsealed_bytes, max_unsealed_bytes)


def _tails_full(unsealed_bytes: int, max_unsealed_bytes: int) -> TailsFull:
    return TailsFull(
        f"{unsealed_bytes} bytes in memory are not sealed yet; retry when there are fewer than {max_unsealed_bytes}",
        retry_after_ms=RETRY_AFTER_MS,
        limit="max_unsealed_bytes",
        max=max_unsealed_bytes,
    )
