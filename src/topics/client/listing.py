"""The tables of `topics ls` and `topics show`: plain text in columns, for people and for awk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

from topics.client.link import Link
from topics.client.tail import local_time

PAGE_SIZE: Final = 1_000


def topics(client: Link, prefix: str) -> Iterator[dict[str, Any]]:
    """Every topic with the prefix, in order."""
    query = {"prefix": prefix, "page_size": str(PAGE_SIZE)}
    while True:
        page = client.read(f"/v0/topics?{urlencode(query)}")
        yield from page["topics"]
        if "next_cursor" not in page:
            return
        query["cursor"] = page["next_cursor"]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The lines of a list of topics; the name comes last, because it may be long."""
    cells = [("RECORDS", "BYTES", "HEAD", "TOPIC")]
    cells += [(str(row["count"]), str(row["bytes"]), str(row["head_seq"]), row["topic"]) for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    return ["  ".join([*(f"{row[i]:>{widths[i]}}" for i in range(3)), row[3]]) for row in cells]


def state(client: Link, topic: str) -> list[str]:
    """The state and the config of one topic, a line for each fact."""
    found = client.read(f"/v0/topics/{quote(topic, safe='')}?touch=false")
    queue = found.get("queue")
    facts = [(name, found[name]) for name in ("topic", "type", "count", "bytes", "head_seq", "earliest_seq")]
    if queue is not None:
        facts += [*queue.items(), ("delayed", found["count"] - queue["ready"] - queue["in_flight"])]
    for name in ("last_write_ts", "last_read_ts"):
        facts.append((name.removesuffix("_ts"), "never" if found[name] is None else local_time(found[name])))
    facts += [
        (name, value)
        for name, value in found["config"].items()
        if name not in _NOT_REPEATED and (queue is not None or name not in _QUEUE_ONLY)
    ]
    width = max(len(name) for name, _ in facts)
    return [f"{name:<{width}}  {_shown(value)}" for name, value in facts]


_NOT_REPEATED: Final = frozenset({"type", "durable"})
_QUEUE_ONLY: Final = frozenset(
    {"lease_ms", "claim_jitter_ms", "max_deliveries", "dead_letter", "leases_durable", "backoff_ms", "backoff_max_ms"}
)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "-"}[value]
    return str(value)
