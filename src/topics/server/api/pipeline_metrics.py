"""The metrics of flows on Spark, as they report them into the topic `topics.pipelines` (PROBE-19).

The last report of a name counts, for as long as the topic holds it. Only what came since the last request is read, and
of that a bounded number of reports. Any client may write to the topic: what is no report is passed over, and names and
their number are bounded, because they become labels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import msgspec

from topics.engine import Engine
from topics.engine.log.difference import Window
from topics.engine.log.render import WITH_DATA
from topics.server.api.exposition import Counter, Family, Gauge
from topics.server.api.phase import Phase
from topics.server.api.principal import Principal

TOPIC: Final = "topics.pipelines"
"""As the Python library names it."""
LOOKED_MAX: Final = 1_000
LOOKED_BYTES_MAX: Final = 1 << 19
FLOWS_MAX: Final = 100
NAME_CHARS_MAX: Final = 100
_ENDED: Final = ("stopped", "done", "failed")
_GAUGES: Final = (
    ("rate", "topics_pipeline_records_per_second", "Records per second of the last batch of a flow."),
    ("lag", "topics_pipeline_lag_records", "Records that a flow has not done yet."),
    ("lag_s", "topics_pipeline_lag_seconds", "Age of the oldest record that a flow has not done yet; 0 without one."),
)
_COUNTERS: Final = (
    ("rows", "topics_pipeline_rows", "Rows that a flow has done since its application began."),
    ("restarts", "topics_pipeline_restarts", "How often a flow failed and was begun again."),
)


class _Report(msgspec.Struct):
    name: str
    state: str
    rate: float = 0.0
    lag: int | None = None
    lag_s: float | None = None
    rows: int = 0
    restarts: int = 0
    ts: int = 0
    seq: int | None = None


class _Record(msgspec.Struct, rename={"seq": "$seq", "ts": "$ts"}):
    seq: int
    ts: int
    data: msgspec.Raw


_records: Final = msgspec.json.Decoder(list[_Record])
_report: Final = msgspec.json.Decoder(_Report)


class PipelineMetrics:
    """The last reports of flows."""

    def __init__(self, engine: Engine, phase: Phase) -> None:
        self._engine = engine
        self._phase = phase
        self._topic_id: int | None = None
        self._cursor = 0
        self._last: dict[str, _Report] = {}

    def collect(self, principal: Principal) -> Iterator[Family]:
        """The flows that were read last, for a key that may read their reports."""
        flows = list(self._last.values()) if principal.may_touch(TOPIC) else []
        for field, name, help in _GAUGES:
            gauge = Gauge(name, help, labels=["pipeline"])
            for flow in flows:
                if (value := getattr(flow, field)) is not None:
                    gauge.add([flow.name], value)
            yield gauge
        for field, name, help in _COUNTERS:
            counter = Counter(name, help, labels=["pipeline"])
            for flow in flows:
                counter.add([flow.name], getattr(flow, field))
            yield counter
        yield from self._states(flows)

    def _states(self, flows: list[_Report]) -> Iterator[Family]:
        help = "1 while a flow waits after a failure, or has ended with one."
        failing = Gauge("topics_pipeline_failing", help, labels=["pipeline"])
        help = "Seconds since the last report of a flow that has not ended."
        age = Gauge("topics_pipeline_report_age_seconds", help, labels=["pipeline"])
        now_ms = self._engine.clock.now_ms()
        for flow in flows:
            failing.add([flow.name], int(flow.state in ("waiting", "failed")))
            if flow.state not in _ENDED:
                age.add([flow.name], max(0, now_ms - flow.ts) / 1000)
        yield from (failing, age)

    def read(self) -> None:
        """Take in what was reported since the last time. Raises Miss where that has to be read from disk first."""
        if not self._phase.ready:
            return
        topic = self._engine.topics.get(TOPIC)
        topic_id = None if topic is None else topic.id
        if topic_id != self._topic_id:
            self._topic_id, self._cursor, self._last = topic_id, 0, {}
        if topic is None:
            return
        log = topic.log
        from_seq = max(self._cursor, log.head - LOOKED_MAX, 0)
        if from_seq < log.head:
            window = Window(LOOKED_MAX, LOOKED_BYTES_MAX, WITH_DATA)
            found = self._engine.read(topic, from_seq, window)
            self._cursor = found.next_from_seq
            for record in _records.decode(b"[%b]" % found.text):
                with contextlib.suppress(msgspec.DecodeError, RecursionError):
                    self._take(_report.decode(record.data), record)
        for name in [name for name, flow in self._last.items() if (flow.seq or 0) < log.start]:
            del self._last[name]

    def _take(self, report: _Report, record: _Record) -> None:
        name = report.name
        if not name.isprintable() or not 0 < len(name) <= NAME_CHARS_MAX:
            return
        if name in self._last or len(self._last) < FLOWS_MAX:
            report.ts, report.seq = record.ts, record.seq
            self._last[name] = report
