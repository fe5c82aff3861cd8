"""Operation: what one route of the API does, takes and answers, where the table of routes does not say it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from topics.errors import (
    ColdUnavailable,
    StorageFull,
    StorageReadOnly,
    StorageUnreadable,
    TopicNotFound,
    TopicsError,
)

Errors = tuple[type[TopicsError], ...]

READING: Final[Errors] = (TopicNotFound, ColdUnavailable, StorageUnreadable)
"""How looking into a topic can fail besides what can fail everywhere."""
CHANGING: Final[Errors] = (StorageReadOnly, StorageFull)
"""How a change that is logged can fail besides what can fail everywhere."""

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"


class Parameter(Struct, frozen=True):
    """What a request may name beside its path and body."""

    name: str
    text: str
    schema: dict[str, Any]
    place: str = "query"
    required: bool = False


class Answer(Struct, frozen=True):
    """What a request that does not fail is answered with."""

    text: str
    shape: type[Struct] | None = None
    example: Any = msgspec.UNSET
    content_type: str = JSON
    timed: bool = True
    """Whether `performance` is added to the shape."""
    schema: dict[str, Any] | None = None
    """What the body is where no struct says so."""


class Operation(Struct, frozen=True, kw_only=True):
    """One route, for those who use it."""

    id: str
    group: str
    summary: str
    text: str = ""
    answers: dict[int, tuple[Answer, ...]]
    body: type[Struct] | None = None
    body_required: bool = True
    example: Any = msgspec.UNSET
    """A body as a client might send it."""
    parameters: tuple[Parameter, ...] = ()
    errors: Errors = ()
    events: dict[str, type[Struct]] = {}
    """What a stream delivers, by the name of the event."""
    header: type[Struct] | None = None
    """The JSON in a binary answer."""
    sends: tuple[type[Struct], ...] = ()
    """The messages that a client may send over a WebSocket."""
    receives: tuple[type[Struct], ...] = ()
    """The messages that it gets."""


def whole(least: int = 0, **more: Any) -> dict[str, Any]:
    """The schema of a whole number of at least `least`."""
    return {"type": "integer", "minimum": least, **more}


def flag(default: bool) -> dict[str, Any]:
    """The schema of a switch."""
    return {"type": "boolean", "default": default}
