"""Derivation: at a restart, the records that are logged nowhere as such, back at their places (architecture.md).

A router's copies and dead letters follow from other topics' frames, and those may stand in other shards and come in any
order. What makes this exact is that every frame of a topic that takes derived records says where they stood: the
topic's own next seq, and the source seq up to which its router had forwarded. So:

1. Before a frame of such a topic is applied, its log is brought to that place: with the dead letters that belong there,
   and with copies of source records up to the position.
2. Where these are not there yet, because their frames come later, the frame waits, and all later ones of its topic wait
   behind it. Whatever makes progress looks whether somebody waits for it.
3. Before something leaves a source (a delete, a cap, the topic itself), the records that its routers had seen by then
   are held, so that they can still be copied when the destination asks for them. A delete names the routers that
   had not seen everything; for those nothing is held beyond their cursor, because it was never copied.
4. At the end nothing more comes. What is missing then cannot be derived again, and is a lost range of the destination.
   Then everything is copied that stands behind the last positions: it is what readers saw before the crash, or what
   they would have seen next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from topics.engine.log.directory import ranges
from topics.engine.log.loss import CORRUPTION, CRASH, RESTART, SOURCE_TRIM
from topics.engine.queue import event as lease_event
from topics.engine.queue.event import Buried
from topics.engine.queue.queue import queue_of
from topics.engine.router import event as router_event
from topics.engine.router.event import Dropped, Moved, Put, Was
from topics.engine.router.forward import SLICE_RECORDS, Forward, into, out_of
from topics.engine.write import extra as extras
from topics.storage import block as blocks
from topics.storage.block import Block
from topics.storage.damage import Corrupt
from topics.storage.job import Miss, run_inline
from topics.storage.wal import frame as frames
from topics.storage.wal.reader import Appended, Control

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.engine.queue.queue import Queue
    from topics.engine.restart.awaiting_caps import AwaitingCaps
    from topics.engine.topic import Topic

T = TypeVar("T")

ANYWHERE: Final = 1 << 62
_AT_ONCE: Final = frozenset((frames.ROUTER_PUT, frames.ROUTER_DROP, frames.CURSOR, frames.LEASE, frames.DEAD_LETTER))
_DESTRUCTIVE: Final = frozenset((frames.DELETE, frames.DROP, frames.CONFIG, frames.DEAD_LETTER))


class Derivation:
    """Puts derived records between the events of a restart. `apply` is who applies an event as it is."""

    def __init__(
        self,
        engine: Engine,
        by_id: dict[int, Topic],
        caps: AwaitingCaps,
        apply: Callable[[Appended | Control], None],
    ) -> None:
        self._engine = engine
        self._by_id = by_id
        self._caps = caps
        self._apply = apply
        self._waiting: dict[Topic, deque[Appended | Control]] = {}
        self._letters: dict[Topic, dict[int, Block]] = {}
        # Of routers whose frames wait, by lsn: what leaves their sources meanwhile is held here.
        self._expected: dict[int, Forward] = {}
        self._taken: dict[int, int] = {}
        engine.routers.recovering = True

    def load(self, topic: Topic, taken_lsn: int, forward: bytes) -> None:
        """A topic of the checkpoint: what took effect when it was logged is included up to `taken_lsn`."""
        self._taken[topic.id] = taken_lsn
        if forward:
            self._engine.routers.remember(topic.id, forward)

    def take(self, event: Appended | Control) -> None:
        """Apply an event, now or when its place is reached."""
        if isinstance(event, Control) and event.kind == frames.ROUTER_PUT:
            put = router_event.decode_put(event.payload)
            if put.was is not None:
                self._take_apart(event, put, put.was)
                return
        self._take(event)

    def _take_apart(self, event: Control, put: Put, was: Was) -> None:
        """A router goes elsewhere: it leaves its old destination at its place there, and is at the new one at once."""
        for end in put.ends:
            if end.id not in self._by_id:
                self._apply(
                    Control(event.lsn, frames.CREATE, end.id, frames.Create(end.name, end.config, end.created_ts))
                )
        left = Dropped(put.name, was.position, was.dest_seq, was.source_id)
        self._take(Control(event.lsn, frames.ROUTER_DROP, was.dest_id, router_event.encode(left)))
        self._take(Control(event.lsn, frames.ROUTER_PUT, put.dest_id, event.payload))

    def _take(self, event: Appended | Control) -> None:
        topic = self._by_id.get(event.topic_id)
        if isinstance(event, Control) and event.kind in _AT_ONCE and event.lsn <= self._taken.get(event.topic_id, 0):
            return
        if topic is None:
            if isinstance(event, Control) and event.kind == frames.LOST:
                self._settle_as_then(event.payload)
            else:
                self._apply(event)
            return
        if topic not in self._waiting and self._reach(topic, *_place(topic, event), final=False):
            self._act(topic, event)
            return
        self._waiting.setdefault(topic, deque()).append(event)
        if isinstance(event, Control) and event.kind == frames.ROUTER_PUT:
            put = router_event.decode_put(event.payload)
            source = self._by_id.get(put.source_id)
            if source is not None:
                self._expected[event.lsn] = self._engine.routers.forward(source, topic, put.position)

    def waits(self, topic: Topic) -> bool:
        """Whether frames or dead letters of a topic wait for their place."""
        return topic in self._waiting or bool(self._letters.get(topic))

    def lose(self, topic: Topic, first_seq: int, n: int, lsn: int) -> bool:
        """Damage took records of a topic: True if that is seen to at its place between derived ones."""
        if topic.inbound is None and not topic.letters and topic not in self._waiting:
            return False
        moved = Moved(-1, first_seq, -1, n)
        self.take(Control(lsn, frames.CURSOR, topic.id, router_event.encode(moved)))
        return True

    def settle(self, lose_tail: Callable[[Topic], None], reached: dict[int, tuple[int, int]] | None = None) -> None:
        """Nothing more comes from before here: derive what can be, and lose what cannot.

        Where an earlier start did that, `reached` are the places that topics came to which reject what is too much.

        `lose_tail` takes from a topic what it may have shown behind all that it can say. Copies that no frame places
        come behind that: they may have stood behind a write that is lost.
        """
        deriving: dict[Topic, None] = {}
        for topic in list(self._engine.topics.values()):
            if topic.inbound is not None or topic.letters or topic in self._waiting:
                deriving[topic] = None
            else:
                lose_tail(topic)
        topics = [topic for topic in self._engine.routers.lineage.in_order(deriving) if topic in deriving]
        tails = set(topics)

        def advance(topic: Topic) -> bool:
            """Put what is there at its place; once a topic owes nothing more, copy the rest. Whether it has changed."""
            before = topic.log.head, len(self._waiting.get(topic, ()))
            self._place_all(topic)
            if not self._owes(topic):
                if topic in tails:
                    tails.discard(topic)
                    lose_tail(topic)
                self._copy_rest(topic, reached)
            return before != (topic.log.head, len(self._waiting.get(topic, ())))

        while True:
            while sum(map(advance, topics)):
                pass
            # They wait for each other, or for what is gone: the first of them goes on without it.
            stuck = next((topic for topic in topics if self._owes(topic)), None)
            if stuck is None:
                break
            self._reach(stuck, *self._next_place(stuck), final=True)
        for topic in list(self._waiting):
            self._drain(topic, final=True)

    def _place_all(self, topic: Topic) -> None:
        """Put frames and dead letters at their places, as far as what comes before them is there."""
        self._drain(topic, final=False)
        while topic not in self._waiting and self._owes(topic):
            if not self._reach(topic, *self._next_place(topic), final=False):
                return

    def _owes(self, topic: Topic) -> bool:
        """Whether frames or dead letters of a topic still wait for their place."""
        return topic in self._waiting or any(seq > topic.log.head for seq in self._letters.get(topic, ()))

    def _next_place(self, topic: Topic) -> tuple[int, int]:
        if topic in self._waiting:
            return _place(topic, self._waiting[topic][0])
        letters = self._letters[topic]
        first_seq = min(seq for seq in letters if seq > topic.log.head)
        return first_seq + letters[first_seq].n, -1

    def _settle_as_then(self, lost: frames.Lost) -> None:
        """LOST: an earlier start settled here, and gave these ranges up."""
        ranges = {topic_id: (first, last) for topic_id, first, last in lost.ranges}

        def lose_tail(topic: Topic) -> None:
            if topic.id in ranges:
                first, last = ranges[topic.id]
                first = max(first, topic.log.head + 1)
                if first <= last:
                    topic.log.lose(first, last, CRASH)

        self.settle(lose_tail, {topic_id: (at, position) for topic_id, at, position in lost.reached})
        for topic in self._engine.topics.values():
            forward = into(topic)
            if forward is not None:
                forward.rewind()

    def finish(self) -> None:
        """Go over to serving: routers without both ends are gone, and nothing is asked for that was never there."""
        routers = self._engine.routers
        for expected in self._expected.values():
            routers.close(expected)
        routers.drop_strays()
        routers.recovering = False
        for topic in self._engine.topics.values():
            queue = queue_of(topic)
            if queue is not None:
                queue.reconcile()
            forward = into(topic)
            if forward is None:
                continue
            if topic.config.durability == "ephemeral":
                forward.skip_all()
            forward.release()
            forward.rewind()
            if forward.source.outbound is not None:
                forward.source.outbound.published(forward.source)

    def _copy_rest(self, topic: Topic, reached: dict[int, tuple[int, int]] | None) -> None:
        """Copy what no frame places, as far as the topic takes it."""
        forward, rejects = into(topic), topic.config.discard == "reject"
        if forward is None or topic.config.durability == "ephemeral":
            return
        if rejects and reached is not None:
            # How much room there was then cannot be told: later deletes may be on the disk already.
            self._reach(topic, *reached.get(topic.id, (0, -1)), final=False)
            return
        copied = True
        while copied:
            if rejects:
                topic.expire(self._engine.clock.now_ms())
            copied = self._derive(topic, forward, ANYWHERE, ANYWHERE, fitting=rejects)

    def _drain(self, topic: Topic, final: bool) -> None:
        waiting = self._waiting.get(topic)
        if waiting is None:
            return
        while waiting:
            if topic.deleted:
                break
            if not self._reach(topic, *_place(topic, waiting[0]), final=final):
                return
            self._act(topic, waiting.popleft())
        self._waiting.pop(topic, None)

    def _reach(self, topic: Topic, at: int, position: int, final: bool) -> bool:
        """Bring a topic to the place before its seq `at`, from source records up to `position` (-1: any)."""
        log = topic.log
        forward = into(topic)
        upto = ANYWHERE if position < 0 else position
        if topic.config.durability == "ephemeral" and log.head + 1 < at:
            # What it held was in memory only, whatever it followed from; its seqs are not used again.
            log.lose(log.head + 1, at - 1, RESTART)
        while log.head + 1 < at:
            next_seq = log.head + 1
            letters = self._letters.get(topic, {})
            letter = letters.pop(next_seq, None)
            if letter is not None:
                self._adopt(topic, letter)
                continue
            room = min([at, *(seq for seq in letters if seq > next_seq)]) - next_seq
            if forward is not None and self._derive(topic, forward, room, upto):
                continue
            if not final:
                return False
            log.lose(next_seq, next_seq + room - 1, SOURCE_TRIM)
        if forward is not None and position > forward.cursor:
            forward.move(position)
        return True

    def _derive(self, topic: Topic, forward: Forward, room: int, upto: int, fitting: bool = False) -> bool:
        """Copy the next source records, making at most `room` copies; whether there were any to look at.

        What the source has lost stands in the destination as so many lost seqs, so that what follows has its own again.
        """
        lost = forward.lost_next()
        if lost is not None and forward.cursor < upto:
            count, cursor = lost
            first = topic.log.head + 1
            topic.log.lose(first, first + min(room, count * len(forward.routers)) - 1, SOURCE_TRIM)
            forward.move(min(cursor, upto))
            self._progressed(topic)
            return True
        records_max = max(1, min(room, SLICE_RECORDS) // max(1, len(forward.routers)))
        runs = self._patiently(lambda: forward.take(records_max, upto), forward.source)
        if fitting:
            runs = forward.fitting(runs)
        if not runs:
            return False
        made = self._patiently(lambda: forward.make(runs, topic.log.head + 1, topic.last_ts), forward.source)
        if made.block is not None:
            self._adopt(topic, made.block if made.block.n <= room else made.block.slice(0, room))
        return True

    def _adopt(self, topic: Topic, block: Block) -> None:
        self._caps.adopt(topic, block)
        self._progressed(topic)

    def _progressed(self, topic: Topic) -> None:
        """A topic has more than before: whoever derives from it may go on."""
        if topic.outbound is not None and self._waiting:
            for forward in list(out_of(topic)):
                if forward.dest in self._waiting and forward.cursor < topic.log.head:
                    self._drain(forward.dest, final=False)

    def _act(self, topic: Topic, event: Appended | Control) -> None:
        if isinstance(event, Appended):
            head = topic.log.head
            self._apply(event)
            queue = queue_of(topic)
            if queue is not None and event.extras:
                self._hide(topic, queue, event, head)
            if topic.inbound is not None:
                topic.inbound.note_keys(event.block)
            self._progressed(topic)
            return
        kind, payload = event.kind, event.payload
        if topic.outbound is not None and kind in _DESTRUCTIVE:
            deleted = _deleted(event)
            if deleted is not None:
                # What the caps take is held; only then does it show what of that a delete has taken before its turn.
                self._caps.apply(topic, deleted[0].bound_head)
            self._hold(topic, deleted)
        if kind == frames.ROUTER_PUT:
            put, expected = router_event.decode_put(payload), self._expected.pop(event.lsn, None)
            self._engine.routers.restore_put(topic, put, event.lsn, self._waiting.__contains__, expected)
        elif kind == frames.ROUTER_DROP:
            self._engine.routers.restore_drop(topic, router_event.decode_dropped(payload))
        elif kind == frames.CURSOR:
            self._move(topic, router_event.decode_moved(payload))
        elif kind == frames.DEAD_LETTER:
            self._bury(topic, lease_event.decode_buried(payload))
        else:
            self._apply(event)

    @staticmethod
    def _hide(topic: Topic, queue: Queue, event: Appended, head: int) -> None:
        for first_seq, _, data in event.extras:
            for i, due_ms in extras.decode(data).delays or () if first_seq > head else ():
                if topic.log.is_live(first_seq + i) and first_seq + i not in queue.leases:
                    queue.delay(first_seq + i, due_ms)

    def _hold(self, topic: Topic, deleted: tuple[frames.Deletion, dict[int, int]] | None) -> None:
        for forward in out_of(topic):
            upto = topic.log.head
            if deleted is not None and forward.dest.id in deleted[1]:
                upto = deleted[1][forward.dest.id]
                forward.let_go(upto, deleted[0])
            self._patiently(lambda forward=forward, upto=upto: forward.hold(upto), topic)  # type: ignore[misc]

    def _move(self, topic: Topic, moved: Moved) -> None:
        forward = into(topic)
        log = topic.log
        if moved.lost and moved.dest_seq + moved.lost - 1 > log.head:
            reason = SOURCE_TRIM if moved.position >= 0 else CORRUPTION
            log.lose(log.head + 1, moved.dest_seq + moved.lost - 1, reason)
        if forward is not None and moved.source_id in (0, forward.source.id):
            forward.move(max(forward.cursor, moved.cursor))
            forward.ts_min = max(forward.ts_min, moved.ts_min)

    def _bury(self, topic: Topic, buried: Buried) -> None:
        log = topic.log
        dest = self._by_id.get(buried.dest_id)
        block, _ = blocks.decode(buried.block, with_flags=False)
        if dest is not None:
            if block.first_seq > dest.log.head and dest.config.durability != "ephemeral":
                self._letters.setdefault(dest, {})[block.first_seq] = block
            dest.letters = True
            self._engine.routers.lineage.link(topic, dest)
        self._patiently(lambda: log.fetch(ranges(sorted(buried.seqs))), topic)
        self._caps.apply(topic)
        log.delete_seqs(buried.seqs)
        queue = queue_of(topic)
        if queue is not None:
            queue.dead_lettered = max(queue.dead_lettered, buried.total)
        if dest is None:
            return
        if dest in self._waiting:
            self._drain(dest, final=False)
        else:
            self._reach(dest, block.last_seq + 1, _in_source(dest, buried.position, buried.source_id), final=False)

    @staticmethod
    def _patiently(read: Callable[[], T], topic: Topic) -> T:
        """What `read` gives; what it misses is read from the disk here and now."""
        while True:
            try:
                return read()
            except Miss as miss:
                run_inline([miss.job])
            except Corrupt as corrupt:
                topic.lose(corrupt)


def _deleted(event: Control) -> tuple[frames.Deletion, dict[int, int]] | None:
    """What a frame deletes, and the cursors of the routers that had not seen all of it, by destination."""
    if event.kind == frames.DELETE:
        delete: frames.Deletion = event.payload
        return delete, dict(extras.decode_delete(delete.extra).lagging) if delete.extra else {}
    if event.kind == frames.DEAD_LETTER:
        buried = lease_event.decode_buried(event.payload)
        return frames.Deletion(0, [(seq, seq) for seq in buried.seqs], 0), dict(buried.lagging)
    return None


def _place(topic: Topic, event: Appended | Control) -> tuple[int, int]:
    """Where an event stands: (the topic's next seq, the position of its router). (0, -1) where it does not matter."""
    payload: Any
    if isinstance(event, Appended):
        for first_seq, _, data in event.extras:
            if first_seq == event.block.first_seq:
                extra = extras.decode(data)
                if extra.position is not None:
                    return first_seq, _in_source(topic, extra.position, extra.source_id)
        # Where it says nothing of a router that is there, the frame that took it away is lost.
        return (0, -1) if topic.inbound is None else (event.block.first_seq, -1)
    payload = event.payload
    if event.kind == frames.DELETE and payload.extra:
        deleted = extras.decode_delete(payload.extra)
        return deleted.next_seq, _in_source(topic, deleted.position, deleted.source_id)
    if event.kind == frames.CURSOR:
        moved = router_event.decode_moved(payload)
        return moved.dest_seq, _in_source(topic, moved.position, moved.source_id)
    if event.kind == frames.ROUTER_PUT:
        put = router_event.decode_put(payload)
        # One that comes from elsewhere stands in another shard, and does not wait for what this one has still to say.
        return (put.dest_seq, _in_source(topic, put.position, put.source_id)) if put.was is None else (0, -1)
    if event.kind == frames.ROUTER_DROP:
        dropped = router_event.decode_dropped(payload)
        return dropped.dest_seq, _in_source(topic, dropped.position, dropped.source_id)
    return 0, -1


def _in_source(topic: Topic, position: int, source_id: int) -> int:
    """A position, if it is one in the topic's source as far as that is known here; otherwise -1."""
    return position if topic.inbound is None or source_id in (0, topic.inbound.source.id) else -1
