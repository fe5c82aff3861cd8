"""Verify: every byte of a data directory, checked.

Only reads, and takes no lock: use it on a stopped server's directory or on a copy. What a restart repairs by itself
(the torn end of the last write, a file that is half made) is noted and is not damage; everything else that breaks a
checksum or a rule is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from topics.storage import block, store
from topics.storage.damage import UnknownFormat
from topics.storage.disk import TEMPORARY_SUFFIX, Disk, RealDisk
from topics.storage.segment import format as segment
from topics.storage.snapshot import snapshot
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, scan

Write = Callable[[str], object]


def verify(
    directory: str,
    write: Write,
    *,
    disk: Disk | None = None,
    cold_directory: str | None = None,
    trusted: Collection[str] = (),
) -> int:
    """Check a data directory and give `write` one line per finding and a summary.

    Of segment files that are `trusted`, such as "segments/….data", it is only checked that they are there.

    0 where all is well, 1 where something is damaged, 2 where this is not a data directory that this program reads.
    """
    check = _Check(RealDisk() if disk is None else disk, directory, cold_directory, write, trusted)
    try:
        if not check.layout():
            return 2
        check.snapshots()
        check.wal()
        check.segments()
    except UnknownFormat as error:
        write(f"unknown format: {error}")
        return 2
    check.summary()
    return 1 if check.damage else 0


class _Check:
    """One run over a directory."""

    def __init__(
        self, disk: Disk, directory: str, cold_directory: str | None, write: Write, trusted: Collection[str]
    ) -> None:
        self.damage = 0
        self._disk = disk
        self._directory = directory
        self._cold = cold_directory
        self._write = write
        self._trusted = trusted
        self._files = self._bytes = self._frames = self._records = 0
        self._listed: dict[segment.SegmentName, int] = {}

    def _bad(self, file: str, offset: int, what: str) -> None:
        self.damage += 1
        self._write(f"DAMAGE {file} at {offset}: {what}")

    def _note(self, file: str, what: str) -> None:
        self._write(f"note   {file}: {what}")

    def _read(self, path: str) -> tuple[bytes, int, int]:
        data, used, size = walfile.read_file(self._disk, path)
        self._files += 1
        self._bytes += size
        return data, used, size

    def layout(self) -> bool:
        """Whether this is a data directory, in a version that is read here."""
        path = f"{self._directory}/{store.LAYOUT_NAME}"
        if not self._disk.exists(path):
            self._write(f"{self._directory} is no data directory: there is no {store.LAYOUT_NAME}")
            return False
        data, _, size = self._read(path)
        text = data[:size].decode("utf-8", "replace").strip()
        if text not in store.LAYOUTS_READ:
            raise UnknownFormat(f"{path} says {text!r}")
        return True

    def snapshots(self) -> None:
        """Headers, sections, second copies, and the count at the end."""
        numbered = [name for name in self._names("snapshots") if snapshot.parse_name(name) is not None]
        for name in numbered:
            self._snapshot(f"snapshots/{name}", is_last=name == numbered[-1])

    def _snapshot(self, file: str, *, is_last: bool) -> None:
        data, used, size = self._read(f"{self._directory}/{file}")
        header = snapshot.decode_header(data, file)
        if header is None:
            self._bad(file, 0, "the header's checksum does not match")
        sections = 0
        topics: set[int] = set()
        end: tuple[snapshot.Header | None, int] | None = None
        for found in scan.walk(data, snapshot.HEADER_BYTES, used, torn_allowed=False):
            if isinstance(found, scan.Region):
                self._region(file, found)
                continue
            sections += 1
            payload = data[found.at : found.at + found.length]
            self._header_check(file, data, found)
            if found.kind == snapshot.END:
                end = snapshot.decode_end(payload, file)
                sections -= 1
            elif found.kind == snapshot.TOPIC and is_last:
                topics.add(found.topic_id)
                self._topic(file, found, payload)
            elif found.kind == snapshot.BLOCK:
                self._block(file, found, payload, with_flags=True)
        if end is None:
            self._bad(file, size, "there is no end section")
        elif end[1] != sections and not self.damage:
            self._bad(file, size, f"{sections} sections, and the end section says {end[1]}")
        lsn = "?" if header is None else header.lsn
        self._note(file, f"{sections} sections, {len(topics)} topics, lsn {lsn}")

    def _topic(self, file: str, entry: scan.Entry, payload: bytes) -> None:
        try:
            state = snapshot.decode_topic(payload)
        except msgspec.MsgspecError as error:
            self._bad(file, entry.at, f"a topic section cannot be decoded: {error}")
            return
        for ref in state.segments:
            self._listed[segment.SegmentName(state.id, ref.first_seq, ref.edition)] = ref.n

    def wal(self) -> None:
        """Headers, every frame and every Block in it, and the order of lsns; zeros after the last frame."""
        names = sorted(name for name in map(walfile.parse_name, self._names("wal")) if name is not None)
        last_generation = max((name.generation for name in names), default=0)
        last_lsns: dict[int, int] = {}
        for name, before in zip(names, [None, *names], strict=False):
            follows = before is not None and before[:2] == name[:2]
            if follows and before is not None and name.number != before.number + 1:
                self._bad(f"wal/{name}", 0, f"file number {before.number + 1} of this shard is missing")
            last_lsns[name.shard] = self._wal_file(name, last_generation, last_lsns.get(name.shard, 0))

    def _wal_file(self, name: walfile.WalName, last_generation: int, last_lsn: int) -> int:
        file = f"wal/{name}"
        data, used, size = self._read(f"{self._directory}/{file}")
        header = walfile.decode_header(data, file)
        same_boot = header is None or header.boot == walfile.boot_digest(self._disk.boot_id())
        if header is None:
            self._bad(file, 0, "the header's checksum does not match")
        elif header.name != name:
            self._bad(file, 0, f"the header belongs to {header.name}")
        elif size < header.length:
            self._bad(file, size, f"the file is cut short: {size} of {header.length} bytes")
        is_last = name.generation == last_generation
        frames = 0
        for found in scan.walk(data, walfile.HEADER_BYTES, used, torn_allowed=is_last and not same_boot):
            if isinstance(found, scan.Region):
                if found.reason == "torn" and is_last:
                    self._note(file, f"torn at {found.offset}, {found.length} bytes: a restart repairs it")
                else:
                    self._region(file, found)
                continue
            frames += 1
            if found.kind == frame.VOID:
                continue
            self._header_check(file, data, found)
            if found.lsn <= last_lsn:
                self._bad(file, found.at - 48, f"lsn {found.lsn} follows lsn {last_lsn}")
            last_lsn = found.lsn
            self._payload(file, found, data[found.at : found.at + found.length])
        self._frames += frames
        self._note(file, f"{frames} frames up to lsn {last_lsn}")
        return last_lsn

    def _payload(self, file: str, entry: scan.Entry, payload: bytes) -> None:
        if entry.kind == frame.APPEND:
            self._block(file, entry, payload, with_flags=False)
            return
        try:
            frame.decode_payload(entry.kind, payload)
        except msgspec.MsgspecError as error:
            self._bad(file, entry.at, f"the payload of a {frame.NAMES.get(entry.kind)} cannot be decoded: {error}")

    def _header_check(self, file: str, data: bytes, entry: scan.Entry) -> None:
        if scan.header_at(data, entry.at - frame.HEADER_BYTES) is None:
            self._bad(file, entry.at - frame.HEADER_BYTES, "the frame is whole, but its header check does not match")

    def _block(self, file: str, entry: scan.Entry, payload: bytes, *, with_flags: bool) -> None:
        try:
            found, _ = block.decode(payload, with_flags=with_flags)
        except block.BlockError as error:
            self._bad(file, entry.at, str(error))
            return
        self._records += found.n
        if (found.topic_id, found.first_seq, found.n) != (entry.topic_id, entry.first_seq, entry.n):
            self._bad(file, entry.at, "the Block does not hold what the frame says")
        ts = found.columns.ts
        if any(ts[i] > ts[i + 1] for i in range(found.n - 1)):
            self._bad(file, entry.at, "ts goes backwards within the Block")

    def _region(self, file: str, region: scan.Region) -> None:
        lost = ", ".join(
            f"topic {lost.topic_id} seq {lost.first_seq}-{lost.first_seq + lost.n - 1}" for lost in region.lost
        )
        named = ", ".join(
            f"{frame.NAMES.get(lost.kind, lost.kind)} frame lsn {lost.lsn}" for lost in region.lost_frames
        )
        what = ", ".join(text for text in (lost, named) if text) or "nothing that can be named"
        rest = "" if region.complete else "; more may be lost"
        self._bad(file, region.offset, f"{region.length} bytes hold no frame; lost: {what}{rest}")

    def segments(self) -> None:
        """Every segment: headers, Blocks, directory, tags; and that every segment in the checkpoint is there."""
        files = {name: name for name in self._names("segments")}
        cold = set() if self._cold is None else set(self._disk.list(self._cold))
        names = {parsed[0] for parsed in map(segment.parse_name, [*files, *cold]) if parsed is not None}
        for name in sorted(names):
            if f"segments/{name.data_file}" in self._trusted:
                self._files += 1
            elif name.data_file in files:
                self._segment(name, f"{self._directory}/segments", "segments")
            elif name.data_file in cold:
                assert self._cold is not None
                self._segment(name, self._cold, "cold")
            if name.flags_file in files:
                self._flags(name)
            if name not in self._listed:
                self._note(f"segments/{name.data_file}", "no checkpoint lists it; a restart removes it")
        for name, n in sorted(self._listed.items()):
            if name.data_file not in files and name.data_file not in cold:
                if self._cold is None and name.flags_file in files:
                    self._note(f"segments/{name.data_file}", f"{n} records in the cold tier, not checked")
                else:
                    self._bad(f"segments/{name.data_file}", 0, f"missing, with {n} records")

    def _segment(self, name: segment.SegmentName, directory: str, tier: str) -> None:
        file = f"{tier}/{name.data_file}"
        data, _, size = self._read(f"{directory}/{name.data_file}")
        data = data[:size].ljust(size, b"\0")
        header = segment.decode_header(data, segment.DATA_MAGIC, file)
        if header is None:
            self._bad(file, 0, "the header's checksum does not match")
        elif header.data_bytes != size:
            self._bad(file, size, f"the file has {size} bytes, and its header says {header.data_bytes}")
        places = segment.scan_blocks(data)
        at = segment.HEADER_BYTES
        builder = segment.Builder(name.topic_id, name.first_seq, name.edition)
        for place in places:
            if place.offset != at:
                self._bad(file, at, f"{place.offset - at} bytes hold no Block")
            at = place.offset + place.length + place.n
            builder.add(block.decode(data, place.offset)[0])
            self._records += place.n
        end = size if header is None else header.blocks_end
        if at != end:
            self._bad(file, at, f"{end - at} bytes hold no Block")
        self._index(name, places, builder)
        self._note(file, f"{len(places)} Blocks, {sum(place.n for place in places)} records")

    def _flags(self, name: segment.SegmentName) -> None:
        file = f"segments/{name.flags_file}"
        data, _, size = self._read(f"{self._directory}/{file}")
        header = segment.decode_header(data, segment.FLAGS_MAGIC, file)
        if header is None:
            self._bad(file, 0, "the header's checksum does not match")
        elif size != segment.HEADER_BYTES + header.records:
            self._bad(file, size, f"{size - segment.HEADER_BYTES} flags for {header.records} records")

    def _index(self, name: segment.SegmentName, places: list[segment.Place], builder: segment.Builder) -> None:
        file = f"segments/{name.index_file}"
        path = f"{self._directory}/{file}"
        if not self._disk.exists(path):
            self._bad(file, 0, "missing; a restart makes it again")
            return
        data, _, size = self._read(path)
        data = data[:size].ljust(size, b"\0")
        header = segment.decode_header(data, segment.INDEX_MAGIC, file)
        directory = None if header is None else segment.decode_directory(data, header.blocks)
        if directory is None:
            self._bad(file, 0, "the header or the directory does not match its checksum; a restart makes it again")
        elif directory != places:
            self._bad(file, segment.HEADER_BYTES, "the directory does not match the Blocks")
        elif data[segment.directory_bytes(len(places)) :] != builder.tags():
            self._bad(file, segment.directory_bytes(len(places)), "the tags do not match the Blocks")

    def _names(self, directory: str) -> list[str]:
        names = self._disk.list(f"{self._directory}/{directory}")
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self._note(f"{directory}/{name}", "half made when the process died; a restart removes it")
        return names

    def summary(self) -> None:
        """How much there was, what is in quarantine, and the verdict."""
        kept = len(self._disk.list(f"{self._directory}/quarantine"))
        if kept:
            self._note("quarantine", f"{kept} damaged regions were set aside earlier")
        verdict = "all is well" if not self.damage else f"damaged places: {self.damage}"
        self._write(
            f"{self._files} files, {self._bytes} bytes, {self._frames} frames, {self._records} records: {verdict}"
        )
