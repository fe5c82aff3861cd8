"""Copies and dead letters on a data directory: when they may be seen, and what a crash leaves of them.

The property test of the same name searches; here each of the ROUTER and QUEUE rules has a test of its own.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.harness.machine import Machine, numbers
from tests.harness.oracle import read_all
from topics.engine import ConfigPatch, Delete, Diff, Write
from topics.engine.queue.requests import ClaimJobs
from topics.engine.router import event as router_event
from topics.engine.router.router import PutRouter
from topics.storage.job import run_inline
from topics.storage.wal.shard import QueueFull


def topic(machine: Machine, name: str, **config: Any) -> None:
    machine.engine.put_topic(name, ConfigPatch(**config))


def write_soon(machine: Machine, name: str, first: int, last: int) -> None:
    """A write that is with the kernel and not synced."""
    machine.engine.write(name, numbers(first, last), lambda ticket: None)
    machine.engine.turn()


@pytest.mark.parametrize("damage", ["kill", "dropped"])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_copies_of_an_ephemeral_source_are_a_source_trim_after_a_crash(durability: str, damage: str) -> None:
    """ROUTER-22: seqs are never reused; what cannot be derived again is a `source_trim`."""
    machine = Machine()
    topic(machine, "a", durability="ephemeral")
    topic(machine, "b", durability=durability)
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 10))
    assert machine.read("b")[0] == list(range(1, 11))
    machine.crash(damage)
    seqs, gaps = machine.read("b")
    assert seqs == []
    ((first, last, reason),) = gaps
    assert (first, reason) == (1, "source_trim" if damage == "kill" or durability == "fsync" else "crash")
    assert last >= 10
    assert machine.engine.write("b", numbers(1, 1)).first_seq == last + 1
    machine.crash("kill")
    assert machine.read("b", last)[0][0] == last + 1, "the next start finds the same"


def test_copies_of_an_ephemeral_source_survive_in_a_checkpoint() -> None:
    """ROUTER-22: a checkpoint keeps copies that could not be derived again."""
    machine = Machine()
    topic(machine, "a", durability="ephemeral")
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 3))
    machine.checkpoint()
    machine.crash("kill")
    assert machine.read("b")[0] == [1, 2, 3]


def test_source_that_becomes_durable_leaves_no_seq_to_be_used_again() -> None:
    """ROUTER-22: what the class before did not keep is still reported."""
    machine = Machine()
    topic(machine, "a", durability="ephemeral")
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 3))
    assert machine.read("b")[0] == [1, 2, 3]
    topic(machine, "a", durability="fsync")
    machine.crash("kill")
    assert machine.read("a") == ([], [(1, 3, "crash")])
    assert machine.read("b") == ([], [(1, 3, "source_trim")])
    machine.engine.write("a", numbers(4, 4))
    assert machine.read("b", 3) == ([4], [])


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("shards", [1, 3])
def test_destination_that_becomes_durable_goes_on_where_its_router_was(shards: int, durability: str) -> None:
    """ROUTER-25: what it had copied by then is not copied again under other seqs."""
    machine = Machine(shards=shards)
    topic(machine, "a", durability="fsync")
    topic(machine, "b", durability="ephemeral")
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 3))
    assert machine.read("b")[0] == [1, 2, 3]
    topic(machine, "b", durability=durability)
    machine.engine.write("a", numbers(4, 5))
    shown = [(record["$seq"], record["data"]) for record in machine.engine.diff("b", Diff(from_seq=3)).records]
    assert shown == [(4, 4), (5, 5)]
    machine.crash("kill")
    assert machine.read("b")[1] == [(1, 3, "restart")]
    assert [(r["$seq"], r["data"]) for r in machine.engine.diff("b", Diff(from_seq=3)).records] == shown


def test_ephemeral_destination_comes_back_empty() -> None:
    """ROUTER-23: copies in an `ephemeral` topic are in memory only."""
    machine = Machine()
    topic(machine, "b", durability="ephemeral")
    topic(machine, "q", type="queue", max_deliveries=1, dead_letter="d", lease_ms=100)
    topic(machine, "d", durability="ephemeral")
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 3))
    machine.engine.routers.put("a->b", PutRouter("a", "b", filter="x"))
    machine.engine.write("q", numbers(1, 1))
    bury(machine)
    assert (machine.read("b")[0], machine.read("d")[0]) == ([1, 2, 3], [1])
    machine.crash("kill")
    assert (machine.read("b")[0], machine.read("d")[0]) == ([], [])
    assert machine.read("a")[0] == [1, 2, 3]
    assert machine.read("q")[0] == [], "the job was moved, and not back"


def bury(machine: Machine) -> None:
    """Deliver a job once more than it may be."""
    machine.engine.queues.claim("q", ClaimJobs("w"))
    machine.clock.advance(1000)
    machine.engine.queues.claim("q", ClaimJobs("w"))


@pytest.mark.parametrize("damage", ["kill", "dropped"])
def test_dead_letter_of_an_ephemeral_queue_is_what_its_own_topic_makes_it(damage: str) -> None:
    """QUEUE-18: dead letters follow the class of their own topic."""
    machine = Machine()
    topic(machine, "q", type="queue", durability="ephemeral", max_deliveries=1, dead_letter="d", lease_ms=100)
    topic(machine, "d", durability="fsync")
    machine.engine.write("q", numbers(1, 1))
    bury(machine)
    assert machine.read("d")[0] == [1]
    machine.crash(damage)
    assert machine.read("d") == ([1], [])


@pytest.mark.parametrize(("queue", "letters"), [("fsync", "disk"), ("disk", "fsync"), ("fsync", "fsync")])
def test_dead_letter_is_not_shown_before_its_frame_is_synced(queue: str, letters: str) -> None:
    """QUEUE-18: `fsync` survives any crash, so nothing of it is shown that a crash could take back."""
    machine = Machine()
    topic(machine, "q", type="queue", durability=queue, max_deliveries=1, dead_letter="d", lease_ms=100)
    topic(machine, "d", durability=letters)
    # The ceiling of a `disk` topic is not what is waited for here.
    machine.engine.write("d", numbers(1, 1))
    machine.engine.write("q", numbers(1, 1))
    machine.engine.queues.claim("q", ClaimJobs("w"))
    machine.clock.advance(1000)
    answers: list[Any] = []
    machine.engine.queues.claim("q", ClaimJobs("w"), answers.append)
    machine.engine.turn()
    assert machine.engine.topics["d"].log.head == 1
    assert answers == [], "an answered client finds the letter"
    run_inline(machine.store.jobs())
    assert machine.engine.topics["d"].log.head == 2
    assert len(answers) == 1
    machine.crash("dropped")
    assert machine.read("d") == ([1, 2], []) if letters == "fsync" else machine.read("d")[0] == [1, 2]
    assert machine.read("q")[0] == []


@pytest.mark.parametrize("source", ["memory", "disk"])
def test_copy_into_fsync_is_not_shown_before_the_source_is_synced(source: str) -> None:
    """ROUTER-24: an `fsync` topic survives any crash, copies included."""
    machine = Machine()
    topic(machine, "a", durability=source)
    topic(machine, "b", durability="fsync")
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 1))
    write_soon(machine, "a", 2, 2)
    assert machine.engine.topics["a"].log.head == 2
    assert machine.read("b")[0] == [1]
    # Visible in the order of the seqs, also where the write after the copy is synced in another shard.
    machine.engine.write("b", numbers(1, 1), lambda ticket: None)
    machine.engine.run_until_idle()
    assert machine.read("b")[0] == [1, 2, 3]
    machine.crash("dropped")
    assert machine.read("b")[0] == [1, 2, 3]


@pytest.mark.parametrize("source", ["memory", "disk"])
def test_copy_of_what_was_written_before_the_source_became_fsync_waits_for_that(source: str) -> None:
    """ROUTER-25: an `fsync` topic shows nothing that a crash could take, whatever class its source has by now."""
    machine = Machine()
    topic(machine, "a", durability=source)
    topic(machine, "b", durability="fsync")
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 1))
    assert machine.read("b")[0] == [1]
    write_soon(machine, "a", 2, 2)
    machine.engine.put_topic("a", ConfigPatch(durability="fsync"), lambda receipt: None)
    machine.engine.turn()
    assert machine.engine.topics["a"].log.head == 2
    assert machine.read("b")[0] == [1]
    machine.run_until_idle()
    assert machine.read("b")[0] == [1, 2]
    machine.crash("dropped")
    assert machine.read("b")[0] == [1, 2]


def test_copies_and_direct_writes_keep_their_order_over_shards() -> None:
    """ROUTER-24: seq order is delivery order, whichever shard's sync comes first."""
    machine = Machine(shards=5)
    for name in "abcdefgh":
        topic(machine, name, durability="disk")
    for name in "bcdefgh":
        topic(machine, name, durability="fsync")
        machine.engine.routers.put(f"a->{name}", PutRouter("a", name))
    machine.engine.write("a", numbers(1, 1))
    write_soon(machine, "a", 2, 2)
    for name in "bcdefgh":
        machine.engine.write(name, Write.of([3]), lambda ticket: None)
    machine.engine.turn()
    source = machine.store.shard_of(machine.engine.topics["a"].id)
    for shard in machine.store.shards:
        if shard is not source:
            run_inline(shard.jobs(machine.clock.elapsed_ns()))
    assert all(machine.engine.topics[name].log.head == 1 for name in "bcdefgh")
    machine.run_until_idle()
    assert all(machine.read(name)[0] == [1, 2, 3] for name in "bcdefgh")


def test_router_that_goes_while_its_copies_wait_is_no_trouble_for_a_checkpoint() -> None:
    """ROUTER-3: of the routers that are left, a checkpoint counts the copies that are visible."""
    machine = Machine()
    topic(machine, "b", durability="fsync")
    for name in ("r1", "r2"):
        machine.engine.routers.put(name, PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 1))
    write_soon(machine, "a", 2, 2)
    machine.engine.routers.delete("r1", lambda receipt: None)
    inbound = machine.engine.topics["b"].inbound
    assert inbound is not None
    assert router_event.decode_forward(inbound.capture()).totals == {"r2": 1}
    assert machine.engine.routers.get("r2").forwarded_total == 2


def test_router_is_acked_once_its_topics_are_durable_in_all_shards() -> None:
    """ROUTER-26: a 201 says that the router and the topics made for it are there, after any crash."""
    for i in range(8):
        machine = Machine(shards=3)
        for k in range(i):
            topic(machine, f"other{k}")
        done: list[Any] = []
        machine.engine.routers.put("r", PutRouter("s", "d"), done.append)
        machine.engine.turn()
        shards = {name: machine.store.shard_of(machine.engine.topics[name].id) for name in "sd"}
        for name in "ds":
            assert not done
            run_inline(shards[name].jobs(machine.clock.elapsed_ns()))
            if shards["s"] is shards["d"]:
                break
        assert len(done) == 1
        machine.crash("dropped")
        assert machine.engine.routers.get("r").source == "s"
        machine.engine.write("s", numbers(1, 1))
        assert machine.read("d")[0] == [1]


def test_repeated_router_commands_are_as_safe_as_the_first() -> None:
    """ROUTER-26: an identical PUT is a no-op 200; it must not promise what is still on its way to the disk."""
    machine = Machine()
    done: list[str] = []
    routers = machine.engine.routers
    routers.put("r", PutRouter("s", "d"), lambda receipt: done.append("put"))
    routers.put("r", PutRouter("s", "d"), lambda receipt: done.append("again"))
    machine.engine.turn()
    assert done == []
    machine.run_until_idle()
    assert done == ["put", "again"]
    routers.delete("r", lambda receipt: done.append("delete"))
    routers.delete("r", lambda receipt: done.append("gone"))
    machine.engine.turn()
    assert len(done) == 2
    machine.run_until_idle()
    assert done[2:] == ["delete", "gone"]


def test_router_stays_where_it_is_if_its_move_cannot_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROUTER-9: a change of its ends is one step, so a refused one changes nothing."""
    machine = Machine()
    machine.engine.routers.put("r", PutRouter("a", "b"))

    def refuse(*_: Any) -> None:
        raise QueueFull(retry_after_ms=1)

    machine.engine.put_topic("c", ConfigPatch())
    with monkeypatch.context() as patched:
        patched.setattr(machine.store.shards[0], "submit", refuse)
        with pytest.raises(QueueFull):
            machine.engine.routers.put("r", PutRouter("a", "c"))
    assert machine.engine.routers.get("r").dest == "b"
    machine.engine.write("a", numbers(1, 1))
    assert machine.read("b")[0] == [1]
    machine.crash("kill")
    assert machine.engine.routers.get("r").dest == "b"


def read_datas(machine: Machine, name: str) -> list[tuple[int, Any, Any]]:
    """Everything in a topic: seq, data, and the key of `exactly_once`."""
    records, _ = read_all(machine.engine, name)
    return [(seq, json.loads(record.data), record.meta) for seq, record in records.items()]


def beside_direct_writes() -> tuple[Machine, list[tuple[int, Any, Any]]]:
    """A destination with copies, a direct write after them that is not synced, and a copy after that; its records."""
    machine = Machine(shards=2)
    topic(machine, "a", durability="fsync")
    shard_of = machine.store.shard_of
    while shard_of(machine.engine.catalog.next_topic_id) is shard_of(machine.engine.topics["a"].id):
        topic(machine, f"other{machine.engine.catalog.next_topic_id}")
    topic(machine, "b", durability="disk")
    machine.engine.routers.put("a->b", PutRouter("a", "b", guarantee="exactly_once"))
    machine.engine.write("b", numbers(101, 101))
    machine.engine.write("a", numbers(1, 3))
    machine.clock.advance(100)
    machine.run_until_idle()
    write_soon(machine, "b", 102, 102)
    machine.engine.write("a", numbers(4, 4), lambda ticket: None)
    machine.engine.turn()
    run_inline(shard_of(machine.engine.topics["a"].id).jobs(machine.clock.elapsed_ns()))
    machine.engine.routers.schedule.step()
    return machine, read_datas(machine, "b")


def test_kill_moves_no_copy_beside_direct_writes() -> None:
    """ROUTER-15: every direct write logs where the copies were, and a kill takes none."""
    machine, shown = beside_direct_writes()
    assert [data for _, data, _ in shown] == [101, 1, 2, 3, 102, 4]
    machine.crash("kill")
    assert read_datas(machine, "b") == shown


def test_copies_after_a_direct_write_that_the_power_took_come_again_after_the_gap() -> None:
    """ROUTER-18: docs/durability.md, "Copies mixed with direct writes", says when and which."""
    machine, shown = beside_direct_writes()
    machine.crash("dropped")
    ((first, last, _),) = machine.read("b")[1]
    kept = read_datas(machine, "b")
    assert kept[:4] == shown[:4], "what the log had a place for keeps it, although no direct write came after it"
    assert first == 5
    assert kept[4:] == [(last + 1, 4, shown[5][2])], "once in the topic, with the key by which a reader knows it"


def test_router_that_is_held_up_at_a_checkpoint_loses_nothing() -> None:
    """ROUTER-21: the record is still in the source, so it is no `source_trim`, whatever restarts come in between."""
    machine = Machine()
    topic(machine, "b", cap_records=2, discard="reject")
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 6))
    seen = 0
    for _ in range(3):
        assert machine.read("b", seen) == ([seen + 1, seen + 2], [])
        machine.checkpoint()
        machine.crash("kill")
        assert machine.read("b", seen) == ([seen + 1, seen + 2], [])
        seen += 2
        machine.engine.delete("b", Delete(before_seq=seen + 1))
        machine.clock.advance(5000)
        machine.run_until_idle()
        machine.crash("kill")
    assert machine.read("b", seen) == ([], [])


def test_copy_that_waits_for_room_over_a_clean_stop_is_dated_when_it_comes() -> None:
    """ROUTER-28: with the time of its source it would be expired by now."""
    machine = Machine()
    topic(machine, "b", cap_records=1, discard="reject", ttl_ms=5000)
    machine.engine.routers.put("a->b", PutRouter("a", "b"))
    machine.engine.write("a", numbers(1, 3))
    assert machine.read("b") == ([1], [])
    for seq in (2, 3):
        machine.close()
        machine.clock.advance(10_000)
        machine.crash("kill")
        machine.run_until_idle()
        assert machine.read("b", seq - 1) == ([seq], [])


def test_job_that_moved_past_a_router_that_is_held_up_is_not_copied_after_a_restart() -> None:
    """ROUTER-21: copies are re-derived as they were; what left the source before its turn was never one."""
    machine = Machine()
    topic(machine, "q", type="queue", max_deliveries=1, dead_letter="d", lease_ms=100)
    topic(machine, "b", cap_records=1, discard="reject")
    machine.engine.routers.put("q->b", PutRouter("q", "b"))
    machine.engine.write("q", numbers(1, 3))
    machine.engine.queues.claim("q", ClaimJobs("w", max=2))
    machine.clock.advance(1000)
    machine.engine.queues.claim("q", ClaimJobs("w", max=2))
    assert machine.read("d")[0] == [1, 2], "the second one had not been copied when it left"
    machine.engine.delete("b", Delete(before_seq=2))
    machine.clock.advance(5000)
    machine.run_until_idle()
    copies = [record["data"] for record in machine.engine.diff("b", Diff()).records]
    assert copies == [3]
    machine.crash("kill")
    assert [record["data"] for record in machine.engine.diff("b", Diff()).records] == copies
