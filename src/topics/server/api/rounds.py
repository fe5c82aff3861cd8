"""Rounds: how fast topics grow and what they lose (CONSOLE-13, CONSOLE-14).

Nothing is counted where records are written or lost. Instead the topics are looked at in rounds, STEP_TOPICS of them at
a time: STEP_NS apart while somebody asks, and QUIET_NS apart while nobody does, so that what is lost at night is there
in the morning. So it costs a busy server the same however much is written to it, and one with many topics no more than
one with few: there a round takes longer.

A loss is noticed when the floor of a topic has moved or a lost range has come since the last look. What was lost before
the first look, which follows the start, is known too, without a time. The last LOSSES_MAX are kept, in memory.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from msgspec import Struct

from topics.engine import Engine
from topics.engine.log.log import Log
from topics.engine.log.loss import CAP, TTL, LostRange
from topics.engine.topic import Topic

STEP_TOPICS: Final = 2000
STEP_NS: Final = 1_000_000_000
QUIET_NS: Final = 5_000_000_000
STALE_NS: Final = 60_000_000_000
"""What was looked at longer ago says nothing about a rate of now."""
LOSSES_MAX: Final = 100
RANGES_MAX: Final = 10
"""So many lost ranges of a topic are counted one by one."""


class Loss(Struct):
    """Records of a topic that were lost for the same reason, noticed last at `noticed_ts`; None is before the start."""

    topic: str
    reason: str
    first_seq: int
    last_seq: int
    noticed_ts: int | None


class Seen:
    """What a topic was like at the last look."""

    __slots__ = ("at_ns", "cap", "head", "id", "lost", "rate", "ttl", "twice")

    def __init__(self, topic: Topic, at_ns: int) -> None:
        self.id = topic.id
        self.rate = 0.0
        self.twice = False
        self.take(topic.log, at_ns)

    def take(self, log: Log, at_ns: int) -> None:
        """Remember this."""
        self.at_ns = at_ns
        self.head = log.head
        self.cap, self.ttl = log.cap_evicted, log.ttl_expired
        self.lost = log.lost


class Rounds:
    """The rates of topics and their last losses, as far as they were looked at."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._at_ns = -STEP_NS
        # Topics from this id on were created after the first look: what they lost was lost since then.
        self._new_id = 0
        # The last name of this round, those seen before it, and those seen in it.
        self._after = ""
        self._before: dict[str, Seen] = {}
        self._seen: dict[str, Seen] = {}
        self.losses: dict[tuple[str, str, int], Loss] = {}
        self.growing: dict[str, None] = {}
        """The names of the topics that grew between the last two looks at them."""
        self.total = 0.0
        """Records per second over all topics."""
        self.over = 0
        """How many rounds are over: with the second one there are rates."""

    def step(self, rest_ns: int = STEP_NS) -> None:
        """Look at the next topics, unless that was done less than `rest_ns` ago."""
        now_ns = self._engine.clock.elapsed_ns()
        if now_ns - self._at_ns < rest_ns:
            return
        self._at_ns = now_ns
        self._new_id = self._new_id or self._engine.catalog.next_topic_id
        now_ms = self._engine.clock.now_ms()
        names = list(islice(self._engine.catalog.names.after(self._after, "", ()), STEP_TOPICS))
        for name in names:
            self._look(self._engine.topics[name], now_ns, now_ms)
        if len(names) == STEP_TOPICS:
            self._after = names[-1]
            return
        # What is left of the round before is gone.
        for name, seen in self._before.items():
            self._set_rate(name, seen, 0.0)
        self.over += 1
        self._after, self._before, self._seen = "", self._seen, {}

    def rate(self, name: str) -> float | None:
        """Records per second that were appended to a topic between the last two looks at it; None before those."""
        seen = self._seen.get(name) or self._before.get(name)
        return None if seen is None or not seen.twice else seen.rate

    def _set_rate(self, name: str, seen: Seen, rate: float) -> None:
        self.total += rate - seen.rate
        seen.rate = rate
        if rate:
            self.growing[name] = None
        else:
            self.growing.pop(name, None)
            if not self.growing:
                self.total = 0.0

    def _look(self, topic: Topic, now_ns: int, now_ms: int) -> None:
        name, log = topic.name, topic.log
        seen = self._before.pop(name, None)
        if seen is None or seen.id != topic.id:
            if seen is not None:
                self._set_rate(name, seen, 0.0)
            self._seen[name] = seen = Seen(topic, now_ns)
            if log.lost or log.evict_floor > 1:
                self._notice(topic, 0, 0, [], now_ms if topic.id >= self._new_id else None)
            return
        took_ns = now_ns - seen.at_ns
        rate = (log.head - seen.head) * 1e9 / took_ns if 0 < took_ns < STALE_NS else 0.0
        self._set_rate(name, seen, rate)
        seen.twice = took_ns < STALE_NS
        if log.cap_evicted != seen.cap or log.ttl_expired != seen.ttl or log.lost is not seen.lost:
            self._notice(topic, seen.cap, seen.ttl, seen.lost, now_ms)
        seen.take(log, now_ns)
        self._seen[name] = seen

    def _notice(self, topic: Topic, cap: int, ttl: int, lost: list[LostRange], now_ms: int | None) -> None:
        log = topic.log
        floor = max(cap, ttl) + 1
        if log.cap_evicted > cap:
            self._add(Loss(topic.name, CAP, min(floor, log.cap_evicted), log.cap_evicted, now_ms))
        if log.ttl_expired > ttl:
            self._add(Loss(topic.name, TTL, min(floor, log.ttl_expired), log.ttl_expired, now_ms))
        for each in [each for each in log.lost[-RANGES_MAX:] if each not in lost]:
            self._add(Loss(topic.name, each.reason, each.first, each.last, now_ms))

    def _add(self, loss: Loss) -> None:
        # What cap and TTL take is one range that grows; others stand for themselves.
        key = loss.topic, loss.reason, 0 if loss.reason in (CAP, TTL) else loss.first_seq
        known = self.losses.pop(key, None)
        if known is not None and known.last_seq < loss.last_seq:
            loss.first_seq = min(known.first_seq, loss.first_seq)
        if len(self.losses) >= LOSSES_MAX:
            if loss.noticed_ts is None:
                return
            del self.losses[next(iter(self.losses))]
        self.losses[key] = loss
