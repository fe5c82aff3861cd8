"""What the storage tests share: a writer that knows what was acknowledged, and a reader of what recovery gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from topics.clock import Clock
from topics.errors import TopicsError
from topics.storage import block
from topics.storage.block import Extent
from topics.storage.damage import Corrupt
from topics.storage.disk import Disk
from topics.storage.flags import DELETED, to_bits
from topics.storage.history import Started, TopicLoaded, TopicsNameless
from topics.storage.job import Miss, run_inline
from topics.storage.segment.format import Builder
from topics.storage.segment.segment import Segment
from topics.storage.snapshot import snapshot
from topics.storage.snapshot.reader import SectionLoaded
from topics.storage.store import Store
from topics.storage.wal import frame
from topics.storage.wal.reader import Appended, Control, Damaged
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk

DIRECTORY = "/data"
MISSES_MAX = 10_000


class Ticket:
    """Remembers how it ended."""

    def __init__(self) -> None:
        self.committed: tuple[int, int] | None = None
        self.failed: TopicsError | None = None

    def commit(self, write_ns: int, sync_ns: int) -> None:
        assert self.committed is None
        assert self.failed is None
        self.committed = (write_ns, sync_ns)

    def fail(self, error: TopicsError) -> None:
        assert self.committed is None
        assert self.failed is None
        self.failed = error


def open_store(disk: Disk, clock: Clock | None = None, **options: Any) -> tuple[Store, Recovered]:
    """A store on `disk`, recovered and started, with small files; and what recovery gave."""
    options = {"wal_file_bytes": 4096, **options}
    store = Store(DIRECTORY, disk=disk, clock=clock or ManualClock(), **options)
    store.open()
    recovered = Recovered(store.recover())
    store.start()
    if isinstance(disk, FakeDisk):
        disk.monitor.attach(store)
    return store, recovered


def recover(disk: Disk) -> Recovered:
    """What a start on `disk` finds; nothing is started."""
    store = Store(DIRECTORY, disk=disk, clock=ManualClock())
    store.open()
    recovered = Recovered(store.recover())
    store.close()
    return recovered


class Recovered:
    """The events of a recovery, applied as an engine would: records by topic and seq, all else as it came."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.records: dict[int, dict[int, bytes]] = {}
        self.heads: dict[int, int] = {}
        self.gaps: list[tuple[int, int, int]] = []
        self.controls: list[Control] = []
        self.damaged: list[Damaged] = []
        self.sections: list[SectionLoaded] = []
        self.topics: dict[int, snapshot.TopicImage] = {}
        self.extras: dict[tuple[int, int], bytes] = {}
        self.started: Started | None = None
        self.events: list[Any] = []
        for event in events:
            self.events.append(event)
            self._apply(event)

    def _apply(self, event: Any) -> None:
        if isinstance(event, Started):
            assert self.started is None
            self.started = event
        elif isinstance(event, TopicLoaded):
            self.topics[event.image.id] = event.image
            self.heads[event.image.id] = event.image.head_seq
            for found in event.blocks:
                self._take(event.image.id, found, loaded=True)
        elif isinstance(event, SectionLoaded):
            self.sections.append(event)
        elif isinstance(event, Appended):
            for extra in event.extras:
                self.extras[event.topic_id, extra.first_seq] = extra.data
            self._take(event.topic_id, event.block, loaded=False)
        elif isinstance(event, Control):
            self.controls.append(event)
        elif isinstance(event, Damaged):
            self.damaged.append(event)
        else:
            assert isinstance(event, TopicsNameless)
            for topic_id, blocks in event.tails.items():
                for found in blocks:
                    self._take(topic_id, found, loaded=True)

    def _take(self, topic_id: int, found: block.Block, *, loaded: bool) -> None:
        assert found.topic_id == topic_id
        head = self.heads.get(topic_id, 0)
        if not loaded:
            assert found.first_seq > head, "no record comes twice"
            if found.first_seq > head + 1:
                self.gaps.append((topic_id, head + 1, found.first_seq - 1))
        records = self.records.setdefault(topic_id, {})
        for i, data in enumerate(found.datas()):
            if found.flags is None or found.flags[i] != DELETED:
                records[found.first_seq + i] = data
        self.heads[topic_id] = max(head, found.last_seq)

    @property
    def lost(self) -> set[tuple[int, int]]:
        """Every (topic, seq) that a Damaged event names as lost."""
        return {
            (lost.topic_id, lost.first_seq + i) for event in self.damaged for lost in event.lost for i in range(lost.n)
        }


class Writer:
    """Appends to topics of a store and remembers what was acknowledged and what was only tried."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.heads: dict[int, int] = {}
        self.tried: dict[tuple[int, int], bytes] = {}
        self.tickets: list[tuple[Ticket, int, int, int, bool]] = []

    def append(
        self, topic_id: int, datas: list[bytes], *, gated: bool = False, extra: bytes = b"", ts: int = 1
    ) -> Ticket:
        """Submit one append; nothing is written yet."""
        first_seq = self.heads.get(topic_id, 0) + 1
        made = block.encode(topic_id, first_seq, ts, datas)
        ticket = Ticket()
        encoded = frame.append(self.store.next_lsn(), topic_id, first_seq, len(datas), made.raw, extra)
        self.store.shard_of(topic_id).submit(encoded, gated, ticket)
        self.heads[topic_id] = first_seq + len(datas) - 1
        for i, data in enumerate(datas):
            self.tried[topic_id, first_seq + i] = data
        self.tickets.append((ticket, topic_id, first_seq, len(datas), gated))
        return ticket

    def blocks(self, topic_id: int, lsn: int) -> list[bytes]:
        """Everything appended to a topic, as snapshot sections."""
        sections = []
        for _, of_topic, first_seq, n, _ in self.tickets:
            if of_topic == topic_id:
                made = block.encode(topic_id, first_seq, 1, [self.tried[topic_id, first_seq + i] for i in range(n)])
                sections.append(snapshot.block_section(lsn, topic_id, first_seq, n, made.encoded()))
        return sections

    def checkpoint(self) -> None:
        """The whole state of the topics as one checkpoint, with all records in the tails."""
        self.store.run_until_idle()
        sections: list[bytes] = []
        essential: list[int] = []
        lsn = self.store.last_lsn
        for topic_id, head in sorted(self.heads.items()):
            essential.append(len(sections))
            state = snapshot.TopicImage(topic_id, f"t{topic_id}", b"{}", lsn, head_seq=head)
            sections.append(snapshot.topic_section(state))
            sections += self.blocks(topic_id, lsn)
        job = self.store.checkpoint(sections, essential, lsn=lsn, next_topic_id=9)
        assert job is not None
        run_inline([job])

    def control(self, kind: int, topic_id: int, payload: Any, *, gated: bool = False) -> Ticket:
        """Submit one control frame."""
        ticket = Ticket()
        encoded = frame.control(kind, self.store.next_lsn(), topic_id, payload)
        self.store.shard_of(topic_id).submit(encoded, gated, ticket)
        return ticket

    def turn(self) -> None:
        """One turn of the loop: write, then run every job that may start."""
        self.store.write()
        run_inline(self.store.jobs())

    def acked(self, *, gated: bool) -> dict[tuple[int, int], bytes]:
        """The records of committed appends of one gate."""
        return {
            (topic_id, first_seq + i): self.tried[topic_id, first_seq + i]
            for ticket, topic_id, first_seq, n, of_gate in self.tickets
            if ticket.committed is not None and of_gate == gated
            for i in range(n)
        }


class Mini:
    """A small engine over a store: topics of records, deletes, seals, checkpoints, moves and drops; no retention.

    It does with storage what the engine does, in the same order, and keeps beside it what it has promised.
    """

    def __init__(self, disk: Disk, **options: Any) -> None:
        self.disk = disk
        self.extents: dict[int, list[Extent]] = {}
        self.segments: dict[int, list[Segment]] = {}
        self.heads: dict[int, int] = {}
        self.lost: set[tuple[int, int]] = set()
        self.damage: list[Any] = []
        options = {"wal_file_bytes": 4096, "cold_directory": "/cold", **options}
        self.store = Store(DIRECTORY, disk=disk, clock=ManualClock(), **options)
        self.store.open()
        for event in self.store.recover():
            self._recover(event)
        self.store.segments.loader.sweep()
        self.store.start()
        if isinstance(disk, FakeDisk):
            disk.monitor.attach(self.store)

    def _recover(self, event: Any) -> None:
        if isinstance(event, TopicLoaded):
            topic_id = event.image.id
            loaded = self.store.segments.loader.load(topic_id, event.image.segments)
            self.segments[topic_id] = loaded.segments
            self.extents[topic_id] = [sealed for found in loaded.segments for sealed in found.blocks]
            self.extents[topic_id] += event.blocks
            self.heads[topic_id] = event.image.head_seq
            self.damage += loaded.damage
            for damage in loaded.damage:
                self._lose(damage.lost)
        elif isinstance(event, Appended):
            self.extents.setdefault(event.topic_id, []).append(event.block)
            self.heads[event.topic_id] = event.block.last_seq
        elif isinstance(event, Control):
            if event.kind == frame.DELETE:
                for first, last in event.payload.runs():
                    self._delete(event.topic_id, first, last)
        elif isinstance(event, Damaged):
            self.damage.append(event)
            for lost in event.lost:
                self._lose(lost)

    def _lose(self, lost: Any) -> None:
        self.lost |= {(lost.topic_id, lost.first_seq + i) for i in range(lost.n)}

    def append(self, topic_id: int, datas: list[bytes], tags: list[bytes | None] | None = None) -> Ticket:
        """One gated append."""
        first_seq = self.heads.get(topic_id, 0) + 1
        made = block.encode(topic_id, first_seq, first_seq, datas, tags=tags)
        ticket = Ticket()
        encoded = frame.append(self.store.next_lsn(), topic_id, first_seq, len(datas), made.raw)
        self.store.shard_of(topic_id).submit(encoded, True, ticket)
        self.extents.setdefault(topic_id, []).append(made)
        self.heads[topic_id] = made.last_seq
        return ticket

    def delete(self, topic_id: int, first: int, last: int) -> Ticket:
        """One gated delete of the seqs first to last."""
        ticket = Ticket()
        # Every second one as bits, as where single records are deleted here and there.
        rest = to_bits(bytes((DELETED,)) * (last - first + 1)) if first % 2 else last
        payload = frame.Deletion(0, [(first, rest)], 1)
        encoded = frame.control(frame.DELETE, self.store.next_lsn(), topic_id, payload)
        self.store.shard_of(topic_id).submit(encoded, True, ticket)
        self._delete(topic_id, first, last)
        return ticket

    def _delete(self, topic_id: int, first: int, last: int) -> None:
        for extent in self.extents.get(topic_id, []):
            i = max(first, extent.first_seq) - extent.first_seq
            j = min(last, extent.last_seq) - extent.first_seq + 1
            if i < j:
                resolve(partial(extent.delete, i, j))

    def turn(self) -> None:
        """One turn of the loop."""
        self.store.write()
        run_inline(self.store.jobs())

    def seal(self, topic_id: int, *, during: Callable[[], None] | None = None) -> None:
        """Turn the Blocks in memory of a topic into a segment; `during` runs while the job does."""
        tail = [extent for extent in self.extents[topic_id] if isinstance(extent, block.Block)]
        builder = Builder(topic_id)
        for found in tail:
            builder.add(found)

        def on_sealed(sealed: list[Segment], error: BaseException | None) -> None:
            assert error is None
            [made] = sealed
            self.segments.setdefault(topic_id, []).append(made)
            rest = [extent for extent in self.extents[topic_id] if extent not in tail]
            self.extents[topic_id] = sorted([*rest, *made.blocks], key=lambda extent: extent.first_seq)

        job = self.store.segments.seal_job([builder], on_sealed)
        job.run()
        if during is not None:
            during()
        job.done(None)

    def relocate(self, topic_id: int, *, during: Callable[[], None] | None = None) -> None:
        """Move the oldest hot segment to the cold tier."""
        found = next(found for found in self.segments[topic_id] if not found.is_cold)
        job = self.store.segments.relocate_job(found)
        assert job is not None
        job.run()
        if during is not None:
            during()
        job.done(None)

    def drop(self, topic_id: int) -> list[int]:
        """Give up the oldest segment, as eviction does; its seqs."""
        found = self.segments[topic_id].pop(0)
        self.store.segments.drop(found)
        self.extents[topic_id] = [
            extent for extent in self.extents[topic_id] if getattr(extent, "segment", None) is not found
        ]
        return list(range(found.first_seq, found.last_seq + 1))

    def checkpoint(self) -> None:
        """Everything that has committed, as a checkpoint."""
        self.store.run_until_idle()
        lsn = self.store.last_lsn
        sections: list[bytes] = []
        essential: list[int] = []
        for topic_id, head in sorted(self.heads.items()):
            refs = [found.ref for found in self.segments.get(topic_id, [])]
            essential.append(len(sections))
            state = snapshot.TopicImage(topic_id, f"t{topic_id}", b"{}", lsn, head_seq=head, segments=refs)
            sections.append(snapshot.topic_section(state))
            for extent in self.extents.get(topic_id, []):
                if isinstance(extent, block.Block):
                    encoded = extent.encoded()
                    sections.append(snapshot.block_section(lsn, topic_id, extent.first_seq, extent.n, encoded))
        job = self.store.checkpoint(sections, essential, lsn=lsn, next_topic_id=99)
        assert job is not None
        run_inline([job])

    def records(self) -> dict[tuple[int, int], bytes]:
        """Every live record; a damaged Block counts as lost."""
        there: dict[tuple[int, int], bytes] = {}
        for topic_id, extents in self.extents.items():
            for extent in extents:
                try:
                    found = resolve(extent.block)
                except Corrupt as corrupt:
                    self.damage.append(corrupt)
                    self._lose(corrupt.lost)
                    continue
                for i, j in extent.live_runs(0, extent.n):
                    for k in range(i, j):
                        there[topic_id, extent.first_seq + k] = found.data(k)
        return there


def resolve(command: Callable[[], Any]) -> Any:
    """Execute a command as a driver does: run the job of a Miss, then try again."""
    for _ in range(MISSES_MAX):
        try:
            return command()
        except Miss as miss:
            run_inline([miss.job])
    raise AssertionError("the command never had what it needs")
