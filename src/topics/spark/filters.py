"""Filters that Spark offers, turned into less work: fewer topics, a shorter range of seqs, fewer rows.

Nothing here decides a result. Spark applies every filter again to the rows that arrive, so a filter that is not
understood costs time and never rows. Times rise with seqs within a topic, so a bound on `ts` is a bound on
the seqs, which the server knows without reading a record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_KINDS: Final = {"EqualTo", "EqualNullSafe", "In", "StringStartsWith", "IsNotNull"}


@dataclass
class Texts:
    """A test on a text column."""

    kind: str
    value: Any = None

    def mask(self, column: Any) -> Any:
        """Which elements of an Arrow column pass."""
        if self.kind == "IsNotNull":
            return pc.is_valid(column)
        if self.kind == "In":
            return pc.is_in(column, value_set=pa.array([text for text in self.value if text is not None], pa.string()))
        if self.kind == "StringStartsWith":
            return pc.starts_with(column, self.value)
        return pc.equal(column, self.value)

    def passes(self, text: str) -> bool:
        """Whether one text passes."""
        if self.kind == "StringStartsWith":
            return text.startswith(self.value)
        return self.kind == "IsNotNull" or text in (self.value if self.kind == "In" else (self.value,))


@dataclass
class Prune:
    """What need not be read."""

    topic: list[Texts] = field(default_factory=list)
    node: list[Texts] = field(default_factory=list)
    tag: list[Texts] = field(default_factory=list)
    seq_min: int = 1
    seq_max: int | None = None
    ts_min: int | None = None
    """Records with a lower ts, in ms, are not wanted."""
    ts_max: int | None = None

    def push(self, offered: Any) -> None:
        """Take in one of Spark's filters, as far as it is understood."""
        kind = type(offered).__name__
        attribute: tuple[str, ...] = getattr(offered, "attribute", ())
        if len(attribute) != 1:
            return
        name, value = attribute[0], getattr(offered, "value", None)
        if name in ("topic", "node", "tag"):
            if kind in _KINDS and (kind == "IsNotNull" or value is not None):
                getattr(self, name).append(Texts(kind, value))
        elif name == "seq" and value is not None:
            self._push_seq(kind, value)
        elif name == "ts" and value is not None:
            self._push_ts(kind, value)

    def _push_seq(self, kind: str, value: Any) -> None:
        values = [one for one in (value if kind == "In" else (value,)) if one is not None]
        if not values or not all(isinstance(one, int) for one in values):
            return
        low, high = _bounds(kind, values, 1)
        self.seq_min = max(self.seq_min, low) if low is not None else self.seq_min
        self.seq_max = _least(self.seq_max, high)

    def _push_ts(self, kind: str, value: Any) -> None:
        values = [one for one in (value if kind == "In" else (value,)) if isinstance(one, datetime)]
        if not values:
            return
        # Microseconds are cut to the millisecond below: a bound may let in too much, never too little.
        low, high = _bounds(kind, [_ms(one) for one in values], 0)
        if low is not None:
            self.ts_min = low if self.ts_min is None else max(self.ts_min, low)
        self.ts_max = _least(self.ts_max, high)

    def wants(self, topic: str) -> bool:
        """Whether anything of a topic can pass."""
        return all(test.passes(topic) for test in self.topic)


def _bounds(kind: str, values: list[int], step: int) -> tuple[int | None, int | None]:
    if kind in ("EqualTo", "EqualNullSafe", "In"):
        return min(values), max(values)
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return values[0] + (step if kind == "GreaterThan" else 0), None
    if kind in ("LessThan", "LessThanOrEqual"):
        return None, values[0] - (step if kind == "LessThan" else 0)
    return None, None


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _ms(value: datetime) -> int:
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    delta = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
