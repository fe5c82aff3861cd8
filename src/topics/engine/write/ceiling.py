"""Ceiling: seqs that a topic may hand out although a crash would leave no trace of them (DURABLE-5).

A `disk` write is acked before it is synced, and a copy of a record that only memory held is logged nowhere. What was
seen under such a seq can be lost, but the seq must never be handed out again. So the WAL says ahead of time, in large
steps, how far a topic may go; a restart that finds less goes on above it, and the range between is a lost range. No
seq above the ceiling is shown before the frame that raises it is durable.
"""

from __future__ import annotations

from typing import Final

from topics.engine.promise import Receipt

STEP_MIN: Final = 65_536


class Ceiling:
    """How far the seqs of one topic may go: `seq` is durable, `asked` is on its way with `change`."""

    __slots__ = ("asked", "change", "seq", "step")

    def __init__(self) -> None:
        self.seq = 0
        self.asked = 0
        self.change: Receipt | None = None
        self.step = STEP_MIN

    def set(self, seq: int) -> None:
        """The WAL, or a checkpoint, says so: a restart, or an orderly stop."""
        self.seq = self.asked = seq
