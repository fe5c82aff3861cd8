"""What makes a retried write safe: idempotency keys and producer sequences (the RETRY rules).

An idempotency key is remembered for the topic's window: a retry with the same key answers with the seqs of the first
write and appends nothing, whatever its content. A producer numbers its writes itself; the last number is kept without
a time bound, and a write at or below it is a repeat. Both are in the WAL frame of the write they belong to, so both
survive a restart.
"""

from __future__ import annotations

from typing import Any


class Remembered:
    """What a deduplicated write answers with. `ticket` is the first write while that still waits for its sync."""

    __slots__ = ("count", "first_seq", "ticket", "ts")

    def __init__(self, first_seq: int, count: int, ts: int, ticket: Any = None) -> None:
        self.first_seq = first_seq
        self.count = count
        self.ts = ts
        self.ticket = ticket


class Dedupe:
    """The idempotency keys and producers of one topic."""

    __slots__ = ("keys", "producers")

    def __init__(self) -> None:
        self.keys: dict[str, Remembered] = {}
        self.producers: dict[str, tuple[int, Remembered]] = {}

    def find(
        self, key: str | None, producer_id: str | None, producer_seq: int | None, now_ms: int, window_ms: int
    ) -> Remembered | None:
        """What a repeated write answers with, or None; the seqs of a producer are known only for its last write."""
        if producer_id is not None and producer_seq is not None:
            last = self.producers.get(producer_id)
            if last is not None and producer_seq <= last[0]:
                return last[1] if producer_seq == last[0] else Remembered(0, 0, 0, last[1].ticket)
        if key is None:
            return None
        self._expire(now_ms, window_ms)
        found = self.keys.get(key)
        return None if found is None or now_ms - found.ts > window_ms else found

    def _expire(self, now_ms: int, window_ms: int) -> None:
        stale = []
        for key, write in self.keys.items():
            if now_ms - write.ts <= window_ms:
                break
            stale.append(key)
        for key in stale:
            del self.keys[key]

    def remember(self, key: str | None, producer_id: str | None, producer_seq: int | None, write: Remembered) -> None:
        """Keep a write under its key, and as its producer's last one."""
        if key is not None:
            # The dict stays in order of time, so that expiry starts at its front.
            self.keys.pop(key, None)
            self.keys[key] = write
        if producer_id is not None and producer_seq is not None:
            self.producers[producer_id] = (producer_seq, write)

    def forget(self, write: Remembered) -> None:
        """Drop a write that failed, so that its retry is appended."""
        self.keys = {key: kept for key, kept in self.keys.items() if kept is not write}
        self.producers = {producer: last for producer, last in self.producers.items() if last[1] is not write}
