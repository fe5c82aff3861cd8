"""Which keys a server has and what each may do, for its administrators (AUTH-28). Secrets are not known here.

A key that is limited to prefixes sees itself and the keys that are limited to what it may touch itself.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.server.api.answers import answer
from topics.server.api.principal import SCOPE_NAMES, Principal
from topics.server.api.route import Route
from topics.server.api.shapes import KeyList, KeyState
from topics.server.http.exchange import Exchange


class KeyHandlers:
    """Answers the route of keys."""

    def __init__(self, principals: Callable[[], list[Principal]]) -> None:
        """`principals` are those of the keys of the server, one per key."""
        self._principals = principals

    def list(self, exchange: Exchange) -> None:
        """`GET /v0/keys`."""
        route: Route = exchange.head.route
        asking = route.principal
        shown = [described(each, asking) for each in self._principals() if each is asking or _within(each, asking)]
        answer(exchange, 200, KeyList(shown))


def described(principal: Principal, asking: Principal) -> KeyState:
    """A key as others may know it."""
    scopes = [name for bit, name in SCOPE_NAMES.items() if principal.scopes & bit]
    return KeyState(principal.key_id, scopes, [*principal.prefixes], principal is asking)


def _within(principal: Principal, asking: Principal) -> bool:
    if not asking.prefixes:
        return True
    return bool(principal.prefixes) and all(map(asking.may_touch, principal.prefixes))
