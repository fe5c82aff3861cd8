"""Files of pages for people: they ship with the package, and a strict content security policy lets in nothing else.

Plain HTML, CSS and modules; nothing comes from outside and nothing is built. The files hold no data of the server, so
they need no key: a page asks the API for everything, with the key of the person who looks at it.
"""

from __future__ import annotations

from functools import cache, partial
from importlib.resources import files
from typing import Final

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


def rows(directory: str, path: str) -> list[Row]:
    """One route below `path` for each file of a directory of the package; the page itself is none of them."""
    names = sorted(entry.name for entry in files("topics").joinpath(directory).iterdir())
    return [
        Row("GET", f"{path}/{name}", None, partial(_serve, directory, name), always_open=True, file=True)
        for name in names
        if name.rpartition(".")[2] in CONTENT_TYPES
    ]


@cache
def content(directory: str, name: str) -> bytes:
    """What is in a file of the package."""
    return files("topics").joinpath(directory, name).read_bytes()


def _serve(directory: str, name: str, exchange: Exchange) -> None:
    exchange.respond(200, content(directory, name), CONTENT_TYPES[name.rpartition(".")[2]], HEADERS)
