"""Reads: diff of 1, 256 and 1,000 records with distinct cursors, by where the records are.

- `rendered`: in the tail, and their text is kept from an earlier read.
- `fresh`: in the tail, and nothing of what is read is kept as text. The cursors walk round a topic whose text is
  larger than the cache of rendered Blocks, which gives up the least recently read first, so no Block has its text.
- `sealed`: in segments, read through the page cache, after a restart and over more than the Block cache holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bench import load, records
from bench.bed import Bench, await_true
from bench.load import Traffic
from bench.row import Row, at_least

if TYPE_CHECKING:
    from topics.testing import ServerProcess

LIMITS = (1, 256, 1000)
ROWS = tuple(f"diff-{limit}-{kind}" for kind in ("rendered", "fresh", "sealed") for limit in LIMITS)
TARGETS = {
    "diff-1000-rendered": at_least(5_000_000, "records_s"),
    "diff-1000-fresh": at_least(1_200_000, "records_s"),
    "diff-1000-sealed": at_least(1_000_000, "records_s"),
}
RENDERED_RECORDS = 200_000
FRESH_RECORDS = 1_000_000
SEGMENT_RECORDS = 10_000
BLOCK_RECORDS = 100
CONNECTIONS = 16
QUIET_S = 1.5


def measure(bench: Bench) -> Iterator[Row]:
    """The read path."""
    in_tail = [name for name in ROWS if not name.endswith("sealed")]
    if bench.wants(*in_tail):
        # Nothing is sealed here: the whole topic is its tail, in Blocks as they were written.
        with bench.server(segment_max_events=10**9, segment_max_bytes=1 << 40, max_unsealed_bytes=0) as server:
            records.fill(server, "tail", FRESH_RECORDS, BLOCK_RECORDS)
            for limit in LIMITS:
                yield from _rendered(bench, server, limit)
            for limit in LIMITS:
                yield from _walk(bench, server, "fresh", limit)
    if bench.wants(*(name for name in ROWS if name.endswith("sealed"))):
        with bench.server(segment_max_events=SEGMENT_RECORDS) as server:
            records.fill(server, "tail", FRESH_RECORDS, BLOCK_RECORDS)
            await_sealed(server.data_dir)
            server.stop()
            bench.start(server)
            for limit in LIMITS:
                yield from _walk(bench, server, "sealed", limit)


def await_sealed(data_dir: Path) -> None:
    """Wait until neither segments nor snapshots come or go any more; small segments are merged meanwhile."""
    seen: set[str] = set()
    since = time.monotonic()

    def quiet() -> bool:
        nonlocal seen, since
        names = {path.name for path in (*(data_dir / "segments").rglob("*.data"), *(data_dir / "snapshots").iterdir())}
        if names != seen:
            seen, since = names, time.monotonic()
        return time.monotonic() - since > QUIET_S

    await_true(quiet, "the sealer to be done", 300)


def _rendered(bench: Bench, server: ServerProcess, limit: int) -> Iterator[Row]:
    name = f"diff-{limit}-rendered"
    if bench.wants(name):
        _read_all(server, RENDERED_RECORDS)
        # A prime step: each cursor is another one, and few of them are at the beginning of a Block.
        traffic = _diffs(limit, 7919, RENDERED_RECORDS - limit)
        yield _row(bench, server, name, "rendered before", traffic, limit)


def _read_all(server: ServerProcess, count: int) -> None:
    diffs = _diffs(1000, 1000, count)
    load.fill(server.host, server.port, (diffs.request(i, server.host) for i in range(count // 1000)))


def _walk(bench: Bench, server: ServerProcess, kind: str, limit: int) -> Iterator[Row]:
    name = f"diff-{limit}-{kind}"
    if bench.wants(name):
        # After a walk round the whole topic, each Block is one that the caches gave up the longest time ago.
        _read_all(server, FRESH_RECORDS)
        # Whole Blocks: each request begins one that no request before it in this round has met.
        step = 1000 if kind == "sealed" else -(-limit // BLOCK_RECORDS) * BLOCK_RECORDS
        traffic = _diffs(limit, step, FRESH_RECORDS // step * step)
        where = "not rendered" if kind == "fresh" else "from sealed segments"
        yield _row(bench, server, name, where, traffic, limit)


def _diffs(limit: int, step: int, span: int) -> Traffic:
    body = b'{"from_seq":{n},"limit":%d}' % limit
    return Traffic("POST", "/v0/topics/tail/diff", body, CONNECTIONS, step=step, span=span)


def _row(bench: Bench, server: ServerProcess, name: str, where: str, traffic: Traffic, limit: int) -> Row:
    sample = server.request("POST", "/v0/topics/tail/diff", json={"from_seq": 5, "limit": limit})
    assert len(sample.json["records"]) == limit, sample.json
    target = TARGETS.get(name)
    return bench.measure(
        name,
        f"diff of {limit}, distinct cursors, {where}, {CONNECTIONS} connections",
        server,
        traffic,
        records=limit,
        rounds=bench.rounds if target else 1,
        target=target,
        peer="redis-xrange-1000" if limit == 1000 else None,
    )
