"""Notes: what is remembered about the records of a destination that later copies depend on.

- Hops: where cycles are possible, how often each copy was forwarded.
- Stamps: which copies of an `exactly_once` router the destination has already, because direct writes brought them.
- Whether a copy is kept (`Topic.unkept`): a copy of a record that may be gone after a restart may be gone too.

What no copy can depend on any more is forgotten, so this does not grow with the number of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from topics.engine.router.copying import STAMP, HopRun
from topics.engine.router.router import EXACTLY_ONCE, Router
from topics.engine.topic import Topic
from topics.engine.write.unkept import GONE, KEPT
from topics.storage.block import Block

NOTES_MAX: Final = 64
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode


class Notes:
    """The hops of copies in one destination, and the stamps in direct writes to it, with their seqs."""

    __slots__ = ("_dest", "hops", "stamps")

    def __init__(self, dest: Topic) -> None:
        self._dest = dest
        self.hops: list[HopRun] = []
        self.stamps: dict[str, int] = {}

    def add_hops(self, hops: list[HopRun]) -> None:
        """Copies were made that were forwarded so often."""
        self.hops += hops
        if len(self.hops) > NOTES_MAX:
            upto = self._copied_to()
            self.hops = [run for run in self.hops if run[1] > upto]

    def add_unkept(self, block: Block, fate: int) -> None:
        """Copies were made of records that have this fate."""
        if self._dest.config.durability == "ephemeral":
            fate = GONE
        if fate != KEPT:
            unkept = self._dest.unkept
            unkept.add(block.first_seq, block.last_seq, fate)
            if len(unkept) > NOTES_MAX:
                unkept.forget(self._copied_to())

    def add_stamps(self, block: Block, routers: Sequence[Router]) -> None:
        """A direct write brought records that may be stamped."""
        if not any(router.rule.guarantee == EXACTLY_ONCE for router in routers):
            return
        for i in range(block.n):
            meta = block.meta(i)
            if meta is not None and STAMP.encode() in meta:
                stamp = _decode_meta(meta).get(STAMP)
                if stamp is not None:
                    self.stamps[stamp] = block.first_seq + i

    def live_stamps(self) -> dict[str, int]:
        """The stamps of records that the destination still has, or is about to show."""
        if self.stamps:
            log = self._dest.log
            self.stamps = {stamp: seq for stamp, seq in self.stamps.items() if log.is_live(seq) or seq > log.head}
        return self.stamps

    def _copied_to(self) -> int:
        """The seq up to which every router out of the destination has looked at it."""
        outbound = self._dest.outbound
        cursors = [] if outbound is None else [forward.cursor for forward in outbound.forwards]
        return min(cursors, default=self._dest.log.head)
