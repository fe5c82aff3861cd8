"""The page at `/`: what runs here, what it holds and the first commands, for who opens the address in a browser.

One self-contained document: no script, no font, no image from anywhere, and a content security policy that says so.
Where keys are needed it shows nothing that needs one.
"""

from __future__ import annotations

from heapq import nlargest
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Final

from topics import __version__

if TYPE_CHECKING:
    from topics.server.app import App

HEADERS: Final = (
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n"
)

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>topics at {host}</title>
<style>
:root {{ color-scheme: light dark; --line: #8884; --soft: #8881; }}
body {{ font: 16px/1.55 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1.25rem; }}
h1 {{ font-size: 1.7rem; margin: 0 0 .2rem; }}
h2 {{ font-size: 1.05rem; margin: 2rem 0 .5rem; }}
p {{ margin: .4rem 0; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.25rem; margin: 1.5rem 0; }}
dt {{ opacity: .65; }}
dd {{ margin: 0; font-variant-numeric: tabular-nums; }}
pre {{ background: var(--soft); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; }}
pre {{ overflow-x: auto; }}
code {{ font: 13px/1.5 ui-monospace, monospace; }}
div {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; white-space: nowrap; padding: .25rem 0 .25rem 1.25rem; }}
th, td {{ border-bottom: 1px solid var(--line); }}
th {{ font-weight: normal; opacity: .65; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; min-width: 9rem; }}
td:first-child {{ white-space: normal; overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>topics</h1>
<p>A persistent event engine. JSON over HTTP; data loss is always explicit, never silent.</p>
<dl>
<dt>State</dt><dd>{state}</dd>
<dt>Version</dt><dd>{version}</dd>
<dt>Topics</dt><dd>{topics}</dd>
<dt>Live records</dt><dd>{records}</dd>
<dt>Up</dt><dd>{uptime}</dd>
<dt>Keys</dt><dd>{keys}</dd>
</dl>
{table}<h2>Write a record</h2>
<pre><code>curl -X POST {url}/v0/topics/hello \\
  -H 'content-type: application/json'{auth} \\
  -d '{{"records":[{{"data":{{"greeting":"hello"}}}}]}}'</code></pre>
<h2>Read it back</h2>
<pre><code>curl -X POST {url}/v0/topics/hello/diff \\
  -H 'content-type: application/json'{auth} \\
  -d '{{"from_seq":0}}'</code></pre>
<h2>Watch it live</h2>
<pre><code>curl -X POST {url}/v0/watch \\
  -H 'content-type: application/json'{auth} \\
  -d '{{"topics":{{"hello":{{"from_seq":0}}}}}}'
curl -N {url}&lt;the stream_url it answers with&gt;{auth}</code></pre>
<h2>See where the topic stands</h2>
<pre><code>curl {url}/v0/topics/hello{auth}</code></pre>
<h2>The same from a shell of this machine</h2>
<pre><code>{token}echo '{{"greeting":"hello"}}' | topics publish hello --url {url}
topics tail hello --url {url}</code></pre>
<p>Probes: <a href="/v0/health">/v0/health</a>, <a href="/v0/ready">/v0/ready</a>,
<a href="/v0/metrics">/v0/metrics</a>.</p>
</body>
</html>
"""


_TABLE: Final = """<h2>{title}</h2>
<div><table>
<tr><th>topic</th><th>records</th><th>bytes</th><th>head</th><th>ready</th><th>in flight</th></tr>
{rows}</table></div>
"""
TOPICS_SHOWN_MAX: Final = 50
TOPICS_SEEN_MAX: Final = 10_000
"""Among so many topics those are looked for that were written to last; a page must not cost a busy server more."""


def render(app: App, host: str) -> bytes:
    """The page, with the address by which this client reached the server."""
    engine = app.engine
    guarded = len(app.keys) > 0
    address = host or f"{app.settings.host}:{app.settings.port}"
    return _PAGE.format(
        host=escape(address),
        url=escape(f"http://{address}"),
        auth=" \\\n  -H 'authorization: Bearer &lt;key&gt;'" if guarded else "",
        token="export TOPICS_TOKEN=&lt;key&gt;\n" if guarded else "",
        state=escape(app.phase),
        version=escape(__version__),
        topics="hidden: needs a key" if guarded else f"{len(engine.topics):,}",
        records="hidden: needs a key" if guarded else f"{engine.totals.count:,}",
        uptime=_duration(app.probes.uptime_ms // 1000),
        table="" if guarded or not app.ready else _table(app),
        keys="required" if guarded else "none: anyone who reaches this address may do everything",
    ).encode()


def _table(app: App) -> str:
    seen = islice(app.engine.topics.values(), TOPICS_SEEN_MAX)
    latest = nlargest(TOPICS_SHOWN_MAX, seen, key=lambda topic: topic.last_write_ts or 0)
    if not latest:
        return ""
    rows = []
    for topic in latest:
        cells = [f"{topic.log.count:,}", f"{topic.log.bytes:,}", str(topic.log.head)]
        if topic.queue is not None:
            state = app.engine.queues.state(topic)
            cells += [f"{state.ready:,}", f"{state.in_flight:,}"]
        else:
            cells += ["", ""]
        rows.append(f"<tr><td>{escape(topic.name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n")
    every = len(app.engine.topics)
    title = "Topics, the last written first" + (f": {len(rows)} of {every:,}" if len(rows) < every else "")
    return _TABLE.format(title=title, rows="".join(rows))


def _duration(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    return " ".join(f"{value} {unit}" for value, unit in parts if value) or "0 s"
