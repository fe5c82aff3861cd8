"""Refill: at a restart, the records of a topic that are logged nowhere as such, under the seqs that they had.

A topic is brought to the place of its next frame: with the dead letters that belong there, and with copies of the
source records up to the position. Where these are not there yet, the frame waits. Once nothing more comes, what is
still missing cannot be made again, and is a lost range. What an `ephemeral` topic held was in memory only, so it is
lost in any case, and its seqs are not used again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topics.clock import Clock
from topics.engine.log.log import ANYWHERE
from topics.engine.log.loss import RESTART, SOURCE_TRIM
from topics.engine.restart.awaiting_caps import AwaitingCaps
from topics.engine.router.backlog import SLICE_RECORDS
from topics.engine.router.forward import Forward, fitting, into
from topics.engine.topic import Topic
from topics.storage.block import Block

ANY_PLACE: Final = (0, -1)
"""A place, as (next seq, position), that a topic has always reached."""


class Refill:
    """Puts derived records into topics. `progressed` is called with a topic that has more records than before."""

    def __init__(self, clock: Clock, caps: AwaitingCaps, progressed: Callable[[Topic], None]) -> None:
        self._clock = clock
        self._caps = caps
        self._progressed = progressed
        # Dead letters that wait for their place, by their first seq.
        self.letters: dict[Topic, dict[int, Block]] = {}

    def next_letter(self, topic: Topic) -> tuple[int, int] | None:
        """The place after the next dead letters of a topic, or None."""
        letters = self.letters.get(topic, {})
        first_seq = min((seq for seq in letters if seq > topic.log.head), default=None)
        return None if first_seq is None else (first_seq + letters[first_seq].n, -1)

    def reach(self, topic: Topic, at: int, position: int, final: bool = False) -> bool:
        """Bring a topic to the place before its seq `at`, from source records up to `position` (-1: any)."""
        log, forward = topic.log, into(topic)
        upto = ANYWHERE if position < 0 else position
        if topic.config.durability == "ephemeral" and log.head + 1 < at:
            log.lose(log.head + 1, at - 1, RESTART)
        while log.head + 1 < at:
            next_seq = log.head + 1
            letters = self.letters.get(topic, {})
            letter = letters.pop(next_seq, None)
            if letter is not None:
                self._adopt(topic, letter)
                continue
            room = min([at, *(seq for seq in letters if seq > next_seq)]) - next_seq
            if forward is not None and self._copy(topic, forward, room, upto):
                continue
            if not final:
                return False
            log.lose(next_seq, next_seq + room - 1, SOURCE_TRIM)
        if forward is not None and position > forward.cursor:
            forward.backlog.move(position)
        return True

    def copy_rest(self, topic: Topic, reached: dict[int, tuple[int, int]] | None) -> None:
        """Copy what no frame places, as far as the topic takes it, or as far as an earlier start came (`reached`)."""
        forward, rejects = into(topic), topic.config.discard == "reject"
        if forward is None or topic.config.durability == "ephemeral":
            return
        if rejects and reached is not None:
            # How much room there was then is not known: later deletes may be on the disk already.
            self.reach(topic, *reached.get(topic.id, ANY_PLACE))
            return
        copied = True
        while copied:
            if rejects:
                topic.expire(self._clock.now_ms())
            copied = self._copy(topic, forward, ANYWHERE, ANYWHERE, rejects)

    def _copy(self, topic: Topic, forward: Forward, room: int, upto: int, rejects: bool = False) -> bool:
        """Copy the next source records, making at most `room` copies; whether there were any to look at.

        What the source has lost is so many lost seqs in the destination, so that what follows gets its own again.
        """
        backlog, routers = forward.backlog, forward.routers
        lost_to = backlog.damaged_to()
        if lost_to and backlog.cursor < upto:
            first, count = topic.log.head + 1, (lost_to - backlog.cursor) * len(routers)
            topic.log.lose(first, first + min(room, count) - 1, SOURCE_TRIM)
            backlog.move(min(lost_to, upto))
            self._progressed(topic)
            return True
        records_max = max(1, min(room, SLICE_RECORDS) // max(1, len(routers)))
        runs = backlog.source.reading(backlog.runs, records_max, upto)
        if rejects:
            runs = fitting(runs, routers, topic)
        if not runs:
            return False
        made = backlog.source.reading(forward.make, runs, topic.log.head + 1, topic.last_ts)
        if made.block is not None:
            self._adopt(topic, made.block if made.block.n <= room else made.block.slice(0, room))
        return True

    def _adopt(self, topic: Topic, block: Block) -> None:
        self._caps.adopt(topic, block)
        self._progressed(topic)
