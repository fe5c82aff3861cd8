"""Tail: the records of a topic as lines, from the last few on, or from a seq.

It reads by cursor and long-poll, so that a server that restarts, or a connection that breaks, costs nothing but time.
What was lost to retention or a crash is printed in its place among the records, as it comes over the wire.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import msgspec

from topics.client.link import PATIENCE_S, Link, ServerError

WAIT_MS: Final = 20_000
LIMIT: Final = 1_000


class Record(msgspec.Struct, rename={"seq": "$seq", "ts": "$ts", "tag": "$tag", "node": "$node"}):
    """A record as it is read; `data` is the JSON text that was written."""

    seq: int
    ts: int
    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None


class _Gap(msgspec.Struct):
    """Records that are gone, both ends included."""

    gap_from: int
    gap_to: int
    reason: str


class _Answer(msgspec.Struct):
    records: list[msgspec.Raw]
    next_from_seq: int
    caught_up: bool
    tombstone: msgspec.Raw


def one_line(raw: bytes | msgspec.Raw) -> str:
    """JSON text on one line; only white space between its parts is left out."""
    text = bytes(raw)
    return (msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text).decode()


def local_time(ts: int) -> str:
    """A time in the time zone of this machine."""
    seconds, millis = divmod(ts, 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))}.{millis:03}"


def gap_text(raw: msgspec.Raw) -> str:
    """A tombstone for people."""
    gap = msgspec.json.decode(raw, type=_Gap)
    return f"-- seqs {gap.gap_from} to {gap.gap_to} are gone: {gap.reason}"


def record_text(raw: msgspec.Raw) -> str:
    """A record for people: seq, time, tag and data."""
    record = msgspec.json.decode(raw, type=Record)
    return f"{record.seq}  {local_time(record.ts)}  {_label(record.tag)}  {one_line(record.data)}"


def data_text(raw: msgspec.Raw) -> str:
    """The data of a record alone."""
    return one_line(msgspec.json.decode(raw, type=Record).data)


def _label(tag: str | None) -> str:
    if tag is None:
        return "-"
    # A tag may be any text: one that would break the line, or control the terminal, is shown as JSON.
    return tag if tag and tag != "-" and tag.isprintable() and " " not in tag else msgspec.json.encode(tag).decode()


class Tail:
    """Reads one topic."""

    def __init__(self, client: Link, topic: str) -> None:
        self._client = client
        self._path = f"/v0/topics/{quote(topic, safe='')}"

    def start(self, last: int) -> tuple[int, int]:
        """The cursor before the last records, about as many as asked for, and the head."""
        state: dict[str, Any] = self._client.read(f"{self._path}?touch=false")
        head, earliest = state["head_seq"], state["earliest_seq"]
        # Seqs may have holes, where jobs were acked for example: a short topic is shown whole.
        return (earliest - 1 if state["count"] <= last else max(head - last, earliest - 1)), head

    def read(self, cursor: int, until: int | None, node: str | None = None) -> Iterator[tuple[msgspec.Raw, bool]]:
        """Each record and tombstone after a cursor, and whether it is a tombstone; without `until` it never ends."""
        wait_ms = 0
        while until is None or cursor < until:
            request = {"from_seq": cursor, "limit": LIMIT, "include_tags": True, "wait_ms": wait_ms}
            body = msgspec.json.encode(request if node is None else {**request, "node": node})
            content = self._client.call("POST", f"{self._path}/diff", body, patience_s=PATIENCE_S + WAIT_MS / 1000)
            try:
                answer = msgspec.json.decode(content, type=_Answer)
            except msgspec.DecodeError:
                raise ServerError("the answer is not from a topics server") from None
            if bytes(answer.tombstone) != b"null":
                yield answer.tombstone, True
            for record in answer.records:
                yield record, False
            cursor = answer.next_from_seq
            wait_ms = WAIT_MS if answer.caught_up and until is None else 0
