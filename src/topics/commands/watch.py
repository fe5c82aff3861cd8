"""`topics watch`: the rates of all topics, as they change, like `top`.

A rate is how far a head has moved between two looks. On a terminal the busiest topics fill the screen, with a picture
of the last looks; into a pipe goes a table, or JSON, for each look.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from topics.client.answers import TopicSummary
from topics.commands.link import Link, connected
from topics.commands.spans import shown_size, span_ms
from topics.commands.table import Json, counted, print_json, print_table

if TYPE_CHECKING:
    from rich.console import Console, Group

PICTURE: Final = " ▁▂▃▄▅▆▇█"
LOOKS_KEPT: Final = 20
LOOKS_NARROW: Final = 8
WIDE: Final = 110
"""From this many columns on there is room for the whole picture."""
SCREEN_ROWS_OTHER: Final = 6
"""Lines of the screen that are not topics."""

Interval = Annotated[
    int,
    typer.Option(
        "--interval", "-i", parser=span_ms, metavar="TIME", help="How often to look: 500ms, 10s.", show_default=False
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", "-c", help="End after this many looks.", min=1, show_default=False)
]


class Row(msgspec.Struct, frozen=True):
    """One topic at one look; `ready` and `in_flight` are of a queue."""

    topic: str
    records_per_s: float
    bytes_per_s: float
    count: int
    bytes: int
    head_seq: int
    ready: int | None = None
    in_flight: int | None = None


class Watch:
    """Compares each look at the topics with the one before."""

    def __init__(self) -> None:
        self._before: dict[str, TopicSummary] = {}
        self._before_s = 0.0
        self.rates: dict[str, deque[float]] = {}

    def look(self, topics: list[TopicSummary], metrics: Mapping[str, Any], now_s: float) -> list[Row]:
        """The topics with their rates, the busiest first; the first look knows no rates."""
        elapsed_s = now_s - self._before_s if self._before else 0.0
        ready, in_flight = (metrics.get(f"topics_topic_queue_{name}", {}) for name in ("ready", "in_flight"))
        rows = []
        for each in topics:
            before = self._before.get(each.topic)
            # What is new since the last look began at 0; a head that went back is another topic of the same name.
            was = before.head_seq if before is not None and before.head_seq <= each.head_seq else 0
            rate = (each.head_seq - was) / elapsed_s if elapsed_s > 0 else 0.0
            self.rates.setdefault(each.topic, deque(maxlen=LOOKS_KEPT)).append(rate)
            size = each.bytes / each.count if each.count else 0.0
            jobs = [_whole(found.get(each.topic)) for found in (ready, in_flight)]
            rows.append(Row(each.topic, rate, rate * size, each.count, each.bytes, each.head_seq, *jobs))
        self._before = {each.topic: each for each in topics}
        self._before_s = now_s
        self.rates = {name: kept for name, kept in self.rates.items() if name in self._before}
        # Those that were busy lately stay on top, so that the list does not jump.
        return sorted(rows, key=lambda row: (-sum(self.rates[row.topic]), row.topic))

    def picture(self, topic: str) -> str:
        """The last rates of a topic as a line of bars."""
        kept = self.rates[topic]
        most = max(kept) or 1.0
        bars = "".join(PICTURE[round(rate / most * (len(PICTURE) - 1))] for rate in kept)
        return bars.rjust(LOOKS_KEPT)


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


@connected
def watch(
    link: Link,
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Only topics that start with this.", show_default=False)
    ] = "",
    interval: Interval = 1_000,
    count: Count = None,
    as_json: Json = False,
) -> None:
    """Watch the rates of topics, the busiest first, until Ctrl-C; by default each second."""
    found = Watch()
    looks = _looks(link, prefix, found, interval / 1000, count)
    if as_json or not sys.stdout.isatty():
        for rows, _ in looks:
            if as_json:
                for row in rows:
                    print_json(row)
            else:
                _print(rows)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, screen=count is None, auto_refresh=False) as screen:
        for rows, metrics in looks:
            screen.update(_screen(link.url, rows, metrics, found, console), refresh=True)


def _looks(link: Link, prefix: str, found: Watch, interval_s: float, count: int | None) -> Any:
    """A look at each interval: the rows, and the metrics of the server. The first one is only there to compare with."""
    done = 0
    due = time.monotonic()
    client = link.now
    while count is None or done <= count:
        topics = client.topics(prefix)
        metrics = client.metrics()
        rows = found.look(topics, metrics, time.monotonic())
        # From here on a server that restarts is waited for.
        client = link.patient
        if done:
            yield rows, metrics
        done += 1
        due += interval_s
        if count is None or done <= count:
            time.sleep(max(0.0, due - time.monotonic()))


def _cells(row: Row) -> tuple[Any, ...]:
    return (
        f"{row.records_per_s:,.0f}", f"{shown_size(row.bytes_per_s)}", f"{row.count:,}", shown_size(row.bytes),
        f"{row.head_seq:,}", row.ready, row.in_flight, row.topic,
    )  # fmt: skip


HEAD: Final = ("RECORDS/S", "BYTES/S", "RECORDS", "BYTES", "HEAD", "READY", "LEASED", "TOPIC")


def _print(rows: list[Row]) -> None:
    print_table(HEAD, [_cells(row) for row in rows])
    typer.echo()


def _screen(url: str, rows: list[Row], metrics: Mapping[str, Any], found: Watch, console: Console) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    room = max(1, console.height - SCREEN_ROWS_OTHER)
    looks = LOOKS_KEPT if console.width >= WIDE else LOOKS_NARROW
    has_queues = any(row.ready is not None for row in rows[:room])
    names = (*HEAD[:4], "READY", "LEASED") if has_queues else HEAD[:4]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("LATELY", no_wrap=True, style="green")
    # Of all columns this one gives way where the terminal is narrow.
    table.add_column("TOPIC", overflow="ellipsis")
    for row in rows[:room]:
        cells = dict(zip(HEAD, _cells(row), strict=True))
        shown = ["" if cells[name] is None else str(cells[name]) for name in names]
        style = "" if row.records_per_s else "dim"
        table.add_row(*shown, found.picture(row.topic)[-looks:], Text(row.topic), style=style)
    total = sum(row.records_per_s for row in rows)
    pressure = int(metrics.get("topics_pressure_level", 0))
    text = f"{url}  {counted(len(rows), 'topic')}  {total:,.0f} records/s  pressure {pressure}  "
    head = Text(text, style="bold").append(time.strftime("%H:%M:%S"), style="not bold dim")
    rest = len(rows) - room
    foot = Text(f"{rest:,} more topics; a prefix shows fewer" if rest > 0 else "Ctrl-C ends it", style="dim")
    return Group(head, Text(), table, Text(), foot)
