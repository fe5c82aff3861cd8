"""Metrics: what counting a request costs the server, and what one scrape does.

`metrics-cost` times what `Exchange.respond_raw` does for the metrics, in this process, for a route that is busy and for
one that is not. What a whole server loses by it is less than a machine swings; `--against` shows that it is no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns, process_time_ns

from bench import records
from bench.bed import Bench
from bench.load import Traffic
from bench.row import Row, at_most

ROWS = ("metrics-cost", "metrics-scrape")
TIMES = 2_000_000
TOPICS = 1_000


def measure(bench: Bench) -> Iterator[Row]:
    """The cost of metrics."""
    if bench.wants("metrics-cost"):
        with bench.on_server_core():
            yield from _cost()
    if bench.wants("metrics-scrape"):
        with bench.server() as server:
            records.fill_topics(server, 0, TOPICS)
            traffic = Traffic("GET", "/v0/metrics", connections=1)
            yield bench.measure("metrics-scrape", f"GET the metrics of {TOPICS:,} topics", server, traffic, records=0)


def _cost() -> Iterator[Row]:
    try:
        from topics.server.http.traffic import BUSY_REQUESTS, Tally
    except ImportError:
        # The tree that is measured has no such counters.
        return
    quiet, busy = Tally("POST", "/v0/topics/:topic"), Tally("POST", "/v0/topics/:topic")
    for _ in range(BUSY_REQUESTS + 1):
        busy.look(1_000_000, 300, 300)
    busy.adapt()

    def once(tally: Tally, times: int) -> float:
        """Microseconds per request, without those of the loop itself."""
        started_ns = perf_counter_ns()
        begun_ns = process_time_ns()
        for _ in range(times):
            if tally.unseen:
                tally.unseen -= 1
            else:
                tally.look(perf_counter_ns() - started_ns, 300, 300)
        counted_ns = process_time_ns()
        for _ in range(times):
            pass
        return (2 * counted_ns - begun_ns - process_time_ns()) / times / 1000

    row = Row("metrics-cost", "count one request of a busy route", cpu_us=min(once(busy, TIMES) for _ in range(3)))
    row.target = at_most(1, "cpu_us")
    row.add_note(f"{min(once(quiet, TIMES // 10) for _ in range(3)):.2f} us where every request is looked at")
    yield row
