"""Queues: the commands on queue topics, and the passes that hand jobs out (API §10, DESIGN §10).

A claim without a coalescing window is served where it stands. Everybody else waits in the queue's Line, and a pass
serves them together: at the end of the turn in which jobs were produced or given back, when a window closes, when a
lease runs out or a delay ends, and when a claim has waited long enough. Where nobody waits, nothing is looked at.

Lease events go to the WAL as one frame per call. They are not waited for unless `leases_durable` says so: losing them
only makes jobs claimable again. An ack is a delete of the jobs log and waits for what the topic's class asks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from topics.engine.config import clamp_lease_ms
from topics.engine.queue import event as lease_event
from topics.engine.queue.acks import Acks
from topics.engine.queue.claim import NOTHING, Claim, Claimer, Hand, deal, job_texts, shares
from topics.engine.queue.dead_letter import DeadLetters
from topics.engine.queue.event import Claimed, Event, Extended, Released
from topics.engine.queue.lease import LAPSED, Lease, lease_number
from topics.engine.queue.line import Line
from topics.engine.queue.queue import Queue
from topics.engine.queue.requests import (
    DELAY_MS_MAX,
    WAIT_MS_MAX,
    AckedJobs,
    AckJobs,
    ClaimJobs,
    ExtendedJobs,
    ExtendJobs,
    NackedJobs,
    NackJobs,
    QueueState,
)
from topics.engine.queue.worker import Worker
from topics.engine.write.ticket import OnReceipt, Promise, Receipt
from topics.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound, TopicsError
from topics.storage.segment.segment import Miss
from topics.storage.wal import frame as frames

if TYPE_CHECKING:
    from topics.engine.catalog import Catalog
    from topics.engine.journal import Journal
    from topics.engine.queue.queue import Candidate
    from topics.engine.topic import Topic

    Served = tuple[Claimer, Hand, Receipt | None]

LEASE_ID_SHIFT: Final = 20


class Queues:
    """The queue commands of one engine."""

    def __init__(
        self,
        journal: Journal,
        catalog: Catalog,
        link: Callable[[Topic, Topic], None],
        run_until_idle: Callable[[], None],
    ) -> None:
        """`link` notes where dead letters went; `run_until_idle` serves a caller that is not called back."""
        self._journal = journal
        self._clock = journal.clock
        self._catalog = catalog
        self._limits = catalog.limits
        self._run_until_idle = run_until_idle
        self._lines: dict[Topic, Line] = {}
        self._dirty: dict[Topic, None] = {}
        self._due: list[tuple[int, int, Topic]] = []
        self._serial = 0
        self.dead_letters = DeadLetters(journal, catalog, link)
        self.acks = Acks(journal)
        # Ids rise over restarts too, because time does: a token from before never fits a lease of today.
        self._last_id = self._clock.now_ms() << LEASE_ID_SHIFT

    def topic(self, name: str) -> tuple[Topic, Queue]:
        """The queue of this name; raises TopicNotFound or NotAQueue."""
        topic = self._catalog.topic(name)
        queue = topic.queue
        if not isinstance(queue, Queue):
            raise NotAQueue(f'topic "{name}" is a log, not a queue', topic=name, type=topic.config.type)
        return topic, queue

    def check(self, name: str, node: str) -> None:
        """Raise where `node` could not work on this queue."""
        self.topic(name)
        self._check_node(node)

    def apply_acks(self, topic: Topic) -> Topic:
        """The topic, without the jobs that were acked and wait for the end of the turn."""
        if topic.queue is not None and topic.queue.leaving:
            self.acks.apply(topic)
        return topic

    def state(self, topic: Topic) -> QueueState:
        """The counters of a queue right now."""
        queue = topic.queue
        assert isinstance(queue, Queue)
        queue.advance(self._clock.now_ms())
        return QueueState(queue.ready, queue.in_flight, queue.dead_lettered)

    # Claiming

    def claim(
        self, name: str, request: ClaimJobs, on_done: Callable[[Claim], None] | None = None, context: Any = None
    ) -> Claim:
        """Lease jobs to a node (API §10.2). Without `on_done` nothing is waited for: the answer is what is there."""
        topic, _ = self.topic(name)
        self._check_node(request.node)
        if request.max == 0:
            raise InvalidRequest("max must be at least 1", field="max", min=1)
        if topic.inbound is not None:
            topic.inbound.catch_up()
        now = self._clock.now_ms()
        max_ = min(request.max, self._limits.max_claim) if self._limits.max_claim else request.max
        until_ms = now + min(request.wait_ms, WAIT_MS_MAX)
        claim = Claim(request.node, max_, request.lease_ms, until_ms, on_done, context)
        if on_done is None:
            claim.until_ms = now
            self._serve(topic, [claim], now)
            self._run_until_idle()
            if claim.error is not None:
                raise claim.error
            return claim
        if not topic.config.claim_jitter_ms:
            self._serve(topic, [claim], now)
            if not claim.demand:
                return claim
        self._stand_in_line(topic, claim)
        if topic.config.claim_jitter_ms:
            line = self._lines[topic]
            if line.closes_ms is None:
                line.closes_ms = now + topic.config.claim_jitter_ms
        self._schedule(topic, now)
        return claim

    def give_up(self, name: str, claim: Claim) -> None:
        """Whoever waited for this claim is gone."""
        claim.give_up()
        for topic, line in list(self._lines.items()):
            if topic.name == name:
                line.leave(claim)
                self._drop_if_empty(topic, line)

    def work(self, name: str, worker: Worker) -> Topic:
        """Keep a stream filled with jobs from now on, until `stop_work`."""
        topic, _ = self.topic(name)
        self._check_node(worker.node)
        topic.catch_up()
        self._stand_in_line(topic, worker)
        self.stir(topic)
        return topic

    def stop_work(self, topic: Topic, worker: Worker) -> None:
        """The stream is gone: what was pushed on it is ready again at once (API §10.8)."""
        worker.closed = True
        line = self._lines.get(topic)
        if line is not None:
            line.leave(worker)
            self._drop_if_empty(topic, line)
        queue = topic.queue
        assert isinstance(queue, Queue)
        leases = list(worker.held.values())
        if topic.deleted or not leases:
            return
        now = self._clock.now_ms()
        try:
            self._log(topic, Released(worker.node, [lease.seq for lease in leases], now, now))
        except TopicsError:
            # The storage takes nothing: then the deadline gives the jobs back.
            return
        for lease in leases:
            queue.release(lease)
        self.stir(topic)

    def stir(self, topic: Topic) -> None:
        """Something about the queue has changed: have a pass at the end of the turn if anybody waits."""
        if topic in self._lines and topic not in self._dirty:
            self._dirty[topic] = None
            self._journal.wake()

    def step(self) -> None:
        """Hold the passes that are due."""
        if not self._due and not self._dirty:
            return
        now = self._clock.now_ms()
        while self._due and self._due[0][0] <= now:
            self._dirty[heapq.heappop(self._due)[2]] = None
        dirty, self._dirty = self._dirty, {}
        for topic in dirty:
            try:
                self._pass(topic, now)
            except Miss as miss:
                topic.read_then(miss, partial(self.stir, topic))

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do at once."""
        return bool(self._dirty)

    def next_due_ms(self) -> int | None:
        """When `step` will next have something to do, or None."""
        return self._due[0][0] if self._due else None

    def _stand_in_line(self, topic: Topic, claimer: Claimer) -> None:
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = Line()
            topic.listeners.append(self._published)
        line.claimers.append(claimer)

    def _drop_if_empty(self, topic: Topic, line: Line) -> None:
        if not line.claimers and self._lines.get(topic) is line:
            del self._lines[topic]
            if self._published in topic.listeners:
                topic.listeners.remove(self._published)

    def _published(self, topic: Topic) -> None:
        if not topic.deleted:
            self.stir(topic)
            return
        line = self._lines.pop(topic, None)
        for claimer in line.claimers if line is not None else ():
            claimer.fail(TopicNotFound(f'topic "{topic.name}" was deleted', topic=topic.name))

    def _pass(self, topic: Topic, now: int) -> None:
        line = self._lines.get(topic)
        if line is None:
            return
        queue = topic.queue
        assert isinstance(queue, Queue)
        topic.expire(now)
        queue.advance(now)
        jitter_ms = topic.config.claim_jitter_ms
        if jitter_ms and line.closes_ms is None and queue.ready and line.wanting():
            line.closes_ms = now + jitter_ms
        if line.closes_ms is None or line.closes_ms <= now:
            line.closes_ms = None
            claimers = line.wanting()
            line.settle([claimer for claimer, _, _ in self._serve(topic, claimers, now)])
            self._drop_if_empty(topic, line)
        self._schedule(topic, now)

    def _schedule(self, topic: Topic, now: int) -> None:
        """Come back when the next thing happens that somebody in the line waits for."""
        line = self._lines.get(topic)
        if line is None:
            return
        due = line.next_due_ms()
        if line.closes_ms is None:
            queue = topic.queue
            assert isinstance(queue, Queue)
            ready_ms = queue.next_due_ms()
            if ready_ms is not None:
                due = ready_ms if due is None else min(due, ready_ms)
        if due is not None:
            self._serial += 1
            heapq.heappush(self._due, (max(due, now), self._serial, topic))
            if len(self._due) > 2 * len(self._lines) + 64:
                self._forget_stale_dues()
            self._journal.wake()

    def _forget_stale_dues(self) -> None:
        earliest: dict[Topic, tuple[int, int, Topic]] = {}
        for entry in self._due:
            if entry[2] in self._lines and (entry[2] not in earliest or entry < earliest[entry[2]]):
                earliest[entry[2]] = entry
        self._due = sorted(earliest.values())

    def _serve(self, topic: Topic, claimers: Sequence[Claimer], now: int) -> list[Served]:
        """Divide what is ready among the claimers; who got something. A claim whose wait is over is answered.

        Nothing has changed where this raises Miss.
        """
        queue = topic.queue
        assert isinstance(queue, Queue)
        if topic.config.ttl_ms:
            topic.expire(now)
        queue.advance(now)
        demands = [claimer.demand for claimer in claimers]
        jobs = topic.reading(self._choose, topic, queue, sum(demands), now)
        served: list[Served] = []
        hands = [jobs] if len(claimers) == 1 else deal(jobs, shares(len(jobs), demands))
        for claimer, dealt in zip(claimers, hands, strict=True):
            if dealt or (isinstance(claimer, Claim) and claimer.until_ms <= now):
                try:
                    served.append((claimer, *self._lease(topic, queue, claimer, dealt, now)))
                except TopicsError as error:
                    claimer.fail(error)
        if queue.free:
            queue.prune_free()
        # Who is told that a job was moved finds it where it went.
        moving = self.dead_letters.moving
        moved = moving.get(topic) if moving else None
        for claimer, hand, receipt in served:
            if moved is None and receipt is None:
                claimer.deliver(hand, queue.ready)
            else:
                _deliver_behind(claimer, hand, queue.ready, [each for each in (receipt, moved) if each is not None])
        return served

    def _choose(self, topic: Topic, queue: Queue, wanted: int, now: int) -> list[Candidate]:
        """Up to `wanted` jobs; those that were delivered too often go to the dead letters on the way."""
        if not queue.free:
            return queue.choose_fresh(wanted)
        max_deliveries = topic.config.max_deliveries
        if not max_deliveries or topic.config.dead_letter is None:
            return queue.choose(wanted)[0]
        jobs, dead = queue.choose(wanted, lambda lease: lease.deliveries >= max_deliveries)
        if dead and not self.dead_letters.bury(topic, queue, dead, now):
            # There is no way to the dead-letter topic: it may not be created, so the jobs go on being delivered.
            return queue.choose(wanted)[0]
        return jobs

    def _lease(
        self, topic: Topic, queue: Queue, claimer: Claimer, jobs: list[Candidate], now: int
    ) -> tuple[Hand, Receipt | None]:
        if not jobs:
            claimer.took([])
            return NOTHING, None
        jobs.sort(key=itemgetter(0))
        config = topic.config
        deadline_ms = now + (config.lease_ms if claimer.lease_ms is None else clamp_lease_ms(claimer.lease_ms))
        first_id = self._last_id + 1
        seqs, _, leases = zip(*jobs, strict=True)
        again = any(leases)
        event = Claimed(
            claimer.node,
            list(seqs),
            [1 if lease is None else lease.deliveries + 1 for lease in leases] if again else [1] * len(seqs),
            first_id,
            deadline_ms,
            now,
            [lease.seq for lease in leases if lease is not None and lease.state is LAPSED] if again else [],
        )
        receipt = Receipt() if config.leases_durable else None
        self._log(topic, event, receipt)
        self._last_id += len(jobs)
        leased = queue.lease(jobs, claimer.node, first_id, deadline_ms)
        claimer.took(leased)
        if receipt is not None and receipt.done:
            receipt = None
        return Hand(leased, job_texts(jobs, leased)), receipt

    def _log(self, topic: Topic, event: Event, receipt: Receipt | None = None) -> None:
        """Append to the leases log. A queue whose jobs are resident only has a log that is, too."""
        if topic.config.durability == "ephemeral":
            if receipt is not None:
                receipt.commit(0, 0)
            return
        frame = frames.encode(frames.LEASE, self._journal.next_lsn(), topic.id, lease_event.encode(event))
        self._journal.submit(topic, frame, receipt is not None, receipt)

    # Completing

    def ack(self, name: str, request: AckJobs, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Complete jobs: the ack is the delete (API §10.4); the result is an AckedJobs."""
        now = self._clock.now_ms()
        topic, queue, held, skipped = self._held(name, request, now)
        receipt = Receipt(None, on_done, context)
        if held:
            self.acks.add(topic, request.node, held, receipt)
        queue.advance(now)
        receipt.result = AckedJobs(name, len(held), skipped, queue.ready, queue.in_flight)
        self.stir(topic)
        return self._answer(receipt, bool(held))

    def nack(self, name: str, request: NackJobs, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Give jobs back, to be claimed at once or after a delay (API §10.5); the result is a NackedJobs."""
        now = self._clock.now_ms()
        topic, queue, held, skipped = self._held(name, request, now)
        due_ms = now + min(request.delay_ms, DELAY_MS_MAX)
        receipt = Receipt(None, on_done, context)
        logged = self._log_held(topic, held, Released(request.node, _seqs(held), due_ms, now), receipt)
        queue.give_back(held, due_ms, now)
        queue.advance(now)
        receipt.result = NackedJobs(name, len(held), skipped, queue.ready, queue.in_flight)
        self.stir(topic)
        return self._answer(receipt, logged)

    def extend(self, name: str, request: ExtendJobs, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Push deadlines out (API §10.6); the result is an ExtendedJobs."""
        now = self._clock.now_ms()
        topic, queue, held, skipped = self._held(name, request, now)
        deadline_ms = now + clamp_lease_ms(request.lease_ms)
        receipt = Receipt(None, on_done, context)
        logged = self._log_held(topic, held, Extended(request.node, _seqs(held), deadline_ms, now), receipt)
        queue.extend(held, deadline_ms)
        deadlines = {str(lease.seq): deadline_ms for lease in held}
        receipt.result = ExtendedJobs(name, len(held), skipped, deadlines)
        self.stir(topic)
        return self._answer(receipt, logged)

    def _answer(self, receipt: Receipt, logged: bool) -> Receipt:
        if not logged:
            receipt.commit(0, 0)
        return receipt.waited(self._run_until_idle)

    def _log_held(self, topic: Topic, held: list[Lease], event: Event, receipt: Receipt) -> bool:
        """Log an event about held jobs; whether the receipt waits for it."""
        if not held:
            return False
        durable = topic.config.leases_durable and topic.config.durability != "ephemeral"
        self._log(topic, event, receipt if durable else None)
        return durable

    def _held(
        self, name: str, request: AckJobs | NackJobs | ExtendJobs, now: int
    ) -> tuple[Topic, Queue, list[Lease], list[int]]:
        """The leases among `seqs` that the node holds, and the seqs that are none of its own."""
        topic, queue = self.topic(name)
        self._check_node(request.node)
        seqs, lease_ids = request.seqs, request.lease_ids
        if not seqs:
            raise InvalidRequest("seqs must name at least one job", field="seqs")
        max_claim = self._limits.max_claim
        if 0 < max_claim < len(seqs):
            raise BatchTooLarge(
                f"{len(seqs)} seqs in one call; the limit is {max_claim}: split the call",
                field="seqs",
                count=len(seqs),
                limit="max_claim",
                max=max_claim,
            )
        if lease_ids is not None and len(lease_ids) != len(seqs):
            raise InvalidRequest(
                f"lease_ids has {len(lease_ids)} entries and seqs {len(seqs)}: give one per seq, in the same order",
                field="lease_ids",
            )
        if topic.config.ttl_ms:
            topic.expire(now)
        queue.trim()
        ids = None if lease_ids is None else [lease_number(text) for text in lease_ids]
        return topic, queue, *queue.held(request.node, seqs, ids)

    def _check_node(self, node: str) -> None:
        size = len(node.encode())
        bytes_max = self._limits.max_node_bytes
        if not node:
            raise InvalidRequest("node must name the worker", field="node")
        if size > bytes_max:
            raise InvalidRequest(
                f"node has {size} bytes; the limit is {bytes_max}",
                field="node",
                bytes=size,
                limit="max_node_bytes",
                max=bytes_max,
            )

    # Restart

    def restore_event(self, topic: Topic | None, payload: bytes) -> None:
        """LEASE: an event of the leases log."""
        queue = None if topic is None else topic.queue
        if not isinstance(queue, Queue):
            return
        event = lease_event.decode(payload)
        if isinstance(event, Claimed):
            self._last_id = max(self._last_id, event.first_id + len(event.seqs))
        queue.apply(event)


def _seqs(leases: list[Lease]) -> list[int]:
    return [lease.seq for lease in leases]


def _deliver_behind(claimer: Claimer, hand: Hand, ready: int, behind: list[Receipt]) -> None:
    """Deliver once these are done."""

    def safe(durable: Promise) -> None:
        if durable.error is not None:
            claimer.fail(durable.error)
        else:
            claimer.deliver(hand, ready)

    Promise(safe).follow_all(behind)
