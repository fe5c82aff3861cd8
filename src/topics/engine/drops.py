"""Drops: the deletes of topics or routers that are on their way to the disk, by name (TOPIC-23).

A second delete finds nothing to do and must not be acknowledged before the first is durable: a crash could bring back
what its client was told is gone. Of several deletes of a name that was created again in between, the last one counts.
"""

from __future__ import annotations

from topics.engine.promise import Promise, Receipt


class Drops:
    """The receipts of deletes, until their frames are durable."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, Receipt] = {}

    def add(self, name: str, receipt: Receipt) -> None:
        """What had this name is gone in memory; the receipt is done once it is so on the disk."""
        self._by_name[name] = receipt
        Promise(self._done, (name, receipt)).follow(receipt)

    def _done(self, durable: Promise) -> None:
        name, receipt = durable.context
        if self._by_name.get(name) is receipt:
            del self._by_name[name]

    def last(self, name: str) -> Receipt | None:
        """What a delete that finds nothing of this name follows; None where there is nothing to wait for."""
        return self._by_name.get(name)
