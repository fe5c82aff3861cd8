"""The sections in the order in which they are measured; peers first, so that ours can be held against them."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

MODULES = (
    "redis", "nats", "writes", "reads", "growth", "checkpoint", "restart", "delivery", "queues", "spark",
)  # fmt: skip


def present() -> list[ModuleType]:
    """The sections that exist."""
    names = [f"bench.{name}" for name in MODULES]
    return [importlib.import_module(name) for name in names if importlib.util.find_spec(name) is not None]
