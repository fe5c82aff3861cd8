"""Page: a report as one HTML file that loads nothing, follows the reader's light or dark mode, and prints well.

What a plot shows is also a table, folded away below it. Text from topics (their names, reasons) is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Final

from topics.pipeline.report.plot import COLOURS, Series, Span, bars, brief, spark, stacked, strip, when
from topics.pipeline.report.report import Report, TopicReport

HOURS_MAX: Final = 168
LEDGER_MAX: Final = 500
BARS_MAX: Final = 20

_STYLE: Final = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")


def render(report: Report, hours_max: int = HOURS_MAX) -> str:
    """The page."""
    first, hours = _window(report.topics, hours_max)
    colours = {of.topic: min(number, COLOURS - 1) for number, of in enumerate(report.topics)}
    body = [
        "<header><h1>What the archive holds</h1>",
        f'<p class="soft">{escape(report.root.shown)} · made {_moment(report.made_ts)}</p>{_tiles(report)}</header>',
        _volume(report, first, hours, colours),
        _topics(report, first, hours, colours),
        _lag(report, colours),
        _ledger(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Archive report</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _window(topics: Iterable[TopicReport], hours_max: int) -> tuple[int, int]:
    """The first hour shown and how many: up to the newest record, as far back as there is any."""
    seen = [hour for of in topics for hour in of.hours]
    if not seen:
        return 0, 0
    hours = min(max(seen) - min(seen) + 1, hours_max)
    return max(seen) - hours + 1, hours


def _tiles(report: Report) -> str:
    lost = sum(of.lost for of in report.topics)
    lag = None if report.trouble else sum(of.lag or 0 for of in report.topics)
    tiles = [
        ("records", f"{sum(of.records for of in report.topics):,}", ""),
        ("topics", f"{len(report.topics):,}", ""),
        ("on disk", f"{brief(sum(of.bytes for of in report.topics))}B", ""),
        ("not yet archived", "unknown" if lag is None else f"{lag:,}", ""),
        ("records lost", f"{lost:,}", "bad" if lost else "good"),
    ]
    return "<dl>" + "".join(f'<div><dt>{n}</dt><dd class="{c}">{v}</dd></div>' for n, v, c in tiles) + "</dl>"


def _volume(report: Report, first: int, hours: int, colours: dict[str, int]) -> str:
    if not hours:
        return _section("Volume per hour", "No records yet.", "")
    series: dict[int, list[int]] = {}
    for of in report.topics:
        values = series.setdefault(colours[of.topic], [0] * hours)
        for number in range(hours):
            values[number] += of.hours.get(first + number, 0)
    others = len(report.topics) - (COLOURS - 1)
    names = [of.topic for of in report.topics[: COLOURS - 1]]
    if others > 0:
        names.append(report.topics[-1].topic if others == 1 else f"{others} other topics")
    shown = [Series(name, series[colour], colour) for colour, name in enumerate(names)]
    last = when(first + hours - 1)
    described = f"Records per hour from {when(first)} to {last}, in UTC, by topic."
    legend = "".join(f'<li><i class="k{one.colour}"></i>{escape(one.name)}</li>' for one in shown)
    table = _table(
        ["hour", *(one.name for one in shown)],
        [[when(first + n), *(f"{one.values[n]:,}" for one in shown)] for n in range(hours)],
    )
    return _section(
        "Volume per hour",
        described,
        f'<div class="wide">{stacked("volume", "Volume per hour", described, first, shown)}</div>'
        f'<ul class="legend">{legend}</ul>{_folded(table)}',
    )


def _topics(report: Report, first: int, hours: int, colours: dict[str, int]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(of.topic)}</th>'
        f"<td>{spark([of.hours.get(first + n, 0) for n in range(hours)], colours[of.topic], of.topic)}</td>"
        f'<td class="n">{of.records:,}</td><td class="n">{brief(of.bytes)}B</td>'
        f'<td class="n">{"unknown" if of.lag is None else f"{of.lag:,}"}</td><td class="n">{of.lost:,}</td></tr>'
        for of in report.topics
    )
    head = '<th>topic</th><th>per hour</th><th class="n">records</th><th class="n">on disk</th>'
    head += '<th class="n">lag</th><th class="n">lost</th>'
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return _section("Topics", "Each row on a scale of its own.", table)


def _lag(report: Report, colours: dict[str, int]) -> str:
    if report.trouble:
        return _section("Lag", f"Not known: {report.trouble}.", "")
    lagging = sorted((of for of in report.topics if of.lag), key=lambda of: -(of.lag or 0))
    described = f"Records that {report.server} has and the archive has not, by topic."
    if not lagging:
        return _section("Lag", described, "<p>None: every topic is archived up to its head.</p>")
    shown = [(of.topic, of.lag or 0, colours[of.topic]) for of in lagging[:BARS_MAX]]
    more = f'<p class="soft">and {len(lagging) - BARS_MAX} more topics</p>' if len(lagging) > BARS_MAX else ""
    table = _table(["topic", "lag"], [[of.topic, f"{of.lag:,}"] for of in lagging])
    plot = f'<div class="wide">{bars("lag", "Lag", described, shown)}</div>'
    return _section("Lag", described, plot + more + _folded(table))


def _ledger(report: Report) -> str:
    losses = [loss for of in report.topics for loss in of.losses]
    described = "Every gap that the archive met: records that were gone before it could read them."
    if not losses:
        return _section("Losses", described, "<p>None: the archive is complete from the first record on.</p>")
    strips = ""
    for of in report.topics:
        if of.losses:
            last = max(of.seq_max, *(loss.gap_to for loss in of.losses))
            gaps = [Span(g.gap_from, g.gap_to, f"{g.gap_from:,} to {g.gap_to:,}: {g.reason}") for g in of.losses]
            strips += (
                f'<tr><th scope="row">{escape(of.topic)}</th><td style="width:60%">{strip(of.topic, last, gaps)}</td>'
                f'<td class="n">{of.lost:,} of {last:,}</td></tr>'
            )
    losses.sort(key=lambda loss: -loss.seen_ts)
    rows = [
        [
            loss.topic,
            f"{loss.gap_from:,}",
            f"{loss.gap_to:,}",
            f"{loss.missed_estimate:,}",
            loss.reason,
            _moment(loss.seen_ts),
        ]
        for loss in losses[:LEDGER_MAX]
    ]
    more = f'<p class="soft">and {len(losses) - LEDGER_MAX:,} earlier ones</p>' if len(losses) > LEDGER_MAX else ""
    table = _table(["topic", "from seq", "to seq", "records", "reason", "seen"], rows, numbers=(1, 2, 3))
    places = (
        '<div class="wide"><table><thead><tr><th>topic</th><th>where, from the first seq to the last</th>'
        f'<th class="n">records</th></tr></thead><tbody>{strips}</tbody></table></div>'
    )
    return _section("Losses", described, f'{places}<h2 style="margin-top:20px">Ledger</h2>{table}{more}')


def _section(title: str, text: str, content: str) -> str:
    return f'<section><h2>{escape(title)}</h2><p class="soft">{escape(text)}</p>{content}</section>'


def _folded(table: str) -> str:
    return f"<details><summary>As a table</summary>{table}</details>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] | None = None) -> str:
    """A table with the name of each row first; `numbers` are the columns set to the right, by default all others."""
    right = set(range(1, len(head)) if numbers is None else numbers)

    def classed(column: int) -> str:
        return ' class="n"' if column in right else ""

    top = "".join(f"<th{classed(n)}>{escape(name)}</th>" for n, name in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td{classed(n)}>{escape(cell)}</td>" for n, cell in enumerate(row[1:], 1))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _moment(ts: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ts))
