"""Record, Tombstone, Draft: what is read from a topic, what is read in the place of what was lost, what is written.

`data` is decoded when it is looked at, and once; `raw` is its JSON as it was written. With a type it is decoded into
that type, and what does not fit is a `BadData` that names the topic, the seq and the field. A record refers to the
answer that it came with: to keep a few of many records for long, keep their `data`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from topics.client.errors import BadData, RecordsLost
from topics.client.options import milliseconds

T = TypeVar("T")

_WIRE: Final = {
    "seq": "$seq", "ts": "$ts", "tag": "$tag", "node": "$node", "raw": "data", "topic": "", "decoded": " ",
}  # fmt: skip


class Record(msgspec.Struct, Generic[T], rename=_WIRE, eq=False, kw_only=True):
    """One record. `ts` is in milliseconds since the epoch."""

    seq: int
    ts: int
    raw: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None
    topic: str = ""
    decoded: Any = msgspec.UNSET

    decode: ClassVar[Any] = staticmethod(msgspec.json.decode)

    @property
    def data(self) -> T:
        """What was written; raises BadData where it is not of the type that was asked for."""
        if self.decoded is msgspec.UNSET:
            try:
                self.decoded = self.decode(self.raw)
            except (msgspec.DecodeError, RecursionError) as error:
                raise bad_data(self.topic, self.seq, error) from None
        return self.decoded  # type: ignore[no-any-return]

    @property
    def time(self) -> datetime:
        """`ts` as a datetime in UTC."""
        return datetime.fromtimestamp(self.ts / 1000, UTC)

    @property
    def next_from_seq(self) -> int:
        """The cursor after this record."""
        return self.seq

    def __repr__(self) -> str:
        labels = "".join(f", {name}={value!r}" for name, value in (("tag", self.tag), ("node", self.node)) if value)
        return f"Record(topic={self.topic!r}, seq={self.seq}{labels}, data={shown(self.raw)})"


class Tombstone(msgspec.Struct, kw_only=True):
    """A loss: the seqs from `gap_from` to `gap_to`, both included, are gone for the `reason` (docs/api.md)."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int = 0
    earliest_seq: int = 0
    head_seq: int = 0
    topic: str = ""

    @property
    def next_from_seq(self) -> int:
        """The cursor after the gap."""
        return self.earliest_seq - 1 if self.reason == "recreated" else self.gap_to

    def error(self) -> RecordsLost:
        """The same as an exception."""
        return RecordsLost(self.topic, self.gap_from, self.gap_to, self.reason, self.next_from_seq)


class Draft(msgspec.Struct, Generic[T], omit_defaults=True, kw_only=True):
    """A record that is not written yet, for `write_many` and producers; `data` alone is required.

    `deliver_at` is a `datetime` with a zone, or milliseconds since the epoch.
    """

    data: T
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, Any] | None = None
    delay_ms: int | None = None
    deliver_at: int | datetime | None = None

    def __post_init__(self) -> None:
        if self.deliver_at is not None:
            self.deliver_at = milliseconds("deliver_at", self.deliver_at)


def shown(raw: msgspec.Raw) -> str:
    """The beginning of JSON text."""
    text = bytes(raw)
    return text[:80].decode("utf-8", "replace") + ("..." if len(text) > 80 else "")


def bad_data(topic: str, seq: int, error: Exception) -> BadData:
    """An error that names where the data is, and which of its fields does not fit."""
    problem, _, path = str(error).partition(" - at `$")
    field = f"data{path.rstrip('`')}"
    failed = BadData(f'topic "{topic}", seq {seq}: {field}: {problem[:1].lower()}{problem[1:]}')
    failed.detail = {"topic": topic, "seq": seq, "field": field}
    return failed


@functools.lru_cache(maxsize=256)
def typed(base: Any, data: Any) -> Any:
    """`base` (Record or Job) with data of a type: a class of its own, so that no record has to carry its decoder."""
    if data is Any:
        return base
    decode = staticmethod(msgspec.json.Decoder(data).decode)
    return type(base)(base.__name__, (base,), {"decode": decode, "__module__": base.__module__}, eq=False)
