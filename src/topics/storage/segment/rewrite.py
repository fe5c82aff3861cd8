"""Rewrite: one segment in the place of neighbours of a topic, with what is live in them and no text of anything else.

This is how small segments become large ones, and how deleted text leaves the disk. Jobs read and write, a few MiB at a
time; in between Blocks are put together on the engine's thread, one per slice. So it takes little memory, and no slice
takes long, whatever the size of the segments.

Nothing changes until all of it is durable: then the engine has the new segment take the place of the others, with
whatever was deleted meanwhile (`since`), and drops those. Their files go after the next checkpoint, as every segment's
do. So a crash at any point leaves either the old ones or the new one, and a start removes the other.

Deleted records keep their seqs and times where they are few between live ones, as erased records of a Block; long runs
of them are left out. A Block that turns out to be damaged is left out too, and given to `on_damage`, as a reader would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final

from topics.storage.block import Block
from topics.storage.damage import Corrupt
from topics.storage.flags import DELETED, Flagged
from topics.storage.job import Job, Task
from topics.storage.segment.format import BLOCK_BYTES, BLOCK_RECORDS, HEADER_BYTES, Builder
from topics.storage.segment.segment import SealedBlock, Segment
from topics.storage.segment.tier import Tiers
from topics.storage.splice import merge, without

CHUNK_BYTES: Final = 4 << 20
# The tags of a segment are listed by the distance of their seqs from its first one, in 4 bytes.
SEQS_MAX: Final = 1 << 32

_Group = list[tuple[SealedBlock, bytes]]


class Rewrite:
    """A segment in the making. `step` until `on_rewritten` is called, with the segment, or None where all are dead.

    It gets (None, error) where it could not be written; then everything is as it was.
    """

    def __init__(
        self,
        tiers: Tiers,
        sources: Sequence[Segment],
        start: int,
        enqueue: Callable[[Job], None],
        on_delete: Callable[[SealedBlock, int, int, bytes | None], None],
        on_damage: Callable[[Corrupt], None],
        on_rewritten: Callable[[Segment | None, BaseException | None], None],
    ) -> None:
        first = sources[0]
        assert sources[-1].sealed_to - first.first_seq < SEQS_MAX
        self.sources = sources
        self._tiers = tiers
        self._start = start
        self._enqueue = enqueue
        self._on_delete = on_delete
        self._on_damage = on_damage
        self._on_rewritten = on_rewritten
        edition = 1 + max(source.name.edition for source in sources)
        self._builder = Builder(first.name.topic_id, first.first_seq, edition)
        self._chunks = _chunks(sources)
        self._groups: deque[_Group] = deque()
        # The flags that each Block had when it was taken over, and those of the Blocks that were made.
        self._taken: dict[SealedBlock, bytes | None] = {}
        self._made: list[Flagged] = []
        self._unwritten: list[bytes] = [bytes(HEADER_BYTES)]
        self._unwritten_bytes = HEADER_BYTES
        self._written_bytes = 0
        self._busy = False
        for source in sources:
            source.rewriting = True

    def step(self) -> bool:
        """Do one slice; returns whether there is more to do at once."""
        if self._busy:
            return False
        if self._groups:
            self._merge(self._groups.popleft())
            return True
        if self._unwritten_bytes >= CHUNK_BYTES:
            self._write()
            return False
        chunk = next(self._chunks, None)
        if chunk is None:
            self._finish()
        else:
            self._read(chunk)
        return not self._busy

    def since(self, sealed: SealedBlock) -> bool:
        """Whether anything was deleted from a Block of the sources since it was taken over."""
        return sealed.flags is not None and sealed.flags != (self._taken.get(sealed) or b"")

    def _end(self, made: Segment | None, error: BaseException | None) -> None:
        for source in self.sources:
            source.rewriting = False
        self._on_rewritten(made, error)

    def _job(self, work: Callable[[], None], then: Callable[[], None] = lambda: None) -> None:
        """Have a job do some work, then go on; where it fails, everything is as it was."""
        self._busy = True

        def finish(error: BaseException | None) -> None:
            self._busy = False
            if error is None:
                then()
            else:
                self._discard()
                self._end(None, error)

        self._enqueue(Task("rewrite", work, finish))

    def _discard(self) -> None:
        if self._written_bytes:
            hot, file = self._tiers.hot, self._builder.name.data_file
            self._enqueue(Task("discard", lambda: hot.discard(file), lambda error: None))

    def _read(self, chunk: list[SealedBlock]) -> None:
        blocks = [sealed for sealed in chunk if not sealed.segment.dropped]
        by_source = [(source, list(found)) for source, found in groupby(blocks, attrgetter("segment"))]
        found: list[bytes] = []

        def work() -> None:
            for source, sealed in by_source:
                ranges = [(block.offset, block.length) for block in sealed]
                found.extend(source.tier.read_ranges(source.name.data_file, ranges))

        if blocks:
            self._job(work, lambda: self._groups.extend(_groups(blocks, found)))

    def _merge(self, group: _Group) -> None:
        """Take over a few Blocks, as one."""
        blocks: list[Block] = []
        dead = bytearray()
        for sealed, data in group:
            self._taken[sealed] = None if sealed.flags is None else bytes(sealed.flags)
            try:
                blocks.append(sealed.decode(data))
            except Corrupt as corrupt:
                # Those on either side of it are no longer consecutive.
                self._on_damage(corrupt)
                self._add(blocks, dead)
                blocks, dead = [], bytearray()
                continue
            trimmed = max(0, min(sealed.n, self._start - sealed.first_seq))
            dead += bytes((DELETED,)) * trimmed
            dead += bytes(sealed.n - trimmed) if sealed.flags is None else sealed.flags[trimmed:]
        self._add(blocks, dead)

    def _add(self, blocks: list[Block], dead: bytearray) -> None:
        if not blocks:
            return
        for made in without(merge(blocks), dead):
            self._builder.add(made)
            kept = Flagged(made.first_seq, made.n, made.first_ts, made.last_ts, 0)
            kept.flags, kept.live, kept.live_bytes = made.flags, made.live, made.live_bytes
            self._made.append(kept)
        for part in self._builder.release():
            self._unwritten.append(part)
            self._unwritten_bytes += len(part)

    def _write(self) -> None:
        hot, file, at, parts = self._tiers.hot, self._builder.name.data_file, self._written_bytes, self._unwritten
        self._written_bytes += self._unwritten_bytes
        self._unwritten, self._unwritten_bytes = [], 0
        self._job(lambda: hot.extend(file, at, parts))

    def _finish(self) -> None:
        builder, hot = self._builder, self._tiers.hot
        if not builder.places:
            self._end(None, None)
            return
        name, at, parts = builder.name, self._written_bytes, [*self._unwritten, builder.data_end()]
        index_bytes = 0

        def work() -> None:
            nonlocal index_bytes
            hot.extend(name.data_file, at, parts)
            index = builder.index()
            index_bytes = len(index)
            hot.put(name.index_file, [index])
            hot.publish(name.data_file, builder.data_header())
            builder.forget_tags()

        self._written_bytes = builder.data_bytes
        self._job(work, lambda: self._end(self._segment(index_bytes), None))

    def _segment(self, index_bytes: int) -> Segment:
        builder = self._builder
        made = Segment(
            self._tiers,
            builder.name,
            self._tiers.hot,
            builder.places,
            data_bytes=builder.data_bytes,
            index_bytes=index_bytes,
            all_live=builder.all_live,
            on_delete=self._on_delete,
        )
        for sealed, written in zip(made.blocks, self._made, strict=True):
            sealed.take_flags(written)
        return made


def _chunks(sources: Sequence[Segment]) -> Iterator[list[SealedBlock]]:
    """The Blocks of the sources in order, as much as is read at once."""
    chunk: list[SealedBlock] = []
    size = 0
    for sealed in [sealed for source in sources for sealed in source.blocks if sealed.live]:
        if chunk and size + sealed.length > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(sealed)
        size += sealed.length
    if chunk:
        yield chunk


def _groups(blocks: list[SealedBlock], found: list[bytes]) -> Iterator[_Group]:
    """What becomes one Block each: consecutive, and of the size that a Block in a segment should have."""
    group: _Group = []
    records = size = 0
    for sealed, data in zip(blocks, found, strict=True):
        fits = records + sealed.n <= BLOCK_RECORDS and size + sealed.length <= BLOCK_BYTES
        if group and not (fits and group[-1][0].last_seq + 1 == sealed.first_seq):
            yield group
            group, records, size = [], 0, 0
        group.append((sealed, data))
        records += sealed.n
        size += sealed.length
    if group:
        yield group
