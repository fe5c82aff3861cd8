"""SegmentRef: how a checkpoint lists a sealed segment: all that a start knows of it before it reads the files."""

from __future__ import annotations

import msgspec


class SegmentRef(msgspec.Struct, array_like=True, frozen=True):
    """A sealed segment of a topic: `n` records from `first_seq` to `last_seq`, perhaps with gaps."""

    first_seq: int
    n: int
    last_seq: int
