"""The engine in memory that users test against."""

from __future__ import annotations

import textwrap

from topics.engine import ConfigPatch, Diff, Write
from topics.engine.queue.requests import ClaimJobs
from topics.testing import MemoryEngine, memory


def test_example_of_the_module_runs() -> None:
    """The lines that the module opens with are what a user copies first."""
    assert memory.__doc__ is not None
    _, _, example = memory.__doc__.partition("\n\n")
    exec(textwrap.dedent(example), {})


def test_time_that_passes_does_what_falls_due() -> None:
    """A lease that is over makes its job ready, without a command that would look at it."""
    engine = MemoryEngine()
    engine.put_topic("q", ConfigPatch(type="queue", lease_ms=1000))
    engine.write("q", Write.of(["job"]))
    assert len(engine.queues.claim("q", ClaimJobs("w")).claimed) == 1
    waiting = engine.queues.claim("q", ClaimJobs("v", 1, None, 5000), on_done=lambda claim: None)
    engine.pass_time(1000)
    assert not waiting.done
    engine.pass_time(1)
    assert [job["data"] for job in waiting.claimed] == ["job"]
    assert engine.diff("q", Diff()).records[0]["$ts"] == engine.clock.now_ms() - 1001
