"""Queue: which worker holds which job of one topic, derived from its leases log (QUEUE-20, QUEUE-24).

The jobs are the topic's log and nothing else. What is kept here is what the log does not hold: a Lease per job that was
delivered or delayed, the freelist of jobs to be delivered again, and the claim cursor `fresh`: from it on no job was
ever delivered. So a queue of a million waiting jobs costs nothing here, and a claim costs in proportion to the jobs it
takes.

`ready` = live records - `in_flight` - `delayed` - `leaving` whenever `advance` was called for the present, because a
record that leaves the log in any way takes its Lease with it: an ack or a delete by tag names the seqs (`forget`), and
what a cap, a TTL or a `before_seq` took lies below `log.start` (`trim`).

All times here are on the steady scale of the clock, so that no step of the wall clock makes a lease or a delay longer
or shorter (QUEUE-30). Events and images are in wall-clock time, with the time at which they were noted: what a restart
finds lasts no longer from then on than it did when it was noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast

from topics.clock import Clock, steady_of, wall_of
from topics.engine.log.log import Log
from topics.engine.queue import event as lease_event
from topics.engine.queue.dates import LOOK_MS, Dates
from topics.engine.queue.event import Claimed, Event, Extended, QueueImage, Released
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
    STALE_SLACK,
    TRANSITIONS,
    Candidate,
    Lease,
    Timetable,
)
from topics.engine.topic import Topic


class Queue:
    """The leases of one queue topic."""

    __slots__ = (
        "_clock",
        "_dates",
        "_deadlines",
        "_delays",
        "_floor",
        "dead_lettered",
        "delayed",
        "free",
        "fresh",
        "in_flight",
        "leases",
        "leaving",
        "log",
    )

    def __init__(self, log: Log, clock: Clock) -> None:
        self.log = log
        self._clock = clock
        self.leases: dict[int, Lease] = {}
        self.fresh = 1
        self.free: deque[int] = deque()
        self.in_flight = 0
        self.delayed = 0
        # Acked, and still in the log (acks.py).
        self.leaving = 0
        self.dead_lettered = 0
        self._deadlines = Timetable(LEASED)
        self._delays = Timetable(DELAYED)
        self._dates = Dates(clock)
        # Below it, no job has a Lease.
        self._floor = 1

    @property
    def ready(self) -> int:
        """How many jobs the next claim may take."""
        return self.log.count - self.in_flight - self.delayed - self.leaving

    def advance(self, now_ms: int) -> None:
        """Take the steps that are due by now, and forget jobs below the floor."""
        if self._floor != self.log.start:
            self.trim()
        # A lease that is noted twice for the same time takes its step once.
        if self._deadlines.next_ms < now_ms:
            for lease in self._deadlines.take(now_ms - 1):
                if lease.state is LEASED:
                    self._step(lease, LAPSE)
        dates = self._dates.by_seq
        if dates:
            for seq, due_ms in self._dates.moved():
                self._until([self.leases[seq]], due_ms)
        if self._delays.next_ms <= now_ms:
            for lease in self._delays.take(now_ms):
                if lease.state is DELAYED:
                    self._step(lease, FALL_DUE)
                    if dates:
                        dates.pop(lease.seq, None)

    def next_due_ms(self) -> int | None:
        """When `advance` will next make a job ready, or None."""
        # A lease runs out strictly after its deadline, a delay ends at its time.
        lapse_ms, due_ms = self._deadlines.first_ms(), self._delays.first_ms()
        if self._dates.by_seq:
            due_ms = min(due_ms or NEVER_MS, self._clock.steady_ms() + LOOK_MS)
        if lapse_ms is None:
            return due_ms
        return lapse_ms + 1 if due_ms is None else min(lapse_ms + 1, due_ms)

    # Choosing

    def choose(
        self, count: int, is_dead: Callable[[Lease], bool] | None = None
    ) -> tuple[list[Candidate], list[Candidate]]:
        """The first `count` jobs that are ready, those that were given back first, then fresh ones in order.

        Also those met on the way that were delivered too often, as `is_dead` says. Raises Miss or Corrupt where a
        record cannot be read.
        """
        jobs: list[Candidate] = []
        dead: list[Candidate] = []
        if self.free:
            log, leases = self.log, self.leases
            seen = set()
            for seq in self.free:
                if len(jobs) == count:
                    return jobs, dead
                lease = leases.get(seq)
                if lease is None or lease.state not in READY or seq in seen:
                    continue
                seen.add(seq)
                block = log.entries[log.index_of(seq)].block()
                (dead if is_dead is not None and is_dead(lease) else jobs).append((seq, block, lease))
        if len(jobs) < count:
            jobs += self.choose_fresh(count - len(jobs))
        return jobs, dead

    def choose_fresh(self, count: int) -> list[Candidate]:
        """The first `count` jobs that were never delivered, in order. Raises as `choose` does."""
        jobs: list[Candidate] = []
        missing = count
        log, leases = self.log, self.leases
        entries = log.entries
        seq = max(self.fresh, log.start)
        leading = True
        for k in range(log.index_of(seq), len(entries)):
            entry = entries[k]
            first_seq = entry.first_seq
            for a, b in entry.live_runs(max(0, seq - first_seq), entry.n):
                run: Sequence[int] = range(first_seq + a, first_seq + min(b, a + missing))
                if not leases.keys().isdisjoint(run):
                    run = range(first_seq + a, first_seq + b)
                    while leading and run and run[0] in leases:
                        # Delayed jobs at the cursor are passed once and not with every claim.
                        self.fresh = run[0] + 1
                        run = run[1:]
                    run = [each for each in run if each not in leases][:missing]
                if not run:
                    continue
                leading = False
                block = entry.block()
                jobs += [(each, block, None) for each in run]
                missing = count - len(jobs)
                if not missing:
                    return jobs
        return jobs

    # The steps

    def lease(self, jobs: list[Candidate], node: str, first_id: int, deadline_ms: int) -> list[Lease]:
        """Lease jobs, under the ids from `first_id` on."""
        leases = self.leases
        leased: list[Lease] = []
        fresh = self.fresh
        for id, (seq, _, lease) in enumerate(jobs, first_id):
            if lease is None:
                lease = leases[seq] = Lease(seq, LEASED, node, id, deadline_ms, 1)
                self.in_flight += 1
                if seq >= fresh:
                    fresh = seq + 1
            else:
                self._step(lease, CLAIM)
                lease.node, lease.id, lease.due_ms = node, id, deadline_ms
                lease.deliveries += 1
            leased.append(lease)
        self.fresh = fresh
        self._deadlines.add(deadline_ms, leased, leases)
        return leased

    def prune_free(self) -> None:
        """Drop what a pass has taken from the front of the freelist."""
        free, leases = self.free, self.leases
        while free:
            lease = leases.get(free[0])
            if lease is not None and lease.state in READY:
                break
            free.popleft()
        if len(free) > 2 * len(leases) + STALE_SLACK:
            # A job at the front that nobody may take keeps what comes after it, and a nack adds a job once more.
            self.free = deque(seq for seq in dict.fromkeys(free) if seq in leases and leases[seq].state in READY)

    def held(self, node: str, seqs: list[int], ids: list[int] | None) -> tuple[list[Lease], list[int]]:
        """The leases among `seqs` that `node` holds, under these ids where they are given; and the other seqs."""
        held: list[Lease] = []
        skipped: list[int] = []
        leases = [self.leases.get(seq) for seq in seqs]
        distinct = len(set(seqs)) == len(seqs)
        for i, lease in enumerate(leases):
            if (
                lease is not None
                and lease.node == node
                and lease.state in HELD
                and (ids is None or lease.id == ids[i])
                and (distinct or lease not in held)
            ):
                held.append(lease)
            else:
                skipped.append(seqs[i])
        return held, skipped

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

    def give_back(self, leases: list[Lease], due_ms: int, now_ms: int) -> None:
        """Nack: the jobs are ready again at `due_ms`."""
        later = due_ms > now_ms
        for lease in leases:
            self._step(lease, NACK_LATER if later else NACK)
        if later:
            self._until(leases, due_ms)

    def release(self, lease: Lease) -> None:
        """The stream that the job was pushed to is gone."""
        self._step(lease, RELEASE)

    def extend(self, leases: list[Lease], deadline_ms: int) -> None:
        """The holder needs until `deadline_ms`."""
        for lease in leases:
            self._step(lease, EXTEND)
        self._until(leases, deadline_ms)

    def delay(self, seq: int, due_ms: int, since_ms: int | None) -> None:
        """Hide a job that was just produced: from `since_ms` until `due_ms`, or until the date `due_ms` (None).

        Both are wall-clock times.
        """
        lease = self.leases[seq] = Lease(seq, DELAYED)
        self.delayed += 1
        if since_ms is None:
            self._until([lease], self._dates.add(seq, due_ms))
        else:
            self._until([lease], steady_of(self._clock, due_ms, since_ms))

    def forget(self, seqs: Iterable[int]) -> None:
        """These jobs have left the log."""
        # REMOVE leads from every state to the same one, so the table is not needed.
        pop = self.leases.pop
        for seq in seqs:
            lease = pop(seq, None)
            if lease is None:
                continue
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

    def trim(self) -> None:
        """Everything below the floor has left the log."""
        start, floor = self.log.start, self._floor
        if start == floor:
            return
        self._floor = start
        leases = self.leases
        # Every seq passes the floor once, so each job is looked up once.
        passed = range(floor, start) if start - floor <= len(leases) else [seq for seq in leases if seq < start]
        if not leases.keys().isdisjoint(passed):
            self.forget(passed)

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

    def _until(self, leases: list[Lease], due_ms: int) -> None:
        if leases:
            for lease in leases:
                lease.due_ms = due_ms
            table = self._deadlines if leases[0].state is LEASED else self._delays
            table.add(due_ms, leases, self.leases)

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
        elif isinstance(event, Released):
            released = [self._restored(seq, DELAYED if event.due_ms > event.ts else FREE) for seq in event.seqs]
            for lease in released:
                lease.node = ""
            if event.due_ms > event.ts:
                self._until(released, steady_of(self._clock, event.due_ms, event.ts))
            else:
                self.free.extend(event.seqs)
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

    def capture(self) -> bytes:
        """The queue as a checkpoint keeps it. An ack that has no frame yet gets it after the checkpoint."""
        ahead_ms = wall_of(self._clock, 0)
        return lease_event.encode(
            QueueImage(
                self.fresh,
                self.dead_lettered,
                [
                    (s.seq, LEASED if s.state is GONE else s.state, s.node, s.id, s.due_ms + ahead_ms, s.deliveries)
                    for s in self.leases.values()
                ],
                list(self.free),
                self._clock.now_ms(),
                self._dates.by_seq,
            )
        )

    def restore(self, state: QueueImage) -> None:
        """Take over what `capture` gave."""
        self.dead_lettered = state.dead_lettered
        for seq, name, node, id, due_ms, deliveries in state.leases:
            lease = self._restored(seq, _STATES[name])
            lease.node, lease.id, lease.deliveries = node, id, deliveries
            if seq in state.dates:
                self._until([lease], self._dates.add(seq, state.dates[seq]))
            elif lease.state is LEASED or lease.state is DELAYED:
                self._until([lease], steady_of(self._clock, due_ms, state.ts))
        self.fresh = state.fresh
        self.free = deque(state.free)


def queue_of(topic: Topic) -> Queue | None:
    """The leases of a topic; None where it is a log."""
    return cast("Queue | None", topic.queue)


_STATES: Final = {state: state for state in (LEASED, LAPSED, FREE, DELAYED)}
"""States by their text: those read from a checkpoint are other objects, and states are compared by identity."""
