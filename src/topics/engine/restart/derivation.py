"""Derivation: at a restart, the order between the frames of a topic and the records that follow from other topics.

A router's copies and dead letters follow from the frames of other topics, which may be in other shards and come in any
order. What makes this exact is that every frame of a topic that takes derived records says its place among them: the
topic's next seq at that moment, and the position, the source seq up to which its router had copied. A position is one
in a certain source, and says nothing where the topic's source is another one: a loss of power may have taken the frame
that changed the router. So:

1. Before a frame of such a topic is applied, its log is brought to that place (refill.py).
2. Where that is not possible yet, because other frames come later, the frame waits, and so do all later ones of its
   topic. Whenever a topic gets more records, the frames that wait for copies of them are tried again.
3. Before something leaves a source (a delete, a cap, the topic itself), the records that its routers had seen by then
   are held, so that they can still be copied when the destination asks for them. A delete names the routers that had
   not seen everything. For those, nothing after their cursor is held, because it was never copied.
4. At the end nothing more comes. What is missing then cannot be made again, and is a lost range of the destination.
   Then everything after the last positions is copied: it is what readers saw before the crash, or would have seen next.
   After a clean stop the positions say everything: the rest comes with the time of its forwarding, as it would have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from topics.engine.engine import Engine
from topics.engine.log.directory import ranges
from topics.engine.log.loss import CORRUPTION, CRASH, SOURCE_TRIM
from topics.engine.queue import event as lease_event
from topics.engine.queue.event import Buried
from topics.engine.queue.queue import queue_of
from topics.engine.restart.awaiting_caps import AwaitingCaps
from topics.engine.restart.refill import ANY_PLACE, Letter, Place, Refill, place_in
from topics.engine.restart.routers import RestoredRouters
from topics.engine.router import event as router_event
from topics.engine.router.event import Dropped, Moved, Put, Was
from topics.engine.router.forward import Forward, into, out_of
from topics.engine.topic import Topic
from topics.engine.write import extra as extras
from topics.storage import block as blocks
from topics.storage.wal import frame as frames
from topics.storage.wal.reader import Appended, Control

Event = Appended | Control
Apply = Callable[[Event], None]

_AT_ONCE: Final = frozenset((frames.ROUTER_PUT, frames.ROUTER_DROP, frames.CURSOR, frames.LEASE, frames.DEAD_LETTER))
_DESTRUCTIVE: Final = frozenset((frames.DELETE, frames.DROP, frames.CONFIG, frames.DEAD_LETTER))


class Derivation:
    """Puts derived records between the events of a restart. `apply` applies an event as it is."""

    def __init__(self, engine: Engine, by_id: dict[int, Topic], caps: AwaitingCaps, apply: Apply) -> None:
        self._topics = engine.topics
        self._by_id = by_id
        self._caps = caps
        self._apply = apply
        self._graph = engine.routers.graph
        self.routers = RestoredRouters(self._graph, by_id)
        self._refill = Refill(engine.clock, caps, self._progressed)
        self._waiting: dict[Topic, deque[Event]] = {}
        self._draining: set[Topic] = set()
        # Of ROUTER_PUT frames that wait, by lsn: what leaves their sources in the meantime is held here.
        self._expected: dict[int, Forward] = {}
        self._taken: dict[int, int] = {}

    def load(self, topic: Topic, taken_lsn: int, forward: bytes) -> None:
        """A topic of the checkpoint: what took effect when it was logged is included up to `taken_lsn`."""
        self._taken[topic.id] = taken_lsn
        if forward:
            self.routers.remember(topic.id, forward)

    def take(self, event: Event) -> None:
        """Apply an event, now or when its place is reached."""
        if isinstance(event, Control) and event.kind == frames.ROUTER_PUT:
            put = router_event.decode_put(event.payload)
            if put.was is not None:
                self._take_apart(event, put, put.was)
                return
        self._take(event)

    def _take_apart(self, event: Control, put: Put, was: Was) -> None:
        """A router moves: it leaves its old destination at its place there, and is at the new one at once."""
        for end in put.ends:
            if end.id not in self._by_id:
                create = frames.Create(end.name, end.config, end.created_ts)
                self._apply(Control(event.lsn, frames.CREATE, end.id, create))
        left = Dropped(put.name, was.position, was.dest_seq, was.source_id, was.run)
        self._take(Control(event.lsn, frames.ROUTER_DROP, was.dest_id, router_event.encode(left)))
        self._take(Control(event.lsn, frames.ROUTER_PUT, put.dest_id, event.payload))

    def _take(self, event: Event) -> None:
        topic = self._by_id.get(event.topic_id)
        kind = event.kind if isinstance(event, Control) else frames.APPEND
        if kind in _AT_ONCE and event.lsn <= self._taken.get(event.topic_id, 0):
            return
        if topic is None:
            if isinstance(event, Control) and kind == frames.LOST:
                self._complete_as_then(event.payload)
            else:
                self._apply(event)
            return
        if topic not in self._waiting and self._refill.reach(topic, _place_of(topic, event)):
            self._act(topic, event)
            return
        self._waiting.setdefault(topic, deque()).append(event)
        if isinstance(event, Control) and kind == frames.ROUTER_PUT:
            expected = self.routers.expect(router_event.decode_put(event.payload), topic)
            if expected is not None:
                self._expected[event.lsn] = expected

    def waits(self, topic: Topic) -> bool:
        """Whether frames or dead letters of a topic wait for their place."""
        return topic in self._waiting or bool(self._refill.letters.get(topic))

    def lose(self, topic: Topic, first_seq: int, n: int, lsn: int) -> bool:
        """Damage took records of a topic: True where their place is among derived ones, and they are lost there."""
        if not self._derives(topic):
            return False
        moved = Moved(-1, first_seq, -1, n)
        self.take(Control(lsn, frames.CURSOR, topic.id, router_event.encode(moved)))
        return True

    def _derives(self, topic: Topic) -> bool:
        return topic.inbound is not None or topic.letters or topic in self._waiting

    def complete(
        self,
        lose_tail: Callable[[Topic], None],
        lost_power: bool,
        reached: dict[int, tuple[int, int]] | None = None,
        rest: bool = True,
    ) -> None:
        """Nothing more comes from before here: make what can be made again, and lose what cannot.

        Where an earlier start did that, `reached` are the places that topics came to which reject what is too much.
        Without `rest` no copy was made after the last positions: then there is nothing to make again.

        `lose_tail` takes from a topic what it may have shown after everything that the log has. Copies that no frame
        places come after that: they may have come after a write that is lost.
        """
        deriving = {topic: None for topic in self._topics.values() if self._derives(topic)} | self._awaited_letters()
        for topic in list(self._topics.values()):
            if topic not in deriving:
                lose_tail(topic)
                self._refill.end_certainty(topic, lost_power)
        topics = [topic for topic in self._graph.lineage.in_order(deriving) if topic in deriving]
        tails = set(topics)

        def advance(topic: Topic) -> bool:
            """Put what is there at its place; once nothing waits any more, copy the rest. Whether it has changed."""
            before = topic.log.head, len(self._waiting.get(topic, ()))
            self._place_all(topic)
            if self._next_place(topic) is None:
                if topic in tails:
                    tails.discard(topic)
                    lose_tail(topic)
                    self._refill.end_certainty(topic, lost_power)
                if rest:
                    self._refill.copy_rest(topic, reached)
            return before != (topic.log.head, len(self._waiting.get(topic, ())))

        while True:
            while sum(map(advance, topics)):
                pass
            # They wait for each other, or for what is gone: the first of them continues without it.
            stuck = [(topic, place) for topic in topics if (place := self._next_place(topic)) is not None]
            if not stuck:
                break
            awaiting = self._letters_ahead()
            first = next((each for each in stuck if each[0].id not in awaiting), stuck[0])
            self._refill.reach(*first, final=True)
        for topic in list(self._waiting):
            self._drain(topic, final=True)
        self._refill.certain.clear()

    def _letters_ahead(self) -> set[int]:
        """The ids of topics to which dead letters go whose own frames wait still."""
        events = [event for waiting in self._waiting.values() for event in waiting if isinstance(event, Control)]
        letters = [event for event in events if event.kind == frames.DEAD_LETTER]
        return {lease_event.decode_buried(event.payload).dest_id for event in letters}

    def _awaited_letters(self) -> dict[Topic, None]:
        """The topics of the dead letters in frames that wait for their own place."""
        waiting = [event for events in self._waiting.values() for event in events]
        dests = [
            self._by_id.get(lease_event.decode_buried(event.payload).dest_id)
            for event in waiting
            if isinstance(event, Control) and event.kind == frames.DEAD_LETTER
        ]
        return {dest: None for dest in dests if dest is not None}

    def _place_all(self, topic: Topic) -> None:
        """Put frames and dead letters at their places, as far as what comes before them is there."""
        self._drain(topic)
        while topic not in self._waiting and (place := self._refill.next_letter(topic)) is not None:
            if not self._refill.reach(topic, place):
                return

    def _next_place(self, topic: Topic) -> Place | None:
        """The next place that a frame or a dead letter of a topic waits for, or None."""
        if topic in self._waiting:
            return _place_of(topic, self._waiting[topic][0])
        return self._refill.next_letter(topic)

    def _complete_as_then(self, lost: frames.Lost) -> None:
        """LOST: an earlier start came to its end here, and gave these ranges up."""
        ranges = {topic_id: (first, last) for topic_id, first, last in lost.ranges}

        def lose_tail(topic: Topic) -> None:
            if topic.id in ranges:
                first, last = ranges[topic.id]
                first = max(first, topic.log.head + 1)
                if first <= last:
                    # Of a topic with its state lost, it was not known how far its seqs went.
                    topic.log.lose(first, last, CORRUPTION if topic.id in self.routers.strangers else CRASH)

        reached = {topic_id: (at, position) for topic_id, at, position in lost.reached}
        self.complete(lose_tail, lost.lost_power, reached)
        for topic in self._topics.values():
            forward = into(topic)
            if forward is not None:
                forward.backlog.rewind()

    def finish(self) -> None:
        """Go over to serving."""
        for expected in self._expected.values():
            self._graph.close(expected)
        self.routers.finish(self._topics.values())
        for topic in self._topics.values():
            queue = queue_of(topic)
            if queue is not None:
                queue.reconcile()

    def _drain(self, topic: Topic, final: bool = False) -> None:
        """Apply the frames of a topic that wait, as far as their places can be reached."""
        waiting = self._waiting.get(topic)
        # Where topics follow from each other in a circle, what is applied here leads back here: it goes on below.
        if waiting is None or topic in self._draining:
            return
        self._draining.add(topic)
        try:
            while waiting and not topic.deleted:
                if not self._refill.reach(topic, _place_of(topic, waiting[0]), final=final):
                    return
                self._act(topic, waiting.popleft())
            self._waiting.pop(topic, None)
        finally:
            self._draining.discard(topic)

    def _progressed(self, topic: Topic) -> None:
        """A topic has more records than before: destinations that wait for them may continue."""
        if topic.outbound is not None and self._waiting:
            for forward in list(out_of(topic)):
                if forward.dest in self._waiting and forward.cursor < topic.log.head:
                    self._drain(forward.dest)

    def _act(self, topic: Topic, event: Event) -> None:
        """Apply an event at its place."""
        if isinstance(event, Appended):
            self._append(topic, event)
            return
        kind, payload = event.kind, event.payload
        if topic.outbound is not None and kind in _DESTRUCTIVE:
            self._hold(topic, event)
        if kind == frames.ROUTER_PUT:
            put, expected = router_event.decode_put(payload), self._expected.pop(event.lsn, None)
            self.routers.put(topic, put, event.lsn, expected)
        elif kind == frames.ROUTER_DROP:
            self.routers.drop(topic, router_event.decode_dropped(payload))
        elif kind == frames.CURSOR:
            self._move(topic, router_event.decode_moved(payload))
        elif kind == frames.DEAD_LETTER:
            self._bury(topic, lease_event.decode_buried(payload))
        else:
            self._apply(event)

    def _append(self, topic: Topic, event: Appended) -> None:
        head, queue = topic.log.head, queue_of(topic)
        self._apply(event)
        if queue is not None:
            for first_seq, _, data in event.extras:
                extra = extras.decode(data)
                for i, due_ms in extra.delays or () if first_seq > head else ():
                    seq = first_seq + i
                    if topic.log.is_live(seq) and seq not in queue.leases:
                        dated = i in (extra.dated or ())
                        queue.delay([seq], due_ms, None if dated else event.block.ts_at(seq - event.block.first_seq))
        if topic.inbound is not None:
            topic.inbound.note_stamps(event.block)
        self._progressed(topic)

    def _hold(self, topic: Topic, event: Control) -> None:
        """Hold what is about to leave a topic, for each router out of it as far as it had seen it."""
        deleted = _deleted_by(event)
        if deleted is not None:
            # What the caps take is held; only then is it known what of that a delete has taken before its turn.
            self._caps.apply(topic, deleted[0].bound_head)
        for forward in out_of(topic):
            upto, backlog = topic.log.head, forward.backlog
            if deleted is not None and forward.dest.id in deleted[1]:
                upto = deleted[1][forward.dest.id]
                assert backlog.held is not None
                backlog.held.drop_deleted(upto, deleted[0])
            topic.reading(backlog.hold, upto)

    @staticmethod
    def _move(topic: Topic, moved: Moved) -> None:
        """CURSOR: what was lost before it was copied, and from when on copies are dated."""
        forward, log = into(topic), topic.log
        if moved.lost and moved.dest_seq + moved.lost - 1 > log.head:
            reason = SOURCE_TRIM if moved.position >= 0 else CORRUPTION
            log.lose(log.head + 1, moved.dest_seq + moved.lost - 1, reason)
        if forward is not None and moved.source_id in (0, forward.source.id):
            forward.backlog.move(max(forward.cursor, moved.cursor))
            forward.ts_min = max(forward.ts_min, moved.ts_min)

    def _bury(self, topic: Topic, buried: Buried) -> None:
        """DEAD_LETTER: jobs left the queue, and are due in the dead-letter topic."""
        log, dest = topic.log, self._by_id.get(buried.dest_id)
        block, _ = blocks.decode(buried.block, with_flags=False)
        if dest is not None:
            if block.first_seq > dest.log.head and dest.config.durability != "ephemeral":
                letter = Letter(block, buried.position, buried.source_id, buried.run)
                self._refill.letters.setdefault(dest, {})[block.first_seq] = letter
            dest.letters = True
            self._graph.lineage.link(topic, dest)
        self._caps.apply(topic, buried.bound_head)
        topic.reading(log.raise_floors, *buried.evicted)
        topic.fetch(ranges(sorted(buried.seqs)))
        log.delete_seqs(buried.seqs)
        queue = queue_of(topic)
        if queue is not None:
            queue.dead_lettered = max(queue.dead_lettered, buried.total)
        if dest is None:
            return
        if dest in self._waiting:
            self._drain(dest)
        else:
            self._refill.reach(dest, place_in(dest, block.last_seq + 1, buried.position, buried.source_id, buried.run))


def _place_of(topic: Topic, event: Event) -> Place:
    """The place of an event among a topic's derived records; ANY_PLACE where it does not matter."""
    if isinstance(event, Appended):
        for first_seq, _, data in event.extras:
            if first_seq == event.block.first_seq:
                extra = extras.decode(data)
                if extra.position is not None:
                    return place_in(topic, first_seq, extra.position, extra.source_id, extra.run)
        return ANY_PLACE if topic.inbound is None else place_in(topic, event.block.first_seq, -1, 0, None)
    kind, payload = event.kind, event.payload
    if kind == frames.DELETE and payload.extra:
        deleted = extras.decode_delete(payload.extra)
        return place_in(topic, deleted.next_seq, deleted.position, deleted.source_id, deleted.run)
    if kind == frames.ROUTER_PUT:
        put = router_event.decode_put(payload)
        # One that comes from elsewhere is in another shard, and waits for nothing that this one has still to say.
        if put.was is not None and (topic.inbound is None or topic.inbound.source.id == put.source_id):
            return ANY_PLACE
        return place_in(topic, put.dest_seq, put.position, put.source_id, put.run)
    if kind == frames.DEAD_LETTER:
        place = lease_event.decode_buried(payload).place
        return ANY_PLACE if place is None else place_in(topic, *place)
    if kind == frames.ROUTER_DROP:
        left = router_event.decode_dropped(payload)
        return place_in(topic, left.dest_seq, left.position, left.source_id, left.run)
    if kind == frames.CURSOR:
        moved = router_event.decode_moved(payload)
        if moved.position < 0:
            # Damage took records here, and the copies before them follow from what is left.
            return Place(moved.dest_seq, -1)
        at = place_in(topic, moved.dest_seq, moved.position, moved.source_id, moved.run)
        return at._replace(run_ts=moved.run_ts)
    return ANY_PLACE


def _deleted_by(event: Control) -> tuple[frames.Deletion, dict[int, int]] | None:
    """What a frame deletes, and the cursors of the routers that had not seen all of it, by destination."""
    if event.kind == frames.DELETE:
        delete: frames.Deletion = event.payload
        return delete, dict(extras.decode_delete(delete.extra).lagging) if delete.extra else {}
    if event.kind == frames.DEAD_LETTER:
        buried = lease_event.decode_buried(event.payload)
        ranges_of = [(seq, seq) for seq in buried.seqs]
        return frames.Deletion(0, ranges_of, 0, bound_head=buried.bound_head), dict(buried.lagging)
    return None
