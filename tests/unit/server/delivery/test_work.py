"""What a crowd of work streams costs everybody else (the WORK rules)."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from tests.harness.loop import ManualLoop
from topics.engine import ConfigPatch, Engine, Write
from topics.engine.queue.claim import Worker
from topics.server.delivery.work import Work
from topics.server.http.turns import TURN_NS, Turns
from topics.testing import ManualClock

STREAMS = 10


class Crowd:
    """Ten work streams that hold a job each, on a loop of which every look at the clock takes a whole turn."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.engine, self.loop = Engine(clock), ManualLoop(clock)
        self.now_ns = 0
        self.turns = Turns(cast("Any", self.loop), self._look)
        nobody = cast("Any", None)
        work = Work(self.engine, nobody, nobody, nobody, self.turns)
        self.engine.put_topic("q", ConfigPatch(type="queue"))
        self.engine.write("q", Write.of(range(STREAMS)))
        workers = [Worker("w", 1, None, lambda hand: None, lambda error: None) for _ in range(STREAMS)]
        topics = [self.engine.queues.work("q", worker) for worker in workers]
        self.engine.run_until_idle()
        assert self.in_flight == STREAMS
        for topic, worker in zip(topics, workers, strict=True):
            work.stop(topic, worker)
            assert worker.closed

    def _look(self) -> int:
        self.now_ns += TURN_NS
        return self.now_ns

    @property
    def in_flight(self) -> int:
        queue = self.engine.state("q").queue
        assert not isinstance(queue, msgspec.UnsetType)
        return queue.in_flight


def test_streams_that_end_together_give_their_jobs_back_in_turns() -> None:
    """WORK-3: none of it holds up what else the loop has to do, and all of it is done at once."""
    crowd = Crowd()
    assert crowd.in_flight > 1
    crowd.loop.run_until_idle()
    assert crowd.in_flight == 0
    assert crowd.loop.turns > STREAMS // 2


def test_a_stop_gives_back_what_still_waits_for_its_turn() -> None:
    """WORK-3: jobs of streams that a stop ends are not held until their leases run out."""
    crowd = Crowd()
    crowd.turns.finish()
    assert crowd.in_flight == 0
