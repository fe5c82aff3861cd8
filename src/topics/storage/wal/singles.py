"""Singles: one-record appends in a row in the WAL, read by column.

A million writes of one record are a million frames, and what Python does for each of them is most of a restart. So
where there are many in a row, every step is one call that loops over all of them in C: their lengths are followed from
frame to frame, the frames are cut out and hashed, the hashes are compared with the checksums, and the heads are put
side by side, where a field of all of them is one slice.

Nothing is believed here that reader.py would not believe of a single frame: the checksum of each is verified. A run of
singles ends before the first frame that is not whole or is anything but a small append of one record; the reader takes
that frame by itself.

The payload of such a frame, at `frame.HEADER_BYTES`, is a Block with n = 1 (block.py), then the extras:

    96   8    ts
    104  0-8  lengths of node, tag (2 each) and meta (4), where the Block has them
    ..   4    length of data
    ..        node, tag, meta, data
    ..   8    checksum of the Block
    ..        extras
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import BytesIO
from operator import add, itemgetter
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_digest

from topics.storage import block
from topics.storage.wal import frame

# Fewer in a row, or of one topic, are not worth the calls.
FRAMES_MIN: Final = 32
TOPIC_FRAMES_MIN: Final = 8
# A record larger than this is worth a Block of its own.
DATA_BYTES_MAX: Final = 4096

_OVERHEAD_BYTES: Final = block.SINGLE_OVERHEAD_BYTES
_LENGTHS_AT: Final = frame.HEADER_BYTES + block.HEADER_BYTES + 8
# The fields of a frame, up to all four lengths. No frame taken here has fewer bytes before its checksum.
_HEAD_BYTES: Final = 120
_WORDS: Final = _HEAD_BYTES // 8
_HALVES: Final = _HEAD_BYTES // 4
_APPEND: Final = int.from_bytes(frame.MAGIC + bytes((frame.APPEND, 0, 0, 0)), "little")
_BLOCK: Final = int.from_bytes(block.MAGIC + bytes((block.VERSION,)), "little")
# Which columns a Block has, by the word in which it begins.
_BITS: Final = {_BLOCK | bits << 40: bits for bits in range(16)}
_PLAIN: Final = _BLOCK | block.PLAIN << 40
# The half words that a frame takes, by its payload length; None where that is not the length of one small record.
_STEPS: Final[list[Any]] = [
    (frame.FRAME_BYTES_MIN + (length + 7 & -8)) // 4 if length > _OVERHEAD_BYTES else None
    for length in range(_OVERHEAD_BYTES + DATA_BYTES_MAX + 1)
]
# The bytes that its checksum covers, by the half words that a frame takes.
_BODY_BYTES: Final = [4 * step - frame.CHECKSUM_BYTES for step in range(_STEPS[-1] + 1)]
_head = itemgetter(slice(_HEAD_BYTES))

assert frame.HEADER_BYTES + (_OVERHEAD_BYTES + 1 + 7 & -8) >= _HEAD_BYTES


class Records(NamedTuple):
    """Consecutive records of one topic, by column; a column that they do not have is None.

    `extras` has, for each frame that carries any, the index of its record and the bytes.
    """

    first_seq: int
    lsns: Sequence[int]
    ts: array[int]
    datas: list[bytes]
    nodes: list[bytes | None] | None
    tags: list[bytes | None] | None
    metas: list[bytes | None] | None
    extras: list[tuple[int, bytes]]


class Singles:
    """Verified frames in the order of their topics, each topic's own in the order of the log."""

    def __init__(self, bodies: list[bytes], heads: bytes, end: int) -> None:
        self.n = len(bodies)
        # Where the next frame begins.
        self.end = end
        fields, halves = array("Q", heads), array("I", heads)
        self.last_lsn = fields[-_WORDS + 2]
        topics = fields[3::_WORDS]
        if not _all_are(topics, topics[0]):
            order = sorted(range(self.n), key=topics.__getitem__)
            bodies = [bodies[i] for i in order]
            heads = _heads(bodies)
            fields, halves = array("Q", heads), array("I", heads)
        self._bodies = bodies
        self._topics = fields[3::_WORDS]
        self._lsns = fields[2::_WORDS]
        self._seqs = fields[4::_WORDS]
        self._blocks = fields[6::_WORDS]
        self._ts = array("q", fields[12::_WORDS].tobytes())
        self._lengths = halves[2::_HALVES]
        self._sizes = [halves[k::_HALVES] for k in range(20, 24)]

    def topics(self) -> Iterator[tuple[int, int, int]]:
        """Each topic's id and where its frames are: (id, i, j) for [i, j)."""
        i = 0
        while i < self.n:
            topic_id = self._topics[i]
            j = bisect_right(self._topics, topic_id, i)
            yield topic_id, i, j
            i = j

    def records(self, i: int, j: int, skip_lsn: int) -> Iterator[Records]:
        """The records of frames [i, j) of one topic after `skip_lsn`, cut where seqs jump or the columns change."""
        i = bisect_right(self._lsns, skip_lsn, i, j)
        if i == j:
            return
        seqs, blocks = self._seqs[i:j], self._blocks[i:j]
        if seqs == array("Q", range(seqs[0], seqs[0] + j - i)) and _all_are(blocks, blocks[0]):
            yield self._columns(i, j)
            return
        at = 0
        for k in range(1, j - i + 1):
            if k == j - i or seqs[k] != seqs[k - 1] + 1 or blocks[k] != blocks[at]:
                yield self._columns(i + at, i + k)
                at = k

    def _columns(self, i: int, j: int) -> Records:
        bodies = self._bodies[i:j]
        bits = _BITS[self._blocks[i]]
        node_bytes, tag_bytes, meta_bytes, data_bytes = (sizes[i:j] for sizes in self._sizes)
        tag_length_at = _LENGTHS_AT + (2 if bits & block.HAS_NODE else 0)
        meta_length_at = tag_length_at + (2 if bits & block.HAS_TAG else 0)
        at = [meta_length_at + (4 if bits & block.HAS_META else 0) + 4] * len(bodies)
        nodes = tags = metas = None
        if bits & block.HAS_NODE:
            nodes, at = _optional(bodies, at, node_bytes, _LENGTHS_AT)
        if bits & block.HAS_TAG:
            tags, at = _optional(bodies, at, tag_bytes, tag_length_at)
        if bits & block.HAS_META:
            metas, at = _optional(bodies, at, meta_bytes, None)
        ends = list(map(add, at, data_bytes))
        datas = [body[a:b] for body, a, b in zip(bodies, at, ends, strict=True)]
        lengths = self._lengths[i:j]
        extras: list[tuple[int, bytes]] = []
        if sum(lengths) != sum(ends) + (block.CHECKSUM_BYTES - frame.HEADER_BYTES) * len(bodies):
            spans = zip(ends, lengths, strict=True)
            found = [bodies[k][a + block.CHECKSUM_BYTES : b + frame.HEADER_BYTES] for k, (a, b) in enumerate(spans)]
            extras = [(k, extra) for k, extra in enumerate(found) if extra]
        return Records(self._seqs[i], self._lsns[i:j], self._ts[i:j], datas, nodes, tags, metas, extras)


def _optional(
    bodies: list[bytes], at: list[int], sizes: Sequence[int], length_at: int | None
) -> tuple[list[bytes | None], list[int]]:
    """The texts of an optional column and where they end; absent is what is empty without a length of 0."""
    ends = list(map(add, at, sizes))
    texts: list[bytes | None] = [body[a:b] or None for body, a, b in zip(bodies, at, ends, strict=True)]
    if length_at is not None and None in texts:
        empty = bytes(2)
        texts = [
            b"" if text is None and body[length_at : length_at + 2] == empty else text
            for text, body in zip(texts, bodies, strict=True)
        ]
    return texts, ends


def _heads(bodies: list[bytes]) -> bytes:
    return b"".join(map(_head, bodies))


def read(data: bytes, halves: array[int], at: int) -> Singles | None:
    """The singles from `at` on, or None where there are too few to be worth it.

    `halves` are the half words of `data`, as far as it may be read; `at` is a multiple of 8.
    """
    steps = _walk(halves, at // 4)
    if len(steps) < FRAMES_MIN:
        return None
    # By turns the bytes of a frame that its checksum covers, and the checksum.
    lengths = [frame.CHECKSUM_BYTES] * (2 * len(steps))
    lengths[::2] = map(_BODY_BYTES.__getitem__, steps)
    file = BytesIO(data)
    file.seek(at)
    pieces = list(map(file.read, lengths))
    bodies = pieces[::2]
    heads = _heads(bodies)
    n = _alike(heads, len(bodies))
    if n < FRAMES_MIN:
        return None
    # A digest is the checksum with its bytes the other way round.
    digests = array("Q", b"".join(map(xxh3_64_digest, bodies[:n])))
    digests.byteswap()
    checksums = array("Q", b"".join(pieces[1 : 2 * n : 2]))
    if digests != checksums:
        n = next(k for k in range(n) if digests[k] != checksums[k])
        if n < FRAMES_MIN:
            return None
    return Singles(bodies[:n], heads[: n * _HEAD_BYTES], at + 4 * sum(steps[:n]))


def _walk(halves: array[int], i: int) -> list[int]:
    """The half words that each frame from half word `i` on takes, up to one with a length that no small record has."""
    steps: list[int] = []
    known = _STEPS
    i += 2
    try:
        while True:
            step = known[halves[i]]
            i += step
            steps.append(step)
    except (IndexError, TypeError):
        pass
    if i - 2 > len(halves):
        steps.pop()
    return steps


def _alike(heads: bytes, n: int) -> int:
    """How many of these n frames, from the first on, are appends of one record; 0 where they are of too many topics."""
    words = array("Q", heads)
    kinds, blocks = words[0::_WORDS], words[6::_WORDS]
    counts = array("I", heads)[3::_HALVES]
    if not (
        _all_are(kinds, _APPEND) and _all_are(counts, 1) and (_all_are(blocks, _PLAIN) or _BITS.keys() >= set(blocks))
    ):
        found = zip(kinds, counts, blocks, strict=True)
        n = next(k for k, (kind, count, of) in enumerate(found) if kind != _APPEND or count != 1 or of not in _BITS)
    topics = words[3 : n * _WORDS : _WORDS]
    return n if not n or _all_are(topics, topics[0]) or len(set(topics)) * TOPIC_FRAMES_MIN <= n else 0


def _all_are(column: array[int], value: int) -> bool:
    # Arrays are compared as bytes; to count would make an object of each element.
    return column == array(column.typecode, (value,)) * len(column)
