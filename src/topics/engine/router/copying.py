"""Copying: source records as the destination's Block (ROUTER-1).

What is copied is given as runs, (Block, i, j): the records [i, j) of a source Block. Where a router takes records as
they are, Blocks are taken over by column, with another header and without looking at single records. Otherwise the
columns are built record by record: filter, `preserve_*`, the stamp of `exactly_once` and the hop cap.

Where many destinations take over the same small Blocks, these are joined once for all of them (`Joins`).

The time of a copy is that of its source record, or `ts_min` where that is later: both are known again after a crash.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from topics.engine.log.log import Log
from topics.engine.meta import with_fields
from topics.engine.router.router import EXACTLY_ONCE, Router
from topics.engine.topic import Topic
from topics.engine.write.unkept import GONE, KEPT
from topics.storage import block as blocks
from topics.storage.block import Block
from topics.storage.splice import cut, merge, readdress

STAMP: Final = "_topics_router"
HOPS_MAX: Final = 16
NOTES_MAX: Final = 64
JOINS_BYTES_MAX: Final = 8 << 20
_decode_meta = msgspec.json.Decoder(dict[str, str]).decode

Run = tuple[Block, int, int]
HopRun = tuple[int, int, int]
"""(first seq, last seq, hops)."""


class Copies(NamedTuple):
    """A Block of copies (None where nothing was left to copy), how many each router made, and their hops."""

    block: Block | None
    counts: dict[Router, int]
    hops: list[HopRun]


def live_runs(log: Log, first: int, upto: int) -> Iterator[Run]:
    """The live records of a log with these seqs, both ends included. May raise Miss."""
    first = max(first, log.start)
    for k in range(log.index_of(first), len(log.entries)):
        entry = log.entries[k]
        if entry.first_seq > upto:
            return
        for i, j in entry.live_runs(max(0, first - entry.first_seq), min(entry.n, upto + 1 - entry.first_seq)):
            yield entry.block(), i, j


def stamp_of(router: Router, source_id: int, seq: int) -> str:
    """The stable key of one forwarded record: router, source, its epoch (the id is never used again), seq."""
    return f"{router.name}/{router.source.name}/{source_id}/{seq}"


def room_for(block: Block, i: int, routers: Sequence[Router]) -> tuple[int, int]:
    """How many copies the routers make of record i, and how much these count towards `bytes`."""
    seq = block.first_seq + i
    count = size = 0
    for router in routers:
        if seq <= router.start_seq or (router.match is not None and not router.match(block.tag(i))):
            continue
        count += 1
        size += block.size_bytes(i, i + 1)
        rule = router.rule
        if not rule.preserve_node:
            size -= len(block.node(i) or b"")
        if not rule.preserve_tag:
            size -= len(block.tag(i) or b"")
        if rule.guarantee == EXACTLY_ONCE:
            meta = block.meta(i)
            stamp = stamp_of(router, block.topic_id, seq)
            size += len(with_fields(meta, {STAMP: stamp})) - len(meta or b"")
    return count, size


def whole(runs: Sequence[Run], routers: Sequence[Router]) -> bool:
    """Whether the runs can be taken over by column: they leave no record out, and one router takes all as they are."""
    first, a, _ = runs[0]
    expected = first.first_seq + a
    if len(routers) != 1 or not routers[0].plain or routers[0].start_seq >= expected:
        return False
    for block, a, b in runs:
        if block.first_seq + a != expected:
            return False
        expected += b - a
    return True


class Joins:
    """Source records that several destinations take over, joined to one Block; the newest, up to a number of bytes.

    A record never changes, so the seqs of runs that leave none out say what is in them.
    """

    __slots__ = ("_blocks", "_bytes")

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int, int], Block] = {}
        self._bytes = 0

    def join(self, source: Topic, runs: Sequence[Run]) -> Block:
        """The records of runs that are `whole`."""
        first, a, b = runs[0]
        if len(runs) == 1 and a == 0 and b == first.n:
            return first
        last, _, end = runs[-1]
        key = source.id, first.first_seq + a, last.first_seq + end
        block = self._blocks.get(key)
        if block is None:
            parts = [part if i == 0 and j == part.n else cut(part, i, j) for part, i, j in runs]
            block = parts[0] if len(parts) == 1 else merge(parts)
            if source.outbound is not None and len(source.outbound.forwards) > 1:
                self._keep(key, block)
        return block

    def _keep(self, key: tuple[int, int, int], block: Block) -> None:
        self._blocks[key] = block
        self._bytes += len(block.raw)
        while self._bytes > JOINS_BYTES_MAX:
            self._bytes -= len(self._blocks.pop(next(iter(self._blocks))).raw)

    def forget(self) -> None:
        """Keep nothing: seqs may be handed out again, or nobody copies any more."""
        self._blocks.clear()
        self._bytes = 0


def take_over(block: Block, router: Router, dest_id: int, first_seq: int, ts_min: int) -> Copies:
    """The copies of all records of a Block."""
    taken = readdress(block, dest_id, first_seq, ts_min)
    return Copies(taken, {router: taken.n}, [])


def copy(
    runs: Sequence[Run],
    routers: Sequence[Router],
    dest_id: int,
    first_seq: int,
    ts_min: int,
    present: Container[str],
    hops_of: Sequence[HopRun] | None,
) -> Copies:
    """The copies that these routers make: of each record, one per router that takes it.

    `present` holds the stamps that the destination has already. `hops_of` are the hops of the source's records, None
    where no cycle is possible.
    """
    columns: tuple[list[int], list[bytes], list[bytes | None], list[bytes | None], list[bytes | None]]
    columns = ([], [], [], [], [])
    times, datas, nodes, tags, metas = columns
    counts = dict.fromkeys(routers, 0)
    hop_runs: list[HopRun] = []
    for block, a, b in runs:
        ts = block.columns.ts
        for i in range(a, b):
            seq = block.first_seq + i
            hops = _hops_at(hops_of, seq) if hops_of is not None else 0
            if hops >= HOPS_MAX:
                continue
            tag = block.tag(i)
            for router in routers:
                if seq <= router.start_seq or (router.match is not None and not router.match(tag)):
                    continue
                rule = router.rule
                meta = block.meta(i)
                if rule.guarantee == EXACTLY_ONCE:
                    stamp = stamp_of(router, block.topic_id, seq)
                    if stamp in present:
                        continue
                    meta = with_fields(meta, {STAMP: stamp})
                if hops_of is not None:
                    _add_hop(hop_runs, first_seq + len(datas), hops + 1)
                times.append(max(ts[i], ts_min))
                datas.append(block.data(i))
                nodes.append(block.node(i) if rule.preserve_node else None)
                tags.append(tag if rule.preserve_tag else None)
                metas.append(meta)
                counts[router] += 1
    if not datas:
        return Copies(None, counts, [])
    made = blocks.encode(dest_id, first_seq, times, datas, _or_none(nodes), _or_none(tags), _or_none(metas))
    return Copies(made, counts, hop_runs)


def _or_none(column: list[bytes | None]) -> list[bytes | None] | None:
    return column if any(text is not None for text in column) else None


def _hops_at(runs: Sequence[HopRun], seq: int) -> int:
    for first, last, hops in reversed(runs):
        if first <= seq <= last:
            return hops
        if last < seq:
            break
    return 0


def _add_hop(runs: list[HopRun], seq: int, hops: int) -> None:
    if runs and runs[-1][2] == hops and runs[-1][1] + 1 == seq:
        runs[-1] = (runs[-1][0], seq, hops)
    else:
        runs.append((seq, seq, hops))


class Notes:
    """What is remembered about the records of a destination that later copies depend on.

    - Hops: where cycles are possible, how often each copy was forwarded.
    - Stamps: which copies of an `exactly_once` router the destination has already, because direct writes brought them.
    - Whether a copy is kept (`Topic.unkept`): a copy of a record that may be gone after a restart may be gone too.

    What no copy can depend on any more is forgotten, so this does not grow with the number of records.
    """

    __slots__ = ("_dest", "hops", "stamps")

    def __init__(self, dest: Topic) -> None:
        self._dest = dest
        self.hops: list[HopRun] = []
        self.stamps: dict[str, int] = {}

    def add_hops(self, hops: list[HopRun]) -> None:
        """Copies were made that were forwarded so often."""
        self.hops += hops
        if len(self.hops) > NOTES_MAX:
            upto = self._copied_to()
            self.hops = [run for run in self.hops if run[1] > upto]

    def add_unkept(self, block: Block, fate: int) -> None:
        """Copies were made of records that have this fate."""
        if self._dest.config.durability == "ephemeral":
            fate = GONE
        if fate != KEPT:
            unkept = self._dest.unkept
            unkept.add(block.first_seq, block.last_seq, fate)
            if len(unkept) > NOTES_MAX:
                unkept.forget(self._copied_to())

    def add_stamps(self, block: Block, routers: Sequence[Router]) -> None:
        """A direct write brought records that may be stamped."""
        if not any(router.rule.guarantee == EXACTLY_ONCE for router in routers):
            return
        for i in range(block.n):
            meta = block.meta(i)
            if meta is not None and STAMP.encode() in meta:
                stamp = _decode_meta(meta).get(STAMP)
                if stamp is not None:
                    self.stamps[stamp] = block.first_seq + i

    def live_stamps(self) -> dict[str, int]:
        """The stamps of records that the destination still has, or is about to show."""
        if self.stamps:
            log = self._dest.log
            self.stamps = {stamp: seq for stamp, seq in self.stamps.items() if log.is_live(seq) or seq > log.head}
        return self.stamps

    def _copied_to(self) -> int:
        """The seq up to which every router out of the destination has looked at it."""
        outbound = self._dest.outbound
        cursors = [] if outbound is None else [forward.cursor for forward in outbound.forwards]
        return min(cursors, default=self._dest.log.head)
