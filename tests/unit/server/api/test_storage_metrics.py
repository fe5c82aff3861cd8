"""Losses, evictions and upkeep as metrics (PROBE-16)."""

from __future__ import annotations

from tests.harness.server import ManualServer
from topics.engine.upkeep.timing import Timing
from topics.server.api.storage_metrics import storage_metrics


def test_losses_are_counted_by_reason() -> None:
    """PROBE-16: the reasons of tombstones; one that did not happen is 0, so that a rate can begin there."""
    manual = ManualServer()
    manual.post()
    log = manual.engine.topic("t").log
    log.lose(2, 4, "crash")
    log.lose(9, 9, "corruption")
    log.lose(10, 11, "crash")
    (reply,) = manual.send("GET", "/v0/metrics", None, "Accept: application/json").replies()
    expected = {"corruption": 1, "crash": 5, "restart": 0, "source_trim": 0}
    assert reply.ok(200)["topics_lost_records_total"] == expected


def test_what_retention_takes_again_at_a_restart_is_not_counted_again() -> None:
    """PROBE-16: only what is taken now is."""
    manual = ManualServer()
    manual.post()
    manual.engine.topic("t").log.raise_floors(1, 0)
    families = {family.name: family for family in storage_metrics(manual.engine, None, None)}
    assert [sample.value for sample in families["topics_evicted_records_total"].samples] == [0, 0]


def test_failures_do_not_count_as_time_that_it_took() -> None:
    """PROBE-16."""
    timing = Timing()
    timing.ended(100, 400, failed=True)
    assert (timing.failed_total, timing.succeeded_total, timing.total_ns, timing.last_ns) == (1, 0, 0, None)
    timing.ended(400, 1_000, failed=False)
    assert (timing.failed_total, timing.succeeded_total, timing.total_ns, timing.last_ns) == (1, 1, 600, 1_000)
