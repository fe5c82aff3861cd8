"""Reference: the document at `/v0/openapi.json`, and the page at `/v0/docs` that shows it (OPENAPI-1, OPENAPI-6).

The document is made when it is first asked for, on a thread because that takes some milliseconds, with rests in which
the loop has the interpreter for itself, and from then on served from bytes. Neither holds any data of the server, so
neither asks for a key, and any page may load the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import sleep
from typing import Final

import msgspec

from topics.server.api import assets
from topics.server.api.library import HEADERS
from topics.server.api.route import Row
from topics.server.http import reply
from topics.server.http.exchange import Exchange
from topics.server.http.reply import JSON
from topics.settings import Settings
from topics.storage.job import Miss, Task

REST_S: Final = 0.0005
_PACKED: Final = HEADERS + b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"


class Reference:
    """Answers `GET /v0/openapi.json` and `GET /v0/docs`."""

    def __init__(self, rows: Callable[[], Iterable[Row]], settings: Settings, *, guarded: bool) -> None:
        """`rows` are those of the whole server, this one's own included; a `guarded` server asks for keys."""
        self._rows = rows
        self._settings = settings
        self._guarded = guarded
        self._plain = b""
        self._packed = b""
        self._defect: BaseException | None = None

    def openapi(self, exchange: Exchange) -> None:
        """`GET /v0/openapi.json`."""
        if self._defect is not None:
            raise RuntimeError("the document cannot be made") from self._defect
        if not self._packed:
            raise Miss(Task("describe", self._make, self._made))
        if exchange.head.accepts_gzip:
            exchange.respond_raw(reply.render(200, self._packed, JSON, _PACKED))
        else:
            exchange.respond_raw(reply.render(200, self._plain, JSON, HEADERS))

    def page(self, exchange: Exchange) -> None:
        """`GET /v0/docs`."""
        exchange.respond(200, assets.content("reference", "index.html"), assets.HTML, assets.HEADERS)

    def files(self) -> list[Row]:
        """One route for each file of the page."""
        return assets.rows("reference", "/v0/docs")

    def _make(self) -> None:
        # Not before it is asked for: every start would wait for a dozen modules that few servers ever need.
        from topics.server.openapi.document import document

        described = document(self._rows(), self._settings, guarded=self._guarded, rest=partial(sleep, REST_S))
        self._plain = msgspec.json.encode(described)
        self._packed = reply.gzip(self._plain)

    def _made(self, error: BaseException | None) -> None:
        self._defect = error
