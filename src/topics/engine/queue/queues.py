"""Queues: the commands on queue topics (the QUEUE rules).

A claim without a coalescing window is served at once; one that finds nothing, and every /work stream, waits for a pass.
An ack is a delete of the jobs log and waits for what the topic's class asks; what else happens to leases is waited for
only where `leases_durable` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final

from topics.engine.catalog import Catalog
from topics.engine.config import clamp_lease_ms
from topics.engine.journal import Journal, OnDone, Ticket
from topics.engine.log.log import ANYWHERE
from topics.engine.promise import OnReceipt, Receipt
from topics.engine.queue.acks import Acks
from topics.engine.queue.backoff import pause_ms
from topics.engine.queue.burials import Burials, last_delivery
from topics.engine.queue.claim import Claim, Worker
from topics.engine.queue.dead_letter import DeadLetters
from topics.engine.queue.dispatch import Dispatch
from topics.engine.queue.event import Event, Extended, Released
from topics.engine.queue.failures import shortened
from topics.engine.queue.history import ENDS
from topics.engine.queue.lease import DELAYED, GONE, HELD, Lease, lease_number
from topics.engine.queue.passes import Passes
from topics.engine.queue.queue import Queue
from topics.engine.queue.redrive import Letters, job_of
from topics.engine.queue.requests import (
    DELAY_MS_MAX,
    WAIT_MS_MAX,
    AckedJobs,
    AckJobs,
    ClaimJobs,
    ExtendedJobs,
    ExtendJobs,
    JobState,
    LeaseState,
    NackedJobs,
    NackJobs,
    QueueState,
    RedriveJobs,
    RedrivenJobs,
)
from topics.engine.requests import Write
from topics.engine.slices import Slices, Work
from topics.engine.topic import Topic
from topics.engine.write.batch import refuse_label
from topics.engine.write.removal import remove
from topics.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound, TopicsError
from topics.storage.job import Miss

LEASES_SEEN_MAX: Final = 10_000
"""A look at the leases must not hold up a queue of millions: it sees this many at most."""
SHOWN: Final = HELD | {DELAYED}
READY_STATE: Final = "ready"
STREAM_CLOSED: Final = "the worker's stream was closed"


class Queues:
    """The queue commands of one engine."""

    def __init__(
        self,
        journal: Journal,
        catalog: Catalog,
        link: Callable[[Topic, Topic], None],
        write: Callable[[str, Write, OnDone], Ticket],
        run_until_idle: Callable[[], None],
        slices: Slices,
    ) -> None:
        """`link` notes where dead letters went; `run_until_idle` serves a caller that is not called back."""
        self._journal = journal
        self._clock = journal.clock
        self._write = write
        self._catalog = catalog
        self._topics = catalog.topics
        self._limits = catalog.limits
        self._run_until_idle = run_until_idle
        self._slices = slices
        # The queues that are behind, and catch up.
        self._advancing: set[Topic] = set()
        self.acks = Acks(journal)
        self._dead_letters = DeadLetters(journal, catalog, link)
        self.burials = Burials(journal, self._dead_letters)
        self.dispatch = Dispatch(journal, self._dead_letters, self.burials)
        self.passes = Passes(journal, self.dispatch)

    def topic(self, name: str) -> tuple[Topic, Queue]:
        """The queue of this name; raises TopicNotFound or NotAQueue."""
        topic = self._topics.get(name) or self._catalog.topic(name)
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
        if queue.advance(self._clock.steady_ms()) and topic not in self._advancing:
            self._advancing.add(topic)
            self._slices.start(self._advance(topic, queue), Receipt())
        return QueueState(queue.ready, queue.in_flight, queue.dead_lettered)

    def _advance(self, topic: Topic, queue: Queue) -> Work:
        """Take all steps that are due, in slices, so that the counters are those of the present."""
        try:
            while not topic.deleted and queue.advance(self._clock.steady_ms()):
                yield None
        finally:
            self._advancing.discard(topic)

    def leases(self, name: str, limit: int) -> list[LeaseState]:
        """The jobs that were delivered or delayed, those first that were so first; a look at a bounded number."""
        _, queue = self._present(name)
        ahead_ms = self._clock.now_ms() - self._clock.steady_ms()
        found = []
        for lease in islice(queue.leases.values(), LEASES_SEEN_MAX):
            if lease.state in SHOWN:
                id_ = f"lease_{lease.id:x}" if lease.id else None
                until = lease.due_ms + ahead_ms
                found.append(LeaseState(lease.seq, lease.state, lease.node, id_, until, lease.deliveries))
                if len(found) == limit:
                    break
        return found

    def job(self, name: str, seq: int) -> JobState:
        """The state of one job, and what has happened to it as far as that is kept (QUEUE-41)."""
        topic, queue = self._present(name)
        lease = queue.leases.get(seq)
        steps = queue.history.jobs.get(seq, [])
        if not topic.log.is_live(seq):
            ended = steps[-1].step if steps and steps[-1].step in ENDS else GONE
            return JobState(seq, ended, None, None, steps[-1].delivery if steps else 0, "", steps)
        if lease is None:
            return JobState(seq, READY_STATE, None, None, 0, "", steps)
        shown = lease.state in SHOWN
        until = lease.due_ms + self._clock.now_ms() - self._clock.steady_ms() if shown else None
        node = lease.node if lease.state in HELD else None
        state = lease.state if shown else READY_STATE
        return JobState(seq, state, node, until, lease.deliveries, queue.failures.reasons.get(seq, ""), steps)

    def troubled(self, name: str, limit: int) -> list[JobState]:
        """The jobs that were not done at their first delivery and had a step last, the very last one first."""
        _, queue = self._present(name)
        return [self.job(name, seq) for seq in queue.history.last(limit)]

    def _present(self, name: str) -> tuple[Topic, Queue]:
        """The queue of this name as it is now, for somebody who looks."""
        topic, queue = self.topic(name)
        self.apply_acks(topic)
        queue.advance(self._clock.steady_ms())
        return topic, queue

    # Claiming

    def claim(
        self, name: str, request: ClaimJobs, on_done: Callable[[Claim], None] | None = None, context: Any = None
    ) -> Claim:
        """Lease jobs to a node (QUEUE-2). Without `on_done` nothing is waited for: the answer is what is there."""
        topic, _ = self.topic(name)
        self._check_node(request.node)
        if request.max == 0:
            raise InvalidRequest("max must be at least 1", field="max", min=1)
        if topic.inbound is not None:
            topic.inbound.catch_up()
        now = self._clock.steady_ms()
        max_ = min(request.max, self._limits.max_claim) if self._limits.max_claim else request.max
        until_ms = now + min(request.wait_ms, WAIT_MS_MAX)
        claim = Claim(request.node, max_, request.lease_ms, until_ms, on_done, context)
        if on_done is None:
            claim.until_ms = now
            while claim.demand:
                self.dispatch.serve(topic, [claim], now)
            self._run_until_idle()
            if claim.error is not None:
                raise claim.error
            return claim
        jitter_ms = topic.config.claim_jitter_ms
        if not jitter_ms:
            self.dispatch.serve(topic, [claim], now)
            if not claim.demand:
                return claim
        line = self.passes.join(topic, claim)
        if jitter_ms and line.closes_ms is None:
            line.closes_ms = now + jitter_ms
        self.passes.schedule(topic, now)
        return claim

    def give_up(self, name: str, claim: Claim) -> None:
        """The client that waited for this claim is gone."""
        claim.give_up()
        topic = self._topics.get(name)
        if topic is not None:
            self.passes.leave(topic, claim)

    def work(self, name: str, worker: Worker) -> Topic:
        """Keep a stream filled with jobs from now on, until `stop_work`."""
        topic, _ = self.topic(name)
        self._check_node(worker.node)
        topic.catch_up()
        self.passes.join(topic, worker)
        self.passes.stir(topic)
        return topic

    def stop_work(self, topic: Topic, worker: Worker) -> None:
        """The stream is gone: what was pushed on it is ready again at once (WORK-3)."""
        worker.closed = True
        self.passes.leave(topic, worker)
        queue = topic.queue
        assert isinstance(queue, Queue)
        leases = list(worker.held.values())
        if topic.deleted or not leases:
            return
        now = self._clock.now_ms()
        try:
            self.dispatch.log(topic, Released(worker.node, _seqs(leases), now, now))
        except TopicsError:
            # The storage takes nothing: then the deadline gives the jobs back.
            return
        for lease in leases:
            queue.release(lease)
            queue.history.released(lease, worker.node, now, STREAM_CLOSED, now)
        self.burials.bury(topic, queue)
        self.passes.stir(topic)

    # Completing

    def ack(self, name: str, request: AckJobs, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Complete jobs: the ack is the delete (QUEUE-7); the result is an AckedJobs."""
        now = self._clock.now_ms()
        topic, queue, held, skipped = self._held(name, request, now)
        receipt = Receipt(None, on_done, context)
        if held:
            self.acks.add(topic, request.node, held, receipt)
        queue.advance(self._clock.steady_ms())
        receipt.result = AckedJobs(name, len(held), skipped, queue.ready, queue.in_flight)
        self.passes.stir(topic)
        return self._answer(receipt, bool(held))

    def nack(self, name: str, request: NackJobs, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Give jobs back, to be claimed at once or after a delay (QUEUE-12); the result is a NackedJobs.

        The answer comes once the jobs that have no delivery left are among the dead letters.
        """
        now = self._clock.now_ms()
        topic, queue, held, skipped = self._held(name, request, now)
        reason, steady_ms = shortened(request.reason), self._clock.steady_ms()
        pauses = _pauses(topic, held, request.delay_ms)
        dues = [] if len(set(pauses)) < 2 else [now + pause for pause in pauses]
        receipt, given_back = Receipt(None, on_done, context), Receipt()
        event = Released(request.node, _seqs(held), now + max(pauses, default=0), now, reason, dues)
        logged = self._log_held(topic, held, event, given_back)
        queue.give_back(held, pauses, steady_ms)
        for lease, pause in zip(held, pauses, strict=True):
            queue.history.released(lease, request.node, now, reason, now + pause)
        queue.failures.keep(event.seqs, reason)
        queue.advance(steady_ms)
        moved = None
        if queue.failures.spent:
            self.burials.bury(topic, queue)
            moved = self._dead_letters.moving.get(topic)
        receipt.result = NackedJobs(name, len(held), skipped, queue.ready, queue.in_flight)
        self.passes.stir(topic)
        receipt.follow_all([*([given_back] if logged else []), *([] if moved is None else [moved])])
        return receipt.waited(self._run_until_idle)

    def extend(self, name: str, request: ExtendJobs, on_done: OnReceipt | None = None, context: Any = None) -> Receipt:
        """Extend deadlines (QUEUE-13); the result is an ExtendedJobs."""
        now = self._clock.now_ms()
        topic, queue, held, skipped = self._held(name, request, now)
        lease_ms = clamp_lease_ms(request.lease_ms)
        deadline_ms = now + lease_ms
        receipt = Receipt(None, on_done, context)
        logged = self._log_held(topic, held, Extended(request.node, _seqs(held), deadline_ms, now), receipt)
        queue.extend(held, self._clock.steady_ms() + lease_ms)
        deadlines = {str(lease.seq): deadline_ms for lease in held}
        receipt.result = ExtendedJobs(name, len(held), skipped, deadlines)
        self.passes.stir(topic)
        return self._answer(receipt, logged)

    def redrive(
        self, name: str, request: RedriveJobs, on_done: OnReceipt | None = None, context: Any = None
    ) -> Receipt:
        """Put dead letters of a queue back; the result is a RedrivenJobs. May raise Miss, having changed nothing."""
        topic, _ = self.topic(name)
        dead_letter = topic.config.dead_letter
        if dead_letter is None:
            raise InvalidRequest(f'queue "{name}" has no dead_letter topic to put jobs back from', topic=name)
        if request.seqs is not None:
            self._check_count(request.seqs)
        letters = self._topics.get(dead_letter)
        receipt = Receipt(RedrivenJobs(name, dead_letter, 0, [], request.dry_run), on_done, context)
        if letters is None:
            return self._answer(receipt, False)
        self.apply_acks(letters).catch_up()
        letters.expire(self._clock.now_ms())
        found = Letters(letters, name, request)
        self._slices.start(self._redrive(topic, letters, found, request, receipt), receipt)
        return receipt.waited(self._run_until_idle)

    def _redrive(self, topic: Topic, letters: Topic, chosen: Letters, request: RedriveJobs, receipt: Receipt) -> Work:
        # The jobs are one write.
        limits = [n for n in (request.limit, self._limits.max_claim, self._limits.max_batch_records) if n]
        found = yield from chosen.find(min(limits, default=ANYWHERE))
        seqs = [block.first_seq + i for block, i in found]
        receipt.result = RedrivenJobs(topic.name, letters.name, len(seqs), seqs, request.dry_run)
        if request.dry_run or not found:
            receipt.commit(0, 0)
            return
        if topic.deleted:
            raise TopicNotFound(f'topic "{topic.name}" was deleted', topic=topic.name)

        def appended(ticket: Ticket) -> None:
            if ticket.error is not None:
                receipt.fail(ticket.error)
                return
            try:
                if not remove(self._journal, letters, seqs, receipt, self._clock.now_ms()):
                    receipt.commit(ticket.write_ns, ticket.sync_ns)
            except Miss as miss:
                # The letters have left memory since they were found.
                letters.read_then(miss, partial(appended, ticket))
            except TopicsError as error:
                receipt.fail(error)

        self._write(topic.name, Write([job_of(block, i) for block, i in found], create=False), appended)

    def _answer(self, receipt: Receipt, logged: bool) -> Receipt:
        if not logged:
            receipt.commit(0, 0)
        return receipt.waited(self._run_until_idle)

    def _log_held(self, topic: Topic, held: list[Lease], event: Event, receipt: Receipt) -> bool:
        """Log an event about held jobs; whether the receipt waits for it."""
        if not held:
            return False
        durable = topic.config.leases_durable and topic.config.durability != "ephemeral"
        self.dispatch.log(topic, event, receipt if durable else None)
        return durable

    def _held(
        self, name: str, request: AckJobs | NackJobs | ExtendJobs, now: int
    ) -> tuple[Topic, Queue, list[Lease], list[int]]:
        """The leases among `seqs` that the node holds, and the other seqs."""
        topic, queue = self.topic(name)
        self._check_node(request.node)
        seqs, lease_ids = request.seqs, request.lease_ids
        if not seqs:
            raise InvalidRequest("seqs must name at least one job", field="seqs")
        self._check_count(seqs)
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

    def _check_count(self, seqs: list[int]) -> None:
        max_claim = self._limits.max_claim
        if 0 < max_claim < len(seqs):
            raise BatchTooLarge(
                f"{len(seqs)} seqs in one call; the limit is {max_claim}: split the call",
                field="seqs",
                count=len(seqs),
                limit="max_claim",
                max=max_claim,
            )

    def _check_node(self, node: str) -> None:
        size = len(node.encode())
        bytes_max = self._limits.max_node_bytes
        if not node:
            raise InvalidRequest("node must name the worker", field="node")
        if size > bytes_max:
            refuse_label("node", "node", size, bytes_max)


def _pauses(topic: Topic, leases: list[Lease], delay_ms: int | None) -> list[int]:
    """How long each job stays hidden that is given back now; one that has no delivery left is not hidden."""
    last, config = last_delivery(topic), topic.config
    asked = None if delay_ms is None else min(delay_ms, DELAY_MS_MAX)
    return [
        0 if each.deliveries >= last else pause_ms(config, each.seq, each.deliveries) if asked is None else asked
        for each in leases
    ]


def _seqs(leases: list[Lease]) -> list[int]:
    return [lease.seq for lease in leases]
