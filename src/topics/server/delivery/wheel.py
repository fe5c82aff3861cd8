"""Wheel: which entry is due when, without a timer for each.

Entries are kept in slots of `SLOT_MS`. Adding, removing and turning cost the same however many there are; an entry
comes up at most one slot late and never early.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")

SLOT_MS: Final = 100


class Wheel(Generic[T]):
    """Entries by the time at which they are due."""

    __slots__ = ("_slots", "_turned")

    def __init__(self, now_ms: int) -> None:
        self._slots: dict[int, dict[T, None]] = {}
        self._turned = now_ms // SLOT_MS

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def add(self, entry: T, due_ms: int) -> int:
        """Enter, and return the time under which the entry is to be removed."""
        slot = max(self._turned + 1, -(-due_ms // SLOT_MS))
        self._slots.setdefault(slot, {})[entry] = None
        return slot * SLOT_MS

    def remove(self, entry: T, due_ms: int) -> None:
        """Forget an entry; `due_ms` is what `add` returned."""
        slot = self._slots.get(due_ms // SLOT_MS)
        if slot is not None:
            slot.pop(entry, None)

    def turn(self, now_ms: int) -> list[T]:
        """Everything that is due, which is in the wheel no longer."""
        upto = now_ms // SLOT_MS
        if upto <= self._turned:
            return []
        if upto - self._turned > len(self._slots):
            passed = sorted(slot for slot in self._slots if slot <= upto)
        else:
            passed = [slot for slot in range(self._turned + 1, upto + 1) if slot in self._slots]
        self._turned = upto
        return [entry for slot in passed for entry in self._slots.pop(slot)]
