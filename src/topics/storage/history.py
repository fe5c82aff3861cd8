"""History: a data directory as the events that rebuild an engine.

`History.events()` yields, in this order:

1. `Started`, once: what the checkpoint says and whether the kernel is still the one that wrote the WAL.
2. `TopicLoaded` for every topic of the checkpoint, `TopicsNameless` for topics with an image that cannot be read, then
   `SectionLoaded` for every section of the engine's own, and `Damaged` for what could not be read of it.
3. `Appended`, `Control` and `Damaged` from the WAL, generation by generation, in the order that wal/reader.py promises.
   Frames that the checkpoint includes are left out. A frame may name a topic that is gone (its DROP came before the
   checkpoint reached it), and its DROP follows.

A directory without its checkpoint is `Unusable`: only the checkpoint has the names of topics and the list of segments.
That it is missing shows in the WAL, which then does not begin where a WAL begins.

What it does to the directory, and why a second run changes nothing: damaged bytes are copied to quarantine under a name
made of their place; a torn end is overwritten with zeros; a torn hole is overwritten with a VOID frame; and the
directories and the files of the last generation are synced, so that what this process has read, and acts on, cannot
be lost later with the power (a process may die between a rename and the sync of its directory; the next one sees the
name). Where a sync has failed before, they are written once more before that. All of it happens before the next
generation begins, so torn regions exist only in the last one: in every older file a bad region is corruption, today and
at every later start.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from topics.storage import quarantine
from topics.storage.block import Block
from topics.storage.damage import Unusable
from topics.storage.disk import TEMPORARY_SUFFIX, Disk, read_at
from topics.storage.snapshot import snapshot
from topics.storage.snapshot.reader import SectionLoaded, SnapshotReader
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, scan
from topics.storage.wal.file import WalName, read_slack, read_used, used_bytes
from topics.storage.wal.reader import Appended, Control, Damaged, ShardReader

WINDOW_BYTES: Final = 1 << 19
SNAPSHOT_LOST: Final = (
    "the checkpoint or the beginning of the log is missing or unreadable ({what}), and with it the names of the topics;"
    " nothing was changed. Put back {directory} from a copy, or move the data directory away to start with an empty one"
)


class Started(NamedTuple):
    """The reading has begun. `header` is None where there is no checkpoint yet.

    `same_boot`: the kernel that has the last WAL bytes still runs, so nothing that was written is missing.
    """

    header: snapshot.Header | None
    same_boot: bool


class TopicLoaded(NamedTuple):
    """A topic of the checkpoint and the Blocks of its tail, ascending; sealed segments are named in the image."""

    image: snapshot.TopicImage
    blocks: list[Block]


class TopicsNameless(NamedTuple):
    """Topics of the checkpoint with both copies of their image damaged, and the Blocks that are left of each.

    Where `complete` is False there may have been more topics, with nothing left of them in the checkpoint.
    """

    tails: dict[int, list[Block]]
    complete: bool


Event = Started | TopicLoaded | SectionLoaded | TopicsNameless | Appended | Control | Damaged


class History:
    """One reading of a data directory. Afterwards it knows what there is to trim and where the lsns go on."""

    def __init__(self, disk: Disk, wal_directory: str, snapshot_directory: str, quarantine_directory: str) -> None:
        self.last_lsn = 0
        self.last_generation = 0
        self.snapshot_number = 0
        self.files: dict[WalName, int] = {}
        self.used_bytes: dict[WalName, int] = {}
        self.frames = 0
        self.bytes_done = 0
        self.bytes_total = 0
        self.same_boot = True
        self._boots: set[bytes] = set()
        self._suspect = False
        self._end_lost = False
        self._copies: list[WalName] = []
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

        Files alone do not count: a process that dies right after its start leaves some, and has acknowledged nothing.
        A log with its end missing is as bad.
        """
        return self._end_lost or (bool(self._boots) and walfile.boot_digest(self._disk.boot_id()) not in self._boots)

    @property
    def one_boot(self) -> bool:
        """Whether this kernel has written all that was read: known at the end."""
        return self._boots == {walfile.boot_digest(self._disk.boot_id())}

    def events(self, segment_files: int = 0) -> Iterator[Event]:
        """Everything there is; see the module for the order.

        `segment_files` is how many files of sealed segments there are: without log and checkpoint they have no topic.
        """
        self._clear_temporary()
        self._suspect = self._disk.exists(f"{self._wal}/{walfile.SUSPECT_NAME}")
        names = self._wal_names()
        self.last_generation = max((name.generation for name in names), default=0)
        self.same_boot = self._is_same_boot([name for name in names if name.generation == self.last_generation])
        yield from self._load_snapshot(names, segment_files)
        yield from self._set_copies_aside(names)
        by_generation: dict[int, dict[int, list[WalName]]] = {}
        for name in names:
            by_generation.setdefault(name.generation, {}).setdefault(name.shard, []).append(name)
        oldest = min(by_generation, default=0)
        for generation in sorted(by_generation):
            if generation > oldest and generation - 1 not in by_generation:
                yield self._missing(WalName(generation - 1, 0, 1), self.last_lsn)
            shards = sorted(by_generation[generation].items())
            streams = [self._shard(files, begins=generation > oldest) for _, files in shards]
            # heapq.merge would cost a comparison per event for nothing.
            yield from streams[0] if len(streams) == 1 else heapq.merge(*streams, key=attrgetter("lsn"))
        if self._suspect:
            self._disk.unlink(f"{self._wal}/{walfile.SUSPECT_NAME}")
            self._disk.sync_dir(self._wal)

    def _clear_temporary(self) -> None:
        """Remove what a crash left half made, and make the names that are there durable."""
        for directory in (self._wal, self._snapshots, self._quarantine):
            for name in self._disk.list(directory):
                if name.endswith(TEMPORARY_SUFFIX):
                    self._disk.unlink(f"{directory}/{name}")
            self._disk.sync_dir(directory)

    def _wal_names(self) -> list[WalName]:
        """The files of the WAL in order. A file with another name in its header is a copy, and goes to quarantine."""
        names: list[WalName] = []
        for name in sorted(name for name in map(walfile.parse_name, self._disk.list(self._wal)) if name is not None):
            header = self._wal_header(name)
            if header is not None and header.name != name:
                self._copies.append(name)
                continue
            names.append(name)
            handle = self._disk.open(f"{self._wal}/{name}")
            self.bytes_total += self._disk.size(handle)
            self._disk.close(handle)
        return names

    def _wal_header(self, name: WalName) -> walfile.WalHeader | None:
        path = f"{self._wal}/{name}"
        return walfile.decode_header(read_at(self._disk, path, 0, walfile.HEADER_BYTES), path)

    def _set_copies_aside(self, names: list[WalName]) -> Iterator[Damaged]:
        for copy in self._copies:
            kept = quarantine.move(self._disk, self._quarantine, f"{self._wal}/{copy}")
            # It may be in the place of the file in which the log ended.
            later = [name for name in names if name > copy and name.shard == copy.shard]
            self._end_lost = self._end_lost or not later
            yield Damaged(self.last_lsn, f"{self._wal}/{copy}", 0, 0, "corrupt", (), (), False, kept)

    def _is_same_boot(self, names: list[WalName]) -> bool:
        """Whether the last generation was written under this boot; False where all its headers are damaged."""
        current = walfile.boot_digest(self._disk.boot_id())
        for name in names:
            header = self._wal_header(name)
            if header is not None:
                return header.boot == current
        return not names

    def _newest_snapshot(self) -> Iterator[tuple[str, SnapshotReader]]:
        """The snapshots, the one that counts first. A file with another number in its header is a copy."""
        numbers = [(snapshot.parse_name(name) or 0, name) for name in self._disk.list(self._snapshots)]
        for number, name in sorted((entry for entry in numbers if entry[0]), reverse=True):
            self.snapshot_number = max(self.snapshot_number, number)
            loaded = SnapshotReader(self._disk, f"{self._snapshots}/{name}", name)
            if loaded.header(number).number == number:
                yield name, loaded

    def _load_snapshot(self, wal: list[WalName], segment_files: int) -> Iterator[Event]:
        name, loaded = next(self._newest_snapshot(), ("", None))
        if loaded is None or loaded.is_void:
            begun = {(file.generation, file.shard) for file in wal if file.number == 1}
            begins = all((1, file.shard) in begun or file.generation > 1 for file in wal) and (1, 0) in begun
            if loaded is not None or (not begins and (wal or segment_files)):
                what = f"{name} holds nothing" if name else f"{self._snapshots} is empty, and the log does not begin"
                raise Unusable(SNAPSHOT_LOST.format(what=what, directory=self._snapshots))
            yield Started(None, self.same_boot)
            return
        header = loaded.header(self.snapshot_number)
        self._skip_lsn = header.lsn
        self._boots.add(header.boot)
        self.last_lsn = max([header.lsn, *(image.lsn for image in loaded.images.values())])
        self._skip = {topic_id: image.lsn for topic_id, image in loaded.images.items()}
        yield Started(header, self.same_boot)
        for topic_id, image in loaded.images.items():
            yield TopicLoaded(image, loaded.blocks.pop(topic_id, []))
        nameless = loaded.nameless()
        if nameless or not loaded.complete:
            yield TopicsNameless({topic_id: loaded.blocks.get(topic_id, []) for topic_id in nameless}, loaded.complete)
        yield from loaded.sections.values()
        for region in loaded.regions():
            yield self._damaged(f"{self._snapshots}/{name}", name, loaded.data, region, self.last_lsn)

    def _missing(self, name: WalName, lsn: int) -> Damaged:
        return Damaged(lsn, f"{self._wal}/{name}", 0, 0, "corrupt", (), (), False, "")

    def _shard(self, names: list[WalName], *, begins: bool) -> Iterator[Appended | Control | Damaged]:
        """The events of one shard in one generation; `begins` says that its first file must be there."""
        reader = ShardReader(self._skip, self._skip_lsn)
        previous = names[0]._replace(number=0) if begins else None
        # The next file is prepared ahead of time: after the last one in use there may be one that is empty.
        last = max((name for name in names if self._in_use(name)), default=names[-1])
        for name in names:
            if previous is not None and name.number != previous.number + 1:
                yield from reader.damaged(self._missing(previous._replace(number=previous.number + 1), reader.last_lsn))
            previous = name
            yield from self._file(name, reader, is_last=name >= last)
            self.files[name] = reader.last_lsn
        yield from reader.finish()
        self.frames += reader.frames
        self.last_lsn = max(self.last_lsn, reader.last_lsn)

    def _in_use(self, name: WalName) -> bool:
        """Whether anything was written after a file's header."""
        return any(read_at(self._disk, f"{self._wal}/{name}", walfile.HEADER_BYTES, frame.ALIGN_BYTES))

    def _file(self, name: WalName, reader: ShardReader, *, is_last: bool) -> Iterator[Appended | Control | Damaged]:
        path = f"{self._wal}/{name}"
        handle = self._disk.open(path, writable=True)
        try:
            used, size = used_bytes(self._disk, handle)
            head = self._disk.read(handle, 0, walfile.HEADER_BYTES)
            header = walfile.decode_header(head, path)
            if header is None:
                damage = scan.Region(0, len(head), "corrupt", (), (), True)
                yield from reader.damaged(self._damaged(path, str(name), head, damage, reader.last_lsn))
            at = walfile.HEADER_BYTES
            is_short = size < (walfile.HEADER_BYTES if header is None else header.length)
            done_before = self.bytes_done
            while at < used:
                at = yield from self._frames(handle, reader, at, used)
                if not self._disk.read(handle, at, used - at).strip(b"\0"):
                    break
                # Only here, where frames end before their file does, is all of it needed at once.
                data, _, _ = read_used(self._disk, handle)
                region, following = self._region(name, data, at, used, may_be_torn=is_last and not is_short)
                if region is None:
                    break
                yield from reader.damaged(self._damaged(path, str(name), data, region, reader.last_lsn))
                if region.reason == "torn":
                    if following is None:
                        self._disk.write(handle, at, bytes(min(region.length, size - at)))
                    elif following - at >= frame.FRAME_BYTES_MIN:
                        self._disk.write(handle, at, frame.void(data[at:following]))
                if following is None:
                    break
                at = following
            self.bytes_done = done_before + size
            if is_short:
                end = scan.Region(size, 0, "corrupt", (), (), False)
                yield from reader.damaged(self._damaged(path, str(name), b"", end, reader.last_lsn))
                self._end_lost = self._end_lost or (is_last and name.generation == self.last_generation)
            self.used_bytes[name] = at
            if at > walfile.HEADER_BYTES:
                self._boots.add(bytes(16) if header is None else header.boot)
            if name.generation == self.last_generation:
                if self._suspect:
                    # After a failed sync the kernel takes its pages for clean: only what is written again gets synced.
                    self._disk.write(handle, 0, self._disk.read(handle, 0, at))
                self._disk.sync(handle)
        finally:
            self._disk.close(handle)

    def _frames(
        self, handle: int, reader: ShardReader, at: int, used: int
    ) -> Generator[Appended | Control | Damaged, None, int]:
        """The events of the whole frames from `at` on; then where they end.

        The file is read through a window: what is read is still in the processor's cache when it is looked at, and the
        memory of the window before is used again.
        """
        length = WINDOW_BYTES
        while at < used:
            begin = at - frame.ALIGN_BYTES
            end = min(used, begin + length)
            data = read_slack(self._disk, handle, begin, end)
            reached = at
            for event in reader.frames_in(data, frame.ALIGN_BYTES, end - begin):
                if isinstance(event, int):
                    reached = begin + event
                else:
                    yield event
            length = WINDOW_BYTES
            if reached == at:
                # Nothing that is whole, unless the frame is longer than the window.
                length = frame.ALIGN_BYTES + frame.claimed_bytes(data, frame.ALIGN_BYTES)
                if end == used or length <= end - begin:
                    break
            self.bytes_done += reached - at
            at = reached
        return at

    def _region(
        self, name: WalName, data: bytes, at: int, used: int, *, may_be_torn: bool
    ) -> tuple[scan.Region | None, int | None]:
        """What is at `at`, where frames end, and where they go on."""
        is_newest = name.generation == self.last_generation
        torn_allowed = is_newest and not self.same_boot
        region, following = scan.gap(data, at, used, torn_allowed=torn_allowed)
        if region is not None and region.reason == "torn" and not (torn_allowed or (is_newest and may_be_torn)):
            # A process dies in one place only, the end of the last file in use; in older generations it was cleared.
            region = region._replace(reason="corrupt")
        return region, following

    def _damaged(self, path: str, name: str, data: bytes, region: scan.Region, lsn: int) -> Damaged:
        found = data[region.offset : region.offset + region.length]
        kept = quarantine.keep(self._disk, self._quarantine, name, region.offset, found) if found else ""
        return Damaged(lsn, path, *region, kept)
