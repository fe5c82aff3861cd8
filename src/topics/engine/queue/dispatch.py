"""Dispatch: leases the jobs of a queue to the claimers that want them (QUEUE-2, QUEUE-21).

One call serves a whole cohort of claimers: what is ready is divided among them, what was delivered too often goes to
the dead letters on the way, and each claimer gets its jobs under leases of its own.

Lease events go to the WAL as one frame per claimer. An answer waits for its frame only if `leases_durable` asks for
it: losing one only makes jobs claimable again.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from topics.engine.config import clamp_lease_ms
from topics.engine.journal import Journal
from topics.engine.promise import Promise, Receipt
from topics.engine.queue import event as lease_event
from topics.engine.queue.burials import Burials
from topics.engine.queue.claim import NOTHING, Claim, Claimer, LeasedJobs, divide, job_texts, shares
from topics.engine.queue.dead_letter import DeadLetters
from topics.engine.queue.event import Claimed, Event, LeasesImage, QueueImage
from topics.engine.queue.lease import LAPSED, Candidate, Lease
from topics.engine.queue.queue import Queue
from topics.engine.queue.ready import STALE_MAX
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.storage.wal import frame as frames

Served = tuple[Claimer, LeasedJobs, Receipt | None]
"""A claimer that was answered, with what, and what the answer waits for."""

LEASE_ID_SHIFT: Final = 20
_SEQ_OF: Final = itemgetter(0)
_BLOCK_OF: Final = itemgetter(1)
CLAIM_BYTES_MAX: Final = 8 << 20
"""About how much one division of jobs may hold: each claimer gets a job, and the rest comes with the next claim."""


class Dispatch:
    """Leases the jobs of all queues."""

    __slots__ = ("_burials", "_dead_letters", "_journal", "_last_id")

    def __init__(self, journal: Journal, dead_letters: DeadLetters, burials: Burials) -> None:
        self._journal = journal
        self._dead_letters = dead_letters
        self._burials = burials
        # Ids rise over restarts too, because time does: a token from before never fits a lease of today. Where the
        # clock was set back, they go on above those that the data directory has.
        self._last_id = journal.clock.now_ms() << LEASE_ID_SHIFT

    def serve(self, topic: Topic, claimers: Sequence[Claimer], steady_ms: int) -> list[Served]:
        """Divide what is ready among the claimers; returns those that were answered, also where their wait is over.

        Nothing has changed where this raises Miss.
        """
        queue = topic.queue
        assert isinstance(queue, Queue)
        now = self._journal.clock.now_ms()
        if topic.config.ttl_ms:
            topic.expire(now)
        more = queue.advance(steady_ms)
        demands = [claimer.demand for claimer in claimers]
        wanted = sum(demands)
        jobs = topic.reading(self._choose, topic, queue, wanted, now)
        if len(jobs) > len(claimers) and topic.log.bytes > CLAIM_BYTES_MAX:
            count = _within(jobs, CLAIM_BYTES_MAX, len(claimers))
            queue.stopped |= count < len(jobs)
            del jobs[count:]
        queue.stopped |= more and len(jobs) < wanted
        served: list[Served] = []
        refused: list[Candidate] = []
        parts = [jobs] if len(claimers) == 1 else divide(jobs, shares(len(jobs), demands))
        for claimer, part in zip(claimers, parts, strict=True):
            # A claim whose wait is over is answered once it is known that there is nothing for it.
            if part or (isinstance(claimer, Claim) and claimer.until_ms <= steady_ms and not queue.stopped):
                try:
                    served.append((claimer, *self._lease(topic, queue, claimer, part, now, steady_ms)))
                except TopicsError as error:
                    claimer.fail(error)
                    refused += part
        if refused:
            queue.pass_back(refused)
        if queue.free:
            queue.prune_free()
        # A client that sees from the answer that a job was moved must find it where it went.
        moving = self._dead_letters.moving
        moved = moving.get(topic) if moving else None
        for claimer, leased, receipt in served:
            if moved is None and receipt is None:
                claimer.deliver(leased, queue.ready)
            else:
                _deliver_after(claimer, leased, queue.ready, [each for each in (receipt, moved) if each is not None])
        return served

    def _choose(self, topic: Topic, queue: Queue, wanted: int, now: int) -> list[Candidate]:
        """Up to `wanted` jobs; those that were delivered too often go to the dead letters on the way."""
        if not queue.free:
            queue.stopped = False
            return queue.choose_fresh(wanted)
        max_deliveries = topic.config.max_deliveries
        if not max_deliveries or topic.config.dead_letter is None:
            return queue.choose(wanted)[0]

        def is_dead(lease: Lease) -> bool:
            return lease.deliveries >= max_deliveries

        jobs, dead = queue.choose(wanted, is_dead)
        if dead and not self._dead_letters.bury(topic, queue, dead, now):
            # The dead-letter topic does not exist and may not be created, so the jobs go on being delivered.
            return queue.choose(wanted)[0]
        if dead and dead[-1][0] in queue.leases:
            # The dead-letter topic takes no more: look at what comes after those that stay, as far as that goes.
            jobs, dead = queue.choose(wanted, is_dead, STALE_MAX)
            if queue.stopped:
                queue.pass_over(len(dead))
                queue.stopped = False
        return jobs

    def _lease(
        self, topic: Topic, queue: Queue, claimer: Claimer, jobs: list[Candidate], now: int, steady_ms: int
    ) -> tuple[LeasedJobs, Receipt | None]:
        if not jobs:
            claimer.took([])
            return NOTHING, None
        config = topic.config
        lease_ms = config.lease_ms if claimer.lease_ms is None else clamp_lease_ms(claimer.lease_ms)
        deadline_ms = now + lease_ms
        first_id = self._last_id + 1
        # Those that have a Lease come first (Ready.choose).
        again = jobs[0][2] is not None
        if again:
            jobs.sort(key=_SEQ_OF)
            deliveries = [1 if lease is None else lease.deliveries + 1 for _, _, lease in jobs]
            expired = [seq for seq, _, lease in jobs if lease is not None and lease.state is LAPSED]
        else:
            deliveries, expired = [1] * len(jobs), []
        seqs = list(map(_SEQ_OF, jobs))
        event = Claimed(claimer.node, seqs, deliveries, first_id, deadline_ms, now, expired)
        receipt = Receipt() if config.leases_durable else None
        self.log(topic, event, receipt)
        self._last_id += len(jobs)
        if again:
            leased = queue.lease(jobs, claimer.node, first_id, steady_ms + lease_ms)
        else:
            leased = queue.lease_fresh(seqs, claimer.node, first_id, steady_ms + lease_ms)
        claimer.took(leased)
        if again:
            queue.history.claimed(leased, now, deadline_ms)
        if config.max_deliveries and config.dead_letter is not None:
            queue.failures.expect(config.max_deliveries)
            if (again or config.max_deliveries == 1) and any(
                lease.deliveries >= config.max_deliveries for lease in leased
            ):
                self._burials.look(topic, steady_ms + lease_ms + 1)
        if receipt is not None and receipt.done:
            receipt = None
        return LeasedJobs(leased, job_texts(jobs, leased, deadline_ms)), receipt

    def log(self, topic: Topic, event: Event, receipt: Receipt | None = None) -> None:
        """Append to the leases log. Where the jobs are only in memory, so are the leases."""
        if topic.config.durability == "ephemeral":
            if receipt is not None:
                receipt.commit(0, 0)
            return
        frame = frames.encode(frames.LEASE, self._journal.next_lsn(), topic.id, lease_event.encode(event))
        self._journal.submit(topic, frame, receipt is not None, receipt)

    def load(self, queue: Queue, image: bytes) -> None:
        """Take over a queue of a checkpoint."""
        state = lease_event.decode_image(image)
        self._pass_ids(state)
        queue.restore(state)

    def load_leases(self, queue: Queue, image: bytes) -> None:
        """Take over a piece of the leases of a queue of a checkpoint."""
        state = lease_event.decode_leases(image)
        self._pass_ids(state)
        queue.restore_leases(state)

    def _pass_ids(self, state: QueueImage | LeasesImage) -> None:
        """Hand out ids above those that an image has, and above those of its time."""
        self._last_id = max([self._last_id, state.ts << LEASE_ID_SHIFT, *(lease.id for lease in state.leases)])

    def restore(self, topic: Topic | None, payload: bytes) -> None:
        """LEASE: take over an event of the leases log at a restart."""
        queue = None if topic is None else topic.queue
        if not isinstance(queue, Queue):
            return
        event = lease_event.decode(payload)
        if isinstance(event, Claimed):
            self._last_id = max(self._last_id, event.first_id + len(event.seqs))
        queue.apply(event)


def _within(jobs: list[Candidate], bytes_max: int, at_least: int) -> int:
    """How many of the first jobs hold no more than this much."""
    # With every claim, so not job by job: mostly all of them are in one Block or two.
    _, first, lease = jobs[0]
    # Without a Lease of the first, all are fresh and in order (Ready.choose).
    if lease is None and first is jobs[-1][1] and len(first.raw) <= bytes_max:
        return len(jobs)
    if sum([len(block.raw) for block in set(map(_BLOCK_OF, jobs))]) <= bytes_max:
        return len(jobs)
    left = bytes_max
    for i, (seq, block, _) in enumerate(jobs):
        at = seq - block.first_seq
        left -= block.size_bytes(at, at + 1)
        if left < 0 and i >= at_least:
            return i
    return len(jobs)


def _deliver_after(claimer: Claimer, leased: LeasedJobs, ready: int, after: list[Receipt]) -> None:
    """Deliver once these are done."""

    def safe(durable: Promise) -> None:
        if durable.error is not None:
            claimer.fail(durable.error)
        else:
            claimer.deliver(leased, ready)

    Promise(safe).follow_all(after)
