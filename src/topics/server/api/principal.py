"""Principal: which client makes a request, and what it may do (the AUTH rules).

A principal has scopes and, where its key is limited, name prefixes. The scope check is on the path of every request,
so scopes are bits of a plain int: `principal.scopes & needed == needed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from topics.errors import Forbidden
from topics.names import printable_name

if TYPE_CHECKING:
    from topics.engine.config import ConfigPatch

READ: Final = 1
WRITE: Final = 2
DELETE: Final = 4
ADMIN: Final = 8
ALL_SCOPES: Final = READ | WRITE | DELETE | ADMIN

REVOKED: Final = "the key was removed or its rights were changed; connect again"
"""The answer to a client whose key is no longer valid."""

SCOPE_NAMES: Final = {READ: "read", WRITE: "write", DELETE: "delete", ADMIN: "admin"}


class Principal:
    """The client of a request: one per key, so that two principals are the same key if they are the same object."""

    __slots__ = ("key_id", "prefixes", "scopes")

    def __init__(self, key_id: str | None, scopes: int, prefixes: tuple[str, ...] = ()) -> None:
        self.key_id = key_id
        """The name of the key in logs; None for the principal of a server without keys."""
        self.scopes = scopes
        self.prefixes = prefixes

    def __repr__(self) -> str:
        return f"<Principal {self.key_id or 'anyone'} {scope_text(self.scopes)}>"

    def same_rights(self, other: Principal) -> bool:
        """Whether this is a principal that may do exactly what the other may."""
        return (self.key_id, self.scopes, self.prefixes) == (other.key_id, other.scopes, other.prefixes)

    def may_touch(self, name: str) -> bool:
        """Whether the topic or router `name` is within the key's prefixes."""
        return not self.prefixes or name.startswith(self.prefixes)

    def require_scopes(self, needed: int) -> None:
        """Return if the key has every scope in `needed`, raise `Forbidden` otherwise."""
        if self.scopes & needed != needed:
            missing = scope_text(needed & ~self.scopes)
            raise Forbidden(f"the key lacks the scope {missing}", required=scope_text(needed), missing=missing)

    def require_name(self, name: str) -> None:
        """Return if the key may touch `name`, raise `Forbidden` otherwise."""
        if self.prefixes and not name.startswith(self.prefixes):
            shown = printable_name(name)
            raise Forbidden(f'the key may not touch "{shown}": the name is outside its prefixes', name=shown)

    def require_config(self, config: ConfigPatch | None) -> None:
        """Raise `Forbidden` where a config would move jobs into a topic that the key may not touch."""
        if self.prefixes and config is not None and isinstance(config.dead_letter, str):
            self.require_name(config.dead_letter)


def scope_names(scopes: int) -> list[str]:
    """The names of the scopes in `scopes`."""
    return [name for bit, name in SCOPE_NAMES.items() if scopes & bit]


def scope_text(scopes: int) -> str:
    """The scopes in `scopes` as the documentation writes them, such as `read+write`."""
    return "+".join(scope_names(scopes))
