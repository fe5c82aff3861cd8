"""Queue: which worker holds which job of one topic, derived from its leases log (QUEUE-20, QUEUE-24).

The jobs are the topic's log and nothing else. What is kept here is what the log does not hold: a Lease per job that was
delivered or delayed, the freelist of jobs to be delivered again, and the claim cursor `fresh`: from it on no job was
ever delivered. So a queue of a million waiting jobs costs nothing here, and a claim costs in proportion to the jobs it
takes.

`ready` = live records - `in_flight` - `delayed` - `leaving` whenever `advance` was called for the present, because a
record that leaves the log in any way takes its Lease with it: an ack or a delete by tag names the seqs (`forget`), and
what a cap, a TTL or a `before_seq` took is below `log.start` (`trim`).

Whatever may happen to any number of jobs at once is done for STEP_JOBS of them per call, or in slices: leases that run
out, delays that end, jobs that leave, a freelist of which most is stale. Until it is done the counters are behind, and
there may be a Lease without a job: what hands out or completes jobs looks whether they are there (`_is_behind`).

All times here are on the steady scale of the clock, so that no step of the wall clock makes a lease or a delay longer
or shorter (QUEUE-30). Events and images are in wall-clock time, with the time at which they were noted: what a restart
finds lasts no longer from then on than it did when it was noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

from topics.clock import Clock, steady_of
from topics.engine.log.log import Log
from topics.engine.queue import image
from topics.engine.queue.dates import LOOK_MS, Dates
from topics.engine.queue.event import Claimed, Event, Extended, LeasesImage, QueueImage, Released
from topics.engine.queue.failures import Failures
from topics.engine.queue.hidden import Hidden
from topics.engine.queue.history import History
from topics.engine.queue.lease import (
    CLAIM,
    DELAYED,
    EXTEND,
    FALL_DUE,
    FREE,
    GONE,
    HELD,
    LAPSE,
    LAPSED,
    LEASED,
    NACK,
    NACK_LATER,
    NEVER_MS,
    READY,
    RELEASE,
    TRANSITIONS,
    Candidate,
    Lease,
    Timetable,
)
from topics.engine.queue.ready import Ready
from topics.engine.slices import Work
from topics.engine.topic import Topic

# How many jobs a step or a piece of work is for.
STEP_JOBS: Final = 2000
# How many seqs pass the floor in one call, where so many may have leases.
PASSED_MAX: Final = 4000


class Queue(Ready):
    """The leases of one queue topic."""

    __slots__ = (
        "_clock",
        "_dates",
        "_deadlines",
        "_delays",
        "dead_lettered",
        "delayed",
        "failures",
        "history",
        "in_flight",
        "leaving",
    )

    def __init__(self, log: Log, clock: Clock) -> None:
        super().__init__(log)
        self._clock = clock
        self.in_flight = 0
        self.delayed = 0
        # Acked, and still in the log (acks.py).
        self.leaving = 0
        self.dead_lettered = 0
        self._deadlines = Timetable(LEASED)
        self._delays = Timetable(DELAYED)
        self._dates = Dates(clock)
        self.failures = Failures()
        self.history = History()

    @property
    def ready(self) -> int:
        """How many jobs the next claim may take."""
        ready = self.log.count - self.in_flight - self.delayed - self.leaving
        return ready if ready > 0 else 0

    def advance(self, now_ms: int) -> bool:
        """Take steps that are due by now, and forget jobs below the floor; whether there is more of that to do."""
        dates = self._dates.by_seq
        if not dates and self._is_present(now_ms):
            return False
        if self._floor != self.log.start:
            self.trim()
        if self._deadlines.next_ms < now_ms:
            lapsed = [lease for lease in self._deadlines.take(now_ms - 1, STEP_JOBS) if self._lapse(lease)]
            self.history.lapsed(lapsed, self._clock.now_ms() - self._clock.steady_ms())
        if dates:
            for seq, due_ms in self._dates.moved():
                self._until([self.leases[seq]], due_ms)
        if self._delays.next_ms <= now_ms:
            for lease in self._delays.take(now_ms, STEP_JOBS):
                if lease.state is DELAYED:
                    self._step(lease, FALL_DUE)
                    if dates:
                        dates.pop(lease.seq, None)
        return not self._is_present(now_ms)

    def _is_present(self, now_ms: int) -> bool:
        """Whether no step is due by now, and no job below the floor is left."""
        return self._floor == self.log.start and self._deadlines.next_ms >= now_ms and self._delays.next_ms > now_ms

    def next_due_ms(self) -> int | None:
        """When `advance` will next make a job ready, or None."""
        # A lease runs out strictly after its deadline, a delay ends at its time.
        lapse_ms, due_ms = self._deadlines.first_ms(), self._delays.first_ms()
        if self._dates.by_seq:
            due_ms = min(due_ms or NEVER_MS, self._clock.steady_ms() + LOOK_MS)
        if lapse_ms is None:
            return due_ms
        return lapse_ms + 1 if due_ms is None else min(lapse_ms + 1, due_ms)

    def next_lapse_ms(self) -> int | None:
        """When `advance` will next find that a lease has run out, or None."""
        lapse_ms = self._deadlines.first_ms()
        return None if lapse_ms is None else lapse_ms + 1

    # The steps

    def lease(self, jobs: list[Candidate], node: str, first_id: int, deadline_ms: int) -> list[Lease]:
        """Lease jobs, under the ids from `first_id` on."""
        leases = self.leases
        leased: list[Lease] = []
        for id, (seq, _, lease) in enumerate(jobs, first_id):
            if lease is None:
                lease = leases[seq] = Lease(seq, LEASED, node, id, deadline_ms, 1)
                self.in_flight += 1
                self.fresh = max(self.fresh, seq + 1)
            else:
                self._step(lease, CLAIM)
                lease.node, lease.id, lease.due_ms = node, id, deadline_ms
                lease.deliveries += 1
            leased.append(lease)
        self._deadlines.add(deadline_ms, leased, leases)
        return leased

    def lease_fresh(self, seqs: list[int], node: str, first_id: int, deadline_ms: int) -> list[Lease]:
        """As `lease`, for jobs in ascending order that have no Lease: theirs are made, in the state after CLAIM."""
        leases = self.leases
        leased = [Lease(seq, LEASED, node, id, deadline_ms, 1) for id, seq in enumerate(seqs, first_id)]
        for lease in leased:
            leases[lease.seq] = lease
        self.in_flight += len(leased)
        self.fresh = max(self.fresh, seqs[-1] + 1)
        self._deadlines.add(deadline_ms, leased, leases)
        return leased

    def held(self, node: str, seqs: list[int], ids: list[int] | None) -> tuple[list[Lease], list[int]]:
        """The leases among `seqs` that `node` holds, under these ids where they are given; and the other seqs."""
        get = self.leases.get
        held = {
            seq: lease for seq in seqs if (lease := get(seq)) is not None and lease.node == node and lease.state in HELD
        }
        if self._is_behind:
            held = {seq: lease for seq, lease in held.items() if self.log.is_live(seq)}
        if ids is not None:
            # One that is named twice may be so under two ids.
            held = {
                seq: lease
                for seq, id in zip(seqs, ids, strict=True)
                if (lease := held.get(seq)) is not None and lease.id == id
            }
        if len(held) == len(seqs):
            return list(held.values()), []
        left = dict(held)
        return list(held.values()), [seq for seq in seqs if left.pop(seq, None) is None]

    def complete(self, leases: list[Lease]) -> None:
        """Ack: the jobs are done. Their leases stay until the records have left the log."""
        # ACK leads to the same state from both in which a job is held, so the table is not needed.
        for lease in leases:
            if lease.state is LEASED:
                self.in_flight -= 1
                if lease.worker is not None:
                    lease.worker.lost(lease)
            lease.state = GONE
        self.leaving += len(leases)

    def hold_on(self, leases: list[Lease]) -> None:
        """The ack of these jobs has failed: they are held until their deadlines, as before."""
        for lease in leases:
            if self.leases.get(lease.seq) is lease:
                lease.state = LEASED
                self.leaving -= 1
                self.in_flight += 1
                self._deadlines.add(lease.due_ms, [lease], self.leases)

    def give_back(self, leases: list[Lease], pauses: list[int], now_ms: int) -> None:
        """Nack: each job is ready again after its pause."""
        hidden: dict[int, list[Lease]] = {}
        for lease, pause_ms in zip(leases, pauses, strict=True):
            self._step(lease, NACK_LATER if pause_ms else NACK)
            if pause_ms:
                hidden.setdefault(pause_ms, []).append(lease)
        for pause_ms, together in hidden.items():
            self._until(together, now_ms + pause_ms)

    def release(self, lease: Lease) -> None:
        """The stream that the job was pushed to is gone."""
        self._step(lease, RELEASE)

    def extend(self, leases: list[Lease], deadline_ms: int) -> None:
        """The holder needs until `deadline_ms`."""
        for lease in leases:
            self._step(lease, EXTEND)
        self._until(leases, deadline_ms)

    def delay(self, seqs: Sequence[int], due_ms: int, since_ms: int | None) -> None:
        """Hide jobs that were just produced: from `since_ms` until `due_ms`, or until the date `due_ms` (None).

        Both are wall-clock times. Seqs ascend, and follow those of earlier calls.
        """
        delayed = [Lease(seq, DELAYED) for seq in seqs]
        self.leases.update(zip(seqs, delayed, strict=True))
        self.delayed += len(delayed)
        self._hidden.add(seqs)
        if since_ms is None:
            for seq in seqs:
                self._dates.add(seq, due_ms)
        self._until(delayed, steady_of(self._clock, due_ms, since_ms or 0))

    def forget(self, seqs: Iterable[int]) -> None:
        """These jobs have left the log."""
        # REMOVE leads from every state to the same one, so the table is not needed.
        pop = self.leases.pop
        failures = self.failures if self.failures.reasons else None
        history = self.history if self.history.jobs else None
        for seq in seqs:
            if failures is not None:
                failures.forget(seq)
            lease = pop(seq, None)
            if lease is None:
                continue
            if history is not None:
                history.left(lease, self._clock.now_ms(), done=lease.state is GONE)
            if lease.state is LEASED:
                self.in_flight -= 1
                if lease.worker is not None:
                    lease.worker.lost(lease)
            elif lease.state is DELAYED:
                self.delayed -= 1
                self._dates.by_seq.pop(seq, None)
            elif lease.state is GONE:
                self.leaving -= 1
            lease.state = GONE

    def forgetting(self, runs: Iterable[range]) -> Work:
        """As `forget`, in slices."""
        if not self.leases:
            return
        self._forgetting += 1
        for run in runs:
            for at in range(0, len(run), STEP_JOBS):
                piece = run[at : at + STEP_JOBS]
                if not self.leases.keys().isdisjoint(piece):
                    self.forget(piece)
                yield None
        self._forgetting -= 1

    def trim(self) -> None:
        """Everything below the floor has left the log."""
        start, floor = self.log.start, self._floor
        if start == floor:
            return
        leases = self.leases
        # Every seq passes the floor once, so each job is looked up once.
        if start - floor > PASSED_MAX and len(leases) > STEP_JOBS and start - floor < PASSED_MAX * len(leases):
            start = floor + PASSED_MAX
        passed = range(floor, start) if start - floor <= len(leases) else [seq for seq in leases if seq < start]
        self._floor = start
        if not leases.keys().isdisjoint(passed):
            self.forget(passed)

    def _lapse(self, lease: Lease) -> bool:
        """Whether the lease has just run out: one that is noted twice takes its step once."""
        if lease.state is not LEASED:
            return False
        self._step(lease, LAPSE)
        return True

    def _step(self, lease: Lease, step: str) -> None:
        before = lease.state
        after = lease.state = TRANSITIONS[before, step]
        if before is LEASED:
            self.in_flight -= 1
            if lease.worker is not None and after is not LEASED:
                lease.worker.lost(lease)
        elif before is DELAYED:
            self.delayed -= 1
        if after is LEASED:
            self.in_flight += 1
        elif after is DELAYED:
            self.delayed += 1
        elif before is not LAPSED:
            # A lapsed job is in the freelist already.
            self.free.append(lease.seq)
            if lease.deliveries >= self.failures.last_delivery:
                self.failures.spent[lease.seq] = lease

    def _until(self, leases: list[Lease], due_ms: int) -> None:
        if leases:
            for lease in leases:
                lease.due_ms = due_ms
            table = self._deadlines if leases[0].state is LEASED else self._delays
            table.add(due_ms, leases, self.leases)

    def clear(self) -> Work:
        """Give everything back, in slices: the topic is gone."""
        leases = self.leases
        while leases:
            for _ in range(min(STEP_JOBS, len(leases))):
                leases.popitem()
            yield None
        for table in (self._deadlines, self._delays):
            yield from table.clear()

    # Restart

    def apply(self, event: Event) -> None:
        """Take over an event of the leases log; `reconcile` drops what it says about jobs that are gone."""
        if isinstance(event, Claimed):
            claimed = [self._restored(seq, LEASED) for seq in event.seqs]
            for i, lease in enumerate(claimed):
                lease.node = event.node
                lease.id = event.first_id + i
                lease.deliveries = event.deliveries[i]
            self._until(claimed, steady_of(self._clock, event.deadline_ms, event.ts))
            self.history.claimed(claimed, event.ts, event.deadline_ms)
        elif isinstance(event, Released):
            self.failures.keep(event.seqs, event.reason)
            for seq, due_ms in zip(event.seqs, event.dues or [event.due_ms] * len(event.seqs), strict=True):
                lease = self._restored(seq, DELAYED if due_ms > event.ts else FREE)
                lease.node = ""
                self.history.released(lease, event.node, event.ts, event.reason, due_ms)
                if due_ms > event.ts:
                    self._until([lease], steady_of(self._clock, due_ms, event.ts))
                else:
                    self.free.append(seq)
        elif isinstance(event, Extended):
            extended = [self._restored(seq, LEASED) for seq in event.seqs]
            self._until(extended, steady_of(self._clock, event.deadline_ms, event.ts))

    def _restored(self, seq: int, state: str) -> Lease:
        """The lease of `seq` in `state`, whatever it was before."""
        lease = self.leases.get(seq)
        if lease is None:
            lease = self.leases[seq] = Lease(seq)
        self._dates.by_seq.pop(seq, None)
        self.in_flight += (state is LEASED) - (lease.state is LEASED)
        self.delayed += (state is DELAYED) - (lease.state is DELAYED)
        lease.state = state
        self.fresh = max(self.fresh, seq + 1)
        return lease

    def reconcile(self) -> None:
        """After a restart: drop leases of jobs that are gone, and free jobs that the leases log no longer mentions."""
        log = self.log
        last = max(self.fresh - 1, max(self.leases, default=0))
        free = set(self.free)
        live = set()
        orphans = []
        for entry in log.retained():
            if entry.first_seq > last:
                break
            for a, b in entry.live_runs(max(0, log.start - entry.first_seq), min(entry.n, last + 1 - entry.first_seq)):
                for seq in range(entry.first_seq + a, entry.first_seq + b):
                    live.add(seq)
                    lease = self.leases.get(seq)
                    if lease is None and seq < self.fresh:
                        orphans.append(seq)
                    elif lease is not None and lease.state in READY and seq not in free:
                        self.free.append(seq)
        self.forget([seq for seq in self.leases if seq not in live])
        for seq in orphans:
            self.leases[seq] = Lease(seq)
            self.free.append(seq)
        self._floor = log.start
        self._hidden = Hidden(sorted(seq for seq in self.leases if seq >= self.fresh))

    def capture(self) -> bytes:
        """The queue as a checkpoint keeps it, without its leases."""
        return image.capture(self._clock, self.fresh, self.dead_lettered, self.free, self.failures.reasons)

    def capture_leases(self) -> Iterator[bytes]:
        """The leases of now, in pieces: each as its leases are when it is asked for."""
        return image.pieces(self._clock, self.leases, self._dates.by_seq)

    def restore(self, state: QueueImage) -> None:
        """Take over what `capture` gave."""
        self.dead_lettered = state.dead_lettered
        self.restore_leases(LeasesImage(state.leases, state.ts, state.ahead_ms, state.dates))
        self.fresh = state.fresh
        self.free = deque(state.free)
        self.failures.restore(state.reasons)

    def restore_leases(self, state: LeasesImage) -> None:
        """Take over a piece that `capture_leases` gave."""
        fresh = self.fresh
        for each in state.leases:
            seq = each.seq
            lease = self._restored(seq, image.STATES[each.state])
            lease.node, lease.id, lease.deliveries = each.node, each.id, each.deliveries
            if lease.state is DELAYED and seq in state.dates:
                self._until([lease], self._dates.add(seq, state.dates[seq]))
            elif lease.state is LEASED or lease.state is DELAYED:
                self._until([lease], steady_of(self._clock, each.due_ms + state.ahead_ms, state.ts))
        # Delayed jobs from the claim cursor on have leases too.
        self.fresh = fresh


def queue_of(topic: Topic) -> Queue | None:
    """The leases of a topic; None where it is a log."""
    return cast("Queue | None", topic.queue)
