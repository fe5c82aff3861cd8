"""The sections in the order in which they are measured; peers first, so that ours can be held against them.

Measured against an older tree (against.py), a section is left out where that tree lacks the modules that it measures.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

NAMES = (
    "redis",
    "nats",
    "writes",
    "reads",
    "growth",
    "checkpoint",
    "restart",
    "sustained",
    "delivery",
    "queues",
    "console",
    "clients",
    "metrics",
    "spark",
)


def _sections() -> dict[str, ModuleType]:
    found: dict[str, ModuleType] = {}
    for name in NAMES:
        try:
            found[name] = import_module(f"bench.{name}")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("topics."):
                raise
    return found


SECTIONS = _sections()
