"""The HTTP API of topics: create, configure, look at, list and delete them (the TOPIC rules)."""

from __future__ import annotations

import msgspec

from topics.engine import Engine
from topics.engine.promise import Receipt
from topics.server.api import bodies
from topics.server.api.answers import answer, answer_put, answer_receipt
from topics.server.api.route import Route
from topics.server.api.shapes import TopicPage
from topics.server.http.exchange import Exchange
from topics.server.http.query import page_cursor


class TopicHandlers:
    """Answers the routes of topics."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def put(self, exchange: Exchange) -> None:
        """`PUT /v0/topics/:topic`."""
        patch = bodies.config(exchange.body)
        exchange.head.route.principal.require_config(patch)
        self._engine.put_topic(exchange.head.route.name, patch, _put, exchange)

    def get(self, exchange: Exchange) -> None:
        """`GET /v0/topics/:topic`."""
        route: Route = exchange.head.route
        answer(exchange, 200, self._engine.state(route.name, touch=route.query.flag("touch", True)))

    def list(self, exchange: Exchange) -> None:
        """`GET /v0/topics`."""
        route: Route = exchange.head.route
        query = route.query
        page, after = self._engine.list_topics(
            prefix=query.text("prefix"),
            after=query.cursor(),
            page_size=query.page_size(),
            allowed=route.principal.prefixes,
            touch=query.flag("touch", False),
        )
        answer(exchange, 200, TopicPage(page, page_cursor(after)))

    def delete(self, exchange: Exchange) -> None:
        """`DELETE /v0/topics/:topic`."""
        route: Route = exchange.head.route
        if_empty = route.query.flag("if_empty", False)
        self._engine.delete_topic(route.name, if_empty, _deleted, exchange)


def _put(receipt: Receipt) -> None:
    answer_put(receipt, bodies.config)


def _deleted(receipt: Receipt) -> None:
    """Of the routers that are gone, name only those that the key may know of (AUTH-15)."""
    route: Route = receipt.context.head.route
    if receipt.error is None and receipt.result.routers_removed:
        known = [name for name in receipt.result.routers_removed if route.principal.may_touch(name)]
        receipt.result = msgspec.structs.replace(receipt.result, routers_removed=known)
    answer_receipt(receipt)
