"""Recovery: a data directory as the events that rebuild an engine.

`Recovery.events()` yields, in this order:

1. `Started`, once: what the checkpoint says and whether the kernel is still the one that wrote the WAL.
2. `TopicLoaded` for every topic of the checkpoint, then `SectionLoaded` for every section of the engine's own, and
   `Damaged` for what could not be read of it.
3. `Appended`, `Control` and `Damaged` from the WAL, generation by generation, in the order that replay.py promises.
   Frames that the checkpoint includes are left out. A frame may name a topic that is not there any more (its DROP
   came before the checkpoint reached it): ignore it.

What it does to the directory, and why a second run changes nothing: damaged bytes are copied to quarantine under a name
made of their place; a torn end is cut off; a torn hole is overlaid with a VOID frame; and the directories and the files
of the last generation are synced, so that what this process has read, and acts upon, cannot be lost later by a failing
power supply (a process may die between a rename and the sync of its directory; the next one sees the name). Where a
sync has failed before, they are written once more for that. All of it
happens before the next generation begins, so torn regions exist only in the last one: in every older file a bad region
is corruption, today and at every later start.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from topics.storage import block, frame, quarantine, scan, snapshot, walfile
from topics.storage.block import Block
from topics.storage.disk import Disk
from topics.storage.replay import SLACK_BYTES, Appended, Control, Damaged, Replay
from topics.storage.snapshot import Header, TopicState
from topics.storage.walfile import WalName

PROBE_BYTES: Final = 1 << 20
ZEROS_KEPT_BYTES: Final = 64 << 10
_ZEROS: Final = bytes(PROBE_BYTES)


class Started(NamedTuple):
    """Recovery has begun. `header` is None where there is no checkpoint yet.

    `same_boot`: the kernel that has the last WAL bytes still runs, so nothing that was written is missing.
    """

    header: Header | None
    same_boot: bool


class TopicLoaded(NamedTuple):
    """A topic of the checkpoint and the Blocks of its tail, ascending; sealed segments are named in the state."""

    state: TopicState
    blocks: list[Block]


class SectionLoaded(NamedTuple):
    """A section of the engine's own."""

    kind: int
    topic_id: int
    lsn: int
    payload: bytes


Event = Started | TopicLoaded | SectionLoaded | Appended | Control | Damaged


class Recovery:
    """One reading of a data directory. Afterwards it knows what there is to trim and where the lsns go on."""

    def __init__(self, disk: Disk, wal_directory: str, snapshot_directory: str, quarantine_directory: str) -> None:
        self.last_lsn = 0
        self.last_generation = 0
        self.snapshot_number = 0
        self.files: dict[WalName, int] = {}
        self.used_bytes: dict[WalName, int] = {}
        self.frames = 0
        self.corrupt_regions = 0
        self.torn_regions = 0
        self.bytes_done = 0
        self.bytes_total = 0
        self.same_boot = True
        self._boots: set[bytes] = set()
        self._suspect = False
        self._disk = disk
        self._wal = wal_directory
        self._snapshots = snapshot_directory
        self._quarantine = quarantine_directory
        self._skip: dict[int, int] = {}
        self._skip_lsn = 0

    @property
    def progress(self) -> float:
        """How much of the bytes has been read, from 0.0 to 1.0."""
        return 1.0 if self.bytes_total == 0 else min(1.0, self.bytes_done / self.bytes_total)

    @property
    def lost_power(self) -> bool:
        """Whether this kernel has written neither a frame nor a checkpoint of what was read: known at the end.

        Files alone do not count: a process that dies right after its start leaves some, and has told nobody anything.
        """
        return bool(self._boots) and walfile.boot_digest(self._disk.boot_id()) not in self._boots

    def events(self) -> Iterator[Event]:
        """Everything there is; see the module for the order."""
        self._clear_temporary()
        self._suspect = self._disk.exists(f"{self._wal}/{walfile.SUSPECT_NAME}")
        names = self._wal_names()
        self.last_generation = max((name.generation for name in names), default=0)
        self.same_boot = self._is_same_boot([name for name in names if name.generation == self.last_generation])
        yield from self._load_snapshot()
        by_generation: dict[int, dict[int, list[WalName]]] = {}
        for name in names:
            by_generation.setdefault(name.generation, {}).setdefault(name.shard, []).append(name)
        for generation in sorted(by_generation):
            streams = [self._shard(files) for _, files in sorted(by_generation[generation].items())]
            # heapq.merge would cost a comparison per event for nothing.
            yield from streams[0] if len(streams) == 1 else heapq.merge(*streams, key=attrgetter("lsn"))
        if self._suspect:
            self._disk.unlink(f"{self._wal}/{walfile.SUSPECT_NAME}")
            self._disk.sync_dir(self._wal)

    def _clear_temporary(self) -> None:
        """Remove what a crash left half made, and make the names that are there durable."""
        for directory in (self._wal, self._snapshots, self._quarantine):
            for name in self._disk.list(directory):
                if name.endswith(walfile.TEMPORARY_SUFFIX):
                    self._disk.unlink(f"{directory}/{name}")
            self._disk.sync_dir(directory)

    def _wal_names(self) -> list[WalName]:
        names = sorted(name for name in map(walfile.parse_name, self._disk.list(self._wal)) if name is not None)
        for name in names:
            handle = self._disk.open(f"{self._wal}/{name}")
            try:
                self.bytes_total += self._disk.size(handle)
            finally:
                self._disk.close(handle)
        return names

    def _is_same_boot(self, names: list[WalName]) -> bool:
        """Whether the last generation was written under this boot; no where every header of it is damaged."""
        current = walfile.boot_digest(self._disk.boot_id())
        for name in names:
            path = f"{self._wal}/{name}"
            handle = self._disk.open(path)
            try:
                header = walfile.decode_header(self._disk.read(handle, 0, walfile.HEADER_BYTES), path)
            finally:
                self._disk.close(handle)
            if header is not None:
                return header[1] == current
        return not names

    def _load_snapshot(self) -> Iterator[Event]:
        numbers = [(snapshot.parse_name(name) or 0, name) for name in self._disk.list(self._snapshots)]
        numbers = sorted(entry for entry in numbers if entry[0])
        if not numbers:
            yield Started(None, self.same_boot)
            return
        self.snapshot_number, name = numbers[-1]
        loaded = _Snapshot(self._disk, f"{self._snapshots}/{name}", name)
        header = loaded.header(self.snapshot_number)
        self._skip_lsn = header.lsn
        self._boots.add(header.boot)
        self.last_lsn = max([header.lsn, *(state.lsn for state in loaded.states.values())])
        self._skip = {topic_id: state.lsn for topic_id, state in loaded.states.items()}
        yield Started(header, self.same_boot)
        for topic_id, state in loaded.states.items():
            yield TopicLoaded(state, loaded.blocks.pop(topic_id, []))
        yield from loaded.sections.values()
        for region in loaded.regions():
            yield self._damaged(f"{self._snapshots}/{name}", name, loaded.data, region, self.last_lsn)

    def _shard(self, names: list[WalName]) -> Iterator[Appended | Control | Damaged]:
        """The events of one shard in one generation."""
        replay = Replay(self._skip, self._skip_lsn)
        previous: WalName | None = None
        # The next file is prepared ahead of time: behind the last one in use there may be one that is empty.
        last = max((name for name in names if self._in_use(name)), default=names[-1])
        for name in names:
            if previous is not None and name.number != previous.number + 1:
                missing = f"{self._wal}/{WalName(name.generation, name.shard, previous.number + 1)}"
                self.corrupt_regions += 1
                yield from replay.damaged(Damaged(replay.last_lsn, missing, 0, 0, "corrupt", (), (), False, ""))
            previous = name
            yield from self._file(name, replay, is_last=name >= last)
            self.files[name] = replay.last_lsn
        yield from replay.finish()
        self.frames += replay.frames
        self.last_lsn = max(self.last_lsn, replay.last_lsn)

    def _in_use(self, name: WalName) -> bool:
        """Whether anything was written behind a file's header."""
        handle = self._disk.open(f"{self._wal}/{name}")
        try:
            return any(self._disk.read(handle, walfile.HEADER_BYTES, frame.ALIGN_BYTES))
        finally:
            self._disk.close(handle)

    def _file(self, name: WalName, replay: Replay, *, is_last: bool) -> Iterator[Appended | Control | Damaged]:
        path = f"{self._wal}/{name}"
        handle = self._disk.open(path, writable=True)
        try:
            data, used, size = read_used(self._disk, handle)
            self.bytes_done += size
            header = walfile.decode_header(data, path)
            if header is None:
                damage = scan.Region(0, min(size, walfile.HEADER_BYTES), "corrupt", (), (), True)
                yield from replay.damaged(self._damaged(path, str(name), data, damage, replay.last_lsn))
            at = walfile.HEADER_BYTES
            view = memoryview(data)
            cut: int | None = None
            while at < used:
                for event in replay.frames_in(data, view, at, used):
                    if isinstance(event, int):
                        at = event
                    else:
                        yield event
                region, behind = self._region(name, data, view, at, used, is_last=is_last)
                if region is None:
                    break
                yield from replay.damaged(self._damaged(path, str(name), data, region, replay.last_lsn))
                if region.reason == "torn":
                    if behind is None:
                        cut = at
                    elif behind - at >= frame.FRAME_BYTES_MIN:
                        self._disk.write(handle, at, frame.void(data[at:behind]))
                if behind is None:
                    break
                at = behind
            self.used_bytes[name] = at
            if at > walfile.HEADER_BYTES:
                self._boots.add(bytes(16) if header is None else header[1])
            if name.generation == self.last_generation:
                if cut is not None:
                    self._disk.truncate(handle, cut)
                if self._suspect:
                    # After a failed sync the kernel takes its pages for clean: only what is written again is synced.
                    self._disk.write(handle, 0, self._disk.read(handle, 0, at))
                self._disk.sync(handle)
        finally:
            self._disk.close(handle)

    def _region(
        self, name: WalName, data: bytes, view: memoryview, at: int, used: int, *, is_last: bool
    ) -> tuple[scan.Region | None, int | None]:
        """What stands at `at`, where frames end, and where they go on."""
        behind = scan.next_whole(data, view, at, used)
        in_last_generation = name.generation == self.last_generation
        region = scan.region(
            data,
            at,
            used if behind is None else behind,
            used,
            followed=behind is not None,
            torn_allowed=in_last_generation and not self.same_boot,
        )
        may_be_torn = in_last_generation and (is_last or not self.same_boot)
        if region is not None and region.reason == "torn" and not may_be_torn:
            # A process dies in one place only, the end of the last file in use; in older generations it was cleared.
            region = region._replace(reason="corrupt")
        return region, behind

    def _damaged(self, path: str, name: str, data: bytes, region: scan.Region, lsn: int) -> Damaged:
        if region.reason == "torn":
            self.torn_regions += 1
        else:
            self.corrupt_regions += 1
        kept = quarantine.keep(
            self._disk, self._quarantine, name, region.offset, data[region.offset : region.offset + region.length]
        )
        return Damaged(lsn, path, *region, kept)


def read_used(disk: Disk, handle: int) -> tuple[bytes, int, int]:
    """The bytes of a file, up to where only zeros follow and SLACK_BYTES beyond; where that is; the file's length.

    A preallocated file is mostly zeros: they are compared from the end, and what is used is read in one piece.
    """
    size = used = disk.size(handle)
    while used > 0:
        start = (used - 1) // PROBE_BYTES * PROBE_BYTES
        chunk = disk.read(handle, start, used - start)
        if chunk != _ZEROS[: len(chunk)]:
            break
        used = start
    # A frame may end in zeros of its own; this is more than any that this program writes has.
    used = min(size, used + ZEROS_KEPT_BYTES)
    data = disk.read(handle, 0, min(size, used + SLACK_BYTES))
    if len(data) < used + SLACK_BYTES:
        data += bytes(used + SLACK_BYTES - len(data))
    return data, used, size


class _Snapshot:
    """The sections of a snapshot file, as far as they can be read."""

    def __init__(self, disk: Disk, path: str, name: str) -> None:
        self.states: dict[int, TopicState] = {}
        self.blocks: dict[int, list[Block]] = {}
        self.sections: dict[tuple[int, int, int], SectionLoaded] = {}
        self.path = path
        handle = disk.open(path)
        try:
            self.data, self._used, self._size = read_used(disk, handle)
        finally:
            disk.close(handle)
        self._header = snapshot.decode_header(self.data, path)
        self._end: tuple[Header | None, int] | None = None
        self._regions: list[scan.Region] = []
        self._read()

    def header(self, number: int) -> Header:
        """The header, or its copy, or what the sections say in its place."""
        if self._header is not None:
            return self._header
        if self._end is not None and self._end[0] is not None:
            return self._end[0]
        lsn = min((state.lsn for state in self.states.values()), default=0)
        return Header(number, lsn, bytes(16), 1 + max(self.states, default=0), clean=False)

    def regions(self) -> list[scan.Region]:
        """What could not be read. A topic whose second copy was read is not among what is lost."""
        regions = []
        for region in self._regions:
            named = tuple(
                lost for lost in region.lost_frames if lost.kind != snapshot.TOPIC or lost.topic_id not in self.states
            )
            regions.append(region._replace(lost_frames=named))
        if self._header is None:
            regions.insert(0, scan.Region(0, snapshot.HEADER_BYTES, "corrupt", (), (), True))
        if self._end is None and not regions:
            regions.append(scan.Region(self._size, 0, "corrupt", (), (), False))
        return regions

    def _read(self) -> None:
        for found in scan.walk(self.data, snapshot.HEADER_BYTES, self._used, torn_allowed=False):
            if isinstance(found, scan.Region):
                self._regions.append(found._replace(reason="corrupt"))
            else:
                self._section(found)

    def _section(self, entry: scan.Entry) -> None:
        payload = self.data[entry.at : entry.at + entry.length]
        if entry.kind == snapshot.TOPIC:
            self.states.setdefault(entry.topic_id, snapshot.decode_topic(payload))
        elif entry.kind == snapshot.BLOCK:
            self.blocks.setdefault(entry.topic_id, []).append(block.decode(payload)[0])
        elif entry.kind == snapshot.END:
            self._end = snapshot.decode_end(payload, self.path)
        else:
            key = (entry.kind, entry.topic_id, entry.first_seq)
            self.sections.setdefault(key, SectionLoaded(entry.kind, entry.topic_id, entry.lsn, payload))
