"""SnapshotReader: what can be read of a snapshot file, damaged or not.

Every section that is whole is there, and a topic's image comes from its second copy where the first is damaged. What is
not there is named by `regions`. `nameless` are topics that have only other sections left; `complete` says that no topic
is gone without a trace.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.storage import block
from topics.storage.block import Block
from topics.storage.disk import Disk
from topics.storage.snapshot import snapshot
from topics.storage.snapshot.snapshot import Header, TopicImage
from topics.storage.wal import scan
from topics.storage.wal.file import read_file


class SectionLoaded(NamedTuple):
    """A section of the engine's own."""

    kind: int
    topic_id: int
    lsn: int
    payload: bytes


class SnapshotReader:
    """The sections of one snapshot file."""

    def __init__(self, disk: Disk, path: str, name: str) -> None:
        self.images: dict[int, TopicImage] = {}
        self.blocks: dict[int, list[Block]] = {}
        self.sections: dict[tuple[int, int, int], SectionLoaded] = {}
        self.path = path
        self.data, self._used, self._size = read_file(disk, path)
        self._header = snapshot.decode_header(self.data, path)
        self._end: tuple[Header | None, int] | None = None
        self._regions: list[scan.Region] = []
        self._sections = 0
        self._read()

    def header(self, number: int) -> Header:
        """The header, or its copy, or what the sections imply."""
        if self._header is not None:
            return self._header
        if self._end is not None and self._end[0] is not None:
            return self._end[0]
        lsn = min((image.lsn for image in self.images.values()), default=0)
        return Header(number, lsn, bytes(16), 1 + max(self.images, default=0), clean=False)

    @property
    def is_void(self) -> bool:
        """Whether nothing in it tells what it held."""
        return self._end is None and not self.images

    @property
    def complete(self) -> bool:
        """Whether at least something is left of every topic: each image was there twice."""
        return self._end is not None and (
            self._end[1] - self._sections <= 1 or all(region.complete for region in self._regions)
        )

    def nameless(self) -> list[int]:
        """The ids of topics that have something left, but neither copy of their image."""
        named = {
            lost.topic_id for region in self._regions for lost in region.lost_frames if lost.kind == snapshot.TOPIC
        }
        return sorted((named | self.blocks.keys()) - self.images.keys())

    def regions(self) -> list[scan.Region]:
        """What could not be read. A topic that was read from its second copy is not lost."""
        regions = []
        for region in self._regions:
            named = tuple(
                lost for lost in region.lost_frames if lost.kind != snapshot.TOPIC or lost.topic_id not in self.images
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
                self._sections += found.kind != snapshot.END
                self._section(found)

    def _section(self, entry: scan.Entry) -> None:
        payload = self.data[entry.at : entry.at + entry.length]
        if entry.kind == snapshot.TOPIC:
            self.images.setdefault(entry.topic_id, snapshot.decode_topic(payload))
        elif entry.kind == snapshot.BLOCK:
            self.blocks.setdefault(entry.topic_id, []).append(block.decode(payload)[0])
        elif entry.kind == snapshot.END:
            self._end = snapshot.decode_end(payload, self.path)
        else:
            key = (entry.kind, entry.topic_id, entry.first_seq)
            self.sections.setdefault(key, SectionLoaded(entry.kind, entry.topic_id, entry.lsn, payload))
