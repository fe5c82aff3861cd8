"""A restart on a clock that was set back: what was logged as a wall-clock time lasts no longer than it was meant to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.machine import Machine
from topics.engine import ConfigPatch, RecordIn, Write
from topics.engine.queue.requests import AckJobs, ClaimJobs, ExtendJobs, NackJobs

HOUR_MS = 3_600_000
CAPTURED = pytest.mark.parametrize("captured", [False, True], ids=["log", "checkpoint"])


class QueueMachine(Machine):
    """A machine with a queue `q` of leases of 30 seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.engine.put_topic("q", ConfigPatch(type="queue", lease_ms=30_000))

    def produce(self, **fields: Any) -> None:
        self.engine.write("q", Write([RecordIn(b"1", **fields)]))  # type: ignore[arg-type]

    def claim(self, node: str = "w") -> list[dict[str, Any]]:
        return self.engine.queues.claim("q", ClaimJobs(node, 100)).claimed

    def seqs(self) -> list[int]:
        return [job["$seq"] for job in self.claim("other")]

    def restart(self, captured: bool, step_ms: int) -> None:
        """Kill the process, and start the next one when the clock has been stepped."""
        if captured:
            self.checkpoint()
        self.run_until_idle()
        self.clock.set(self.clock.now_ms() + step_ms)
        self.crash()


@CAPTURED
def test_lease_lasts_no_longer_than_its_own_time_after_a_restart(captured: bool) -> None:
    """QUEUE-30: also one that was extended."""
    machine = QueueMachine()
    machine.produce()
    machine.produce()
    machine.claim()
    machine.engine.queues.extend("q", ExtendJobs("w", [2], 60_000))
    machine.restart(captured, -HOUR_MS)
    assert machine.seqs() == []
    machine.clock.advance(30_001)
    assert machine.seqs() == [1]
    machine.clock.advance(30_000)
    assert 2 in machine.seqs()


@CAPTURED
def test_delays_last_no_longer_than_their_own_time_after_a_restart(captured: bool) -> None:
    """QUEUE-30: `delay_ms` of a write and of a nack."""
    machine = QueueMachine()
    machine.produce()
    machine.claim()
    machine.engine.queues.nack("q", NackJobs("w", [1], 5000))
    machine.produce(delay_ms=5000)
    machine.restart(captured, -HOUR_MS)
    assert machine.seqs() == []
    machine.clock.advance(5000)
    assert machine.seqs() == [1, 2]


@CAPTURED
def test_what_was_noted_after_the_clock_was_set_back_is_kept_to_the_letter(captured: bool) -> None:
    """QUEUE-30: the process knew the new time, so nothing of a lease or a delay is lost or added."""
    machine = QueueMachine()
    machine.produce()
    machine.clock.set(machine.clock.now_ms() - HOUR_MS)
    machine.produce(delay_ms=20_000)
    machine.claim()
    machine.clock.advance(10_000)
    machine.restart(captured, 0)
    machine.clock.advance(9_000)
    assert machine.seqs() == []
    # A delay is counted from `$ts`, which stands still while the clock is behind: it may begin anew, and no more.
    machine.clock.advance(11_001)
    assert machine.seqs() == [1, 2]


@CAPTURED
def test_date_is_kept_over_a_restart_whatever_the_clock_shows(captured: bool) -> None:
    """QUEUE-26: `deliver_at` is a time of the wall clock."""
    machine = QueueMachine()
    date_ms = machine.clock.now_ms() + HOUR_MS
    machine.produce(deliver_at=date_ms)
    machine.restart(captured, -HOUR_MS)
    machine.clock.set(date_ms - 1)
    assert machine.seqs() == []
    machine.clock.advance(1)
    assert machine.seqs() == [1]


@CAPTURED
def test_lease_ids_go_on_rising_where_the_clock_was_set_back(captured: bool) -> None:
    """QUEUE-10: an id of before the restart fits no lease of after it."""
    machine = QueueMachine()
    machine.produce()
    (before,) = machine.claim()
    machine.restart(captured, -HOUR_MS)
    machine.clock.advance(30_001)
    (after,) = machine.claim()
    assert int(after["lease_id"][6:], 16) > int(before["lease_id"][6:], 16)
    stale = machine.engine.queues.ack("q", AckJobs("w", [1], [before["lease_id"]])).result
    assert stale.skipped == [1]


@CAPTURED
def test_key_is_remembered_for_no_longer_than_its_window_after_a_restart(captured: bool) -> None:
    """RETRY-9."""
    machine = QueueMachine()
    keyed = Write.of([1], idempotency_key="k")
    machine.engine.write("t", keyed)
    machine.restart(captured, -HOUR_MS)
    machine.clock.advance(119_999)
    assert machine.engine.write("t", keyed).deduped is True
    machine.clock.advance(2)
    assert machine.engine.write("t", keyed).deduped is False
