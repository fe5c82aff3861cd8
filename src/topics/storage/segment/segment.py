"""Segment and SealedBlock: sealed records on disk, as the log of a topic sees them.

In memory a sealed Block is a directory entry: seqs, times, totals, and its delete flags once there are any. Its content
is read when `block()` is called, with a read that never waits: what the kernel has in memory is there at once. What it
does not have raises `Miss`, which carries the job that reads it; the driver runs the job and executes the command
again. So a page that is not in memory stops one request and never the loop.

A Block that does not match its checksum raises `Corrupt`, which names the records; the bytes are kept in quarantine,
and the engine turns it into a lost range. A file that cannot be read at all, in a cold store that is out of reach or on
a disk that fails, costs that one read (ColdUnavailable, StorageUnreadable) and the next read tries again: what cannot
be read today is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from xxhash import xxh3_128_hexdigest

from topics.errors import ColdUnavailable, StorageUnreadable, TopicsError
from topics.storage import block
from topics.storage.block import Block, Extent
from topics.storage.damage import Corrupt, LostRecords
from topics.storage.flags import DELETED, Cut, Flagged, deleted_runs
from topics.storage.job import Job, Miss, Task
from topics.storage.segment import format as layout
from topics.storage.segment.format import Place, SegmentName, SegmentRef, Tags
from topics.storage.segment.tier import Tier, Tiers

RETRY_AFTER_MS: Final = 1000


class SealedBlock(Extent):
    """One Block of a sealed segment."""

    __slots__ = ("erased", "flags_at", "length", "offset", "segment")

    def __init__(
        self,
        segment: Segment,
        flags_at: int,
        offset: int,
        first_seq: int,
        first_ts: int,
        last_ts: int,
        size_bytes: int,
        length: int,
        n: int,
        erased: int,
    ) -> None:
        """From `offset` on, a Place. A start makes one for each Block on disk, so nothing is called for it."""
        self.segment = segment
        self.flags_at = flags_at
        self.offset = offset
        self.length = length
        self.erased = erased
        self.first_seq = first_seq
        self.n = n
        self.first_ts = first_ts
        self.last_ts = last_ts
        self.flags = None
        self.live = n
        self.live_bytes = size_bytes

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

    def keep_failure(self, error: TopicsError) -> None:
        """Have the next look at the content fail with an error that was raised for it and told nobody."""
        self.segment.cache.put(self, error)

    def _load(self, keep: bool) -> Block:
        segment = self.segment
        read = segment.tier.read if segment.tiers.patient else segment.tier.read_now
        try:
            data = read(segment.name.data_file, self.offset, self.length)
        except OSError as error:
            raise unreadable(segment, error) from error
        if data is None:
            name = segment.name.data_file
            raise Miss(_read(segment, self, lambda: self.decode(segment.tier.read(name, self.offset, self.length))))
        found = self.decode(data)
        if keep:
            segment.cache.put(self, found)
        return found

    def decode(self, data: bytes) -> Block:
        """The Block in these bytes, checked. Raises Corrupt, with the bytes in quarantine."""
        name = self.segment.name
        try:
            found, _ = block.decode(data, with_flags=False)
            if (found.topic_id, found.first_seq, found.n) == (name.topic_id, self.first_seq, self.n):
                return found
        except block.BlockError:
            pass
        kept = self.segment.tiers.quarantine(name.data_file, self.offset, data)
        lost = LostRecords(name.topic_id, self.first_seq, self.n)
        raise Corrupt(name.data_file, self.offset, self.length, lost, kept)

    def _content(self) -> Block | None:
        """As `block`, but None where a start finds the store out of reach: it does not fail, an estimate will do."""
        try:
            return self.block()
        except TopicsError:
            if not self.segment.tiers.patient:
                raise
            return None

    def size_bytes(self, i: int, j: int) -> int:
        """What the records [i, j) count towards `bytes`, deleted or not. May raise as `block` does."""
        found = self._content()
        return self.live_bytes * (j - i) // max(1, self.live) if found is None else found.size_bytes(i, j)

    def ts_index(self, cutoff: int) -> int:
        """The index of the first record with a ts of at least `cutoff`, or n. May raise as `block` does."""
        if cutoff <= self.first_ts:
            return 0
        if cutoff > self.last_ts:
            return self.n
        found = self._content()
        return 0 if found is None else found.ts_index(cutoff)

    def ts_at(self, i: int) -> int:
        """The ts of record i. May raise as `block` does."""
        if i == 0:
            return self.first_ts
        found = None if i == self.n - 1 else self._content()
        return self.last_ts if found is None else found.ts_at(i)

    def delete(self, i: int, j: int) -> tuple[int, int]:
        """Flag the records [i, j) deleted, here and, by a later job, on disk. May raise as `block` does, before."""
        count, size = super().delete(i, j)
        if count:
            self.segment.dead_bytes += size
            self.segment.on_delete(self, i, j, None)
        return count, size

    def masked_bytes(self, mask: bytes) -> int:
        """What the records that the mask names count towards `bytes`, deleted or not. May raise as `block` does."""
        found = self._content()
        if found is None:
            return self.live_bytes * mask.count(DELETED) // max(1, self.live)
        return found.masked_bytes(mask)

    def apply(self, cut: Cut) -> None:
        """Delete what a cut says, here and, by a later job, on disk."""
        super().apply(cut)
        self.segment.dead_bytes += cut.size
        self.segment.on_delete(self, 0, self.n, cut.mask)

    def delete_also(self, flags: bytes | bytearray) -> None:
        """Delete, here and on disk, what `flags` has deleted and the Block has not."""
        for i, j in deleted_runs(flags):
            for a, b in list(self.live_runs(i, j)):
                self.delete(a, b)

    def take_flags(self, written: Flagged) -> None:
        """Take over the flags and the totals of the Block that was written here."""
        self.flags = None if written.flags is None else bytearray(written.flags)
        self.live, self.live_bytes = written.live, written.live_bytes

    def set_flags_unread(self, flags: bytes) -> None:
        """Take over flags where the content is out of reach: until it is read, `live_bytes` is an estimate."""
        deleted = flags.count(DELETED)
        if deleted:
            self.flags = bytearray(flags)
            self.live = self.n - deleted
            self.live_bytes = self.live_bytes * self.live // self.n


class Segment:
    """One sealed segment: where it is and what Blocks it has.

    `on_delete` is called with each run of records of a Block that is deleted from now on, or with the mask of those
    records of the run that are.
    """

    def __init__(
        self,
        tiers: Tiers,
        name: SegmentName,
        tier: Tier,
        places: Sequence[Place],
        *,
        data_bytes: int,
        index_bytes: int,
        all_live: bool,
        on_delete: Callable[[SealedBlock, int, int, bytes | None], None],
    ) -> None:
        self.tiers = tiers
        self.name = name
        self.first_seq = name.first_seq
        self.tier = tier
        self.cache = tiers.cache
        self.data_bytes = data_bytes
        self.index_bytes = index_bytes
        # Where its file says that no flag is set; that has to go before one is.
        self.all_live_at = layout.blocks_end(places) if all_live else None
        self.on_delete = on_delete
        self.sealed_to = places[-1].first_seq + places[-1].n - 1 if places else name.first_seq
        self.blocks: list[SealedBlock] = []
        self.moving = False
        self.dropped = False
        # Another segment is being written that will take its place.
        self.rewriting = False
        # About how much of it is text of deleted records.
        self.dead_bytes = 0
        # Text of what was deleted before this time is not in it; 0 where that is not known.
        self.erased_ts = 0
        # What its Blocks are, as far as it is known (`read_mark`).
        self.mark = ""
        # A move that was cut short has left a `.flags` file beside hot records.
        self.has_stale_flags = False
        self.index_blocks = len(places)
        records = 0
        for place in places:
            self.blocks.append(SealedBlock(self, records, *place))
            records += place.n
        self.records = records

    @property
    def ref(self) -> SegmentRef:
        """How a checkpoint lists it."""
        return SegmentRef(self.name.first_seq, self.records, self.sealed_to, self.name.edition)

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
        return self.tier is not self.tiers.hot

    @property
    def is_dead(self) -> bool:
        """Whether all its records are deleted."""
        return not any(sealed.live for sealed in self.blocks)

    def count_dead(self) -> None:
        """Set `dead_bytes`, after its Blocks have taken over flags."""
        self.dead_bytes = sum(
            sealed.length * (sealed.n - sealed.live - sealed.erased) // sealed.n
            for sealed in self.blocks
            if sealed.flags is not None
        )

    def holds_dead(self, start: int) -> bool:
        """Whether there is text in it of deleted records, or of any below the seq `start`."""
        for sealed in self.blocks:
            dead = sealed.n - sealed.live
            trimmed = max(0, min(sealed.n, start - sealed.first_seq))
            if trimmed:
                dead += trimmed - (0 if sealed.flags is None else sealed.flags.count(DELETED, 0, trimmed))
            if dead > sealed.erased:
                return True
        return False

    @property
    def tags_key(self) -> object:
        """Under what the cache keeps the tags."""
        return (self.name, "tags")

    def tags(self) -> Tags:
        """The tag index; raises Miss where it has to be read, or, being damaged, made again first."""
        found = self.cache.get(self.tags_key)
        if found is None:
            try:
                offset = layout.directory_bytes(self.index_blocks)
                data = self.tiers.hot.read_now(self.name.index_file, offset, max(0, self.index_bytes - offset))
                found = None if data is None else Tags(data, self.name.first_seq)
            except (OSError, block.BlockError):
                found = None
            if found is None:
                raise Miss(_read(self, self.tags_key, self._read_tags))
            self.cache.put(self.tags_key, found)
        assert isinstance(found, Tags)
        return found

    def _read_tags(self) -> Tags:
        """Read the tags, waiting for the disk. Where they are damaged, make the whole `.idx` again from the Blocks.

        Raises Corrupt then, with nothing lost, so that the damage is reported.
        """
        name, hot = self.name, self.tiers.hot
        offset = layout.directory_bytes(self.index_blocks)
        data = hot.read(name.index_file, offset, (hot.size(name.index_file) or offset) - offset)
        try:
            return Tags(data, name.first_seq)
        except block.BlockError:
            kept = self.tiers.quarantine(name.index_file, offset, data)
        content = self.tier.read(name.data_file, 0, self.data_bytes)
        places = layout.scan_blocks(content, name.topic_id)
        index = layout.index_of(name, content, places)
        hot.put(name.index_file, [index])
        self.index_blocks, self.index_bytes = len(places), len(index)
        raise Corrupt(name.index_file, offset, len(data), LostRecords(name.topic_id, 0, 0), kept)

    def read_mark(self) -> str:
        """A text that no other segment has, whatever its name: made of its header and its outermost Blocks.

        Two data directories, or one before and after a restore, may have different segments of the same name. Delete
        flags do not count. For a job.
        """
        if not self.mark:
            blocks = self.blocks[:1] + self.blocks[-1:]
            checksums = [
                (sealed.offset + sealed.length - block.CHECKSUM_BYTES, block.CHECKSUM_BYTES) for sealed in blocks
            ]
            parts = self.tier.read_ranges(self.name.data_file, [(0, layout.HEADER_BYTES), *checksums])
            self.mark = xxh3_128_hexdigest(b"".join(parts))
        return self.mark

    @property
    def has_flags(self) -> bool:
        """Whether anything was ever deleted from it."""
        return any(sealed.flags is not None for sealed in self.blocks)

    def flags_parts(self) -> list[bytes]:
        """The content of a `.flags` file, with the flags as they are now."""
        flags = bytearray(self.records)
        for sealed in self.blocks:
            if sealed.flags is not None:
                flags[sealed.flags_at : sealed.flags_at + sealed.n] = sealed.flags
        header = layout.encode_header(layout.FLAGS_MAGIC, self.name, self.index_blocks, self.records, self.data_bytes)
        return [header, bytes(flags)]


def _read(segment: Segment, key: object, read: Callable[[], Block | Tags]) -> Job:
    """The job that reads something into the cache, or what went wrong, for the command that waits."""
    found: list[Block | Tags] = []

    def finish(error: BaseException | None) -> None:
        # The index may have been rewritten.
        segment.tiers.hot.forget(segment.name.index_file)
        if error is None:
            segment.cache.put(key, found[0])
        else:
            segment.cache.put(key, error if isinstance(error, Corrupt) else unreadable(segment, error))

    return Task("read", lambda: found.append(read()), finish)


def unreadable(segment: Segment, error: BaseException) -> TopicsError:
    """What to answer where a segment's file cannot be read."""
    first_seq, last_seq = segment.first_seq, segment.sealed_to
    kind: type[TopicsError] = StorageUnreadable
    message = (
        f"segments/{segment.name.data_file} cannot be read ({error}), and with it records {first_seq} to"
        f" {last_seq}; the topic's other records can be read. Retry; if the error persists, check the disk,"
        " or stop the server and restore the file from a copy"
    )
    if segment.is_cold:
        kind = ColdUnavailable
        message = (
            f"The cold store that holds records {first_seq} to {last_seq} cannot be read right now: {error}."
            " Retry once it is back; nothing is lost"
        )
    return kind(message, retry_after_ms=RETRY_AFTER_MS, first_seq=first_seq, last_seq=last_seq)
