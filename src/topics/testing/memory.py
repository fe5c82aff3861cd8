"""An engine in memory on a clock that the test moves: the server's own rules without a server, a socket or a file.

from topics.engine import Diff, Write
from topics.testing import MemoryEngine

engine = MemoryEngine()
engine.write("jobs", Write.of([{"url": "s3://b/a.png"}]))
engine.pass_time(60_000)
assert engine.diff("jobs", Diff()).records[0]["data"] == {"url": "s3://b/a.png"}
"""

from __future__ import annotations

from topics.engine import Engine, Limits
from topics.testing.clock import START_MS, ManualClock


class MemoryEngine(Engine):
    """An Engine that keeps its records in memory only; every command returns when it is done."""

    clock: ManualClock

    def __init__(self, now_ms: int = START_MS, limits: Limits | None = None) -> None:
        super().__init__(ManualClock(now_ms), limits=limits)

    def pass_time(self, ms: int) -> None:
        """Let `ms` milliseconds pass, and do what falls due: leases expire, delayed jobs become ready."""
        self.clock.advance(ms)
        self.run_until_idle()
