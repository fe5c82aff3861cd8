"""The HTTP API of routers: `/v0/routers` (the ROUTER rules).

A key's prefixes apply to the router's name and, where it creates or moves one, to its source and dest too: both are
created on its behalf. What is outside of them is not named, neither in an answer nor in an error (AUTH-15).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from topics.engine import Engine
from topics.engine.promise import Receipt
from topics.engine.router.router import PutRouter
from topics.errors import RouterCycle, TopicExistsIncompatible, TopicsError
from topics.server.api.answers import answer, answer_put, answer_receipt
from topics.server.api.bodies import Body
from topics.server.api.principal import Principal
from topics.server.api.route import Route
from topics.server.api.shapes import RouterPage
from topics.server.http.exchange import Exchange
from topics.server.http.query import page_cursor

HIDDEN: Final = "..."
"""Stands in a cycle for topics that the key may not see."""

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
        try:
            self._routers.put(route.name, put, _answer_put, exchange)
        except (RouterCycle, TopicExistsIncompatible) as error:
            raise _discreet(error, route.principal) from None

    def get(self, exchange: Exchange) -> None:
        """`GET /v0/routers/:router`."""
        route: Route = exchange.head.route
        router: Any = self._routers.get(route.name)
        hidden = [end for end in ("source", "dest") if not route.principal.may_touch(getattr(router, end))]
        if hidden:
            router = {name: value for name, value in msgspec.structs.asdict(router).items() if name not in hidden}
        answer(exchange, 200, router)

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
        answer(exchange, 200, RouterPage(page, page_cursor(after)))

    def delete(self, exchange: Exchange) -> None:
        """`DELETE /v0/routers/:router`."""
        self._routers.delete(exchange.head.route.name, answer_receipt, exchange)


def _discreet(error: TopicsError, principal: Principal) -> TopicsError:
    """Why a router may not be, without the names that its key may not see."""
    detail = error.detail
    if isinstance(error, RouterCycle):
        cycle: list[str] = []
        for name in detail["cycle"]:
            if principal.may_touch(name):
                cycle.append(name)
            elif cycle[-1] != HIDDEN:
                cycle.append(HIDDEN)
        if HIDDEN in cycle:
            return RouterCycle(f"the router would close the cycle {' -> '.join(cycle)}", cycle=cycle)
    elif not all(principal.may_touch(detail[part]) for part in ("source", "router") if part in detail):
        shown = {key: value for key, value in detail.items() if key not in ("source", "router")}
        message = f'"{detail["dest"]}" is fed from another source already; a destination has one source'
        return TopicExistsIncompatible(message, **shown)
    return error


def _answer_put(receipt: Receipt) -> None:
    answer_put(receipt, _put)
