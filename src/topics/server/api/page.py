"""The page at `/`: what runs here, what it holds and the first commands, for a person with a browser.

One self-contained document (page.html): no script, no font, no image from anywhere, and a content security policy that
says so. Where keys are needed it shows nothing that needs one.
"""

from __future__ import annotations

from functools import cache
from heapq import nlargest
from html import escape
from itertools import islice
from pathlib import Path
from string import Template
from typing import Final

from topics import __version__
from topics.engine import Engine
from topics.server.api.phase import Phase

HEADERS: Final = (
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"
)

_TABLE: Final = """<h2>{title}</h2>
<div><table>
<tr><th>topic</th><th>records</th><th>bytes</th><th>head</th><th>ready</th><th>in flight</th></tr>
{rows}</table></div>
"""
TOPICS_SHOWN_MAX: Final = 50
TOPICS_SEEN_MAX: Final = 10_000
"""The topics written last are looked for among this many; a page must not cost a busy server more."""


class Page:
    """The page at `/`."""

    def __init__(self, engine: Engine, phase: Phase, address: str, *, guarded: bool) -> None:
        """`address` is shown to a client that names no host; a `guarded` server asks for keys."""
        self._engine = engine
        self._phase = phase
        self._address = address
        self._guarded = guarded

    def render(self, host: str) -> bytes:
        """The page, with the address by which this client reached the server."""
        engine, guarded = self._engine, self._guarded
        address = host or self._address
        return (
            _template()
            .substitute(
                host=escape(address),
                url=escape(f"http://{address}"),
                auth=" \\\n  -H 'authorization: Bearer &lt;key&gt;'" if guarded else "",
                token="export TOPICS_TOKEN=&lt;key&gt;\n" if guarded else "",
                state=escape(self._phase.name),
                version=escape(__version__),
                topics="hidden: needs a key" if guarded else f"{len(engine.topics):,}",
                records="hidden: needs a key" if guarded else f"{engine.totals.count:,}",
                uptime=_duration(self._phase.uptime_ms // 1000),
                table="" if guarded or not self._phase.ready else _table(engine),
                keys="required" if guarded else "none: anyone who reaches this address may do everything",
            )
            .encode()
        )


@cache
def _template() -> Template:
    return Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def _table(engine: Engine) -> str:
    seen = islice(engine.topics.values(), TOPICS_SEEN_MAX)
    latest = nlargest(TOPICS_SHOWN_MAX, seen, key=lambda topic: topic.last_write_ts or 0)
    if not latest:
        return ""
    rows = []
    for topic in latest:
        cells = [f"{topic.log.count:,}", f"{topic.log.bytes:,}", str(topic.log.head)]
        if topic.queue is not None:
            state = engine.queues.state(topic)
            cells += [f"{state.ready:,}", f"{state.in_flight:,}"]
        else:
            cells += ["", ""]
        rows.append(f"<tr><td>{escape(topic.name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n")
    every = len(engine.topics)
    title = "Topics, the last written first" + (f": {len(rows)} of {every:,}" if len(rows) < every else "")
    return _TABLE.format(title=title, rows="".join(rows))


def _duration(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join(f"{value} {unit}" for value, unit in parts if value) or "0 s"
