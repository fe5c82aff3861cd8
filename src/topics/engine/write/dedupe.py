"""What makes a retried write safe: idempotency keys and producer sequences (the RETRY rules).

An idempotency key is remembered for the topic's window: a retry with the same key answers with the seqs of the first
write and appends nothing, whatever its content. A producer numbers its writes itself; the last number is kept without
a time bound, and a write at or below it is a repeat. Both are in the WAL frame of the write they belong to, so both
survive a restart.

Clients choose keys and producer ids, so what is remembered of them has bounds (`check`): in bytes over all topics, and
in producers of one topic. Over a bound, a write with something new to remember is refused before it changes anything:
forgetting something else instead would make a later retry a silent duplicate. Only a producer that has not written for
IDLE_MS makes way for a new one.
"""

from __future__ import annotations

from typing import Any, Final

from topics.engine.limits import Limits
from topics.engine.log.directory import Totals
from topics.engine.write.digest import UNKNOWN
from topics.errors import RETRY_AFTER_MS, Throttled

ENTRY_BYTES: Final = 320
"""About what one key or producer takes in memory besides its text."""
EXPIRED_MAX: Final = 1000
"""How many keys at most are forgotten at a time."""
IDLE_MS: Final = 7 * 24 * 3_600_000


class Remembered:
    """What a deduplicated write answers with. `ticket` is the first write while that still waits for its sync.

    `ts` is the time of its records, `at_ms` when they were written on the steady scale of the clock, and `digest` says
    which they were.
    """

    __slots__ = ("at_ms", "count", "digest", "first_seq", "key", "producer_id", "ticket", "ts")

    def __init__(
        self, first_seq: int, count: int, ts: int, at_ms: int, ticket: Any = None, digest: int = UNKNOWN
    ) -> None:
        self.first_seq = first_seq
        self.count = count
        self.ts = ts
        self.at_ms = at_ms
        self.ticket = ticket
        self.digest = digest
        self.key: str | None = None
        self.producer_id: str | None = None


class Dedupe:
    """The idempotency keys and producers of one topic; `totals` counts what all topics remember."""

    __slots__ = ("_totals", "keys", "producers")

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        # Both are in order of time, the longest ago first.
        self.keys: dict[str, Remembered] = {}
        self.producers: dict[str, tuple[int, Remembered]] = {}

    def find(
        self, key: str | None, producer_id: str | None, producer_seq: int | None, now_ms: int, window_ms: int
    ) -> Remembered | None:
        """What a repeated write answers with, or None; the seqs of a producer are known only for its last write."""
        if producer_id is not None and producer_seq is not None:
            last = self.producers.get(producer_id)
            if last is not None and producer_seq <= last[0]:
                return last[1] if producer_seq == last[0] else Remembered(0, 0, 0, 0, last[1].ticket)
        if key is None:
            return None
        self.expire(now_ms, window_ms)
        found = self.keys.get(key)
        return None if found is None or now_ms - found.at_ms > window_ms else found

    def expire(self, now_ms: int, window_ms: int) -> bool:
        """Forget keys whose window is over, some at a time; whether there may be more of them."""
        stale: list[str] = []
        for key, write in self.keys.items():
            if now_ms - write.at_ms <= window_ms or len(stale) == EXPIRED_MAX:
                break
            stale.append(key)
        for key in stale:
            del self.keys[key]
            self._totals.dedupe_bytes -= _size(key)
        return len(stale) == EXPIRED_MAX

    def check(self, key: str | None, producer_id: str | None, now_ms: int, limits: Limits) -> None:
        """Raise Throttled where a write that is no repeat has something to remember and there is no room for it."""
        new_producer = producer_id is not None and producer_id not in self.producers
        if new_producer and 0 < limits.max_producers_per_topic <= len(self.producers):
            self._make_way(now_ms, limits.max_producers_per_topic)
        added_bytes = _size(key) if key is not None and key not in self.keys else 0
        if new_producer and producer_id is not None:
            added_bytes += _size(producer_id)
        if added_bytes and 0 < limits.max_dedupe_bytes < self._totals.dedupe_bytes + added_bytes:
            raise Throttled(
                f"idempotency keys and producers take {self._totals.dedupe_bytes} bytes; write without them, wait until"
                " keys expire (idempotency_window_ms), or raise TOPICS_MAX_DEDUPE_BYTES",
                retry_after_ms=RETRY_AFTER_MS,
                limit="max_dedupe_bytes",
                max=limits.max_dedupe_bytes,
            )

    def _make_way(self, now_ms: int, producers_max: int) -> None:
        """Forget the producer that has not written for the longest time, if that is long enough."""
        oldest = next(iter(self.producers))
        if now_ms - self.producers[oldest][1].at_ms <= IDLE_MS:
            raise Throttled(
                f"the topic has {producers_max} producers already, and each has written within"
                f" {IDLE_MS // 3_600_000} hours; use one of them or raise TOPICS_MAX_PRODUCERS_PER_TOPIC",
                retry_after_ms=RETRY_AFTER_MS,
                limit="max_producers_per_topic",
                max=producers_max,
            )
        self._drop_producer(oldest)

    def remember(self, key: str | None, producer_id: str | None, producer_seq: int | None, write: Remembered) -> None:
        """Keep a write under its key, and as its producer's last one."""
        totals = self._totals
        if key is not None:
            if self.keys.pop(key, None) is None:
                totals.dedupe_bytes += _size(key)
            self.keys[key] = write
            write.key = key
        if producer_id is not None and producer_seq is not None:
            if self.producers.pop(producer_id, None) is None:
                totals.dedupe_bytes += _size(producer_id)
            self.producers[producer_id] = (producer_seq, write)
            write.producer_id = producer_id

    def forget(self, write: Remembered) -> None:
        """Drop a write that failed, so that its retry is appended."""
        if write.key is not None and self.keys.get(write.key) is write:
            del self.keys[write.key]
            self._totals.dedupe_bytes -= _size(write.key)
        if write.producer_id is not None:
            last = self.producers.get(write.producer_id)
            if last is not None and last[1] is write:
                self._drop_producer(write.producer_id)

    def _drop_producer(self, producer_id: str) -> None:
        del self.producers[producer_id]
        self._totals.dedupe_bytes -= _size(producer_id)

    def clear(self) -> None:
        """The topic is gone."""
        self._totals.dedupe_bytes -= sum(map(_size, self.keys)) + sum(map(_size, self.producers))
        self.keys, self.producers = {}, {}


def _size(text: str) -> int:
    return ENTRY_BYTES + len(text)
