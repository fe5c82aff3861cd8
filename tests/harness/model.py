"""A model of a topic: the LOSS, RETAIN, DELETE and NODE rules, written plainly, to check the engine against.

One dict of live records and a few integers; every rule is a loop over all records. Slow, obvious, and sharing no code
with the engine, so that the two agree only if both are right.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RECORD_FRAMING_BYTES = 21


@dataclass(frozen=True)
class ModelRecord:
    """One record as a client wrote it; `data` and `meta` are JSON texts."""

    ts: int
    data: bytes
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """What the record counts towards `bytes`."""
        texts = (self.tag or "").encode() + (self.node or "").encode() + (self.meta or b"")
        return len(self.data) + len(texts) + RECORD_FRAMING_BYTES


@dataclass(frozen=True)
class ModelGap:
    """A tombstone."""

    gap_from: int
    gap_to: int
    reason: str


@dataclass
class ModelTopic:
    """The state of one topic."""

    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: str = "old"
    live: dict[int, ModelRecord] = field(default_factory=dict)
    head: int = 0
    last_ts: int = 0
    cap_evicted: int = 0
    ttl_expired: int = 0
    lost: dict[int, str] = field(default_factory=dict)

    @property
    def earliest_seq(self) -> int:
        """The first live seq, or head + 1."""
        return min(self.live, default=self.head + 1)

    @property
    def evict_floor(self) -> int:
        """One above the highest seq that cap or TTL took."""
        return max(self.cap_evicted, self.ttl_expired) + 1

    @property
    def bytes(self) -> int:
        """Bytes of the live records."""
        return sum(record.size_bytes for record in self.live.values())

    def expire(self, now: int) -> None:
        """Apply the TTL."""
        if not self.ttl_ms:
            return
        for seq in sorted(self.live):
            if now - self.live[seq].ts > self.ttl_ms:
                del self.live[seq]
                self.ttl_expired = seq

    def evict(self) -> None:
        """Apply the caps."""
        while (self.cap_records and len(self.live) > self.cap_records) or (
            self.cap_bytes and self.bytes > self.cap_bytes
        ):
            seq = min(self.live)
            del self.live[seq]
            self.cap_evicted = seq

    def fits(self, records: list[ModelRecord], now: int) -> bool:
        """Whether a topic that rejects has room for these."""
        self.expire(now)
        size = sum(record.size_bytes for record in records)
        return not (
            (self.cap_records and len(self.live) + len(records) > self.cap_records)
            or (self.cap_bytes and self.bytes + size > self.cap_bytes)
        )

    def write(self, records: list[ModelRecord]) -> None:
        """Append records; their ts is already the one that the topic gives them."""
        for record in records:
            self.head += 1
            self.live[self.head] = record
            self.last_ts = record.ts
        self.evict()

    def delete(self, before_seq: int | None, tag: str | None, prefix: bool) -> int:
        """Delete by seq, by tag, or both; how many went."""
        gone = [
            seq
            for seq, record in self.live.items()
            if (before_seq is None or seq < before_seq)
            and (
                tag is None
                or (record.tag is not None and (record.tag.startswith(tag) if prefix else record.tag == tag))
            )
        ]
        for seq in gone:
            del self.live[seq]
        return len(gone)

    def gap(self, from_seq: int) -> tuple[ModelGap | None, int]:
        """The tombstone that a cursor gets first, and the cursor after it."""
        earliest = self.earliest_seq
        if from_seq > self.head:
            return ModelGap(1, self.head, "recreated"), earliest - 1
        if from_seq + 1 < self.evict_floor:
            cap, ttl = self.cap_evicted > from_seq, self.ttl_expired > from_seq
            return ModelGap(
                from_seq + 1, earliest - 1, "mixed" if cap and ttl else "cap" if cap else "ttl"
            ), earliest - 1
        if from_seq + 1 in self.lost:
            last = from_seq + 1
            while last + 1 in self.lost and self.lost[last + 1] == self.lost[from_seq + 1]:
                last += 1
            return ModelGap(from_seq + 1, last, self.lost[last]), last
        return None, from_seq

    def diff(self, from_seq: int, limit: int, nodes: set[str]) -> tuple[list[int], int, ModelGap | None]:
        """The seqs that a read delivers, the cursor it leaves, and the tombstone it carries."""
        gap, cursor = self.gap(from_seq)
        delivered: list[int] = []
        window = 0
        seq = cursor
        while seq < self.head:
            if seq + 1 in self.lost:
                break
            seq += 1
            record = self.live.get(seq)
            if record is None:
                continue
            window += 1
            if record.node is None or record.node not in nodes:
                delivered.append(seq)
            if window == limit:
                break
        return delivered, seq, gap
