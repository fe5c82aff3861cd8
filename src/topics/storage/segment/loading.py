"""Loader: the segments that a checkpoint lists, as a start finds them on disk.

Everything here waits for the disk. Damage never stops a start: each damaged place is reported once, with exactly the
records that it cost, and whatever can be made again is made again. An `.idx` is made from the Blocks; delete flags are
taken from where the records are, from the `.flags` file, or from both where a move was cut short, since a flag only
ever goes from live to deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from topics.storage.damage import Corrupt, LostRecords
from topics.storage.flags import DELETED, both
from topics.storage.segment import format as layout
from topics.storage.segment.format import Place, SegmentName, SegmentRef
from topics.storage.segment.segment import SealedBlock, Segment
from topics.storage.segment.tier import Edges, Tier, Tiers

# What is read of an `.idx` at once: the directory of most segments is shorter, and the tags are not needed.
DIRECTORY_BYTES: Final = 16 << 10


class Loaded(NamedTuple):
    """What a start found of a topic's segments. Damage with `lost.n` = 0 cost nothing, but has to be reported."""

    segments: list[Segment]
    damage: list[Corrupt]


class Loader:
    """Opens the segments of a data directory at a start, and then removes the files that belong to none of them."""

    def __init__(
        self,
        tiers: Tiers,
        on_delete: Callable[[SealedBlock, int, int, bytes | None], None],
        after_checkpoint: Callable[[Callable[[], None]], None],
    ) -> None:
        # What the names of the files of the segments that were loaded begin with: `sweep` leaves them alone.
        self._known: set[str] = set()
        # The files of the hot tier as the start found them, once anything was loaded.
        self._files: frozenset[str] | None = None
        self._tiers = tiers
        self._hot = tiers.hot
        self._on_delete = on_delete
        self._after_checkpoint = after_checkpoint

    def load(self, topic_id: int, refs: Iterable[SegmentRef]) -> Loaded:
        """The segments of a topic that a checkpoint lists, with their delete flags."""
        loaded = Loaded([], [])
        named = [(SegmentName(topic_id, ref.first_seq, ref.edition), ref) for ref in refs]
        edges = self._hot.edges([wanted for name, _ in named for wanted in (_index(name), _data(name))])
        for (name, ref), index, data in zip(named, edges, edges, strict=True):
            self._known.add(name.stem)
            found = self._load(name, ref, index, data, loaded.damage)
            if found is not None and found.blocks:
                loaded.segments.append(found)
        return loaded

    def topic_ids(self) -> set[int]:
        """The topics that have files in the hot tier."""
        return {name.topic_id for name in self._names()}

    def refs(self, topic_id: int) -> list[SegmentRef]:
        """The segments of a topic that are on disk, for a topic that no checkpoint lists any more; no record twice."""
        refs: list[SegmentRef] = []
        names = [name for name in self._names() if name.topic_id == topic_id]
        # Of a segment and those that it takes the place of, the newest: it has all that is left of them.
        names.sort(key=lambda name: (name.first_seq, -name.edition))
        for name, index in zip(names, self._hot.edges([_index(name) for name in names]), strict=True):
            places = self._directory(name, index)
            if places is None and (size := self._hot.size(name.data_file)):
                places = layout.scan_blocks(self._hot.read(name.data_file, 0, size), topic_id)
            if places and (not refs or places[0].first_seq > refs[-1].last_seq):
                last_seq = places[-1].first_seq + places[-1].n - 1
                refs.append(SegmentRef(name.first_seq, sum(place.n for place in places), last_seq, name.edition))
        return refs

    def sweep(self, *, intact: bool = True) -> list[str]:
        """Remove the files that no checkpoint lists, once everything is loaded: what a crash left. Their names.

        Where the directory is not intact, a list may have been lost, and with it records that are nowhere else: the
        files go to quarantine, and those in the cold store stay. It has to come before any segment is written.
        """
        removed = self._remove_unknown() if intact else self._set_unknown_aside()
        self._known, self._files = set(), None
        return removed

    def _set_unknown_aside(self) -> list[str]:
        return [self._tiers.set_aside(file) for file in self._hot.list() if self._is_unknown(file)]

    def _remove_unknown(self) -> list[str]:
        removed: list[str] = []
        tiers: list[Tier] = [self._hot] if self._tiers.cold is None else [self._tiers.cold, self._hot]
        for tier in tiers:
            with contextlib.suppress(OSError):
                unknown = [file for file in tier.list() if self._is_unknown(file)]
                tier.delete(*unknown)
                removed += [f"{tier.name}/{file}" for file in unknown]
        return removed

    def _is_unknown(self, file: str) -> bool:
        return file.rpartition(".")[0] not in self._known and layout.parse_name(file) is not None

    def _is_there(self, file: str) -> bool:
        """Whether the hot tier had a file at the start. Its folder is read once, not for each segment."""
        if self._files is None:
            self._files = frozenset(self._hot.list())
        return file in self._files

    def _names(self) -> set[SegmentName]:
        return {parsed[0] for parsed in map(layout.parse_name, self._hot.list()) if parsed is not None}

    def _directory(self, name: SegmentName, index: Edges | None) -> list[Place] | None:
        """The directory in a segment's `.idx`; None where that is missing, damaged or another's."""
        data = b"" if index is None else index.first
        header = layout.decode_header(data, layout.INDEX_MAGIC, name.index_file)
        if index is None or header is None or header.name != name:
            return None
        length = layout.directory_bytes(header.blocks)
        if len(data) < min(length, index.size):
            data = self._hot.read(name.index_file, 0, length)
        return layout.decode_directory(data, header.blocks)

    def _find(self, name: SegmentName, data: Edges | None, places: list[Place] | None) -> tuple[Tier, Edges | None]:
        """Where the records of a segment are, and how that file begins and ends; None where it is gone.

        `data` is what the hot tier has of it. Of a file in the cold tier nothing is read.
        """
        cold = self._tiers.cold
        if data is not None or cold is None or not self._is_there(name.flags_file):
            return self._hot, data
        try:
            size = cold.size(name.data_file)
            if size is not None:
                return cold, Edges(size, b"", b"")
            if cold.list():
                return self._hot, None
        except OSError:
            pass
        # A store without a single file is not mounted. The index says what should be in it, and reads will fail.
        self._tiers.away = True
        return cold, None if places is None else Edges(layout.blocks_end(places) + len(layout.ALL_LIVE), b"", b"")

    def _load(
        self, name: SegmentName, ref: SegmentRef, index: Edges | None, hot: Edges | None, damage: list[Corrupt]
    ) -> Segment | None:
        """One segment, of which the hot tier has these files."""
        places = self._directory(name, index)
        tier, data = self._find(name, hot, places)
        if data is None:
            lost = LostRecords(name.topic_id, ref.first_seq, ref.last_seq - ref.first_seq + 1)
            damage.append(Corrupt(name.data_file, 0, 0, lost))
            return None
        index_bytes = 0 if index is None else index.size
        if places is None:
            damaged = self._hot.read(name.index_file, 0, index_bytes) if index_bytes else b""
            kept = self._tiers.quarantine(name.index_file, 0, damaged)
            damage.append(Corrupt(name.index_file, 0, index_bytes, LostRecords(name.topic_id, 0, 0), kept))
            places = self._rebuild(tier, name, ref, data.size)
            index_bytes = self._hot.size(name.index_file) or 0
        # Of one that an earlier start has made again too: that start may not have come to a checkpoint.
        damage += _missing(name, ref, places)
        found = Segment(
            self._tiers,
            name,
            tier,
            places,
            data_bytes=data.size,
            index_bytes=index_bytes,
            all_live=False,
            on_delete=self._on_delete,
        )
        is_own = self._check_data(found, data, damage)
        before = len(damage)
        self._load_flags(found, is_own, damage)
        found.count_dead()
        if found.is_cold and any(corrupt.path == name.flags_file for corrupt in damage[before:]):
            # What is deleted from now on must go into a file that the next start believes.
            self._hot.put(name.flags_file, found.flags_parts())
        return found

    def _check_data(self, found: Segment, data: Edges, damage: list[Corrupt]) -> bool:
        """Report a damaged header, and Blocks that the file is too short for; whether a hot file is this segment's.

        One that is says at its end whether it may have flags.
        """
        name = found.name
        is_own = False
        if not found.is_cold:
            header = layout.decode_header(data.first, layout.DATA_MAGIC, name.data_file)
            is_own = header is not None and header.name == name
            if header is not None and is_own and header.version > 1 and data.size == header.data_bytes:
                found.all_live_at = header.blocks_end if data.last == layout.ALL_LIVE else None
            if not is_own:
                kept = self._tiers.quarantine(name.data_file, 0, data.first)
                damage.append(Corrupt(name.data_file, 0, layout.HEADER_BYTES, LostRecords(name.topic_id, 0, 0), kept))
        if found.blocks and found.blocks[-1].offset + found.blocks[-1].length > data.size:
            beyond = [sealed for sealed in found.blocks if sealed.offset + sealed.length > data.size]
            for sealed in beyond:
                lost = LostRecords(name.topic_id, sealed.first_seq, sealed.n)
                damage.append(Corrupt(name.data_file, sealed.offset, 0, lost))
            found.blocks = found.blocks[: -len(beyond)]
        return is_own

    def _rebuild(self, tier: Tier, name: SegmentName, ref: SegmentRef, size: int) -> list[Place]:
        """Make the `.idx` again from the Blocks that can be read."""
        data = tier.read(name.data_file, 0, size)
        places = [
            place
            for place in layout.scan_blocks(data, name.topic_id)
            if ref.first_seq <= place.first_seq and place.first_seq + place.n - 1 <= ref.last_seq
        ]
        if places:
            self._hot.put(name.index_file, [layout.index_of(name, data, places)])
        return places

    def _load_flags(self, found: Segment, is_own: bool, damage: list[Corrupt]) -> None:
        """Take over the delete flags. `is_own` says that the header of the hot records is this segment's."""
        beside, beside_is_own = self._flags_beside(found, damage)
        if found.all_live_at is not None and not beside and not any(sealed.erased for sealed in found.blocks):
            return
        stored = self._stored_flags(found) if not found.is_cold or not beside else {}
        for sealed in list(found.blocks):
            also = beside[sealed.flags_at : sealed.flags_at + sealed.n]
            flags = stored.get(sealed, b"")
            if not (sealed.erased or DELETED in flags or DELETED in also):
                continue
            dead = bytes((DELETED,)) * sealed.n
            if (is_own and flags == dead) or (beside_is_own and also == dead):
                # Nothing of it is left that damage could take. In a file that may be another's, the content decides.
                if found.is_cold or flags == dead:
                    sealed.set_flags(dead)
                else:
                    sealed.delete(0, sealed.n)
                continue
            try:
                content = sealed.decode(found.tier.read(found.name.data_file, sealed.offset, sealed.length))
                found.cache.put(sealed, content)
                # No checksum covers a flag. That a record is erased, its Block says too.
                flags = both(flags.ljust(sealed.n, b"\0"), content.erased())
            except Corrupt as corrupt:
                damage.append(corrupt)
                found.blocks.remove(sealed)
                continue
            except OSError:
                sealed.set_flags_unread(also.ljust(sealed.n, b"\0"))
                continue
            sealed.set_flags(flags.ljust(sealed.n, b"\0"))
            if DELETED in also:
                if found.is_cold:
                    sealed.set_flags(also)
                else:
                    sealed.delete_also(also)

    def _flags_beside(self, found: Segment, damage: list[Corrupt]) -> tuple[bytes, bool]:
        """The flags in the `.flags` file, b"" where there are none to believe, and whether its header is right."""
        file, hot = found.name.flags_file, self._hot
        nothing = LostRecords(found.name.topic_id, 0, 0)
        if not self._is_there(file):
            if found.is_cold:
                damage.append(Corrupt(file, 0, 0, nothing))
            return b"", False
        if not found.is_cold:
            found.has_stale_flags = True
            self._after_checkpoint(lambda: self._remove_stale_flags(found))
        head = hot.read(file, 0, layout.HEADER_BYTES)
        header = layout.decode_header(head, layout.FLAGS_MAGIC, file)
        is_own = header is not None and header.name == found.name
        if not is_own:
            kept = self._tiers.quarantine(file, 0, head)
            damage.append(Corrupt(file, 0, layout.HEADER_BYTES, nothing, kept))
            if header is not None:
                return b"", False
        flags = hot.read(file, layout.HEADER_BYTES, found.records)
        if len(flags) < found.records:
            damage.append(Corrupt(file, layout.HEADER_BYTES + len(flags), 0, nothing))
        return flags.ljust(found.records, b"\0"), is_own

    def _stored_flags(self, found: Segment) -> dict[SealedBlock, bytes]:
        """The flags after the Blocks; none where no flag is set, or the cold store is out of reach."""
        if found.all_live_at is not None:
            return {}
        ranges = [(sealed.offset + sealed.length, sealed.n) for sealed in found.blocks]
        try:
            return dict(zip(found.blocks, found.tier.read_ranges(found.name.data_file, ranges), strict=True))
        except OSError:
            if not found.is_cold:
                raise
            return {}

    def _remove_stale_flags(self, found: Segment) -> None:
        self._hot.delete(found.name.flags_file)
        found.has_stale_flags = False


def _index(name: SegmentName) -> tuple[str, int, int]:
    """What a start reads of an `.idx`."""
    return name.index_file, DIRECTORY_BYTES, 0


def _data(name: SegmentName) -> tuple[str, int, int]:
    """What a start reads of a `.data`."""
    return name.data_file, layout.HEADER_BYTES, len(layout.ALL_LIVE)


def _missing(name: SegmentName, ref: SegmentRef, places: list[Place]) -> list[Corrupt]:
    """What a checkpoint says that a segment holds, and its directory does not have."""
    missing = ref.n - sum(place.n for place in places)
    found: list[Corrupt] = []
    if missing <= 0:
        return found
    expected = ref.first_seq
    for place in places:
        if place.first_seq > expected and missing > 0:
            lost = LostRecords(name.topic_id, expected, min(missing, place.first_seq - expected))
            found.append(Corrupt(name.data_file, 0, 0, lost))
            missing -= lost.n
        expected = place.first_seq + place.n
    if missing > 0:
        found.append(Corrupt(name.data_file, 0, 0, LostRecords(name.topic_id, expected, ref.last_seq - expected + 1)))
    return found
