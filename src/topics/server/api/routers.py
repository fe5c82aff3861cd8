"""The HTTP API of routers: `/v0/routers` (the ROUTER rules).

A key's prefixes apply to the router's name and, where it creates or moves one, to its source and dest too: both are
created on its behalf.
"""

from __future__ import annotations

from typing import Final

from topics.engine import Engine
from topics.engine.router.router import PutRouter
from topics.engine.write.ticket import Receipt
from topics.server.api.answers import answer, answer_page, answer_put, answer_receipt
from topics.server.api.bodies import Body
from topics.server.api.route import Route
from topics.server.http.exchange import Exchange

_put: Final = Body(PutRouter)


class RouterHandlers:
    """Answers the routes of routers."""

    def __init__(self, engine: Engine) -> None:
        self._routers = engine.routers

    def put(self, exchange: Exchange) -> None:
        """`PUT /v0/routers/:router`."""
        route: Route = exchange.head.route
        put = _put(exchange.body)
        for name in (put.source, put.dest):
            route.principal.require_name(name)
        self._routers.put(route.name, put, _answer_put, exchange)

    def get(self, exchange: Exchange) -> None:
        """`GET /v0/routers/:router`."""
        answer(exchange, 200, self._routers.get(exchange.head.route.name))

    def list(self, exchange: Exchange) -> None:
        """`GET /v0/routers`."""
        route: Route = exchange.head.route
        query = route.query
        page, after = self._routers.page(
            prefix=query.text("prefix"),
            source=query.text("source") if query.has("source") else None,
            dest=query.text("dest") if query.has("dest") else None,
            after=query.cursor(),
            page_size=query.page_size(),
            allowed=route.principal.prefixes,
        )
        answer_page(exchange, "routers", page, after)

    def delete(self, exchange: Exchange) -> None:
        """`DELETE /v0/routers/:router`."""
        self._routers.delete(exchange.head.route.name, answer_receipt, exchange)


def _answer_put(receipt: Receipt) -> None:
    answer_put(receipt, _put)
