"""Segments: all sealed segments of a data directory, in the hot tier and the cold one.

What the engine does with it, on its own thread:

    builder = Builder(topic_id); builder.add(block) ...       # in slices; small Blocks merged first
    job = segments.seal_job(builder, on_sealed)               # on_sealed(segment | None, error) when durable
    segment.blocks                                            # SealedBlocks to put in the place of the Blocks
    sealed.delete(i, j)                                       # the flips are written by a job that `store.jobs` gives,
                                                              # at the latest before the next checkpoint
    segment.tags()                                            # the tag index, as Blocks are read: may raise Miss
    job = segments.relocate_job(segment, on_moved)            # to the cold tier
    segments.drop(segment)                                    # its files go after the next checkpoint
    segments.load(topic_id, refs) -> Loaded                   # at a start, for what the checkpoint lists
    segments.sweep()                                          # at a start, once everything was loaded

Rules that this file keeps:

1. A segment is listed by a checkpoint only after its files are durable, and its files go only after a checkpoint that
   does not list it is durable. Until then the WAL holds its records as well. So a crash at any point leaves either the
   segment or the records, and at a start every file that no checkpoint lists is removed (`sweep`).
2. A delete flag on disk only ever goes from live to deleted, and is there before a checkpoint trims the DELETE frame
   that said so.
3. Relocation copies the records, makes the copy durable, writes the flags beside the index, and only then changes over.
   The hot records go with the checkpoint after that. As long as they are there, a start takes the segment for hot, with
   every flag that either place has: so a crash at any point of a move just undoes it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from topics.errors import TopicsError
from topics.storage import block, quarantine
from topics.storage.block import Block
from topics.storage.damage import Corrupt, LostRecords
from topics.storage.disk import Disk
from topics.storage.flags import DELETED
from topics.storage.job import Job, Task
from topics.storage.segment import format as segment
from topics.storage.segment.format import (
    DATA_MAGIC,
    FLAGS_MAGIC,
    HEADER_BYTES,
    INDEX_MAGIC,
    Builder,
    Place,
    SegmentName,
    Tags,
)
from topics.storage.segment.ref import SegmentRef
from topics.storage.segment.segment import CACHE_BYTES, BlockCache, SealedBlock, Segment, unreadable
from topics.storage.segment.tier import DirectoryTier, Tier

_Flips = dict[Segment, list[tuple[SealedBlock, int, int]]]


class Loaded(NamedTuple):
    """What a start found of a topic's segments. Damage whose `lost.n` is 0 cost nothing, but is to be told."""

    segments: list[Segment]
    damage: list[Corrupt]


class Segments:
    """The sealed segments of one data directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        quarantine_directory: str,
        *,
        cold: Tier | None = None,
        cache_bytes: int = CACHE_BYTES,
        after_checkpoint: Callable[[Callable[[], None]], None],
    ) -> None:
        self.hot = DirectoryTier("hot", disk, directory)
        self.cold = cold
        self.cache = BlockCache(cache_bytes)
        self.flips: _Flips = {}
        # At a start nobody waits for an answer, so reads may wait for the disk, and none of them raises Miss.
        self.patient = False
        # The cold store was out of reach at the start: nothing is put where it should be mounted.
        self.away = False
        self.corrupt_total = 0
        self._disk = disk
        self._quarantine = quarantine_directory
        self._after_checkpoint = after_checkpoint
        self._flipping: _Flips | None = None
        self._known: set[SegmentName] = set()
        # Segments in the hot tier beside which a move that was cut short has left flags.
        self._stale_flags: set[SegmentName] = set()

    def open(self) -> None:
        """Clear up what a crash left half done, before anything is read. The cold store may be out of reach."""
        self.hot.clean()
        if self.cold is not None:
            with contextlib.suppress(OSError):
                self.cold.clean()

    def quarantine(self, file: str, offset: int, data: bytes) -> str:
        """Keep a copy of damaged bytes; the path of the copy."""
        self.corrupt_total += 1
        return quarantine.keep(self._disk, self._quarantine, file, offset, data)

    def seal_job(self, builder: Builder, on_sealed: Callable[[Segment | None, BaseException | None], None]) -> Job:
        """Write a segment. Deletes that came since the Blocks were added are taken over when it is done."""
        name = builder.name
        index, parts = builder.index(), builder.data_parts()

        def work() -> None:
            self.hot.put(name.index_file, [index])
            self.hot.put(name.data_file, parts)

        def finish(error: BaseException | None) -> None:
            if error is not None:
                on_sealed(None, error)
                return
            made = Segment(self, name, self.hot, builder.places, builder.data_bytes)
            made.index_bytes = len(index)
            self._known.add(name)
            for sealed, source, written in zip(made.blocks, builder.sources, builder.written_flags, strict=True):
                # The content is in memory still: it seeds the cache, so that totals need no read.
                size_bytes = sealed.live_bytes
                content = Block(source.raw, source.first_seq, source.n, source.first_ts, source.last_ts, size_bytes)
                self.cache.put(sealed, content)
                sealed.take_flags(written)
                if source.flags is not None:
                    _delete_also(sealed, source.flags)
            on_sealed(made, None)

        return Task("seal", work, finish)

    def flip_job(self) -> Job | None:
        """The writing of all delete flags that are not on disk yet, or None where there are none, or one runs."""
        if self._flipping is not None:
            return None
        taken = self._take_flips()
        if not taken:
            return None
        self._flipping = taken

        def finish(error: BaseException | None) -> None:
            self._flipping = None
            if error is not None:
                # The WAL still covers them: they are tried again, at the latest with the next checkpoint.
                self._give_back(taken)

        return Task("flip", lambda: self._write_flips(taken), finish)

    def _take_flips(self) -> _Flips:
        """The flips that can be written now: those of a segment that moves wait for the move."""
        taken = {found: ranges for found, ranges in self.flips.items() if not found.moving}
        for found in taken:
            del self.flips[found]
        return taken

    def _give_back(self, taken: _Flips) -> None:
        for found, ranges in taken.items():
            if not found.dropped:
                self.flips[found] = ranges + self.flips.get(found, [])

    def checkpoint_flips(self) -> tuple[Callable[[], None], Callable[[BaseException | None], None]]:
        """What a checkpoint does first: write every flip noted so far, wherever it stands; and take the outcome over.

        A running flip job may not be done in time, so its flips are written here too. A segment on the move gets them
        into its hot records, which stay until the next checkpoint, and keeps them noted for the change over.
        """
        moving = {found: list(ranges) for found, ranges in self.flips.items() if found.moving}
        taken = self._take_flips()
        running = dict(self._flipping or {})

        def work() -> None:
            for flips in (running, moving, taken):
                self._write_flips(flips)

        def finish(error: BaseException | None) -> None:
            if error is not None:
                self._give_back(taken)

        return work, finish

    def _write_flips(self, flips: _Flips) -> None:
        for found, ranges in flips.items():
            name = found.name
            cold = found.is_cold
            writes = [
                (
                    HEADER_BYTES + sealed.flags_at + i if cold else sealed.offset + sealed.length + i,
                    bytes((DELETED,)) * (j - i),
                )
                for sealed, i, j in ranges
            ]
            try:
                self.hot.patch(name.flags_file if cold else name.data_file, writes)
            except FileNotFoundError:
                # Dropped, and its files removed, since the flips were noted.
                if not found.dropped:
                    raise

    def relocate_job(
        self, found: Segment, on_moved: Callable[[BaseException | None], None] = lambda error: None
    ) -> Job | None:
        """Move a segment's records to the cold tier; None where there is none, or they are there or on the way.

        None too while flags of a move that was cut short wait for their removal: it would take the new ones.
        """
        cold = self.cold
        if cold is None or found.is_cold or found.moving or found.dropped or found.name in self._stale_flags:
            return None
        found.moving = True
        # From here on deletes wait for the change over, and so do those noted before, though they are in these flags:
        # a checkpoint that comes meanwhile must find them.
        parts = self._flags_parts(found)
        name, hot = found.name, self.hot

        def work() -> None:
            if self.away:
                raise OSError(errno.ENODEV, "the cold store is empty, though it should hold segments: is it mounted?")
            cold.put(name.data_file, _chunks(hot, name.data_file, found.data_bytes))
            hot.put(name.flags_file, parts)

        def finish(error: BaseException | None) -> None:
            found.moving = False
            if error is None and not found.dropped:
                found.tier = cold
                hot.forget(name.data_file)
                self._after_checkpoint(lambda: hot.delete(name.data_file))
            on_moved(error)

        return Task("relocate", work, finish)

    @staticmethod
    def _flags_parts(found: Segment) -> list[bytes]:
        """The content of a `.flags` file: the flags as they are now."""
        flags = bytearray(found.records)
        for sealed in found.blocks:
            if sealed.flags is not None:
                flags[sealed.flags_at : sealed.flags_at + sealed.n] = sealed.flags
        header = segment.encode_header(FLAGS_MAGIC, found.name, found.index_blocks, found.records, found.data_bytes)
        return [header, bytes(flags)]

    def to_relocate(self, segments: Sequence[Segment], retain_segments: int, retain_bytes: int) -> list[Segment]:
        """Which of a topic's segments, oldest first, stand beyond what is to stay hot; the stricter bound wins."""
        if self.cold is None:
            return []
        kept_bytes = 0
        beyond: list[Segment] = []
        for kept, found in enumerate(reversed(segments), 1):
            kept_bytes += found.data_bytes
            if (kept > retain_segments or kept_bytes > retain_bytes > 0) and not found.is_cold and not found.moving:
                beyond.append(found)
        beyond.reverse()
        return beyond

    def drop(self, found: Segment) -> None:
        """A segment is no longer part of any topic: its files go once the next checkpoint is durable."""
        if found.dropped:
            return
        found.dropped = True
        self.flips.pop(found, None)
        for sealed in found.blocks:
            self.cache.drop(sealed)
        self.cache.drop((found.name, "tags"))
        self.hot.forget(found.name.data_file)
        self.hot.forget(found.name.index_file)
        self._after_checkpoint(lambda: self._delete_files(found.name))

    def _delete_files(self, name: SegmentName) -> None:
        """Remove every file of a segment. Cold first: while the index is there, a failure is tried again at a start."""
        if self.cold is not None:
            self.cold.delete(name.data_file)
        for file in (name.data_file, name.flags_file, name.index_file):
            self.hot.delete(file)

    def load(self, topic_id: int, refs: Iterable[SegmentRef]) -> Loaded:
        """Open the segments that a checkpoint lists, with the delete flags on disk. Waits for the disk: at a start."""
        loaded = Loaded([], [])
        for ref in refs:
            name = SegmentName(topic_id, ref.first_seq)
            self._known.add(name)
            found = self._load(name, ref, loaded.damage)
            if found is not None and found.blocks:
                loaded.segments.append(found)
        return loaded

    def topic_ids(self) -> set[int]:
        """The topics of which there are files in the hot tier."""
        names = [segment.parse_name(file) for file in self.hot.list()]
        return {parsed[0].topic_id for parsed in names if parsed is not None}

    def refs(self, topic_id: int) -> list[SegmentRef]:
        """The segments of a topic that are on disk, for one that no checkpoint lists any more; none twice."""
        names = {parsed[0] for parsed in map(segment.parse_name, self.hot.list()) if parsed is not None}
        refs: list[SegmentRef] = []
        for name in sorted(name for name in names if name.topic_id == topic_id):
            places, _ = self._directory(name)
            if places is None and (size := self.hot.size(name.data_file)):
                places = segment.scan_blocks(self.hot.read(name.data_file, 0, size), topic_id)
            if places and (not refs or places[0].first_seq > refs[-1].last_seq):
                refs.append(
                    SegmentRef(
                        name.first_seq, sum(place.n for place in places), places[-1].first_seq + places[-1].n - 1
                    )
                )
        return refs

    def _directory(self, name: SegmentName) -> tuple[list[Place] | None, bytes]:
        """The directory in the `.idx` of a segment, None where it is damaged or another's, and the file's bytes."""
        size = self.hot.size(name.index_file)
        index = b"" if size is None else self.hot.read(name.index_file, 0, size)
        header = segment.decode_header(index, INDEX_MAGIC, name.index_file)
        return (None if header is None or header[0] != name else segment.decode_directory(index, header[1])), index

    def _find(self, name: SegmentName, places: list[Place] | None) -> tuple[Tier, int | None]:
        """Where the records of a segment are, and the length of that file; None where it is gone."""
        size = self.hot.size(name.data_file)
        if size is not None or self.cold is None or self.hot.size(name.flags_file) is None:
            return self.hot, size
        try:
            size = self.cold.size(name.data_file)
            if size is not None or self.cold.list():
                return (self.hot if size is None else self.cold), size
        except OSError:
            pass
        # A store without a single file is one that is not mounted. Out of reach: take its word, reads will say so.
        self.away = True
        return self.cold, None if places is None else segment.data_bytes(places)

    def _load(self, name: SegmentName, ref: SegmentRef, damage: list[Corrupt]) -> Segment | None:
        places, index = self._directory(name)
        tier, size = self._find(name, places)
        index_bytes = len(index)
        if size is None:
            damage.append(
                Corrupt(
                    name.data_file, 0, 0, LostRecords(name.topic_id, ref.first_seq, ref.last_seq - ref.first_seq + 1)
                )
            )
            return None
        if places is None:
            kept = self.quarantine(name.index_file, 0, index)
            damage.append(Corrupt(name.index_file, 0, len(index), LostRecords(name.topic_id, 0, 0), kept))
            places = self._rebuild(tier, name, ref, size, damage)
            index_bytes = self.hot.size(name.index_file) or 0
        found = Segment(self, name, tier, places, size)
        found.index_bytes = index_bytes
        is_own = self._check_data(found, size, damage)
        damaged = len(damage)
        self._load_flags(found, is_own, damage)
        if found.is_cold and any(corrupt.path == name.flags_file for corrupt in damage[damaged:]):
            # What is deleted from now on must stand in a file that the next start believes.
            self.hot.put(name.flags_file, self._flags_parts(found))
        return found

    def _check_data(self, found: Segment, size: int, damage: list[Corrupt]) -> bool:
        """Report a damaged header, and Blocks that the file is too short for; whether a hot file is this segment's."""
        name = found.name
        is_own = False
        if not found.is_cold:
            head = self.hot.read(name.data_file, 0, HEADER_BYTES)
            header = segment.decode_header(head, DATA_MAGIC, name.data_file)
            is_own = header is not None and header[0] == name
            if not is_own:
                kept = self.quarantine(name.data_file, 0, head)
                damage.append(Corrupt(name.data_file, 0, HEADER_BYTES, LostRecords(name.topic_id, 0, 0), kept))
        for sealed in found.blocks:
            if sealed.offset + sealed.length > size:
                lost = LostRecords(name.topic_id, sealed.first_seq, sealed.n)
                damage.append(Corrupt(name.data_file, sealed.offset, 0, lost))
        found.blocks = [sealed for sealed in found.blocks if sealed.offset + sealed.length <= size]
        return is_own

    def _rebuild(self, tier: Tier, name: SegmentName, ref: SegmentRef, size: int, damage: list[Corrupt]) -> list[Place]:
        """Make the `.idx` again from the Blocks; a Block that cannot be read either is lost."""
        data = tier.read(name.data_file, 0, size)
        places = [
            place
            for place in segment.scan_blocks(data, name.topic_id)
            if ref.first_seq <= place.first_seq and place.first_seq + place.n - 1 <= ref.last_seq
        ]
        expected = ref.first_seq
        missing = ref.n - sum(place.n for place in places)
        for place in places:
            if place.first_seq > expected and missing > 0:
                lost = LostRecords(name.topic_id, expected, min(missing, place.first_seq - expected))
                damage.append(Corrupt(name.data_file, 0, 0, lost))
                missing -= lost.n
            expected = place.first_seq + place.n
        if missing > 0:
            damage.append(
                Corrupt(name.data_file, 0, 0, LostRecords(name.topic_id, expected, ref.last_seq - expected + 1))
            )
        if places:
            self._write_index(name, data, places)
        return places

    def _write_index(self, name: SegmentName, data: bytes, places: list[Place]) -> bytes:
        """Write an `.idx` for these Blocks of a `.data` file; the tags in it."""
        builder = Builder(name.topic_id, name.first_seq)
        for place in places:
            builder.add(block.decode(data, place.offset)[0])
        header = segment.encode_header(INDEX_MAGIC, name, len(places), builder.records, len(data))
        tags = builder.tags()
        self.hot.put(name.index_file, [header, segment.encode_directory(places), tags])
        return tags

    def _load_flags(self, found: Segment, is_own: bool, damage: list[Corrupt]) -> None:
        """Take the delete flags over from the records, from the `.flags`, or from both where a move was cut short."""
        beside = b""
        beside_is_own = False
        nothing = LostRecords(found.name.topic_id, 0, 0)
        if found.is_cold and self.hot.size(found.name.flags_file) is None:
            damage.append(Corrupt(found.name.flags_file, 0, 0, nothing))
        if self.hot.size(found.name.flags_file) is not None:
            head = self.hot.read(found.name.flags_file, 0, HEADER_BYTES)
            header = segment.decode_header(head, FLAGS_MAGIC, found.name.flags_file)
            if header is None or header[0] != found.name:
                kept = self.quarantine(found.name.flags_file, 0, head)
                damage.append(Corrupt(found.name.flags_file, 0, HEADER_BYTES, nothing, kept))
            beside_is_own = header is not None and header[0] == found.name
            if header is None or beside_is_own:
                beside = self.hot.read(found.name.flags_file, HEADER_BYTES, found.records)
                if len(beside) < found.records:
                    damage.append(Corrupt(found.name.flags_file, HEADER_BYTES + len(beside), 0, nothing))
                    beside = beside.ljust(found.records, b"\0")
            if not found.is_cold:
                self._stale_flags.add(found.name)
                self._after_checkpoint(lambda: self._remove_stale_flags(found.name))
        stored = self._stored_flags(found) if not found.is_cold or not beside else {}
        for sealed in list(found.blocks):
            also = beside[sealed.flags_at : sealed.flags_at + sealed.n]
            flags = stored.get(sealed, b"")
            dead = bytes((DELETED,)) * sealed.n
            if (is_own and flags == dead) or (beside_is_own and also == dead):
                # Nothing of it is left that damage could take. In a file that may be another's, the content decides.
                if found.is_cold or flags == dead:
                    sealed.take_flags(dead)
                else:
                    sealed.delete(0, sealed.n)
                continue
            try:
                if DELETED in flags or DELETED in also:
                    content = sealed.decode(found.tier.read(found.name.data_file, sealed.offset, sealed.length))
                    self.cache.put(sealed, content)
            except Corrupt as corrupt:
                damage.append(corrupt)
                found.blocks.remove(sealed)
                continue
            except OSError:
                sealed.take_flags_unread(also.ljust(sealed.n, b"\0"))
                continue
            sealed.take_flags(flags.ljust(sealed.n, b"\0"))
            if DELETED in also:
                if found.is_cold:
                    sealed.take_flags(also)
                else:
                    _delete_also(sealed, also)

    def _stored_flags(self, found: Segment) -> dict[SealedBlock, bytes]:
        """The flags behind the Blocks; none where the cold store is out of reach."""
        ranges = [(sealed.offset + sealed.length, sealed.n) for sealed in found.blocks]
        try:
            return dict(zip(found.blocks, found.tier.read_ranges(found.name.data_file, ranges), strict=True))
        except OSError:
            if not found.is_cold:
                raise
            return {}

    def _remove_stale_flags(self, name: SegmentName) -> None:
        self.hot.delete(name.flags_file)
        self._stale_flags.discard(name)

    def sweep(self, *, intact: bool = True) -> list[str]:
        """Take away the files that no checkpoint listed, once everything was loaded: what a crash left. Their names.

        Where the directory is not intact, a list may have been lost, and with it records that are nowhere else: the
        files go to quarantine, and stay in the cold store.
        """
        removed: list[str] = []
        if not intact:
            for file in self.hot.list():
                parsed = segment.parse_name(file)
                if parsed is not None and parsed[0] not in self._known:
                    removed.append(quarantine.move(self._disk, self._quarantine, self.hot.path(file)))
            return removed
        tiers: list[Tier] = [self.hot] if self.cold is None else [self.cold, self.hot]
        for tier in tiers:
            with contextlib.suppress(OSError):
                for file in tier.list():
                    parsed = segment.parse_name(file)
                    if parsed is not None and parsed[0] not in self._known:
                        tier.delete(file)
                        removed.append(f"{tier.name}/{file}")
        return removed

    def tags_job(self, found: Segment, key: object) -> Job:
        """The reading of a segment's tags; where they are damaged, the whole `.idx` is made again from the Blocks.

        Who asked then gets Corrupt, once and with nothing lost, so that the damage is told.
        """
        result: list[Tags | Corrupt] = []
        name = found.name

        def work() -> None:
            offset = segment.directory_bytes(found.index_blocks)
            data = self.hot.read(name.index_file, offset, (self.hot.size(name.index_file) or offset) - offset)
            try:
                result.append(Tags(data, name.first_seq))
            except block.BlockError:
                kept = self.quarantine(name.index_file, offset, data)
                content = found.tier.read(name.data_file, 0, found.data_bytes)
                tags = self._write_index(name, content, segment.scan_blocks(content, name.topic_id))
                result.append(Corrupt(name.index_file, offset, len(data), LostRecords(name.topic_id, 0, 0), kept))
                found.index_bytes = offset + len(tags)

        def finish(error: BaseException | None) -> None:
            self.hot.forget(name.index_file)
            answer: Tags | Corrupt | TopicsError = result[0] if error is None else unreadable(found, error)
            self.cache.put(key, answer)

        return Task("read", work, finish)

    def close(self) -> None:
        """Close every file."""
        for tier in (self.hot, self.cold):
            if isinstance(tier, DirectoryTier):
                tier.close()


def _delete_also(sealed: SealedBlock, flags: bytes | bytearray) -> None:
    """Delete, and note for writing, what `flags` has deleted and the Block has not."""
    i, n = 0, sealed.n
    while i < n:
        j = i
        while j < n and flags[j] == DELETED and (sealed.flags is None or sealed.flags[j] != DELETED):
            j += 1
        if j > i:
            sealed.delete(i, j)
        i = max(j, i + 1)


def _chunks(tier: Tier, file: str, size: int) -> Iterable[bytes]:
    step = 1 << 20
    for at in range(0, size, step):
        yield tier.read(file, at, min(step, size - at))
