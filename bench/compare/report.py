"""The page docs/benchmarks.md and its plots, made from the figures of one run and from nothing else.

The figures are kept beside the page, so that a test can tell whether the page is theirs, and a change of its words does
not need another measurement (`python -m bench.compare --render`).
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.compare.system import CLAIM, READ_LIMIT, READ_RECORDS, READERS, WORKERS
from bench.compare.work import KEPT_RECORDS, Outcome, outcomes

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FIGURES = Path(__file__).with_name("figures.json")
OURS = "topics"


class Figure(NamedTuple):
    """One number of a work, as a column, as a plot, and as a sentence about who is ahead."""

    name: str
    column: str
    unit: str
    more_is_better: bool
    ahead: str
    """What somebody does who is ahead by a factor, after its name."""


RATE = Figure("records_s", "records/s", "records/s", True, "does {factor} times as many a second")
CPU = Figure("cpu_us", "CPU µs a record", "µs", False, "takes {share} of the processor time")
P50 = Figure("p50_ms", "p50 ms", "ms", False, "takes {share} of the time")
P99 = Figure("p99_ms", "p99 ms", "ms", False, "")
RESTART = Figure("restart_s", "back after s", "s", False, "is back in {share} of the time")
MEMORY = Figure("memory_mib", "memory MiB", "MiB", False, "takes {share} of the memory")
DISK = Figure("disk_mib", "disk MiB", "MiB", False, "takes {share} of the disk")


class Chapter(NamedTuple):
    """What the page says about a work: the first figure is plotted, and all are in the table."""

    work: str
    title: str
    text: str
    figures: tuple[Figure, ...]
    judged: tuple[Figure, ...]


CHAPTERS = (
    Chapter(
        "append",
        "Append one record at a time",
        """64 requests in flight, one record each, acknowledged when the kernel has the bytes: class `disk`,
        `appendfsync everysec`, file storage. topics and Redis have a connection for each; NATS has one for all, as its
        clients do, and so takes several records with one call to the kernel.""",
        (RATE, P50, P99, CPU),
        (RATE, CPU),
    ),
    Chapter(
        "append-synced",
        "Append one record at a time, synced",
        """The same, acknowledged when the disk has the bytes: class `fsync`, `appendfsync always`. This version of NATS
        cannot do it.""",
        (RATE, P50, P99, CPU),
        (RATE, CPU),
    ),
    Chapter(
        "append-100",
        "Append 100 records at a time",
        """16 requests in flight with 100 records each. In topics such a request is atomic; in Redis it is a pipeline of
        100 commands; in NATS 1,600 publishes are in flight.""",
        (RATE, P50, P99, CPU),
        (RATE, CPU),
    ),
    Chapter(
        "read",
        "Read history",
        f"""A log of {READ_RECORDS:,} records. topics and Redis: {READERS} readers take {READ_LIMIT:,} records at a time
        from distinct cursors (`diff`, `XRANGE`), and what topics has rendered once it keeps. NATS has no read at a
        cursor: one push consumer takes the whole log, and is made anew.""",
        (RATE, P50, P99, CPU),
        (RATE, CPU),
    ),
    Chapter(
        "jobs",
        "Claim and acknowledge jobs",
        f"""{WORKERS} workers claim {CLAIM} jobs, acknowledge all of them, and claim again; every ack is confirmed and
        removes the job: claim and ack, `XREADGROUP` with `XACK` and `XDEL`, a pull consumer of a work queue. Latency is
        that of a claim and its acks together. The generator is the same Python program for all three and often the
        bottleneck: the processor time says more than the rate.""",
        (RATE, P50, P99, CPU),
        (RATE, CPU),
    ),
    Chapter(
        "hear",
        "From a write to a subscriber",
        """One writer, one subscriber, one record at a time, from just before the write is sent until the subscriber has
        its bytes: POST and an event stream, `XADD` and a blocking `XREAD`, publish and a push consumer.""",
        (P50, P99, CPU),
        (P50, CPU),
    ),
    Chapter(
        "restart",
        f"{KEPT_RECORDS:,} records: restart, memory, disk",
        """From the start of the process after `kill -9` until it answers with all records there. Memory is what the
        process itself holds (RssAnon) after it has taken the records, disk what its directory takes then. For topics
        that is before the log is sealed into segments, and includes files that are prepared for the next writes.""",
        (RESTART, MEMORY, DISK),
        (RESTART, MEMORY, DISK),
    ),
)

HEAD = """# Benchmarks

The same work on topics, Redis Streams and NATS JetStream, in turns within one run: `make bench-compare` measures, and
writes this page and its plots from the figures. [Where topics loses](#where-topics-loses) has a section of its own.

Machines differ. The ratios within one run are what counts, and the processor time of the server for each record holds
even where a generator was the bottleneck.
"""

TAIL = """## How it was measured

| | |
|---|---|
{about}

- The server has one core for itself, the generator another. Each round starts every system anew, one after the other,
  on an empty directory; the median of the rounds is shown, and the range of them where they differ.
- Records are the same JSON of about 150 bytes everywhere. Nothing is replicated, no system has TLS or keys.
- `wrk` sends to topics and `redis-benchmark` to Redis; for NATS, for jobs and for latency it is a Python program that
  speaks the protocol with prepared bytes ([bench/compare](../bench/compare/__init__.py)).
- Memory that the kernel caches for a process is not counted; processor time is, in user and kernel, of all threads.

To run it, on a machine that does nothing else, with Debian's packages for the other two:

```console
$ apt-get install wrk redis-server redis-tools nats-server
$ make bench-compare
```

Whatever is not installed is left out. `make bench` has many more rows about topics alone, with the budget for each
([bench/README.md](../bench/README.md)).
"""

WHY = """Redis is written in C and NATS in Go, and both have protocols that are shorter than HTTP with JSON: a request
that does little costs them less. topics is Python around a few extensions in C. It does well where a request does much,
such as batches and reads of history, and it has what these figures do not show: reported losses, delays and dead
letters, erasure, a browser as a client. Where single small writes are all that you do, and their rate is your
bottleneck, take Redis or NATS.
"""

_COLOURS = {OURS: "#00796b", "Redis Streams": "#b3552f", "NATS JetStream": "#4a64a8"}
_SMALL = 'font-size="12" fill="#4a5a5a"'
_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 760, 140, 130, 40, 48


def render(figures: dict[str, Any]) -> dict[Path, str]:
    """The page and its plots, by path."""
    found = outcomes(figures["rows"])
    made: dict[Path, str] = {}
    parts = [HEAD]
    for chapter in CHAPTERS:
        rows = [outcome for outcome in found if outcome.work == chapter.work]
        if not rows:
            continue
        plot = DOCS / "images" / f"bench-{chapter.work}.svg"
        made[plot] = bars(chapter.title, chapter.figures[0], rows)
        words = f"{chapter.title}: {_sentence(chapter.figures[0], rows)}"
        parts.append(
            f"## {chapter.title}\n\n{_wrap(chapter.text)}\n\n![{words}](images/{plot.name})\n\n{_table(chapter, rows)}"
        )
    parts.append(f"## Where topics loses\n\n{_losses(found)}\n\n{WHY}")
    parts.append(TAIL.format(about=_about(figures["about"])))
    made[DOCS / "benchmarks.md"] = "\n".join(parts)
    return made


def _about(about: dict[str, Any]) -> str:
    rows = {
        "machine": f"{about['machine']}, {about['disk']}, load average {about['load']} before",
        "versions": ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        + f"; Python {about['python']}",
        "generator": about["generator"],
        "rounds": f"{about['rounds']} of {about['seconds']:g} s for each work and system",
        "date": about["date"],
    }
    return "\n".join(f"| {name} | {value} |" for name, value in rows.items())


def _table(chapter: Chapter, rows: list[Outcome]) -> str:
    columns = [figure for figure in chapter.figures if any(row.of(figure.name) for row in rows)]
    lines = ["| | " + " | ".join(figure.column for figure in columns) + " |", "|---|" + "---:|" * len(columns)]
    for row in rows:
        cells = [_cell(row.of(figure.name), row.median(figure.name)) for figure in columns]
        lines.append(f"| {row.system} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: list[float], middle: float | None) -> str:
    if middle is None:
        return ""
    if number(values[0]) == number(values[-1]):
        return number(middle)
    return f"{number(middle)} ({number(values[0])} to {number(values[-1])})"


def number(value: float) -> str:
    """Three digits that count, and no exponent."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def _sentence(figure: Figure, rows: list[Outcome]) -> str:
    said = [f"{row.system} {number(row.median(figure.name) or 0)}" for row in rows]
    return f"{', '.join(said)} {figure.unit}"


def _losses(found: list[Outcome]) -> str:
    """Every judged figure in which another system is ahead of ours, by its median."""
    lines = []
    for chapter in CHAPTERS:
        rows = {outcome.system: outcome for outcome in found if outcome.work == chapter.work}
        ours = rows.pop(OURS, None)
        for name, outcome in rows.items():
            said = [ahead for figure in chapter.judged if (ahead := _ahead(figure, ours, outcome))]
            if said:
                lines.append(_wrap(f"- **{chapter.title}:** {name} {' and '.join(said)}.", "  "))
    return "\n".join(lines) if lines else "In none of these works."


def _ahead(figure: Figure, ours: Outcome | None, theirs: Outcome) -> str | None:
    mine, other = (None if each is None else each.median(figure.name) for each in (ours, theirs))
    if not mine or not other or (other > mine) != figure.more_is_better or other == mine:
        return None
    share = other / mine
    return figure.ahead.format(factor=f"{share:.1f}", share=f"{share:.0%}")


def bars(title: str, figure: Figure, rows: list[Outcome]) -> str:
    """A bar for each system, with a line from the lowest to the highest round."""
    height = _TOP + _ROW * len(rows) + 28
    most = max((row.of(figure.name)[-1] for row in rows if row.of(figure.name)), default=1)
    room = _WIDTH - _LEFT - _RIGHT
    better = "more" if figure.more_is_better else "less"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="t d">',
        '<g font-family="system-ui, sans-serif" font-size="14" fill="#1f2d2d">',
        f'<title id="t">{escape(title)}</title>',
        f'<desc id="d">{escape(_sentence(figure, rows))}</desc>',
        f'<rect x="1" y="1" width="{_WIDTH - 2}" height="{height - 2}" rx="10" fill="#fbfcfc" stroke="#d5dcdc"/>',
        f'<text x="16" y="28">{escape(title)}</text>',
        f'<text x="{_WIDTH - 16}" y="28" text-anchor="end" {_SMALL}>{escape(figure.unit)}, {better} is better</text>',
    ]
    for place, row in enumerate(rows):
        values, middle = row.of(figure.name), row.median(figure.name) or 0
        y = _TOP + place * _ROW
        wide, colour = room * middle / most, _COLOURS[row.system]
        low, high = (_LEFT + room * value / most for value in (values[0], values[-1]))
        parts += [
            f'<text x="{_LEFT - 10}" y="{y + 19}" text-anchor="end">{escape(row.system)}</text>',
            f'<rect x="{_LEFT}" y="{y + 2}" width="{max(wide, 1):.1f}" height="24" rx="3" fill="{colour}"/>',
            f'<path d="M{low:.1f} {y + 14}H{high:.1f}M{low:.1f} {y + 9}v10M{high:.1f} {y + 9}v10" stroke="#1f2d2d"/>'
            if low < high
            else "",
            f'<text x="{max(high, _LEFT + wide) + 8:.1f}" y="{y + 19}">{number(middle)}</text>',
        ]
    foot = "bar: the median round; line: from the lowest to the highest"
    if any(len(row.of(figure.name)) > 1 for row in rows):
        parts.append(f'<text x="16" y="{height - 12}" {_SMALL}>{foot}</text>')
    return "\n".join([*filter(None, parts), "</g>", "</svg>", ""])


def _wrap(text: str, indent: str = "") -> str:
    """Lines of the width that the pages have."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > 120:
            lines.append(line)
            line = indent + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])
