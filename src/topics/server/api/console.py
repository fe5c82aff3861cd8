"""The console at `/`: a page for people, and the files that it is made of (PROBE-10, the CONSOLE rules)."""

from __future__ import annotations

from functools import cache
from html import escape
from string import Template

from topics import __version__
from topics.server.api import assets
from topics.server.api.route import Row
from topics.server.http.exchange import Exchange


class Console:
    """Answers `GET /` and `GET /console/...`."""

    def __init__(self, address: str, *, guarded: bool) -> None:
        """`address` is shown to a client that names no host; a `guarded` server asks for keys."""
        self._address = address
        self._guarded = guarded

    def rows(self) -> list[Row]:
        """The page, and one route for each of its files."""
        return [Row("GET", "/", None, self.page, always_open=True), *assets.rows("console", "/console")]

    def page(self, exchange: Exchange) -> None:
        """`GET /`."""
        host = exchange.head.headers.get(b"host", b"").decode("latin-1") or self._address
        auth = " -H 'Authorization: Bearer &lt;key&gt;'" if self._guarded else ""
        page = _template().substitute(url=escape(f"http://{host}"), version=escape(__version__), auth=auth)
        exchange.respond(200, page.encode(), assets.HTML, assets.HEADERS)


@cache
def _template() -> Template:
    return Template(assets.content("console", "index.html").decode())
