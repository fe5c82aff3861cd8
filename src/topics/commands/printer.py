"""Printer: records and losses as lines, for people or as JSON.

`data` is printed as it was written. A line is never broken and never controls the terminal, whatever a tag holds.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import msgspec

from topics.client.record import Record, Tombstone
from topics.commands.spans import local_time

_WIRE: Final = {"seq": "$seq", "ts": "$ts", "tag": "$tag", "node": "$node"}


class _Line(msgspec.Struct, omit_defaults=True, rename=_WIRE):
    topic: str
    seq: int
    ts: int
    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: dict[str, Any] | None = None


class Printer:
    """Prints what is read; `width` is that of the column with the topic, 0 for none."""

    def __init__(self, *, as_json: bool, data_only: bool, width: int = 0) -> None:
        self._width = width
        self._data_only = data_only
        self._text = json_text if as_json else self._data if data_only else self._columns
        self._out = sys.stdout.buffer

    def put(self, item: Record[Any] | Tombstone) -> None:
        """Print an item; it may stay in a buffer until `flush`."""
        if self._data_only and isinstance(item, Tombstone):
            self.flush()
            sys.stderr.write(gap_text(item) + "\n")
        else:
            self._out.write(self._text(item).encode("utf-8", "replace") + b"\n")

    def flush(self) -> None:
        """Let everything be seen that was printed."""
        self._out.flush()

    def _data(self, item: Record[Any] | Tombstone) -> str:
        assert isinstance(item, Record)
        return one_line(item.raw)

    def _columns(self, item: Record[Any] | Tombstone) -> str:
        head = f"{item.topic:<{self._width}}  " if self._width else ""
        if isinstance(item, Tombstone):
            return head + gap_text(item)
        return f"{head}{item.seq}  {local_time(item.ts)}  {label(item.tag)}  {one_line(item.raw)}"


def json_text(item: Record[Any] | Tombstone) -> str:
    """A record, or a loss, as one object on one line."""
    if isinstance(item, Tombstone):
        return msgspec.json.encode(item).decode()
    raw = msgspec.Raw(one_line(item.raw).encode())
    line = _Line(item.topic, item.seq, item.ts, raw, item.tag, item.node, item.meta)
    return msgspec.json.encode(line).decode()


def gap_text(gap: Tombstone) -> str:
    """A loss for people."""
    return f"-- seqs {gap.gap_from} to {gap.gap_to} are gone: {gap.reason}"


def one_line(raw: msgspec.Raw) -> str:
    """JSON text on one line; only white space between its parts is left out."""
    text = bytes(raw)
    return (msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text).decode()


def label(tag: str | None) -> str:
    """A tag as a column: one that would break the line, or control the terminal, is shown as JSON."""
    if tag is None:
        return "-"
    return tag if tag and tag != "-" and tag.isprintable() and " " not in tag else msgspec.json.encode(tag).decode()
