"""The console at `/`: a page for people, and the files that it is made of (PROBE-10, the CONSOLE rules).

Plain HTML, CSS and modules that ship with the package; nothing comes from outside, nothing is built, and a strict
content security policy says so. The files hold no data of the server: the page asks the API for everything, with the
key of the person who looks at it, so they need no key themselves.
"""

from __future__ import annotations

from functools import cache, partial
from html import escape
from importlib.resources import files
from string import Template
from typing import Final

from topics import __version__
from topics.server.api.route import Row
from topics.server.http.exchange import Exchange

HEADERS: Final = (
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-cache\r\n"
)
CONTENT_TYPES: Final = {
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
}
HTML: Final = b"text/html; charset=utf-8"


class Console:
    """Answers `GET /` and `GET /console/...`."""

    def __init__(self, address: str, *, guarded: bool) -> None:
        """`address` is shown to a client that names no host; a `guarded` server asks for keys."""
        self._address = address
        self._guarded = guarded

    def rows(self) -> list[Row]:
        """The page, and one route for each of its files."""
        found = [Row("GET", "/", None, self.page, always_open=True)]
        for name in _names():
            found.append(Row("GET", f"/console/{name}", None, partial(_file, name), always_open=True))
        return found

    def page(self, exchange: Exchange) -> None:
        """`GET /`."""
        host = exchange.head.headers.get(b"host", b"").decode("latin-1") or self._address
        auth = " -H 'Authorization: Bearer &lt;key&gt;'" if self._guarded else ""
        page = _template().substitute(url=escape(f"http://{host}"), version=escape(__version__), auth=auth)
        exchange.respond(200, page.encode(), HTML, HEADERS)


def _file(name: str, exchange: Exchange) -> None:
    exchange.respond(200, _content(name), CONTENT_TYPES[name.rpartition(".")[2]], HEADERS)


def _names() -> list[str]:
    directory = files("topics").joinpath("console")
    return sorted(entry.name for entry in directory.iterdir() if entry.name.rpartition(".")[2] in CONTENT_TYPES)


@cache
def _content(name: str) -> bytes:
    return files("topics").joinpath("console", name).read_bytes()


@cache
def _template() -> Template:
    return Template(files("topics").joinpath("console", "index.html").read_text(encoding="utf-8"))
