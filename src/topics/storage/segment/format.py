"""The format of a segment's files: a run of sealed records of one topic, named by topic id and first seq.

docs/storage-format.md has the layout. `.data` holds the Blocks with their delete flags, back to back, ascending; `.idx`
the directory, one entry for each Block, and then the tags, sorted, with the seqs of each: a tag delete looks its tag up
there by bisection, and reads no record. Both begin with a header of 64 bytes.

A `.data` ends with ALL_LIVE for as long as none of its flags is set. Then a start reads none of them, so that the time
it takes does not depend on the number of records. Anything else there, damage included, means that flags may be set; a
crash may leave anything there, while it is overwritten and the log still has the deletes.

The `.idx` is derived: where it is damaged it is made again from the Blocks. A damaged Block is named by the directory,
so either file may be damaged in one place, and what is lost is known exactly. Names appear in the order
`.idx`, `.data` and vanish in the order `.data`, `.idx`: a `.data` is complete, and an `.idx` alone means nothing.

A segment that takes the place of others (rewrite.py) may begin with the same seq as one of them, and both are there
until the next checkpoint. So it has an edition above theirs, in its header and in the names of its files.

Of a segment in the cold tier only the `.data` is there, and it is never changed again. The `.idx` stays in the hot
tier, and with it the delete flags since the move, in a `.flags` file. So a cold store need not be reachable for
anything but the records themselves, and need not be able to change bytes.
"""

from __future__ import annotations

import heapq
import re
import struct
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from topics.storage import block
from topics.storage.block import Block
from topics.storage.damage import UnknownFormat
from topics.storage.flags import DELETED

DATA_MAGIC: Final = b"TOPICSEG"
INDEX_MAGIC: Final = b"TOPICIDX"
FLAGS_MAGIC: Final = b"TOPICDEL"
VERSION: Final = 2
"""In version 1 a `.data` ends with its last flags."""
HEADER_BYTES: Final = 64
ALL_LIVE: Final = b"ALL LIVE"
SOME_DELETED: Final = bytes(len(ALL_LIVE))
# What a Block in a segment should reach before the next one begins.
BLOCK_RECORDS: Final = 1000
PIECE_SEQS: Final = 8192
BLOCK_BYTES: Final = 1 << 20
PIECE_TAGS: Final = 2000
_HEADER = struct.Struct("<8sIIQQQQQ")
_CHECKSUM = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQqqQIIQ")
_TAGS = struct.Struct("<II")
_TAG = struct.Struct("<III")
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})(?:-([0-9a-f]{8}))?\.(data|idx|flags)")

assert _HEADER.size + _CHECKSUM.size == HEADER_BYTES
assert _ENTRY.size == 56


class SegmentName(NamedTuple):
    """Which segment: a topic, a seq that no record of it is below, and how often what begins there was rewritten."""

    topic_id: int
    first_seq: int
    edition: int = 0

    @property
    def stem(self) -> str:
        """What the names of its files begin with."""
        stem = f"{self.topic_id:016x}-{self.first_seq:016x}"
        return f"{stem}-{self.edition:08x}" if self.edition else stem

    @property
    def data_file(self) -> str:
        """The name of the file with the records."""
        return f"{self.stem}.data"

    @property
    def index_file(self) -> str:
        """The name of the file with the directory and the tags."""
        return f"{self.stem}.idx"

    @property
    def flags_file(self) -> str:
        """The name of the file with the delete flags of a segment in the cold tier."""
        return f"{self.stem}.flags"


class SegmentRef(msgspec.Struct, array_like=True, frozen=True):
    """How a checkpoint lists a segment: `n` records from `first_seq` to `last_seq`, with or without gaps."""

    first_seq: int
    n: int
    last_seq: int
    edition: int = 0


class Header(NamedTuple):
    """What the header of a file says: the segment, and how long its `.data` is."""

    name: SegmentName
    blocks: int
    records: int
    data_bytes: int
    version: int

    @property
    def blocks_end(self) -> int:
        """Where the last flags of the `.data` end."""
        return self.data_bytes - len(ALL_LIVE) if self.version > 1 else self.data_bytes


class Place(NamedTuple):
    """One entry of a segment's directory."""

    offset: int
    first_seq: int
    first_ts: int
    last_ts: int
    size_bytes: int
    length: int
    n: int
    # How many of the n are erased: deleted, and without any text.
    erased: int = 0


def place_of(found: Block, offset: int, length: int) -> Place:
    """The directory entry of a Block at an offset; `length` is without its delete flags."""
    size_bytes, erased = found.size_bytes(0, found.n), found.erased().count(DELETED)
    return Place(offset, found.first_seq, found.first_ts, found.last_ts, size_bytes, length, found.n, erased)


def parse_name(text: str) -> tuple[SegmentName, str] | None:
    """The segment that a file belongs to, and "data", "idx" or "flags"; None for any other name."""
    match = _NAME.fullmatch(text)
    return (
        None
        if match is None
        else (SegmentName(int(match[1], 16), int(match[2], 16), int(match[3] or "0", 16)), match[4])
    )


def encode_header(magic: bytes, name: SegmentName, blocks: int, records: int, data_bytes: int) -> bytes:
    """The 64 bytes at the start of either file."""
    head = _HEADER.pack(magic, VERSION, blocks, name.topic_id, name.first_seq, records, data_bytes, name.edition)
    return head + _CHECKSUM.pack(xxh3_64_intdigest(head))


def decode_header(data: bytes, magic: bytes, file: str) -> Header | None:
    """The header that a file begins with; None where it is damaged. Raises UnknownFormat."""
    if len(data) < HEADER_BYTES or _CHECKSUM.unpack_from(data, 56)[0] != xxh3_64_intdigest(data[:56]):
        return None
    found, version, blocks, topic_id, first_seq, records, data_bytes, edition = _HEADER.unpack_from(data)
    if found != magic:
        return None
    if not 1 <= version <= VERSION:
        raise UnknownFormat(f"{file}: segment format version {version}; this program reads versions 1 to {VERSION}")
    return Header(SegmentName(topic_id, first_seq, edition), blocks, records, data_bytes, version)


class Builder:
    """Gathers the Blocks of one segment, one at a time, so that the engine can do it in slices.

    Give it Blocks of about BLOCK_RECORDS records or BLOCK_BYTES (merge small ones first), ascending, gaps allowed.
    """

    def __init__(self, topic_id: int, first_seq: int | None = None, edition: int = 0) -> None:
        self.topic_id = topic_id
        self._first_seq = first_seq
        self._edition = edition
        self._last_seq = 0
        self.sources: list[Block] = []
        self.written_flags: list[bytes] = []
        self.places: list[Place] = []
        self.records = 0
        self.all_live = True
        """Whether no flag was set in what was added."""
        self._blocks_end = HEADER_BYTES
        self._parts: list[bytes] = []
        self._tags: defaultdict[bytes, array[int]] = defaultdict(partial(array, "I"))

    @property
    def name(self) -> SegmentName:
        """What the segment will be called."""
        return SegmentName(self.topic_id, self._first_seq or self.places[0].first_seq, self._edition)

    @property
    def data_bytes(self) -> int:
        """The length of the `.data` file."""
        return self._blocks_end + len(ALL_LIVE)

    def add(self, found: Block) -> None:
        """Take the next Block, with the delete flags it has now."""
        assert found.first_seq > self._last_seq, "Blocks come in order"
        assert found.topic_id == self.topic_id
        # The records are not copied: a segment in the making costs no more memory than the tail it is made of.
        flags = bytes(found.n) if found.flags is None else bytes(found.flags)
        length = len(found.raw)
        self._last_seq = found.last_seq
        self.places.append(place_of(found, self._blocks_end, length))
        self._parts += (found.raw, flags)
        self.sources.append(found)
        self.written_flags.append(flags)
        self._blocks_end += length + found.n
        self.all_live = self.all_live and DELETED not in flags
        self.records += found.n
        if found.bits & block.HAS_TAG:
            distance = found.first_seq - self.name.first_seq
            tags = self._tags
            for i, tag in enumerate(found.tags(), distance):
                if tag is not None:
                    tags[tag].append(i)

    def data_header(self) -> bytes:
        """The first bytes of the `.data` file."""
        return encode_header(DATA_MAGIC, self.name, len(self.places), self.records, self.data_bytes)

    def data_end(self) -> bytes:
        """The last bytes of the `.data` file."""
        return ALL_LIVE if self.all_live else SOME_DELETED

    def data_parts(self) -> list[bytes]:
        """The `.data` file, in parts."""
        return [self.data_header(), *self._parts, self.data_end()]

    def release(self) -> list[bytes]:
        """What was added since the last call, to be written by the caller: it is not kept here any longer."""
        parts, self._parts = self._parts, []
        self.sources, self.written_flags = [], []
        return parts

    def index(self, data_bytes: int | None = None) -> bytes:
        """The `.idx` file, for a `.data` of this length."""
        data_bytes = self.data_bytes if data_bytes is None else data_bytes
        header = encode_header(INDEX_MAGIC, self.name, len(self.places), self.records, data_bytes)
        entries = b"".join(_ENTRY.pack(*place) for place in self.places)
        return header + entries + _CHECKSUM.pack(xxh3_64_intdigest(entries)) + self.tags()

    def tags(self) -> bytes:
        """The tags as they are in the `.idx`.

        In pieces: to join 600,000 parts, or to free them, would hold up the loop for 10 to 40 ms.
        """
        tags = self._tags
        entries, texts, columns = [], [], []
        text_at = seqs_at = 0
        in_order = _in_order(tags)
        while some := list(islice(in_order, PIECE_TAGS)):
            piece: list[bytes] = []
            for text in some:
                count = len(tags[text])
                piece.append(_TAG.pack(text_at, seqs_at, count))
                text_at += len(text)
                seqs_at += count
            entries.append(b"".join(piece))
            texts.append(b"".join(some))
            columns.append(b"".join([tags[text].tobytes() for text in some]))
        body = b"".join((_TAGS.pack(len(tags), text_at), *entries, *texts, *columns))
        return body + _CHECKSUM.pack(xxh3_64_intdigest(body))

    def forget_tags(self) -> None:
        """Free the tags one by one, on the thread that has written them."""
        tags = self._tags
        while tags:
            tags.popitem()


def _in_order(tags: Iterable[bytes]) -> Iterator[bytes]:
    """The tags in the order of their bytes. Many are sorted piece by piece: one long sort would hold up the loop."""
    texts = list(tags)
    runs = [sorted(texts[k : k + PIECE_TAGS]) for k in range(0, len(texts), PIECE_TAGS)]
    return iter(runs[0]) if len(runs) == 1 else heapq.merge(*runs)


def index_of(name: SegmentName, data: bytes, places: Sequence[Place]) -> bytes:
    """The `.idx` file for these Blocks of a `.data` file: what is written where the first one was damaged."""
    builder = Builder(name.topic_id, name.first_seq, name.edition)
    for place in places:
        builder.add(block.decode(data, place.offset)[0])
    # The Blocks are where they were, with damaged ones between them.
    builder.places = list(places)
    return builder.index(len(data))


def decode_directory(data: bytes, blocks: int) -> list[Place] | None:
    """The directory that follows the header of an `.idx`, or None where it is damaged."""
    end = HEADER_BYTES + blocks * _ENTRY.size
    if len(data) < end + 8 or _CHECKSUM.unpack_from(data, end)[0] != xxh3_64_intdigest(data[HEADER_BYTES:end]):
        return None
    return list(map(Place._make, _ENTRY.iter_unpack(data[HEADER_BYTES:end])))


def directory_bytes(blocks: int) -> int:
    """How many bytes of an `.idx` the header and the directory take; the tags begin there."""
    return HEADER_BYTES + blocks * _ENTRY.size + 8


class Tags:
    """The tags of one sealed segment: which seqs have a tag, or tags that begin with a text.

    Nothing is decoded but what a lookup compares with: the tags are sorted, and so are the seqs by their tags.
    """

    def __init__(self, data: bytes, first_seq: int) -> None:
        body = data[:-8]
        if len(data) < 16 or _CHECKSUM.unpack_from(data, len(body))[0] != xxh3_64_intdigest(body):
            raise block.BlockError("the checksum of the tags does not match")
        self._count, text_bytes = _TAGS.unpack_from(body)
        self._texts_at = _TAGS.size + self._count * _TAG.size
        self._texts_end = self._texts_at + text_bytes
        self._body = body
        self._first_seq = first_seq
        self.size_bytes = len(data)

    def equal(self, tag: bytes) -> list[int]:
        """The seqs of the records with exactly this tag, ascending."""
        return [seq for piece in self.find(tag, prefix=False) for seq in piece]

    def starting(self, prefix: bytes) -> list[int]:
        """The seqs of the records with tags that begin with `prefix`, ascending; all tagged ones where it is empty."""
        return sorted(seq for piece in self.find(prefix, prefix=True) for seq in piece)

    def find(self, text: bytes, *, prefix: bool) -> Iterator[list[int]]:
        """The seqs of the records with exactly this tag, or with one that begins so, in pieces; not in order."""
        matches = bytes.startswith if prefix else bytes.__eq__
        at = bisect_left(range(self._count), text, key=self._text)
        end = bisect_left(range(self._count), True, at, key=lambda i: not matches(self._text(i), text))
        if at == end:
            return
        first = self._entry(at)[1]
        _, last, count = self._entry(end - 1)
        for i in range(first, last + count, PIECE_SEQS):
            piece = array("I")
            j = min(i + PIECE_SEQS, last + count)
            piece.frombytes(self._body[self._texts_end + i * piece.itemsize : self._texts_end + j * piece.itemsize])
            first_seq = self._first_seq
            yield [first_seq + distance for distance in piece]

    def _entry(self, i: int) -> tuple[int, int, int]:
        entry: tuple[int, int, int] = _TAG.unpack_from(self._body, _TAGS.size + i * _TAG.size)
        return entry

    def _text(self, i: int) -> bytes:
        start = self._texts_at + self._entry(i)[0]
        end = self._texts_end if i == self._count - 1 else self._texts_at + self._entry(i + 1)[0]
        return self._body[start:end]


def blocks_end(places: Sequence[Place]) -> int:
    """Where the flags of the last of these Blocks end."""
    return places[-1].offset + places[-1].length + places[-1].n if places else HEADER_BYTES


def scan_blocks(data: bytes, topic_id: int | None = None) -> list[Place]:
    """The directory of the Blocks in the bytes of a `.data` file, by which an `.idx` is made again.

    With a `topic_id`, Blocks of any other topic do not belong there and are left out. After a damaged Block the search
    goes on at the next one that is whole.
    """
    places: list[Place] = []
    at = HEADER_BYTES
    while at + block.HEADER_BYTES < len(data):
        try:
            found, end = block.decode(data, at)
        except block.BlockError:
            at = data.find(block.MAGIC, at + 1)
            if at < 0:
                break
            continue
        if topic_id is None or found.topic_id == topic_id:
            places.append(place_of(found, at, end - at - found.n))
        at = end
    return places
