"""What the storage tests share: a writer that knows what was acknowledged, and a reader of what recovery gives back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from topics.clock import Clock
from topics.errors import TopicsError
from topics.storage import block, frame, snapshot
from topics.storage.disk import Disk
from topics.storage.job import run_inline
from topics.storage.recovery import SectionLoaded, Started, TopicLoaded
from topics.storage.replay import Appended, Control, Damaged
from topics.storage.store import Store
from topics.testing.clock import ManualClock
from topics.testing.disk import FakeDisk

DIRECTORY = "/data"


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


class Recovered:
    """The events of a recovery, applied as an engine would: records by topic and seq, all else as it came."""

    def __init__(self, events: Iterable[Any]) -> None:
        self.records: dict[int, dict[int, bytes]] = {}
        self.heads: dict[int, int] = {}
        self.gaps: list[tuple[int, int, int]] = []
        self.controls: list[Control] = []
        self.damaged: list[Damaged] = []
        self.sections: list[SectionLoaded] = []
        self.topics: dict[int, snapshot.TopicState] = {}
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
            self.topics[event.state.id] = event.state
            self.heads[event.state.id] = event.state.head_seq
            for found in event.blocks:
                self._take(event.state.id, found, loaded=True)
        elif isinstance(event, SectionLoaded):
            self.sections.append(event)
        elif isinstance(event, Appended):
            for extra in event.extras:
                self.extras[event.topic_id, extra.first_seq] = extra.data
            self._take(event.topic_id, event.block, loaded=False)
        elif isinstance(event, Control):
            self.controls.append(event)
        else:
            self.damaged.append(event)

    def _take(self, topic_id: int, found: block.Block, *, loaded: bool) -> None:
        assert block.topic_id_of(found) == topic_id
        head = self.heads.get(topic_id, 0)
        if not loaded:
            assert found.first_seq > head, "no record comes twice"
            if found.first_seq > head + 1:
                self.gaps.append((topic_id, head + 1, found.first_seq - 1))
        records = self.records.setdefault(topic_id, {})
        for i, data in enumerate(found.datas()):
            if found.flags is None or found.flags[i] != block.DELETED:
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
