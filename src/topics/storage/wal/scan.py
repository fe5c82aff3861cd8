"""Scan: the frames in the bytes of a WAL file, and what is known about the bytes between them.

A bad region reaches from where a frame should start to the next frame that is whole, or to the end of the file. What
was lost in it is read from whatever is left: a frame header with a valid check of its own, or a Block with a valid
checksum, each names topic, first seq and count. A single damaged byte always leaves one of the two.

A region with no whole frame after it may be the torn end of the last write rather than damage. On the same boot of the
kernel, a process that dies in the middle of a write leaves the beginning of it, so the end of the last frame is
missing, its checksum still zero. If the end is there, or the region does not begin as a frame does, no dying process
made it, and it is damage. After a loss of power any sector of what was not synced may be missing, so every region in
the last generation is called torn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest, xxh32_intdigest

from topics.storage import block
from topics.storage.damage import LostRecords
from topics.storage.wal import frame

_HEADER = struct.Struct("<4sB3xIIQQQ4xI")
_CHECKSUM = struct.Struct("<Q")

assert _HEADER.size == frame.HEADER_BYTES


class Entry(NamedTuple):
    """One whole frame: where its payload is in the bytes that were scanned."""

    lsn: int
    kind: int
    topic_id: int
    first_seq: int
    n: int
    at: int
    length: int


class LostFrame(NamedTuple):
    """A damaged frame that held no records, as its header describes it."""

    lsn: int
    kind: int
    topic_id: int


class Region(NamedTuple):
    """Bytes that hold no whole frame. `complete` says that everything lost in them is named."""

    offset: int
    length: int
    reason: str
    lost: tuple[LostRecords, ...]
    lost_frames: tuple[LostFrame, ...]
    complete: bool


def walk(data: bytes, at: int, size: int, *, torn_allowed: bool) -> Iterator[Entry | Region]:
    """Every whole frame and every bad region from `at` on, in order, for what wants each frame by itself.

    `size` is where the file's bytes end; `data` must have `frame.HEADER_BYTES` more.
    """
    view = memoryview(data)
    while at < size:
        magic, kind, length, n, lsn, topic_id, first_seq, _ = _HEADER.unpack_from(data, at)
        end = at + 48 + (length + 7 & -8)
        # The checksum covers the header too: only where it does not hold is the header's own check of use.
        if magic == frame.MAGIC and end + 8 <= size and _is_sealed(data, view, at, end):
            yield Entry(lsn, kind, topic_id, first_seq, n, at + 48, length)
            at = end + 8
            continue
        found, following = gap(data, at, size, torn_allowed=torn_allowed)
        if found is not None:
            yield found
        if following is None:
            return
        at = following


def _is_sealed(data: bytes, view: memoryview, at: int, end: int) -> bool:
    matches: bool = _CHECKSUM.unpack_from(data, end)[0] == xxh3_64_intdigest(view[at:end])
    return matches


def header_at(data: bytes, at: int) -> tuple[int, ...] | None:
    """(kind, payload length, n, lsn, topic id, first seq) of the frame header at `at` if its own check holds."""
    magic, kind, length, n, lsn, topic_id, first_seq, check = _HEADER.unpack_from(data, at)
    if magic != frame.MAGIC or check != xxh32_intdigest(data[at : at + 44]) or length > frame.PAYLOAD_BYTES_MAX:
        return None
    return kind, length, n, lsn, topic_id, first_seq


def gap(data: bytes, at: int, size: int, *, torn_allowed: bool) -> tuple[Region | None, int | None]:
    """What is at `at`, where no whole frame begins, and where the next one does.

    The region is None for zeros up to the end of the file. `torn_allowed` says that these bytes were written since the
    last sync that is certain to have held, before a loss of power.
    """
    following = _next_whole(data, at, size)
    end = size if following is None else following
    return _region(data, at, end, size, followed=following is not None, torn_allowed=torn_allowed), following


def _next_whole(data: bytes, at: int, size: int) -> int | None:
    """Where the next whole frame after the bad one at `at` is."""
    view = memoryview(data)

    def is_whole(start: int) -> bool:
        header = header_at(data, start)
        end = start + 48 + (0 if header is None else header[1] + 7 & -8)
        return header is not None and end + 8 <= size and _is_sealed(data, view, start, end)

    header = header_at(data, at)
    if header is not None:
        following = at + 48 + (header[1] + 7 & -8) + 8
        if following < size and is_whole(following):
            return following
    return next(filter(is_whole, _aligned(data, frame.MAGIC, at + 8, size)), None)


def _region(data: bytes, at: int, end: int, size: int, *, followed: bool, torn_allowed: bool) -> Region | None:
    """What the bytes [at, end) are, where no frame begins; `followed` says that whole frames follow."""
    found = data[at:end]
    if not followed and found == bytes(len(found)):
        return None
    used = len(found.rstrip(b"\0"))
    lost, lost_frames = _named(data, at, end)
    # Fewer bytes than the smallest frame cannot have been one; beyond that an unreadable region may hide anything.
    first_used = at + len(found) - len(found.lstrip(b"\0"))
    stray = first_used >= at + 4 and at + used - first_used < frame.FRAME_BYTES_MIN
    complete = bool(lost or lost_frames) or (not followed and stray)
    torn = torn_allowed or (not followed and not _end_is_there(data, at, used, size))
    reason = "torn" if torn else "corrupt"
    length = end - at if followed else (used + 7 & -8)
    return Region(at, length, reason, lost, lost_frames, complete)


def _end_is_there(data: bytes, at: int, used: int, size: int) -> bool:
    """Whether the bytes are more than the beginning of a frame, or something else: no dying process leaves that."""
    header = header_at(data, at)
    if header is None:
        # Less than a header, and the beginning of one.
        return used > frame.HEADER_BYTES or not frame.MAGIC.startswith(data[at : at + min(used, 4)])
    end = at + 48 + (header[1] + 7 & -8)
    return end + 8 <= size and data[end : end + 8] != b"\0" * 8


def _named(data: bytes, at: int, end: int) -> tuple[tuple[LostRecords, ...], tuple[LostFrame, ...]]:
    """What the frame headers and the Blocks that can still be read within [at, end) name."""
    lost: dict[tuple[int, int], LostRecords] = {}
    lost_frames: dict[int, LostFrame] = {}
    for start in _aligned(data, frame.MAGIC, at, end):
        header = header_at(data, start)
        if header is None:
            continue
        kind, _, n, lsn, topic_id, first_seq = header
        if n:
            lost[topic_id, first_seq] = LostRecords(topic_id, first_seq, n)
        else:
            lost_frames[lsn] = LostFrame(lsn, kind, topic_id)
    for start in _aligned(data, block.MAGIC, at, end):
        try:
            found, _ = block.decode(data, start, with_flags=False)
        except block.BlockError:
            continue
        topic_id = found.topic_id
        lost[topic_id, found.first_seq] = LostRecords(topic_id, found.first_seq, found.n)
    return tuple(lost[key] for key in sorted(lost)), tuple(lost_frames[key] for key in sorted(lost_frames))


def _aligned(data: bytes, magic: bytes, at: int, end: int) -> Iterator[int]:
    at = data.find(magic, at, end)
    while at >= 0:
        if at % frame.ALIGN_BYTES == 0:
            yield at
        at = data.find(magic, at + 1, end)
