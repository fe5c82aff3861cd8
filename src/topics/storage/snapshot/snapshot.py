"""Snapshot: the checkpoint of everything that the WAL held up to an lsn, `snapshots/snapshot-<number>.snap`.

A header of 64 bytes, then sections, which are frames exactly as in the WAL (frame.py): same header, same two checks, so
damage in a snapshot is found, skipped and named by the same code. docs/storage-format.md has the layout.

A section's kind is one of those below or, from FIRST_ENGINE_KIND on, the engine's own. Its frame lsn is the lsn up to
which it includes the topic's frames: a topic may be written later than the header, while others go on. The section
TOPIC holds the msgpack of `TopicImage`; each BLOCK after it holds a Block of its tail, with its delete flags. Sections
that a topic cannot do without are written twice, the second copy after everything else with bit 0 of the frame's flags
set, so that no single damaged place costs a topic its name. The last section is END: the header once more, and how many
sections come before it.

A snapshot is written under a temporary name, synced, renamed, and the directory synced; only then are the one before it
and the WAL files that it covers removed. So there is always a whole one.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from topics.storage.damage import UnknownFormat
from topics.storage.segment.format import SegmentRef
from topics.storage.wal import frame

MAGIC: Final = b"TOPICSNP"
VERSION: Final = 2
VERSIONS_READ: Final = (1, 2)
"""In the first one the leases of a queue are part of its TOPIC section."""
HEADER_BYTES: Final = 64
TOPIC: Final = 64
BLOCK: Final = 65
END: Final = 66
FIRST_ENGINE_KIND: Final = 80
COPY: Final = 1
CLEAN: Final = 1
_HEADER = struct.Struct("<8sIIQQ16sQ")
_CHECKSUM = struct.Struct("<Q")
_COUNT = struct.Struct("<Q")
_NAME = re.compile(r"snapshot-([0-9a-f]{16})\.snap")

assert _HEADER.size + _CHECKSUM.size == HEADER_BYTES


class Header(NamedTuple):
    """What a snapshot says about itself."""

    number: int
    lsn: int
    boot: bytes
    next_topic_id: int
    clean: bool


class TopicImage(msgspec.Struct, omit_defaults=True):
    """One topic as of `lsn`. Everything is plain data, so that old snapshots stay readable when fields are added.

    `config` is JSON text. `lost` are lost ranges (from, to, reason). `producers` has the last seq of each producer,
    `dedupe` the idempotency window as (key, first seq, count, ts), `digests` what the records of each were. `extra` is
    msgpack of the engine's own.
    """

    id: int
    name: str
    config: bytes
    lsn: int
    created_ts: int = 0
    head_seq: int = 0
    evict_floor: int = 0
    earliest_seq: int = 0
    last_ts: int = 0
    ceiling: int = 0
    counters: dict[str, int] = {}
    lost: list[tuple[int, int, str]] = []
    producers: dict[str, int] = {}
    dedupe: list[tuple[str, int, int, int]] = []
    segments: list[SegmentRef] = []
    extra: bytes = b""
    digests: list[int] = []


_encode_image = msgspec.msgpack.Encoder().encode
# The image in the payload of a TOPIC section.
decode_topic = msgspec.msgpack.Decoder(TopicImage).decode


def name(number: int) -> str:
    """The name of a snapshot's file."""
    return f"snapshot-{number:016x}.snap"


def parse_name(text: str) -> int | None:
    """The number of a snapshot, or None for any other name."""
    match = _NAME.fullmatch(text)
    return None if match is None else int(match.group(1), 16)


def encode_header(header: Header) -> bytes:
    """The 64 bytes at the start of a snapshot."""
    flags = CLEAN if header.clean else 0
    head = _HEADER.pack(MAGIC, VERSION, flags, header.number, header.lsn, header.boot, header.next_topic_id)
    return head + _CHECKSUM.pack(xxh3_64_intdigest(head))


def decode_header(data: bytes, path: str) -> Header | None:
    """The header, or None where it is damaged. Raises UnknownFormat for another version."""
    if len(data) < HEADER_BYTES or _CHECKSUM.unpack_from(data, 56)[0] != xxh3_64_intdigest(data[:56]):
        return None
    magic, version, flags, number, lsn, boot, next_topic_id = _HEADER.unpack_from(data)
    if magic != MAGIC or version not in VERSIONS_READ:
        known = " and ".join(map(str, VERSIONS_READ))
        raise UnknownFormat(f"{path}: snapshot format version {version}; this program reads versions {known}")
    return Header(number, lsn, boot, next_topic_id, bool(flags & CLEAN))


def topic_section(image: TopicImage) -> bytes:
    """The section of a topic; list it among the essential ones."""
    return frame.encode(TOPIC, image.lsn, image.id, _encode_image(image))


def block_section(lsn: int, topic_id: int, first_seq: int, n: int, encoded: bytes) -> bytes:
    """The section of one Block of a topic's tail; `encoded` is `Block.encoded()`, flags included."""
    return frame.encode(BLOCK, lsn, topic_id, encoded, n=n, first_seq=first_seq)


class LargeBlock(NamedTuple):
    """The section of one large Block, whose checksum is left to the job that writes it.

    To copy and check 64 MiB takes a tenth of a second, in which the engine could do nothing else.
    """

    lsn: int
    topic_id: int
    first_seq: int
    n: int
    raw: bytes
    flags: bytes

    @property
    def size_bytes(self) -> int:
        """About what it takes in the file."""
        return len(self.raw) + len(self.flags)

    def parts(self) -> tuple[bytes, ...]:
        """What `block_section` gives, in parts that are not copied; mostly without the interpreter's lock."""
        made = frame.large(BLOCK, self.lsn, self.topic_id, self.raw, self.flags, n=self.n, first_seq=self.first_seq)
        return made.parts


def engine_section(kind: int, ordinal: int, payload: bytes, *, topic_id: int = 0, lsn: int = 0) -> bytes:
    """A section of the engine's own; kind, topic and ordinal together name it."""
    assert FIRST_ENGINE_KIND <= kind < frame.VOID
    return frame.encode(kind, lsn, topic_id, payload, first_seq=ordinal)


def decode_end(payload: bytes, path: str) -> tuple[Header | None, int]:
    """The header's second copy and the number of sections."""
    count: int = _COUNT.unpack_from(payload, HEADER_BYTES)[0] if len(payload) == HEADER_BYTES + 8 else -1
    return decode_header(payload, path), count


def end_section(header: Header, sections: int) -> bytes:
    """The last section: the header once more, and how many sections come before it."""
    return frame.encode(END, header.lsn, 0, encode_header(header) + _COUNT.pack(sections))
