"""The JavaScript library at `/topics.js`: the very file that the package ships, for pages of any origin (PROBE-11).

A page can import it from the server that it talks to, so that the two never differ in version. It is no secret and
holds no data, therefore it needs no key, and any page may load it.
"""

from __future__ import annotations

from typing import Final

from topics.server.api import assets
from topics.server.http.exchange import Exchange

HEADERS: Final = (
    b"X-Content-Type-Options: nosniff\r\nCache-Control: no-cache\r\nAccess-Control-Allow-Origin: *\r\n"
    b"Cross-Origin-Resource-Policy: cross-origin\r\n"
)


class Library:
    """Answers `GET /topics.js`."""

    def script(self, exchange: Exchange) -> None:
        """The module."""
        exchange.respond(200, assets.content("javascript", "topics.js"), assets.CONTENT_TYPES["js"], HEADERS)
