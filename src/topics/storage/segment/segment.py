"""SealedBlock and Segment: Blocks on disk as the log of a topic sees them, and the cache they are read through.

In memory a sealed Block is a directory entry: seqs, times, totals, and its delete flags once there are any. Its content
is read when `block()` is called, with a read that never waits: what the kernel has in memory is there at once. What it
has not raises `Miss`, which carries the job that reads it; the driver runs the job and executes the command again. So a
cold page stops one request and never the loop.

A Block whose bytes do not match their checksum raises `Corrupt`, which names the records; the bytes are kept in
quarantine, and the engine turns it into a lost range. A file that cannot be read at all, in a cold store that is out of
reach or on a disk that fails, costs that one read (ColdUnavailable, StorageUnreadable) and is asked again by the next:
what cannot be read today is not lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from topics.errors import ColdUnavailable, StorageUnreadable, TopicsError
from topics.storage import block
from topics.storage.block import Block, Extent
from topics.storage.damage import Corrupt, LostRecords
from topics.storage.flags import DELETED, deleted_runs
from topics.storage.job import Miss
from topics.storage.segment import format as segment
from topics.storage.segment.format import Place, SegmentName, Tags
from topics.storage.segment.ref import SegmentRef
from topics.storage.segment.tier import Tier

if TYPE_CHECKING:
    from topics.storage.segment.segments import Segments

CACHE_BYTES: Final = 64 << 20
RETRY_AFTER_MS: Final = 1000


class BlockCache:
    """Blocks and tags read from segments, the least recently used given up first beyond `bytes_max`."""

    def __init__(self, bytes_max: int = CACHE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits_total = 0
        self.misses_total = 0
        self._entries: OrderedDict[object, tuple[Block | Tags | TopicsError | Corrupt, int]] = OrderedDict()

    def get(self, key: object) -> Block | Tags | None:
        """What is kept under this key. A failure that was kept is raised, once."""
        entry = self._entries.get(key)
        if entry is None:
            self.misses_total += 1
            return None
        found = entry[0]
        if isinstance(found, Exception):
            self.drop(key)
            raise found
        self._entries.move_to_end(key)
        self.hits_total += 1
        return found

    def put(self, key: object, value: Block | Tags | TopicsError | Corrupt) -> None:
        """Keep a value. The newest one always stays, whatever its size, so that a command can go on with it."""
        self.drop(key)
        # Decoded columns take about as much again as the bytes.
        size = 2 * len(value.raw) if isinstance(value, Block) else 2 * getattr(value, "size_bytes", 100)
        self._entries[key] = (value, size)
        self.bytes += size
        while self.bytes > self.bytes_max and len(self._entries) > 1:
            _, (_, freed) = self._entries.popitem(last=False)
            self.bytes -= freed

    def drop(self, key: object) -> None:
        """Forget what is kept under this key."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry[1]


class SealedBlock(Extent):
    """One Block of a sealed segment."""

    __slots__ = ("flags_at", "length", "offset", "segment")

    def __init__(self, segment: Segment, place: Place, flags_at: int) -> None:
        super().__init__(place.first_seq, place.n, place.first_ts, place.last_ts, place.size_bytes)
        self.segment = segment
        self.flags_at = flags_at
        self.offset = place.offset
        self.length = place.length

    def block(self, *, keep: bool = True) -> Block:
        """The content, with the flags as they are now. Raises Miss, Corrupt, ColdUnavailable or StorageUnreadable."""
        found = self.segment.cache.get(self)
        if found is None:
            found = self._load(keep)
        assert isinstance(found, Block)
        found.flags = self.flags
        found.live = self.live
        found.live_bytes = self.live_bytes
        return found

    def _load(self, keep: bool) -> Block:
        segment = self.segment
        read = segment.tier.read if segment.patient else segment.tier.read_now
        try:
            data = read(segment.name.data_file, self.offset, self.length)
        except OSError as error:
            raise unreadable(segment, error) from error
        if data is None:
            raise Miss(_Read(self))
        found = self.decode(data)
        if keep:
            segment.cache.put(self, found)
        return found

    def decode(self, data: bytes) -> Block:
        """The Block in these bytes, checked. Raises Corrupt."""
        try:
            found, _ = block.decode(data, with_flags=False)
            if (found.topic_id, found.first_seq, found.n) == (
                self.segment.name.topic_id,
                self.first_seq,
                self.n,
            ):
                return found
        except block.BlockError:
            pass
        raise self.corrupt(data)

    def corrupt(self, data: bytes) -> Corrupt:
        """What to say about a damaged Block; its bytes go to quarantine."""
        segment = self.segment
        kept = segment.quarantine(segment.name.data_file, self.offset, data)
        lost = LostRecords(segment.name.topic_id, self.first_seq, self.n)
        return Corrupt(segment.name.data_file, self.offset, self.length, lost, kept)

    def size_bytes(self, i: int, j: int) -> int:
        """What the records [i, j) count towards `bytes`, deleted or not. May raise as `block` does."""
        try:
            return self.block().size_bytes(i, j)
        except TopicsError:
            if not self.segment.patient:
                raise
            # A start does not fail for a store that is out of reach: an estimate will do.
            return self.live_bytes * (j - i) // max(1, self.live)

    def ts_index(self, cutoff: int) -> int:
        """The index of the first record whose ts is at least `cutoff`, or n. May raise as `block` does."""
        if cutoff <= self.first_ts:
            return 0
        if cutoff > self.last_ts:
            return self.n
        try:
            return self.block().ts_index(cutoff)
        except TopicsError:
            if not self.segment.patient:
                raise
            return 0

    def ts_at(self, i: int) -> int:
        """The ts of record i. May raise as `block` does."""
        if i == 0:
            return self.first_ts
        try:
            return self.last_ts if i == self.n - 1 else self.block().ts_at(i)
        except TopicsError:
            if not self.segment.patient:
                raise
            return self.last_ts

    def delete(self, i: int, j: int) -> tuple[int, int]:
        """Flag the records [i, j) deleted, here and, by a later job, on disk. May raise as `block` does, before."""
        count, size = super().delete(i, j)
        if count:
            self.segment.flip(self, i, j)
        return count, size

    def take_flags(self, flags: bytes) -> None:
        """Take the flags that stand on disk."""
        assert len(flags) == self.n
        for i, j in deleted_runs(flags):
            super().delete(i, j)

    def take_flags_unread(self, flags: bytes) -> None:
        """Take flags over where the content is out of reach: the bytes that are left are estimated until it is read."""
        deleted = flags.count(DELETED)
        if deleted:
            self.flags = bytearray(flags)
            self.live = self.n - deleted
            self.live_bytes = self.live_bytes * self.live // self.n


class Segment:
    """One sealed segment: where it is and what Blocks it has."""

    def __init__(
        self, owner: Segments, name: SegmentName, tier: Tier, places: Sequence[Place], data_bytes: int
    ) -> None:
        self.name = name
        self.tier = tier
        self.cache = owner.cache
        self.data_bytes = data_bytes
        self.index_bytes = 0
        self.records = sum(place.n for place in places)
        self.sealed_to = max((place.first_seq + place.n - 1 for place in places), default=name.first_seq)
        self.blocks: list[SealedBlock] = []
        self.moving = False
        self.dropped = False
        self.index_blocks = len(places)
        self._owner = owner
        flags_at = 0
        for place in places:
            self.blocks.append(SealedBlock(self, place, flags_at))
            flags_at += place.n

    @property
    def ref(self) -> SegmentRef:
        """How a checkpoint lists it."""
        return SegmentRef(self.name.first_seq, self.records, self.sealed_to)

    @property
    def first_seq(self) -> int:
        """The seq of the first record."""
        return self.name.first_seq

    @property
    def last_seq(self) -> int:
        """The seq of the last record."""
        return self.blocks[-1].last_seq

    @property
    def last_ts(self) -> int:
        """The ts of the last record."""
        return self.blocks[-1].last_ts

    @property
    def is_cold(self) -> bool:
        """Whether its records are in the cold tier."""
        return self.tier is not self._owner.hot

    @property
    def patient(self) -> bool:
        """Whether reads wait for the disk."""
        return self._owner.patient

    @property
    def live(self) -> int:
        """How many records are not deleted."""
        return sum(sealed.live for sealed in self.blocks)

    def tags(self) -> Tags:
        """The tag index; raises Miss where it has to be read, or, being damaged, made again first."""
        key = (self.name, "tags")
        found = self.cache.get(key)
        if found is None:
            try:
                offset = segment.directory_bytes(self.index_blocks)
                data = self._owner.hot.read_now(self.name.index_file, offset, max(0, self.index_bytes - offset))
                found = None if data is None else Tags(data, self.name.first_seq)
            except (OSError, block.BlockError):
                found = None
            if found is None:
                raise Miss(self._owner.tags_job(self, key))
            self.cache.put(key, found)
        assert isinstance(found, Tags)
        return found

    def flip(self, sealed: SealedBlock, i: int, j: int) -> None:
        """Note that the flags [i, j) of a Block are to be written."""
        self._owner.flips.setdefault(self, []).append((sealed, i, j))

    def quarantine(self, file: str, offset: int, data: bytes) -> str:
        """Keep a copy of damaged bytes."""
        return self._owner.quarantine(file, offset, data)


class _Read:
    """The job that brings one Block into the cache."""

    __slots__ = ("_found", "_sealed", "name")

    def __init__(self, sealed: SealedBlock) -> None:
        self.name = "read"
        self._sealed = sealed
        self._found: Block | None = None

    def run(self) -> None:
        """Read and check the Block."""
        sealed = self._sealed
        segment = sealed.segment
        self._found = sealed.decode(segment.tier.read(segment.name.data_file, sealed.offset, sealed.length))

    def done(self, error: BaseException | None) -> None:
        """Keep the Block, or what went wrong, for the command that waits."""
        segment = self._sealed.segment
        if isinstance(error, Corrupt):
            segment.cache.put(self._sealed, error)
        elif error is not None:
            segment.cache.put(self._sealed, unreadable(segment, error))
        elif self._found is not None:
            segment.cache.put(self._sealed, self._found)


def unreadable(segment: Segment, error: BaseException) -> TopicsError:
    """What to answer where a segment's file cannot be read."""
    if segment.is_cold:
        return ColdUnavailable(
            f"The cold store that holds records {segment.first_seq} to {segment.sealed_to} cannot be read right now:"
            f" {error}. Retry once it is back; nothing is lost",
            retry_after_ms=RETRY_AFTER_MS,
            first_seq=segment.first_seq,
            last_seq=segment.sealed_to,
        )
    return StorageUnreadable(
        f"segments/{segment.name.data_file} cannot be read ({error}), and with it records {segment.first_seq} to"
        f" {segment.sealed_to}; what else the topic holds can be. Retry; if it goes on, look at the disk, or stop the"
        " server and put back the file from a copy",
        retry_after_ms=RETRY_AFTER_MS,
        first_seq=segment.first_seq,
        last_seq=segment.sealed_to,
    )
