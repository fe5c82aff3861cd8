"""Segments: all sealed segments of a data directory, in the hot tier and the cold one.

What the engine does with it, on its own thread:

    builder = Builder(topic_id); builder.add(block) ...       # in slices; small Blocks merged first
    job = segments.seal_job([builder, ...], on_sealed)        # on_sealed(segments, error) when durable
    segment.blocks                                            # SealedBlocks, to put in the place of the Blocks
    sealed.delete(i, j)                                       # the flags are written by a job that `store.jobs` gives,
                                                              # at the latest before the next checkpoint
    segment.tags()                                            # the tag index, read as Blocks are: may raise Miss
    job = segments.relocate_job(segment, on_moved)            # to the cold tier
    rewrite = segments.rewrite(neighbours, ...)               # one in the place of several, without what is deleted
    segments.drop(segment)                                    # its files go after the next checkpoint
    segments.loader.load(topic_id, refs) -> Loaded            # at a start, for what the checkpoint lists
    segments.loader.sweep()                                   # at a start, once everything is loaded

The rules:

1. A segment is listed by a checkpoint only after its files are durable, and its files go only after a checkpoint that
   does not list it is durable. Until then the WAL holds its records as well. So a crash at any point leaves either the
   segment or the records, and a start removes every file that no checkpoint lists (loading.py).
2. A delete flag on disk only ever goes from live to deleted, and is there before a checkpoint trims the DELETE frame
   that explains it (flips.py).
3. Relocation copies the records, makes the copy durable, writes the flags beside the index, and only then switches
   over. The hot records go with the checkpoint after that. As long as they are there, a start takes the segment for
   hot, with every flag that either place has: a crash at any point of a move undoes the move.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from topics.storage.block import Block
from topics.storage.damage import Corrupt
from topics.storage.disk import Disk
from topics.storage.job import Job, Task
from topics.storage.segment.flips import Flips
from topics.storage.segment.format import Builder, SegmentName
from topics.storage.segment.loading import Loader
from topics.storage.segment.rewrite import Rewrite
from topics.storage.segment.segment import Segment
from topics.storage.segment.tier import Tiers

COPY_BYTES = 1 << 20


class Segments:
    """The sealed segments of one data directory."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        quarantine_directory: str,
        *,
        cold_directory: str | None,
        cache_bytes: int,
        after_checkpoint: Callable[[Callable[[], None]], None],
    ) -> None:
        self.tiers = Tiers(disk, directory, quarantine_directory, cold_directory, cache_bytes)
        self.flips = Flips(self.tiers.hot)
        self.loader = Loader(self.tiers, self.flips.note, after_checkpoint)
        self._after_checkpoint = after_checkpoint
        self.left_bytes_total = 0
        """How many bytes of files were given up since the start, and go with a checkpoint."""

    def seal_job(
        self, builders: Sequence[Builder], on_sealed: Callable[[list[Segment], BaseException | None], None]
    ) -> Job:
        """Write segments, in the order of the builders: all of them, or none.

        Deletes that came since the Blocks were added are taken over when it is done.
        """
        hot = self.tiers.hot
        index_bytes: list[int] = []

        def work() -> None:
            files: list[tuple[str, Sequence[bytes]]] = []
            for builder in builders:
                index = builder.index()
                index_bytes.append(len(index))
                files += [(builder.name.index_file, [index]), (builder.name.data_file, builder.data_parts())]
            hot.put_all(files)
            for builder in builders:
                builder.forget_tags()

        def finish(error: BaseException | None) -> None:
            made = [] if error is not None else list(map(self._sealed, builders, index_bytes))
            on_sealed(made, error)

        return Task("seal", work, finish)

    def _sealed(self, builder: Builder, index_bytes: int) -> Segment:
        """The segment that was written, with its content still in the cache, so that totals need no read."""
        made = Segment(
            self.tiers,
            builder.name,
            self.tiers.hot,
            builder.places,
            data_bytes=builder.data_bytes,
            index_bytes=index_bytes,
            all_live=builder.all_live,
            on_delete=self.flips.note,
        )
        for sealed, source, written in zip(made.blocks, builder.sources, builder.written_flags, strict=True):
            size_bytes = sealed.live_bytes
            content = Block(source.raw, source.first_seq, source.n, source.first_ts, source.last_ts, size_bytes)
            self.tiers.cache.put(sealed, content)
            sealed.set_flags(written)
            if source.flags is not None:
                sealed.delete_also(source.flags)
        made.count_dead()
        return made

    def rewrite(
        self,
        sources: Sequence[Segment],
        start: int,
        enqueue: Callable[[Job], None],
        on_damage: Callable[[Corrupt], None],
        on_rewritten: Callable[[Segment | None, BaseException | None], None],
    ) -> Rewrite:
        """One segment in the place of these neighbours of a topic with the first live record `start` (rewrite.py)."""
        return Rewrite(self.tiers, sources, start, enqueue, self.flips.note, on_damage, on_rewritten)

    def to_relocate(self, segments: Sequence[Segment], retain_segments: int, retain_bytes: int) -> list[Segment]:
        """Which of a topic's segments, oldest first, are beyond what is to stay hot; the stricter bound wins."""
        if self.tiers.cold is None:
            return []
        kept_bytes = 0
        beyond: list[Segment] = []
        for kept, found in enumerate(reversed(segments), 1):
            kept_bytes += found.data_bytes
            if (kept > retain_segments or kept_bytes > retain_bytes > 0) and not (
                found.is_cold or found.moving or found.rewriting
            ):
                beyond.append(found)
        beyond.reverse()
        return beyond

    def relocate_job(
        self, found: Segment, on_moved: Callable[[BaseException | None], None] = lambda error: None
    ) -> Job | None:
        """Move a segment's records to the cold tier; None where there is no such tier, or they are there or on the way.

        None too while the flags of a move that was cut short wait for their removal, which would take the new ones.
        """
        name, hot, cold = found.name, self.tiers.hot, self.tiers.cold
        if cold is None or found.is_cold or found.moving or found.rewriting or found.dropped or found.has_stale_flags:
            return None
        found.moving = True
        # From here on deletes wait for the switch, and so do those noted before, though they are in these flags: a
        # checkpoint that comes in between must find them.
        parts = found.flags_parts()

        def work() -> None:
            if self.tiers.away:
                raise OSError(errno.ENODEV, "the cold store is empty, though it should hold segments: is it mounted?")
            chunks = range(0, found.data_bytes, COPY_BYTES)
            cold.put(
                name.data_file,
                (hot.read(name.data_file, at, min(COPY_BYTES, found.data_bytes - at)) for at in chunks),
            )
            hot.put(name.flags_file, parts)

        def finish(error: BaseException | None) -> None:
            found.moving = False
            if error is None and not found.dropped:
                found.tier = cold
                hot.forget(name.data_file)
                self.left_bytes_total += found.data_bytes
                self._after_checkpoint(lambda: hot.delete(name.data_file))
            on_moved(error)

        return Task("relocate", work, finish)

    def drop(self, found: Segment) -> None:
        """A segment is no longer part of any topic: its files go once the next checkpoint is durable."""
        if found.dropped:
            return
        found.dropped = True
        self.left_bytes_total += found.data_bytes
        self.flips.forget(found)
        tiers = self.tiers
        for sealed in found.blocks:
            tiers.cache.drop(sealed)
        tiers.cache.drop(found.tags_key)
        tiers.hot.forget(found.name.data_file)
        tiers.hot.forget(found.name.index_file)
        self._after_checkpoint(lambda: self._delete_files(found.name))

    def _delete_files(self, name: SegmentName) -> None:
        """Remove every file of a segment. Cold first: while the index is there, a start tries again what failed."""
        if self.tiers.cold is not None:
            self.tiers.cold.delete(name.data_file)
        self.tiers.hot.delete(name.data_file, name.flags_file, name.index_file)
