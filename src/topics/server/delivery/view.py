"""View: what a subscriber wants to see of a topic, and how much of it at a time (WATCH-8 to WATCH-12).

Views are interned: two subscribers that ask for the same have the same object. So a frame is rendered once for all
streams at the same position with the same view.

What clients filter by is theirs to choose, so what views take is counted under a cap, once for all that share them.
"""

from __future__ import annotations

from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from msgspec import Struct

from topics.engine.log.difference import Window
from topics.engine.log.render import WITH_DATA, WITH_META, WITH_TAG
from topics.engine.log.tags import parse_match
from topics.engine.requests import U32, U64, Nodes
from topics.server.flow.slots import Cap, Slot

LIMIT_DEFAULT: Final = 256
BATCH_BYTES_DEFAULT: Final = 256 << 10
BATCH_BYTES_SERVER: Final = 1 << 20
BATCH_BYTES_MAX: Final = 8 << 20
VIEW_BYTES: Final = 1024
NODE_BYTES: Final = 160
"""About what a view, and each node that it filters by, takes in memory besides its text."""

_views: Final[WeakValueDictionary[tuple[Any, ...], View]] = WeakValueDictionary()


class WatchOptions(Struct):
    """What applies to every topic of a subscription."""

    node: Nodes = None
    limit: U32 = 0
    max_batch_bytes: U64 = BATCH_BYTES_DEFAULT
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"


class View(Struct, eq=False, weakref=True):
    """Which records, which of their fields, how many at a time, and how safe they must be."""

    plain: Window
    """The window of a topic that filters by node."""
    echoing: Window
    """The window of a topic that opted out of filtering by node (`dedupe_node: false`)."""
    strong: bool
    unfiltered: tuple[object, ...]
    """Equal for views that differ in their nodes only."""
    held: Slot
    """What it takes, until nobody has it any more."""


def view_of(options: WatchOptions, limit_max: int, match: Any, cap: Cap) -> View:
    """The view with these options, clamped to what the server allows.

    Raises InvalidRequest for a bad `match`, and Throttled where `cap` has no room for another view.
    """
    limit = min(options.limit or LIMIT_DEFAULT, limit_max)
    bytes_max = min(options.max_batch_bytes or BATCH_BYTES_SERVER, BATCH_BYTES_MAX)
    fields = WITH_DATA * options.include_data | WITH_TAG * options.include_tags | WITH_META * options.include_meta
    strong = options.consistency == "strong"
    nodes = frozenset(map(str.encode, [options.node] if isinstance(options.node, str) else options.node or ()))
    predicate = None if match is None else parse_match(match)
    matched = None if predicate is None else (predicate.text, predicate.prefix)
    unfiltered = (limit, bytes_max, fields, matched, strong)
    key = (nodes, *unfiltered)
    view = _views.get(key)
    if view is None:
        text_bytes = sum(map(len, nodes)) + (0 if predicate is None else len(predicate.text))
        held = cap.take(VIEW_BYTES + NODE_BYTES * len(nodes) + text_bytes)
        echoing = Window(limit, bytes_max, fields, (), predicate)
        plain = Window(limit, bytes_max, fields, nodes, predicate) if nodes else echoing
        view = _views[key] = View(plain, echoing, strong, unfiltered, held)
    return view
