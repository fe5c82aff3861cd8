"""Prune: which rows a read leaves out before they reach the JVM.

It is part of the options and not of a query. Spark offers the filters of a query to a source too, but keeps what the
source made of them on the DataFrame, where the next query over it, or a second scan in the same query, finds it and
reads too few rows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prune:
    """The tags and nodes that are wanted; none means all of them."""

    tags: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
