"""Refill: at a restart, the records of a topic that are logged nowhere as such, under the seqs that they had.

A topic is brought to the place of its next frame: with the dead letters that belong there, and with copies of the
source records up to the position. Where these are not there yet, the frame waits. Once nothing more comes, what is
still missing cannot be made again, and is a lost range. What an `ephemeral` topic held was in memory only, so it is
lost in any case, and its seqs are not used again.

A loss of power may take any frame that was not synced and leave later ones. Where the lost frame was a direct write
among copies, nothing says which of the seqs around it were its own. A frame says where the copies right before it
began; where the topic has not come that far, and what is there to copy does not fill the seqs before exactly, all of
these are lost: no copy is put under a seq that may have been another record's. For the same reason:

- A frame that names another source than the topic has, or none, comes after a lost frame that changed the router. Then
  nothing says which of the seqs before it were copies, nor of what.
- A topic that hands out seqs again (`memory`, `ephemeral`) is a source of copies with a place only as far as its own
  frames bring it. What it has beyond that may be something else than what was copied.
- Where a source has a hole and a filter decides what is copied, it is not known how many copies the hole had. What
  comes after it is copied again, above every seq that it may have had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from topics.clock import Clock
from topics.engine.log.log import ANYWHERE
from topics.engine.log.loss import CRASH, RESTART, SOURCE_TRIM
from topics.engine.restart.awaiting_caps import AwaitingCaps
from topics.engine.router.backlog import SLICE_RECORDS, Backlog
from topics.engine.router.forward import Forward, fitting, into
from topics.engine.router.visibility import LASTING
from topics.engine.topic import Topic
from topics.storage.block import Block
from topics.storage.splice import cut


class Place(NamedTuple):
    """A place among derived records.

    It is the topic's next seq, the source seq up to which copies were made (-1: any), and where the copies right before
    it began, as (seq, source seq before the first), with a time below which none of them is dated.
    """

    at: int
    position: int
    run: tuple[int, int] | None = None
    run_ts: int = 0


class Letter(NamedTuple):
    """Dead letters that wait for their place, and the copies before them: their position in a source, and their run."""

    block: Block
    position: int
    source_id: int
    run: tuple[int, int] | None


ANY_PLACE: Final = Place(0, -1)
"""A place that a topic has always reached."""


def place_in(topic: Topic, at: int, position: int, source_id: int, run: tuple[int, int] | None) -> Place:
    """The place that a frame of a topic names: a position in `source_id` (0: in any source), or -1 without a router."""
    inbound = topic.inbound
    if inbound is None or source_id == inbound.source.id or (source_id == 0 and position >= 0):
        return Place(at, position, run)
    return Place(at, -1, (at, inbound.cursor))


class Refill:
    """Puts derived records into topics. `progressed` is called with a topic that has more records than before."""

    def __init__(self, clock: Clock, caps: AwaitingCaps, progressed: Callable[[Topic], None]) -> None:
        self._clock = clock
        self._caps = caps
        self._progressed = progressed
        # Sources that hand out seqs again, and the last seq that has the record it had before.
        self.certain: dict[Topic, int] = {}
        # By topic and first seq.
        self.letters: dict[Topic, dict[int, Letter]] = {}

    def next_letter(self, topic: Topic) -> Place | None:
        """The place after the next dead letters of a topic, or None."""
        letters = self.letters.get(topic, {})
        first_seq = min((seq for seq in letters if seq > topic.log.head), default=None)
        if first_seq is None:
            return None
        letter = letters[first_seq]
        place = place_in(topic, first_seq, *letter[1:])
        return Place(first_seq + letter.block.n, -1, place.run)

    def reach(self, topic: Topic, place: Place, final: bool = False) -> bool:
        """Bring a topic to a place. Where that is not possible yet it returns False, unless nothing more comes."""
        log, forward = topic.log, into(topic)
        at, position, run, run_ts = place
        certain = ANYWHERE if forward is None else self.certain.get(forward.source, ANYWHERE)
        position = min(position, certain)
        upto = certain if position < 0 else position
        if topic.config.durability == "ephemeral" and log.head + 1 < at:
            log.lose(log.head + 1, at - 1, RESTART)
        if forward is not None and run is not None and log.head + 1 < run[0]:
            known = final and _keeps_all(topic)
            if not (known or self._fills(topic, forward, *run)):
                if not final:
                    return False
                self._give_up(topic, forward, run[0], min(run[1], certain))
        if forward is not None and run is not None and log.head + 1 == run[0]:
            forward.backlog.move(max(forward.cursor, min(run[1], certain)))
            topic.last_ts = max(topic.last_ts, run_ts)
        while log.head + 1 < at:
            next_seq = log.head + 1
            letters = self.letters.get(topic, {})
            letter = letters.pop(next_seq, None)
            if letter is not None:
                self._adopt(topic, letter.block)
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

    def _fills(self, topic: Topic, forward: Forward, at: int, position: int) -> bool:
        """Whether what there is to copy up to `position`, with the letters, is as many records as come before `at`.

        So it is where no frame is missing, or comes later: those of a topic and those of its letters may be in two
        shards.
        """
        head = topic.log.head
        letters = self.letters.get(topic, {}).items()
        known = sum([letter.block.n for first_seq, letter in letters if head < first_seq < at])
        source, probe = forward.source, Backlog(forward.source, forward.cursor, forward.backlog.held)
        position = min(position, self.certain.get(source, ANYWHERE))
        while probe.cursor < position and known <= at - 1 - head:
            lost_to = min(probe.damaged_to(), position)
            if lost_to > probe.cursor:
                if not forward.takes_all:
                    return False
                known += (lost_to - probe.cursor) * len(forward.routers)
                probe.cursor = lost_to
                continue
            runs = source.reading(probe.runs, SLICE_RECORDS, position)
            if not runs:
                break
            made, _ = source.reading(forward.preview, runs, head + 1, topic.last_ts)
            known += 0 if made.block is None else made.block.n
            block, _, end = runs[-1]
            probe.cursor = block.first_seq + end - 1
        return known == at - 1 - head

    def _give_up(self, topic: Topic, forward: Forward, at: int, position: int) -> None:
        """Lose everything before `at` but the letters: which of it were copies is not known."""
        log, letters = topic.log, self.letters.get(topic, {})
        while log.head + 1 < at:
            first = log.head + 1
            letter = letters.pop(first, None)
            if letter is None:
                log.lose(first, min([at, *(seq for seq in letters if seq > first)]) - 1, CRASH)
            else:
                self._adopt(topic, letter.block)
        forward.backlog.move(max(forward.cursor, position))

    def end_certainty(self, topic: Topic, lost_power: bool) -> None:
        """What the frames of a topic place is there. What is copied into it from here on may get seqs of before."""
        forward = into(topic)
        forgets = forward is not None and forward.visibility.forgets
        if topic.config.durability not in LASTING and (lost_power or forgets):
            self.certain[topic] = topic.log.head

    def copy_rest(self, topic: Topic, reached: dict[int, tuple[int, int]] | None) -> None:
        """Copy what no frame places, as far as the topic takes it, or as far as an earlier start came (`reached`)."""
        forward, rejects = into(topic), topic.config.discard == "reject"
        if forward is None or topic.config.durability == "ephemeral":
            return
        if rejects and reached is not None:
            # How much room there was then is not known: later deletes may be on the disk already.
            self.reach(topic, Place(*reached.get(topic.id, ANY_PLACE)))
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
            source, first = backlog.source, topic.log.head + 1
            count = (lost_to - backlog.cursor) * len(routers)
            if not forward.takes_all:
                if room < ANYWHERE and upto < ANYWHERE:
                    count, lost_to = room, upto
                elif source.log.head > lost_to:
                    count = (max(source.ceiling.seq, source.log.head) - backlog.cursor) * len(routers)
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
            self._adopt(topic, made.block if made.block.n <= room else cut(made.block, 0, room))
        return True

    def _adopt(self, topic: Topic, block: Block) -> None:
        self._caps.adopt(topic, block)
        self._progressed(topic)


def _keeps_all(topic: Topic) -> bool:
    """Whether a loss of power takes nothing from between the copies of a topic.

    A `disk` topic without a ceiling has no direct writes, and what an `fsync` topic has shown came before every frame
    that a loss of power can take.
    """
    durability = topic.config.durability
    return durability == "fsync" or (durability == "disk" and not topic.ceiling.seq)
