"""Which keys a server has and what each may do, for its administrators (AUTH-28). Secrets are not known here.

A key that is limited to prefixes sees itself and the keys that are limited to what it may touch itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from topics.server.api.principal import Principal, scope_names
from topics.server.api.shapes import KeyList, KeyState


def listed(principals: Iterable[Principal], asking: Principal) -> KeyList:
    """The keys as far as the principal that asks may know them."""
    return KeyList([_described(each, asking) for each in principals if each is asking or _within(each, asking)])


def _described(principal: Principal, asking: Principal) -> KeyState:
    return KeyState(principal.key_id, scope_names(principal.scopes), [*principal.prefixes], principal is asking)


def _within(principal: Principal, asking: Principal) -> bool:
    if not asking.prefixes:
        return True
    return bool(principal.prefixes) and all(map(asking.may_touch, principal.prefixes))
