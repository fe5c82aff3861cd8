"""Plots: inline SVG that takes its colours from the page and needs nothing else.

Every plot is an image with a title and a description for screen readers, and each mark has a tooltip. Colours are the
page's variables, so that light and dark are one drawing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final, NamedTuple

_HOUR_S: Final = 3600
COLOURS: Final = 8
"""How many series have a colour of their own; the last one is for all others together."""

_WIDTH: Final = 960
_LEFT: Final = 52
_BOTTOM: Final = 30
_TOP: Final = 10
_BAR_MAX: Final = 36


class Series(NamedTuple):
    """One topic's values, one for each hour, and the number of its colour."""

    name: str
    values: Sequence[int]
    colour: int


class Span(NamedTuple):
    """A part of a strip, both ends included, with its tooltip."""

    first: int
    last: int
    text: str


def stacked(plot_id: str, title: str, description: str, first_hour: int, series: Sequence[Series]) -> str:
    """Bars per hour, one series upon the other."""
    hours = len(series[0].values) if series else 0
    totals = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    step, top = scale(max(totals, default=0))
    height = 280
    floor, room = height - _BOTTOM, height - _BOTTOM - _TOP
    pitch = (_WIDTH - _LEFT) / max(hours, 1)
    width = min(_BAR_MAX, pitch * 0.86 if pitch > 4 else pitch)
    parts = list(_grid(step, top, floor, room))
    parts += _hour_axis(first_hour, hours, pitch, floor)
    for number in range(hours):
        y = float(floor)
        x = _LEFT + number * pitch + (pitch - width) / 2
        for one in series:
            value = one.values[number]
            if value:
                tall = room * value / top
                y -= tall
                tip = f"{one.name}: {value:,} at {when(first_hour + number)}"
                parts.append(
                    f'<rect class="c{one.colour}" x="{x:.1f}" y="{y:.2f}" width="{width:.1f}" height="{tall:.2f}">'
                    f"<title>{escape(tip)}</title></rect>"
                )
    return _image(plot_id, title, description, _WIDTH, height, "".join(parts))


def bars(plot_id: str, title: str, description: str, series: Sequence[tuple[str, int, int]]) -> str:
    """One horizontal bar for each (name, value, colour), the value at its end."""
    label, row = 220, 30
    most = max((value for _, value, _ in series), default=0) or 1
    room = _WIDTH - label - 110
    parts = []
    for number, (name, value, colour) in enumerate(series):
        y = number * row
        wide = max(room * value / most, 2 if value else 0)
        parts.append(
            f'<text class="label" x="{label - 10}" y="{y + 20}" text-anchor="end">{escape(short(name))}</text>'
        )
        parts.append(f'<rect class="track" x="{label}" y="{y + 6}" width="{room}" height="18" rx="3"/>')
        parts.append(
            f'<rect class="c{colour}" x="{label}" y="{y + 6}" width="{wide:.1f}" height="18" rx="3">'
            f"<title>{escape(name)}: {value:,}</title></rect>"
        )
        parts.append(f'<text class="value" x="{label + wide + 8:.1f}" y="{y + 20}">{value:,}</text>')
    return _image(plot_id, title, description, _WIDTH, max(1, len(series)) * row, "".join(parts))


def spark(values: Sequence[int], colour: int, name: str) -> str:
    """A small row of bars for a line of a table."""
    most = max(values, default=0) or 1
    wide, tall = 180, 28
    pitch = wide / max(len(values), 1)
    width = min(12.0, pitch * 0.86 if pitch > 3 else pitch)
    marks = "".join(
        f'<rect x="{n * pitch + (pitch - width) / 2:.1f}" y="{tall - tall * value / most:.1f}" width="{width:.1f}" '
        f'height="{tall * value / most:.1f}"/>'
        for n, value in enumerate(values)
        if value
    )
    return (
        f'<svg class="spark c{colour}" viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}" role="img" '
        f'aria-label="{escape(name)} per hour, at most {most:,}">{marks}</svg>'
    )


def strip(name: str, last: int, gaps: Sequence[Span]) -> str:
    """All seqs of a topic from left to right, with the gaps marked."""
    wide, tall = 960, 14
    marks = [f'<rect class="track" width="{wide}" height="{tall}" rx="3"/>']
    for gap in gaps:
        x = wide * (gap.first - 1) / last
        width = max(wide * (gap.last - gap.first + 1) / last, 2.0)
        marks.append(
            f'<rect class="lost" x="{min(x, wide - width):.1f}" width="{width:.1f}" height="{tall}">'
            f"<title>{escape(gap.text)}</title></rect>"
        )
    return (
        f'<svg class="strip" viewBox="0 0 {wide} {tall}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(name)}: {len(gaps)} gaps among the seqs 1 to {last:,}">{"".join(marks)}</svg>'
    )


def scale(most: int) -> tuple[int, int]:
    """The distance of round grid lines, and the value at the top of the plot."""
    step = 1
    while most > step * 4:
        # 1, 2, 5, 10, 20, 50, ...
        step = step * 5 // 2 if str(step).startswith("2") else step * 2
    return step, max(step * -(-most // step), step)


def brief(value: float) -> str:
    """A number in few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:g}"


def short(name: str) -> str:
    """A name that fits beside a bar."""
    return name if len(name) <= 30 else f"{name[:14]}…{name[-15:]}"


def when(hour: int) -> str:
    """An hour since 1970, as text."""
    return time.strftime("%Y-%m-%d %H:00", time.gmtime(hour * _HOUR_S))


def _grid(step: int, top: int, floor: int, room: int) -> Iterator[str]:
    for value in range(0, top + 1, step):
        y = floor - room * value / top
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{brief(value)}</text>'


def _hour_axis(first: int, hours: int, pitch: float, floor: int) -> Iterator[str]:
    every = next((n for n in (1, 2, 3, 6, 12, 24, 48, 168) if n * pitch >= 64), 336)
    for number in range(hours):
        hour = first + number
        if hour % every:
            continue
        moment = time.gmtime(hour * _HOUR_S)
        text = time.strftime("%d %b", moment) if every >= 24 or moment.tm_hour == 0 else f"{moment.tm_hour:02d}:00"
        x = _LEFT + (number + 0.5) * pitch
        yield f'<text class="tick" x="{x:.1f}" y="{floor + 20}" text-anchor="middle">{text}</text>'


def _image(plot_id: str, title: str, description: str, width: int, height: int, content: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{plot_id}-t {plot_id}-d">'
        f'<title id="{plot_id}-t">{escape(title)}</title><desc id="{plot_id}-d">{escape(description)}</desc>'
        f"{content}</svg>"
    )
