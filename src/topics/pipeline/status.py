"""`topics pipeline status`: how the flows are doing that report to a server, wherever they run."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from topics.client.operations.pipelines import PIPELINES_TOPIC, PipelineState
from topics.commands.link import Link, connected
from topics.commands.spans import shown_span
from topics.commands.table import Json, cell, print_json, print_table
from topics.commands.watch import Count, Interval

if TYPE_CHECKING:
    from rich.table import Table

OLD_MS: Final = 30_000
"""A flow reports every few seconds: one that has not done so for this long is gone, or cannot reach the server."""
HEAD: Final = ("STATE", "ROWS", "RATE", "LAG", "LATE", "RESTARTS", "REPORT", "KIND", "TOPIC", "FLOW", "ERROR")
LEFT: Final = ("STATE", "KIND", "TOPIC", "FLOW")


def is_old(state: PipelineState, now_ms: int) -> bool:
    """Whether a flow should have reported again by now."""
    return not state.ended and now_ms - state.ts > OLD_MS


def cells(state: PipelineState, now_ms: int) -> tuple[Any, ...]:
    """A flow as a row of the table."""
    return (
        f"{state.state} (old)" if is_old(state, now_ms) else state.state,
        f"{state.rows:,}",
        f"{state.rate:,.0f}/s",
        None if state.lag is None else f"{state.lag:,}",
        None if state.lag_s is None else shown_span(state.lag_s * 1000),
        state.restarts,
        f"{shown_span(max(0, now_ms - state.ts))} ago",
        state.kind,
        state.topic,
        state.name,
        state.error,
    )


@connected
def status(
    link: Link,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it every 2s, or at --interval, until Ctrl-C.")
    ] = False,
    interval: Interval = 2_000,
    count: Count = None,
    reports: Annotated[str, typer.Option(help="The topic that flows report to.")] = PIPELINES_TOPIC,
    as_json: Json = False,
) -> None:
    """Show how flows are doing: state, rate, lag, last error.

    A flow whose last report is more than 30 seconds old is marked as old: it is gone, or cannot reach the server.
    """
    looks = _looks(link, reports, interval / 1000, count or (None if watch else 1))
    if not watch or as_json or not sys.stdout.isatty():
        for states, now_ms in looks:
            if as_json:
                for state in states:
                    print_json({**msgspec.structs.asdict(state), "old": is_old(state, now_ms)})
            else:
                print_table(HEAD, [cells(state, now_ms) for state in states], left=LEFT)
        return
    from rich.live import Live

    with Live(screen=count is None, auto_refresh=False) as screen:
        for states, now_ms in looks:
            screen.update(_screen(states, now_ms), refresh=True)


def _looks(link: Link, reports: str, interval_s: float, count: int | None) -> Any:
    client = link.now
    done = 0
    while True:
        yield client.pipelines(reports), int(time.time() * 1000)
        # From here on a server that restarts is waited for.
        client = link.patient
        done += 1
        if count is not None and done >= count:
            return
        time.sleep(interval_s)


def _screen(states: list[PipelineState], now_ms: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in HEAD:
        table.add_column(name, justify="left" if name in (*LEFT, "ERROR") else "right")
    for state in states:
        bad = state.error is not None or is_old(state, now_ms)
        table.add_row(*(Text(cell(each)) for each in cells(state, now_ms)), style="red" if bad else "")
    return table
