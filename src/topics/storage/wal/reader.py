"""ShardReader: the frames of one shard as events, small appends gathered into larger Blocks on the way.

A million writes of one record are a million frames, and an object for each would cost more time and memory than
everything else in a restart. So consecutive one-record appends of a topic are gathered by column, and come out as one
Block of up to RUN_RECORDS_MAX records. Where there are many in a row, they are read by column too (singles.py). All
others are taken one by one, by a loop in which one `unpack` per frame reads the checksum of the frame before it, its
header and the first fields of its Block. Both ways give the same events.

Order: the events of one topic come in the order of its frames. Frames that change what exists (`frame.STRUCTURAL`, and
those about no topic) come in the order of their lsns over all shards, each after everything before it in its own shard.
Beyond that nothing is promised between topics: what one topic's frame states about another, it states with seqs, not by
its position.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics.storage import block
from topics.storage.block import Block
from topics.storage.damage import LostRecords
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, scan, singles
from topics.storage.wal.singles import Records, Singles

RUN_RECORDS_MAX: Final = 1000
# A record larger than this is worth a Block of its own; it also bounds a run to 4 MiB.
RUN_DATA_BYTES_MAX: Final = singles.DATA_BYTES_MAX
BATCH_FRAMES: Final = 4000

# Checksum of the frame before; frame header; columns, data bytes and ts of the Block.
_STEP = struct.Struct("<QQIIQQQ8x5xB38xIq")
# Magic, kind, flags and the reserved bytes of a frame, as the one number that `_STEP` reads them as.
_MAGIC_WORD: Final = int.from_bytes(frame.MAGIC, "little")
_APPEND_WORD: Final = _MAGIC_WORD | frame.APPEND << 32
_DATA_AT: Final = frame.HEADER_BYTES + block.SINGLE_DATA_AT[0]

assert _STEP.size <= walfile.TAIL_BYTES


class Extra(NamedTuple):
    """The engine's bytes after the Block of one append of `n` records from `first_seq`."""

    first_seq: int
    n: int
    data: bytes


class Appended(NamedTuple):
    """Records, in one Block, of one append or several consecutive ones; `lsn` is the last one's."""

    lsn: int
    topic_id: int
    block: Block
    extras: list[Extra]


class Control(NamedTuple):
    """A frame of any other kind, its payload decoded where `frame.PAYLOADS` knows it, else bytes."""

    lsn: int
    kind: int
    topic_id: int
    payload: Any


class Damaged(NamedTuple):
    """Bytes that are neither frames nor the unused end of a file, in the WAL or in the snapshot.

    `reason` "corrupt" is a loss to report: each of `lost` becomes a lost range of its topic, whatever its class. "torn"
    is what was being written when the power went, or the process died in a write: no sync had acknowledged any of it.
    Where `complete` is False, more may be lost than is named; a hole before later records of a topic shows as a jump of
    `first_seq` in any case. `quarantined` is where a copy of the bytes is, or "".
    """

    lsn: int
    path: str
    offset: int
    length: int
    reason: str
    lost: tuple[LostRecords, ...]
    lost_frames: tuple[scan.LostFrame, ...]
    complete: bool
    quarantined: str


Event = Appended | Control | Damaged


class _Run:
    """Consecutive one-record appends of one topic, by column."""

    __slots__ = ("datas", "extras", "first_seq", "lsn", "metas", "nodes", "skip_lsn", "tags", "topic_id", "ts")

    def __init__(self, topic_id: int, skip_lsn: int) -> None:
        self.topic_id = topic_id
        self.skip_lsn = skip_lsn
        self.reset()

    def reset(self) -> None:
        self.first_seq = 0
        self.lsn = 0
        self.ts = array("q")
        self.datas: list[bytes] = []
        self.extras: list[Extra] = []
        self.nodes: list[bytes | None] | None = None
        self.tags: list[bytes | None] | None = None
        self.metas: list[bytes | None] | None = None

    def extend(self, records: Records, i: int, j: int) -> None:
        """Take over the records [i, j)."""
        place = len(self.ts)
        self.nodes = _put(self.nodes, place, records.nodes, i, j)
        self.tags = _put(self.tags, place, records.tags, i, j)
        self.metas = _put(self.metas, place, records.metas, i, j)
        self.ts += records.ts[i:j]
        self.datas += records.datas[i:j]
        self.extras += [Extra(records.first_seq + k, 1, data) for k, data in records.extras if i <= k < j]
        self.lsn = records.lsns[j - 1]

    def take(self) -> Appended:
        """The run as one event; the run is empty afterwards."""
        # A column that some later records of the run did not have is shorter; what is missing is absent.
        columns: list[list[bytes | None] | None] = []
        for column in (self.nodes, self.tags, self.metas):
            if column is not None:
                column.extend([None] * (len(self.ts) - len(column)))
            columns.append(column)
        made = block.encode(self.topic_id, self.first_seq, self.ts, self.datas, *columns)
        event = Appended(self.lsn, self.topic_id, made, self.extras)
        self.reset()
        return event


class ShardReader:
    """Turns the bytes of one shard's files in one generation, in order, into events.

    `skip` has, for each topic, the lsn up to which a checkpoint holds its state; `skip_lsn` is that of all others.
    """

    def __init__(self, skip: dict[int, int], skip_lsn: int) -> None:
        self.last_lsn = 0
        self.frames = 0
        self._skip = skip
        self._skip_lsn = skip_lsn
        self._runs: dict[int, _Run] = {}
        # The runs that hold records: a flush of all must not pay for every topic there ever was.
        self._open: dict[int, _Run] = {}
        self._out: list[Event] = []

    def frames_in(self, data: bytes, at: int, size: int) -> Iterator[Event | int]:
        """The events of the whole frames that end within `size`, from `at` on; then the offset at which they end.

        `data` must have `file.TAIL_BYTES` beyond `size`, and 8 bytes before `at`, which is a multiple of 8.
        """
        view = memoryview(data)
        halves = array("I")
        halves.frombytes(view[: size & -8])
        is_end = False
        by_one = 1
        while not is_end:
            found = singles.read(data, halves, at)
            if found is not None:
                self._gather(found)
                at = found.end
                by_one = 1
            else:
                before = self.frames
                at = self._batch(data, view, at, size, by_one)
                is_end = self.frames - before < by_one
                # Looking for singles where there are none must not cost more than they would save.
                by_one = min(2 * by_one, BATCH_FRAMES)
            out, self._out = self._out, []
            yield from out
        yield at

    def finish(self) -> Iterator[Event]:
        """The events still being gathered."""
        self._flush_all()
        out, self._out = self._out, []
        yield from out

    def damaged(self, event: Damaged) -> Iterator[Event]:
        """The damage, after everything that was gathered before it."""
        yield from self.finish()
        yield event

    def _gather(self, found: Singles) -> None:
        for topic_id, i, j in found.topics():
            run = self._run(topic_id)
            for records in found.records(i, j, run.skip_lsn):
                self._extend(run, records)
        self.frames += found.n
        self.last_lsn = max(self.last_lsn, found.last_lsn)

    def _extend(self, run: _Run, records: Records) -> None:
        n = len(records.datas)
        i = 0
        while i < n:
            held = len(run.ts)
            if records.first_seq + i != run.first_seq + held or not 0 < held < RUN_RECORDS_MAX:
                self._begin(run, records.first_seq + i)
                held = 0
            j = min(n, i + RUN_RECORDS_MAX - held)
            run.extend(records, i, j)
            i = j

    def _batch(self, data: bytes, view: memoryview, at: int, size: int, limit: int) -> int:
        """Take up to `limit` whole frames one by one; where they end."""
        unpack, digest, append_word, data_max = _STEP.unpack_from, xxh3_64_intdigest, _APPEND_WORD, RUN_DATA_BYTES_MAX
        plain, overhead, data_offset, run_max = block.PLAIN, block.SINGLE_OVERHEAD_BYTES, _DATA_AT, RUN_RECORDS_MAX
        end_max = size - 8
        run_topic = -1
        run = _Run(-1, 0)
        expected = skip_lsn = last_lsn = 0
        ts_column = array("q")
        datas: list[bytes] = []
        step = unpack(data, at - 8)
        count = 0
        for count in range(1, limit + 1):
            _, word, length, n, lsn, topic_id, first_seq, bits, data_bytes, ts = step
            end = at + 48 + (length + 7 & -8)
            if end > end_max or (word != append_word and word & 0xFFFFFFFF != _MAGIC_WORD):
                count -= 1
                break
            step = unpack(data, end)
            if step[0] != digest(view[at:end]):
                count -= 1
                break
            # A VOID frame has lsn 0.
            last_lsn = lsn or last_lsn
            if n == 1 and bits == plain and data_bytes <= data_max and word == append_word:
                if topic_id != run_topic:
                    run = self._run(topic_id)
                    run_topic, skip_lsn, ts_column, datas = topic_id, run.skip_lsn, run.ts, run.datas
                    expected = run.first_seq + len(ts_column)
                if lsn > skip_lsn:
                    if first_seq != expected or not 0 < len(ts_column) < run_max:
                        self._begin(run, first_seq)
                        expected, ts_column, datas = first_seq, run.ts, run.datas
                    ts_column.append(ts)
                    data_at = at + data_offset
                    datas.append(data[data_at : data_at + data_bytes])
                    run.lsn = lsn
                    expected += 1
                    if length != data_bytes + overhead:
                        extra = data[at + 48 + data_bytes + overhead : at + 48 + length]
                        run.extras.append(Extra(first_seq, 1, extra))
            else:
                run_topic = -1
                self._other(data, at + 48, (lsn, word >> 32 & 0xFF, topic_id, first_seq, n, length))
            at = end + 8
        self.frames += count
        self.last_lsn = max(self.last_lsn, last_lsn)
        return at

    def _run(self, topic_id: int) -> _Run:
        run = self._runs.get(topic_id)
        if run is None:
            run = self._runs[topic_id] = _Run(topic_id, self._skip.get(topic_id, self._skip_lsn))
        return run

    def _begin(self, run: _Run, first_seq: int) -> None:
        """Begin a run again at `first_seq`."""
        self._flush(run)
        run.first_seq = first_seq
        self._open[run.topic_id] = run

    def _flush(self, run: _Run) -> None:
        if self._open.pop(run.topic_id, None) is not None:
            self._out.append(run.take())

    def _flush_all(self) -> None:
        for run in list(self._open.values()):
            self._flush(run)

    def _other(self, data: bytes, at: int, header: tuple[int, ...]) -> None:
        """Any frame that is not a plain small append of one record. `at` is where its payload is."""
        lsn, kind, topic_id, first_seq, n, length = header
        run = self._run(topic_id)
        if lsn <= run.skip_lsn or kind == frame.VOID:
            return
        if kind != frame.APPEND:
            if topic_id == 0 or kind in frame.STRUCTURAL:
                self._flush_all()
            else:
                self._flush(run)
            self._out.append(Control(lsn, kind, topic_id, frame.decode_payload(kind, data[at : at + length])))
            return
        found, end = block.decode(data, at, with_flags=False)
        extra = data[end : at + length]
        if n == 1 and block.HEADER.unpack_from(data, at)[-1] <= RUN_DATA_BYTES_MAX:
            nodes = [found.node(0)] if found.bits & block.HAS_NODE else None
            tags = [found.tag(0)] if found.bits & block.HAS_TAG else None
            metas = [found.meta(0)] if found.bits & block.HAS_META else None
            extras = [(0, extra)] if extra else []
            ts = array("q", (found.first_ts,))
            self._extend(run, Records(first_seq, (lsn,), ts, [found.data(0)], nodes, tags, metas, extras))
            return
        self._flush(run)
        self._out.append(Appended(lsn, topic_id, found, [Extra(first_seq, n, extra)] if extra else []))


def _put(
    column: list[bytes | None] | None, place: int, texts: list[bytes | None] | None, i: int, j: int
) -> list[bytes | None] | None:
    """The column with the texts [i, j) from `place` on; records before it that had none are absent."""
    if texts is None:
        return column
    if column is None:
        column = []
    column.extend([None] * (place - len(column)))
    column += texts[i:j]
    return column
