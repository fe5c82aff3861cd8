"""What flows report, how often, and what happens where the server does not take it (PIPELINE-23)."""

from __future__ import annotations

from typing import Any

from topics.client.operations.pipelines import PipelineState
from topics.client.record import Draft
from topics.commands.link import Target
from topics.errors import TopicsError
from topics.pipeline.flows.flows import Flow
from topics.pipeline.flows.lag import Lag
from topics.pipeline.flows.lone_flow import QUIET_MS, LoneFlow
from topics.pipeline.flows.reporter import Reporter
from topics.pipeline.flows.secrets import Secrets
from topics.pipeline.progress import Progress
from topics.testing import ManualClock


def flow(name: str) -> Flow:
    return Flow(name, "archive", Target("http://127.0.0.1:1", None), ("orders",), None, "1 second", None, object)


class Kept:
    def __init__(self, name: str) -> None:
        self.state = PipelineState(name=name, kind="archive", state="running")
        self.cursors: dict[str, int] | None = {"orders": 7}

    def now(self) -> PipelineState:
        return PipelineState(name=self.state.name, kind="archive", state=self.state.state, rows=self.state.rows)


class Reports:
    """A reporter of two flows, and what it has written."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kept = [Kept("a"), Kept("b")]
        self.written: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.refuses = False
        pairs = [(flow(kept.state.name), kept) for kept in self.kept]
        self.reporter = Reporter(self._write, pairs, lambda flow, cursors: Lag(3, 1.5), self.clock, self.said.append)

    def _write(self, drafts: list[Draft[PipelineState]]) -> None:
        if self.refuses:
            raise TopicsError("the key may not write")
        for draft in drafts:
            assert draft.tag == draft.data.name
            assert (draft.data.lag, draft.data.lag_s) == (3, 1.5)
            self.written.append((draft.data.name, draft.data.state))

    def tick(self, advance_ms: int) -> list[tuple[str, str]]:
        self.clock.advance(advance_ms)
        self.written.clear()
        self.reporter.tick()
        return list(self.written)


def test_a_change_is_reported_at_once_and_the_rest_every_few_seconds() -> None:
    """PIPELINE-23: at most one report per second and flow, and one every five seconds although nothing happens."""
    reports = Reports()
    assert reports.tick(0) == [("a", "running"), ("b", "running")]
    assert reports.tick(1_000) == []
    reports.kept[0].state.state = "waiting"
    assert reports.tick(1_000) == [("a", "waiting")]
    reports.kept[0].state.state = "running"
    assert reports.tick(500) == [], "two reports within a second"
    assert reports.tick(500) == [("a", "running")]
    assert reports.tick(2_000) == [("b", "running")]
    assert reports.tick(3_000) == [("a", "running")]
    reports.kept[1].state.state = "stopped"
    reports.clock.advance(10)
    reports.written.clear()
    reports.reporter.close()
    assert reports.written == [("b", "stopped")], "the end is told whenever it comes"
    assert reports.tick(60_000) == [("a", "running")], "what has ended is silent"


def test_where_reports_cannot_be_stored_that_is_said_once_and_they_are_sent_later() -> None:
    """PIPELINE-23."""
    reports = Reports()
    reports.refuses = True
    assert reports.tick(0) == []
    assert reports.tick(1_000) == []
    assert reports.said == ["reports are not stored in topics.pipelines: the key may not write"]
    reports.refuses = False
    assert reports.tick(1_000) == [("a", "running"), ("b", "running")]


def progress_of(batch: int, rows: int, end: int) -> dict[str, Any]:
    source = {"endOffset": f'{{"orders":{{"epoch":1,"seq":{end}}}}}', "latestOffset": None}
    return {"batchId": batch, "numInputRows": rows, "processedRowsPerSecond": 10.0, "sources": [source]}


def test_a_pipeline_alone_reports_its_progress_and_its_end() -> None:
    """PIPELINE-23: without a secret, and without a rate once nothing comes any more."""
    clock, progress = ManualClock(), Progress("archive")
    single = LoneFlow(flow("orders"), progress, clock, Secrets({"A_TOKEN": "very-secret"}))
    assert (single.now().state, single.cursors) == ("starting", None)
    progress.take(progress_of(0, 20, 20))
    clock.advance(500)
    now = single.now()
    assert (now.state, now.rows, now.seq, now.rate, now.since) == ("running", 20, 20, 10.0, clock.now_ms())
    clock.advance(QUIET_MS)
    assert single.now().rate == 0.0
    single.end("failed", "no\n key very-secret")
    assert (single.now().state, single.now().error) == ("failed", "no key <A_TOKEN>")
