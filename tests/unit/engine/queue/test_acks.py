"""Acks of one turn leave the log together, and each is answered as if it were alone (QUEUE-11)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.harness.machine import Machine, numbers
from topics.engine import ConfigPatch, Delete, Diff, RecordIn, Write
from topics.engine.promise import Receipt
from topics.engine.queue.claim import Worker
from topics.engine.queue.event import Acked, decode_image, decode_leases
from topics.engine.queue.queue import Queue
from topics.engine.queue.requests import AckJobs, ClaimJobs
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.engine.write import extra as extras
from topics.errors import TopicsError
from topics.storage.wal import frame as frames
from topics.testing.clock import START_MS
from topics.testing.fault_disk import FaultDisk


class Crew:
    """A queue `q` with jobs, and workers whose acks are answered when a turn comes."""

    def __init__(self, jobs: int, settings: UpkeepSettings | None = None, **config: Any) -> None:
        self.machine = Machine() if settings is None else Machine(settings)
        self.engine = self.machine.engine
        self.queues = self.engine.queues
        self.engine.put_topic("q", ConfigPatch(type="queue", **config))
        if jobs:
            self.engine.write("q", numbers(1, jobs))
        self.machine.run_until_idle()
        self.answers: list[Receipt] = []

    def claim(self, node: str, max: int) -> list[int]:
        return [job["$seq"] for job in self.queues.claim("q", ClaimJobs(node, max)).claimed]

    def claim_now(self, node: str, max: int) -> list[int]:
        """A claim in the middle of a turn."""
        claim = self.queues.claim("q", ClaimJobs(node, max), on_done=lambda claim: None)
        assert claim.done
        return [job["$seq"] for job in claim.claimed]

    def ack(self, node: str, *seqs: int) -> Receipt:
        return self.queues.ack("q", AckJobs(node, list(seqs)), self.answers.append)

    def counters(self) -> tuple[int, int]:
        queue = self.queues.topic("q")[1]
        return queue.ready, queue.in_flight


def test_acks_of_a_turn_are_one_frame_and_all_are_answered() -> None:
    """QUEUE-11: each ack reports what it did, whatever else was acked in the same turn."""
    crew = Crew(6)
    assert crew.claim("a", 2) + crew.claim("b", 3) == [1, 2, 3, 4, 5]
    before = crew.machine.store.shards[0].frames_total
    first, second, third = crew.ack("a", 1, 2), crew.ack("b", 3, 5), crew.ack("a", 3)
    assert third.result.skipped == [3]
    assert not first.done
    assert not second.done
    crew.engine.prepare()
    crew.engine.turn()
    assert crew.machine.store.shards[0].frames_total == before + 1
    assert [(r.result.acked, r.result.ready, r.result.in_flight, r.error) for r in crew.answers] == [
        (0, 1, 1, None),
        (2, 1, 3, None),
        (2, 1, 1, None),
    ]
    assert crew.machine.read("q") == ([4, 6], [])
    crew.machine.crash("kill")
    assert crew.machine.read("q") == ([4, 6], [])


def test_acked_job_is_neither_leased_nor_ready_before_its_record_has_left() -> None:
    """QUEUE-8: a second ack skips it; it is not claimable; it does not count as ready."""
    crew = Crew(4)
    assert crew.claim("a", 2) == [1, 2]
    crew.ack("a", 1, 2)
    assert crew.counters() == (2, 0)
    assert crew.ack("a", 2).result.skipped == [2]
    assert crew.claim_now("b", 10) == [3, 4]
    assert crew.counters() == (0, 2)
    crew.engine.run_until_idle()
    assert crew.machine.read("q") == ([3, 4], [])
    assert crew.counters() == (0, 2)


def test_acked_job_ahead_of_the_claim_cursor_is_not_handed_out_again() -> None:
    """A job that was hidden at first is claimed before fresh ones are looked at; once acked it is no fresh one."""
    crew = Crew(0)
    crew.engine.write("q", Write([RecordIn(msgspec.Raw(b"1"), delay_ms=50), RecordIn(msgspec.Raw(b"2"))]))
    crew.machine.clock.advance(60)
    assert crew.claim("a", 1) == [1]
    crew.ack("a", 1)
    assert crew.claim_now("b", 10) == [2]


@pytest.mark.parametrize("look", ["state", "diff", "delete", "list", "drop", "reject"])
def test_command_in_the_same_turn_sees_the_ack_before_it(look: str) -> None:
    """Commands take effect in their order, also those of one turn (pipelined on one connection, say)."""
    crew = Crew(3, cap_records=3, discard="reject")
    crew.claim("a", 2)
    answer = crew.ack("a", 1, 2)
    if look == "state":
        assert crew.engine.state("q").count == 1
    elif look == "diff":
        assert [record["$seq"] for record in crew.engine.diff("q", Diff()).records] == [3]
    elif look == "delete":
        assert crew.engine.delete("q", Delete(before_seq=3)).result.deleted == 0
    elif look == "list":
        assert [topic.count for topic in crew.engine.list_topics()[0]] == [1]
    elif look == "drop":
        crew.engine.delete_topic("q")
    else:
        assert crew.engine.write("q", numbers(4, 5)).error is None
    crew.engine.run_until_idle()
    assert answer.done
    assert answer.error is None


def test_acks_that_the_storage_refuses_fail_and_the_jobs_stay_held() -> None:
    """An ack that was not taken changes nothing: the lease is the worker's until its deadline."""
    crew = Crew(3, lease_ms=1000)
    machine = crew.machine
    assert crew.claim("a", 2) == [1, 2]
    disk = FaultDisk(machine.disk)
    machine.store.shards[0]._disk = disk  # type: ignore[attr-defined]
    disk.fail("write")
    with pytest.raises(TopicsError):
        crew.engine.write("q", numbers(4, 4))
    answers = [crew.ack("a", 1), crew.ack("a", 2)]
    crew.engine.prepare()
    crew.engine.turn()
    assert [answer.error is not None and answer.error.status for answer in answers] == [503, 503]
    assert crew.counters() == (1, 2)
    assert machine.read("q") == ([1, 2, 3], [])
    machine.clock.advance(1001)
    crew.queues.state(crew.engine.topics["q"])
    assert crew.counters() == (3, 0)


def test_ack_of_a_job_whose_block_has_to_be_read_waits_for_it() -> None:
    """What is not at hand is read by a thread, and the acks of the turn go on after it."""
    crew = Crew(60, UpkeepSettings(segment_max_events=20, checkpoint_wal_bytes=1 << 40))
    machine = crew.machine
    assert crew.claim("a", 2) == [1, 2]
    topic = crew.engine.topics["q"]
    topic.archive.segments[0].cache.drop(topic.log.entries[0])
    machine.disk.uncached = {path for path in machine.disk.files() if path.endswith(".data")}
    answer = crew.ack("a", 1, 2)
    crew.engine.prepare()
    crew.engine.turn()
    assert not answer.done
    assert crew.counters() == (58, 0)
    machine.run_until_idle()
    assert answer.error is None
    assert answer.done
    machine.disk.uncached = set()
    assert machine.read("q")[0][0] == 3


def take_over(queue: Queue, other: Queue) -> None:
    """Have another queue restored from the image of one."""
    other.restore(decode_image(queue.capture()))
    for piece in queue.capture_leases():
        other.restore_leases(decode_leases(piece))


def test_checkpoint_before_the_frame_of_an_ack_keeps_the_job_leased() -> None:
    """A crash after the checkpoint and before the frame finds the job held, as the unanswered worker does."""
    crew = Crew(2)
    crew.claim("a", 1)
    queue = crew.queues.topic("q")[1]
    crew.ack("a", 1)
    other = Crew(2).queues.topic("q")[1]
    take_over(queue, other)
    assert (other.in_flight, other.leaving, other.leases[1].state) == (1, 0, "leased")


def test_image_has_the_leases_of_a_stream_without_the_stream() -> None:
    """QUEUE-24: what is captured is what is restored, until the same moment."""
    crew = Crew(3)
    crew.claim("a", 2)
    queue = crew.queues.topic("q")[1]
    worker = Worker("a", 2, None, id, id)
    worker.took([queue.leases[1]])
    other = Crew(3).queues.topic("q")[1]
    take_over(queue, other)
    assert other.leases[1].worker is None
    for seq in (1, 2):
        was, now = queue.leases[seq], other.leases[seq]
        assert (now.state, now.node, now.id, now.due_ms, now.deliveries) == ("leased", "a", was.id, was.due_ms, 1)


def test_image_of_an_earlier_version_has_wall_clock_times() -> None:
    """QUEUE-24: a lease was a tuple with its deadline in wall-clock time."""
    queue = Crew(1).queues.topic("q")[1]
    now_ms = START_MS
    earlier = (2, 0, [(1, "leased", "a", 77, now_ms + 5_000, 3)], [], now_ms)
    queue.restore(decode_image(msgspec.msgpack.encode(earlier)))
    lease = queue.leases[1]
    assert (lease.state, lease.node, lease.id, lease.deliveries) == ("leased", "a", 77, 3)
    clock = queue._clock
    assert lease.due_ms == clock.steady_ms() + now_ms + 5_000 - clock.now_ms()


def test_frame_names_which_node_acked_what() -> None:
    """QUEUE-11: an `acked` event is recorded in the leases log."""
    crew = Crew(3)
    crew.claim("a", 2)
    crew.claim("b", 1)
    crew.ack("a", 2, 1)
    crew.ack("b", 3)
    logged: list[bytes] = []
    crew.machine.store.shards[0].submit = lambda frame, gated, ticket=None: logged.append(frame)  # type: ignore
    crew.queues.acks.apply_all()
    (frame,) = logged
    length = int.from_bytes(frame[8:12], "little")
    delete = frames.decode_payload(frame[4], frame[frames.HEADER_BYTES : frames.HEADER_BYTES + length])
    assert delete.ranges == [(1, 3)]
    events = msgspec.msgpack.decode(extras.decode_delete(delete.extra).acked, type=list[Acked])
    assert [(event.node, event.seqs) for event in events] == [("a", [2, 1]), ("b", [3])]
