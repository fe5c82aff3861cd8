"""Sorted names: the order in which topics and routers are listed, and pages of it.

A key that is limited to some prefixes sees only those names, and finding them costs in proportion to their number, not
to the number of all names.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence


class SortedNames:
    """Names in byte order, with insertion, removal and pages."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: list[str] = []

    def add(self, name: str) -> None:
        """Add a name that is not there yet."""
        insort(self._names, name)

    def remove(self, name: str) -> None:
        """Remove a name that is there."""
        at = bisect_left(self._names, name)
        assert self._names[at] == name
        del self._names[at]

    def remove_all(self, names: Sequence[str]) -> None:
        """Remove names that are there."""
        if len(names) == 1:
            self.remove(names[0])
        elif names:
            gone = set(names)
            self._names = [name for name in self._names if name not in gone]

    def after(self, name: str, prefix: str, allowed: tuple[str, ...]) -> Iterator[str]:
        """The names after `name` that start with `prefix` and with one of `allowed` (empty: any), in order."""
        for each in _narrow(prefix, allowed):
            at = max(bisect_left(self._names, each), bisect_right(self._names, name))
            while at < len(self._names) and self._names[at].startswith(each):
                yield self._names[at]
                at += 1


def _narrow(prefix: str, allowed: tuple[str, ...]) -> list[str]:
    """Disjoint prefixes, sorted, that together mean "starts with `prefix` and with one of `allowed`"."""
    if not allowed:
        return [prefix]
    both = {a if a.startswith(prefix) else prefix for a in allowed if a.startswith(prefix) or prefix.startswith(a)}
    kept: list[str] = []
    for each in sorted(both):
        if not kept or not each.startswith(kept[-1]):
            kept.append(each)
    return kept
