"""Sealed segments read straight from disk, where an executor sees the data directory.

The server reports which files there are, how long each is and what was deleted from it; a file is used only if all of
that fits and every Block of it is intact. A file that does not fit, or is gone meanwhile, is not an error: its range is
read from the server.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from topics.spark import columns
from topics.spark.client import SealedFile
from topics.spark.errors import SourceError
from topics.spark.options import ReadOptions
from topics.storage.damage import UnknownFormat
from topics.storage.flags import DELETED
from topics.storage.segment import format as segment
from topics.storage.splice import Spans

SEGMENTS_DIR: Final = "segments"

log = logging.getLogger("topics.spark")


def blocks(sealed: SealedFile, epoch: int, options: ReadOptions, first: int, last: int) -> list[Spans] | None:
    """The Blocks of a sealed file with records from `first` to `last`, or None where it cannot be used here.

    A file may be shared by several tasks, and each looks at the content of its own Blocks only.
    """
    if sealed.cold:
        directory = options.cold_dir
    else:
        directory = None if options.data_dir is None else options.data_dir / SEGMENTS_DIR
    if directory is None:
        return None
    path = directory / sealed.file
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header = segment.decode_header(content[: segment.HEADER_BYTES], segment.DATA_MAGIC, str(path))
        if header is None or header.name.topic_id != epoch or header.name.first_seq != sealed.first_seq:
            raise SourceError("it is not the segment that the server means")
        if len(content) < sealed.bytes:
            raise SourceError(f"it has {len(content)} bytes instead of {sealed.bytes}")
        whole = memoryview(content)[: header.blocks_end]
        found = list(columns.walk(whole, segment.HEADER_BYTES, first, last))
        if any(one.first_seq + one.n != other.first_seq for one, other in pairwise(found)):
            # Where each Block begins is known from its neighbours, or else from a header that is checked too.
            found = list(columns.walk(whole, segment.HEADER_BYTES))
        if not found or found[-1].first_seq + found[-1].n - 1 != sealed.last_seq:
            raise SourceError("it ends before the seq that the server names")
    except (OSError, ValueError, SourceError, UnknownFormat) as error:
        log.info("%s is not used, its records are read from the server: %s", path, error)
        return None
    wanted = [block for block in found if block.first_seq + block.n > first and block.first_seq <= last]
    return [_with_flags(block, sealed.deleted) for block in wanted]


def _with_flags(block: Spans, deleted: Iterable[list[int]]) -> Spans:
    """A Block with the flags of the file and the deletes that the server named."""
    last_seq = block.first_seq + block.n - 1
    flags: bytearray | None = None
    for first, last in deleted:
        if first <= last_seq and last >= block.first_seq:
            if flags is None:
                flags = bytearray(block.flags)
            i, j = max(first, block.first_seq) - block.first_seq, min(last, last_seq) - block.first_seq + 1
            flags[i:j] = bytes((DELETED,)) * (j - i)
    return block if flags is None else block._replace(flags=bytes(flags))
