"""Timing: how often one kind of upkeep was done, how long it took, and how often it failed: for the metrics."""

from __future__ import annotations


class Timing:
    """The runs of one kind of work, which may overlap."""

    __slots__ = ("failed_total", "last_ns", "succeeded_total", "total_ns")

    def __init__(self) -> None:
        self.succeeded_total = 0
        self.failed_total = 0
        self.total_ns = 0
        """Of those that succeeded."""
        self.last_ns: int | None = None
        """When the last one that succeeded ended, in the clock's elapsed time."""

    def ended(self, began_ns: int, now_ns: int, *, failed: bool) -> None:
        """One that began then has ended."""
        if failed:
            self.failed_total += 1
            return
        self.succeeded_total += 1
        self.total_ns += now_ns - began_ns
        self.last_ns = now_ns
