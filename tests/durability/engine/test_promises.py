"""Promises across a crash that took a particular order of events to break, each as the shortest story that tells it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.harness.machine import small
from tests.harness.oracle import read_all
from tests.harness.storage import resolve
from tests.harness.world import World
from topics.engine import ConfigPatch, Delete, Diff, Write
from topics.engine.router.router import PutRouter
from topics.engine.upkeep import merger
from topics.errors import ColdUnavailable
from topics.storage.block import Extent
from topics.storage.job import run_inline
from topics.storage.segment.tier import Tier
from topics.storage.snapshot import snapshot
from topics.storage.wal import file as walfile
from topics.storage.wal import frame, scan
from topics.storage.wal.shard import QueueFull
from topics.testing.fake_disk import Damage, FakeDisk


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small():
        yield


def lose_power(world: World) -> None:
    """A loss of power that takes everything unsynced, and the next start; no promise is checked but the test's own."""
    world.disk.crash("dropped", random.Random(1))
    world.start()


def test_range_lost_with_the_power_is_still_reported_after_a_kill_that_follows() -> None:
    """DURABLE-5: acked and lost seqs are never reused, whatever happens before the next write."""
    world = World()
    world.write("t", 2, durability="disk")
    world.run_until_idle()
    world.write("t", 3)
    world.turn()
    lose_power(world)
    gaps = read_all(world.engine, "t")[1]
    assert gaps
    assert gaps[0][1] >= 5
    # Something else happens, so that the next start finds a log that this kernel has written.
    world.engine.put_topic("u", ConfigPatch())
    world.disk.crash("kill", random.Random(1))
    world.start()
    assert read_all(world.engine, "t")[1] == gaps
    assert world.engine.topics["t"].next_seq == gaps[0][1] + 1


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_write_that_creates_a_topic_is_acked_once_the_config_is_safe(durability: str) -> None:
    """DURABLE-2: the topic config always survives, whatever the class of the records."""
    world = World()
    acked: list[Any] = []
    config = ConfigPatch(durability=durability)  # type: ignore[arg-type]
    world.engine.write("t", Write.of([1], config=config), acked.append)
    world.engine.turn()
    assert not acked, "the frame with the config is written, and not synced"
    world.run_until_idle()
    assert [ticket.error for ticket in acked] == [None]
    lose_power(world)
    assert world.engine.topics["t"].config.durability == durability


def test_write_to_a_topic_that_becomes_ephemeral_is_shown_once_that_is_safe() -> None:
    """DURABLE-2: otherwise a restart that does not know of the change hands out the seq again, in silence."""
    world = World()
    world.engine.write("t", Write.of([1]))
    world.run_until_idle()
    world.engine.put_topic("t", ConfigPatch(durability="ephemeral"), lambda _: None)
    order: list[int] = []
    for i in (2, 3):
        world.engine.write("t", Write.of([i]), lambda ticket: order.append(ticket.first_seq))
    world.engine.turn()
    assert order == []
    assert world.engine.topics["t"].log.head == 1
    world.run_until_idle()
    assert order == [2, 3]


def test_ephemeral_writes_after_the_one_that_creates_the_topic_become_visible_in_order() -> None:
    """WRITE-3: seq order is delivery order."""
    world = World()
    order: list[int] = []
    config = ConfigPatch(durability="ephemeral")
    for i in (1, 2):
        world.engine.write("t", Write.of([i], config=config), lambda ticket: order.append(ticket.first_seq))
    world.run_until_idle()
    assert order == [1, 2]
    assert list(read_all(world.engine, "t")[0]) == [1, 2]


def test_topic_that_the_queue_had_no_room_for_leaves_no_trace() -> None:
    """TOPIC-3: a topic id serves one topic; a refused create must not lend its id to the next one."""
    world = World(queue_bytes_max=400)
    refused: list[str] = []
    for i in range(40):
        try:
            world.engine.put_topic(f"t{i}", ConfigPatch(ttl_ms=i + 1), lambda receipt: None)
        except QueueFull:
            refused.append(f"t{i}")
    assert refused
    world.run_until_idle()
    taken = {name: topic.id for name, topic in world.engine.topics.items()}
    assert not set(refused) & set(taken)
    world.engine.put_topic("after", ConfigPatch())
    taken = {name: topic.id for name, topic in world.engine.topics.items()}
    lose_power(world)
    assert {name: topic.id for name, topic in world.engine.topics.items()} == taken


def test_deletion_of_a_topic_happens_whole_or_not_at_all_where_the_queue_is_nearly_full() -> None:
    """TOPIC-23: what was refused did not happen, also not after a restart."""
    outcomes = set()
    for room in range(0, 400, 40):
        world = World(queue_bytes_max=2000)
        world.engine.write("t", Write.of([1], config=ConfigPatch(durability="fsync")))
        shard = world.store.shards[0]
        filler = 2000 - room - 200
        world.engine.write("t", Write.of(["x" * filler]), lambda ticket: None)
        shard._queue_bytes_max = shard.queue_bytes + room
        try:
            receipt = world.engine.delete_topic("t", on_done=lambda receipt: None)
            world.run_until_idle()
            deleted = receipt.error is None
        except QueueFull:
            deleted = False
            world.run_until_idle()
        assert ("t" in world.engine.topics) != deleted
        lose_power(world)
        assert ("t" in world.engine.topics) != deleted
        outcomes.add(deleted)
    assert outcomes == {True, False}


def test_ceiling_that_a_checkpoint_overtakes_is_not_forgotten() -> None:
    """DURABLE-5: seqs acked without a sync stay below the durable ceiling, also where a checkpoint comes between."""
    world = World()
    world.write("t", 1, durability="disk")
    world.run_until_idle()
    topic = world.engine.topics["t"]
    world.upkeep.checkpoint()
    world.upkeep.step()
    while topic.ceiling.asked == topic.ceiling.seq:
        world.write("t", 1)
        world.engine.turn()
    # The ceiling's frame waits for its sync, and the checkpoint is taken now.
    assert topic.pending_records == 0
    before = topic.ceiling.seq
    world.upkeep.step()
    world.run_until_idle()
    assert world.store.checkpoints_total == 1
    assert topic.ceiling.seq > before
    while topic.log.head <= before:
        world.write("t", 1)
        world.engine.turn()
    acked = topic.log.head
    lose_power(world)
    assert world.engine.topics["t"].next_seq > acked


@pytest.mark.parametrize("next_class", ["memory", "fsync", "ephemeral"])
def test_seqs_acked_as_disk_stay_taken_where_only_the_change_of_class_reached_the_disk(next_class: str) -> None:
    """DURABLE-5: acked and lost seqs are never reused; class changes apply going forward."""
    world = World()
    world.put("t", durability="disk")
    world.write("t", 1)
    world.run_until_idle()
    world.write("t", 3)
    world.engine.turn()
    acked = world.engine.topics["t"].log.head
    assert acked == 4
    lost = world.disk.files()
    world.put("t", durability=next_class)
    world.engine.turn()
    path, at = _first_difference(lost, world.disk.files())
    # A loss of power that keeps the sectors of the last frames and drops those of the records before them.
    inode = world.disk._names[path]
    records, frames = [entry for entry in inode.pending if entry[0] < at], inode.pending[len(inode.pending) - 1]
    assert records
    assert frames[0] >= at
    inode.pending[:] = [frames]
    world.disk.sync(next(handle for handle, entry in world.disk._handles.items() if entry[1] is inode))
    lose_power(world)
    assert world.engine.topics["t"].config.durability == next_class
    records_left, gaps = read_all(world.engine, "t")
    assert list(records_left) == [1]
    assert gaps == [(2, 4, "crash")]
    assert world.engine.topics["t"].next_seq == 5


def _first_difference(before: dict[str, bytes], after: dict[str, bytes]) -> tuple[str, int]:
    for path, content in after.items():
        if before.get(path) != content:
            return path, next(i for i, (a, b) in enumerate(zip(before[path], content, strict=True)) if a != b)
    raise AssertionError("nothing was written")


def test_write_cut_short_by_a_kill_is_no_corruption_where_the_next_file_is_prepared_already() -> None:
    """DURABLE-19: a torn tail is cut off; only damage is called corruption."""
    world = World()
    world.write("t", 1, durability="fsync")
    world.run_until_idle()
    world.write("t", 5, size=100)
    ends: list[bool] = []

    def cut(number: int, operation: str, path: str) -> None:
        if operation == "write" and ".wal" in path and not ends:
            ends.append(True)
            twin = world.disk.clone()
            _prepare_next(twin)
            twin.crash("kill", random.Random(1))
            _, engine, _ = world.boot(twin)
            assert engine.totals.corruption_total == 0
            assert read_all(engine, "t")[1] == []
            assert engine.topics["t"].next_seq == 2

    world.disk.after_call = cut
    world.engine.turn()
    assert ends


def _prepare_next(disk: FakeDisk) -> None:
    name = max(filter(None, map(walfile.parse_name, disk.list("data/wal"))))
    if not any(disk.files()[f"data/wal/{name}"][walfile.HEADER_BYTES :]):
        return
    boot = walfile.boot_digest(disk.boot_id())
    walfile.create(disk, "data/wal", name._replace(number=name.number + 1), boot, 4096, zero_fill=True)


def test_prepared_file_that_was_too_small_is_not_trimmed_before_the_one_in_front_of_it() -> None:
    """STORE-9: WAL files are trimmed after a checkpoint; one that is missing among others would be damage."""
    world = World()
    world.write("t", 1, size=2500, durability="fsync")
    world.run_until_idle()
    shard = world.store.shards[0]
    assert shard.files.next is not None, "the file is more than half full"
    world.write("t", 1, size=6000)
    world.run_until_idle()
    assert shard.files.current.name.number == 3
    assert shard.files.trimmable(1) == []
    assert [name.number for name in shard.files.trimmable(world.store.last_lsn)] == [1, 2]


@pytest.mark.parametrize("damage", ["kill", "dropped"])
def test_restart_evicts_nothing_that_a_delete_had_made_room_for(damage: Damage) -> None:
    """DURABLE-10: a cap takes what is beyond it, in the order in which readers saw writes and deletes."""
    world = World()
    world.put("t", durability="fsync", cap_records=10)
    world.write("t", 5, tag="a")
    world.write("t", 5, tag="b")
    world.run_until_idle()
    world.write("t", 1)
    world.delete("t", tag="b")
    world.run_until_idle()
    shown = read_all(world.engine, "t")
    assert sorted(shown[0]) == [1, 2, 3, 4, 5, 11]
    world.crash(damage)
    assert read_all(world.engine, "t") == shown


def test_restart_evicts_nothing_that_a_loosened_cap_had_made_room_for() -> None:
    """DURABLE-10: a config acts at the moment at which it was made, also on writes that were waiting then."""
    world = World()
    world.put("t", durability="fsync", cap_records=2)
    world.run_until_idle()
    world.write("t", 3)
    world.put("t", cap_records=10)
    world.run_until_idle()
    assert sorted(read_all(world.engine, "t")[0]) == [1, 2, 3]
    world.crash("kill")
    assert sorted(read_all(world.engine, "t")[0]) == [1, 2, 3]


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_delete_that_finds_nothing_left_waits_for_the_one_that_took_it(durability: str) -> None:
    """TOPIC-23: an acked delete is permanent, also where another one had been faster by a moment."""
    world = World()
    world.write("t", 3, durability=durability)
    world.run_until_idle()
    done: list[str] = []
    world.engine.delete("t", Delete(before_seq=3), lambda receipt: done.append("first"))
    world.engine.delete("t", Delete(before_seq=2), lambda receipt: done.append("second"))
    assert done == []
    world.run_until_idle()
    assert done == ["first", "second"]


def test_config_that_is_there_already_is_acked_once_it_is_safe() -> None:
    """TOPIC-23: an acked PUT survives, also where another one had asked for the same a moment before."""
    world = World()
    done: list[str] = []
    world.engine.put_topic("t", ConfigPatch(ttl_ms=5), lambda receipt: done.append("created"))
    world.engine.put_topic("t", ConfigPatch(ttl_ms=5), lambda receipt: done.append("same"))
    assert done == []
    world.run_until_idle()
    assert done == ["created", "same"]


def test_deletion_of_a_topic_that_is_going_is_acked_once_it_is_gone_for_good() -> None:
    """TOPIC-23: a client that learns that there is no such topic must not find it after a crash."""
    world = World()
    world.put("t")
    world.run_until_idle()
    done: list[Any] = []
    world.engine.delete_topic("t", on_done=lambda receipt: done.append(receipt.result.deleted))
    world.engine.delete_topic("t", on_done=lambda receipt: done.append(receipt.result.deleted))
    assert done == []
    world.run_until_idle()
    assert done == [True, False]
    world.engine.delete_topic("t", on_done=lambda receipt: done.append(receipt.result.deleted))
    assert done == [True, False, False]


def test_deletion_waits_for_the_last_of_its_name_and_not_for_one_before_it() -> None:
    """TOPIC-23: the topic was deleted, created and deleted again while the first deletion was being synced."""
    world = World()
    world.put("t")
    world.run_until_idle()
    done: list[str] = []
    world.engine.delete_topic("t", on_done=lambda receipt: done.append("first"))
    world.engine.turn()
    (sync,) = [job for job in world.store.jobs() if job.name == "sync"]
    world.engine.put_topic("t", ConfigPatch(), lambda receipt: done.append("created"))
    world.engine.delete_topic("t", on_done=lambda receipt: done.append("second"))
    world.engine.turn()
    run_inline([sync])
    assert done == ["first"]
    world.engine.delete_topic("t", on_done=lambda receipt: done.append("third"))
    assert done == ["first"], "a crash would bring the topic back"
    world.run_until_idle()
    assert done == ["first", "created", "second", "third"]


@pytest.mark.parametrize("place", ["hot", "cold"])
def test_start_waits_for_blocks_that_are_in_no_cache(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DURABLE-25: a restart after a new boot finds nothing in the page cache, and needs what it needs."""
    monkeypatch.setattr(merger, "MERGE_SEGMENTS", 1000)
    world = World(cold_directory="cold" if place == "cold" else None)
    world.put("t", durability="fsync", cap_records=30)
    for _ in range(12):
        world.write("t", 4, tag="a")
        world.run_until_idle()
        world.clock.advance(6000)
    world.checkpoint()
    topic = world.engine.topics["t"]
    assert any(segment.is_cold for segment in topic.archive.segments) == (place == "cold")
    assert topic.archive.segments[0].first_seq < topic.log.start, "the log begins inside a sealed Block"
    world.delete("t", before_seq=topic.log.start + 1)
    world.run_until_idle()
    shown = read_all(world.engine, "t")
    world.disk.crash("dropped", random.Random(1))
    world.disk.uncached = {path for path in world.disk.files() if path.endswith(".data")}
    world.start()
    assert read_all(world.engine, "t") == shown


def test_start_does_not_need_the_cold_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """STORE-4: an unreachable cold store is a clear 503 for a read of it alone."""
    monkeypatch.setattr(merger, "MERGE_SEGMENTS", 1000)
    world = World()
    world.put("t", durability="fsync", cap_records=30)
    for _ in range(12):
        world.write("t", 4, tag="a")
        world.run_until_idle()
        world.clock.advance(6000)
    world.checkpoint()
    world.delete("t", before_seq=world.engine.topics["t"].log.start + 1)
    world.run_until_idle()
    start = world.engine.topics["t"].log.start
    world.disk.crash("dropped", random.Random(1))
    world.disk.unreachable = {"cold"}
    world.start()
    assert world.engine.topics["t"].log.start == start
    with pytest.raises(ColdUnavailable):
        read_all(world.engine, "t", start - 1)
    world.write("t", 1)
    world.run_until_idle()
    assert sorted(read_all(world.engine, "t", world.engine.topics["t"].log.head - 1)[0]) == [49]


@pytest.mark.parametrize("told", ["at once", "by a job"])
def test_what_expires_in_a_cold_store_out_of_reach_stops_only_who_reads_it(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STORE-4: the topic, the list of topics and other records are there; what has expired is not delivered."""
    if told == "by a job":
        monkeypatch.setattr(Tier, "read_now", lambda *_: None)
    monkeypatch.setattr(merger, "MERGE_SEGMENTS", 1000)
    world = World(monitored=False)
    world.put("t", durability="fsync", ttl_ms=100_000)
    for _ in range(12):
        world.write("t", 4)
        world.run_until_idle()
        world.clock.advance(6000)
    world.run_until_idle()
    topic, engine = world.engine.topics["t"], world.engine
    first, second = (segment.blocks[0] for segment in topic.archive.segments[:2])
    assert first.segment.is_cold
    assert first.first_ts < first.last_ts
    world.disk.unreachable = {"cold"}
    for segment in topic.archive.segments:
        for sealed in segment.blocks:
            segment.cache.drop(sealed)

    def at(ts: int) -> None:
        world.clock.advance(ts + 100_000 - world.clock.now_ms())

    at(first.last_ts)
    for _ in range(3):
        assert resolve(lambda: engine.state("t")).earliest_seq == 1
        assert [summary.topic for summary in resolve(engine.list_topics)[0]] == ["t"]
        with pytest.raises(ColdUnavailable):
            resolve(lambda: engine.diff("t", Diff(from_seq=0)))
    assert sorted(read_all(engine, "t", 44)[0]) == [45, 46, 47, 48]
    world.write("t", 1)
    world.run_until_idle()
    world.disk.unreachable = set()
    world.run_until_idle()
    read_all(engine, "t", 44)
    assert 1 < resolve(lambda: engine.state("t")).earliest_seq <= first.last_seq, "a part of the Block has expired"

    world.disk.unreachable = {"cold"}
    first.segment.cache.drop(first)
    at(first.last_ts + 1)
    assert resolve(lambda: engine.state("t")).earliest_seq == second.first_seq, "it goes without being read"
    assert (topic.log.count, topic.log.bytes) == _counted(topic.log.retained())


def _counted(entries: Iterable[Extent]) -> tuple[int, int]:
    found = list(entries)
    return sum(entry.live for entry in found), sum(entry.live_bytes for entry in found)


def test_segment_that_spans_a_lost_range_loses_nothing_more_at_the_next_start() -> None:
    """DURABLE-17: a lost range is reported exactly, and what follows it is there."""
    world = World()
    world.write("t", 5, durability="disk")
    world.run_until_idle()
    world.write("t", 1)
    world.engine.turn()
    world.crash("dropped")
    world.write("t", 20)
    world.run_until_idle()
    topic = world.engine.topics["t"]
    lost = topic.log.lost[0]
    assert any(segment.first_seq < lost.first and lost.last < segment.last_seq for segment in topic.archive.segments)
    world.checkpoint()
    shown = read_all(world.engine, "t")
    assert len(shown[0]) == 25
    world.crash("kill")
    assert read_all(world.engine, "t") == shown


def test_floor_stays_where_flags_of_a_later_delete_are_on_disk_already() -> None:
    """DURABLE-9: evict_floor is the sole trigger of a tombstone, and never goes down."""
    world = World()
    world.put("t", durability="fsync", cap_records=20)
    for i in range(20):
        world.write("t", 1, tag="odd" if i % 2 else "even")
        world.run_until_idle()
    world.checkpoint()
    assert world.engine.topics["t"].archive.segments
    world.write("t", 2, tag="last")
    world.run_until_idle()
    world.delete("t", tag="odd")
    world.run_until_idle()
    assert world.done["flip"]
    shown = read_all(world.engine, "t")
    assert world.engine.topics["t"].log.evict_floor == 3
    world.crash("kill")
    assert read_all(world.engine, "t") == shown
    assert world.engine.topics["t"].log.evict_floor == 3


def test_topic_made_anew_during_a_checkpoint_is_there_after_a_restart() -> None:
    """DURABLE-11: a topic of the same name is another one, whatever the log still says about the one before."""
    world = World()
    world.upkeep.checkpoint()
    world.put("t", durability="fsync")
    world.drop("t")
    world.put("t", durability="fsync")
    world.write("t", 3)
    while not world.store.checkpoints_total:
        world.turn()
        world.run_job()
        world.finish_job()
    world.run_until_idle()
    shown = read_all(world.engine, "t")
    assert len(shown[0]) == 3
    world.crash("kill")
    assert read_all(world.engine, "t") == shown


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_write_waits_for_the_class_that_it_counts_on(durability: str) -> None:
    """DURABLE-2: the class of a write is that of the current config, which must not be lost after its ack."""
    world = World()
    world.put("t", durability="disk")
    world.write("t", 1)
    world.run_until_idle()
    world.engine.put_topic("t", ConfigPatch(durability=durability, ttl_ms=77), lambda receipt: None)
    acked: list[Any] = []
    world.engine.write("t", Write.of([1]), acked.append)
    world.engine.turn()
    assert not acked
    world.run_until_idle()
    assert acked
    world.engine.write("t", Write.of([1]), acked.append)
    world.engine.turn()
    assert len(acked) == 2, "and only once"


def test_segment_dropped_because_all_of_it_was_deleted_is_no_loss_at_the_next_start() -> None:
    """DURABLE-20: a segment whose every record is deleted is dropped; a deletion is silent, now and later."""
    world = World()
    for tag in ("a", "b"):
        world.write("t", 13, tag=tag, durability="fsync")
        world.run_until_idle()
    world.write("t", 1, tag="c")
    world.run_until_idle()
    assert len(world.engine.topics["t"].archive.segments) == 2
    world.delete("t", tag="b")
    assert len(world.engine.topics["t"].archive.segments) == 1
    world.checkpoint()
    shown = read_all(world.engine, "t")
    assert shown[1] == []
    world.crash("kill")
    assert read_all(world.engine, "t") == shown


@pytest.mark.parametrize("stops", ["kill", "orderly"])
def test_damage_to_a_segment_whose_records_are_all_deleted_is_no_gap_and_the_segment_goes(stops: str) -> None:
    """DURABLE-20: a deletion is silent, also where the last checkpoint still lists the segment."""
    world = World()
    for tag in ("a", "b", "c"):
        world.write("t", 13, tag=tag, durability="fsync")
        world.run_until_idle()
    world.checkpoint()
    segment = world.engine.topics["t"].archive.segments[1]
    data_file = f"data/segments/{segment.name.data_file}"
    world.delete("t", tag="b")
    world.run_until_idle()
    shown = read_all(world.engine, "t")
    assert shown[1] == []
    world.disk.crash("kill", random.Random(1))
    world.disk.damage(data_file, segment.blocks[0].offset + 70, b"\xff")
    for _ in range(2):
        world.start()
        assert read_all(world.engine, "t") == shown
        assert [found.first_seq for found in world.engine.topics["t"].archive.segments] == [1, 27]
        if stops == "orderly":
            world.upkeep.close()
            assert not world.disk.exists(data_file)
            world.store.close()
        world.disk.crash("kill", random.Random(1))


def _with_a_move_under_way() -> World:
    """A world in which the first segment is about to move to the cold tier."""
    world = World()
    for tag in ("a", "b", "c"):
        for each in (tag, "x"):
            world.write("t", 7, tag=each, durability="fsync")
        world.run_until_idle()
    world.checkpoint()
    world.clock.advance(6000)
    return world


def test_delete_holds_where_a_checkpoint_comes_before_the_move_of_its_segment_is_done() -> None:
    """DURABLE-12: a sealed record's deletion survives the checkpoint that drops its frame, also during a move."""
    world = _with_a_move_under_way()
    world.delete("t", tag="x")
    assert world.store.segments.flips
    job = world.store.segments.relocate_job(world.engine.topics["t"].archive.segments[0])
    assert job is not None
    world.run_until_idle()
    world.checkpoint()
    world.crash("dropped")
    assert {record.tag for record in read_all(world.engine, "t")[0].values()} == {"a", "b", "c"}


def test_delete_holds_where_a_move_was_cut_short_and_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """DURABLE-12: relocation is idempotent at every crash point, and takes no delete flag with it."""
    monkeypatch.setattr(merger, "MERGE_SEGMENTS", 1000)
    world = _with_a_move_under_way()
    job = world.store.segments.relocate_job(world.engine.topics["t"].archive.segments[0])
    assert job is not None
    job.run()
    world.crash("kill")
    assert any(name.endswith(".flags") for name in world.disk.list("data/segments"))
    world.delete("t", tag="x")
    world.run_until_idle()
    for _ in range(3):
        world.clock.advance(6000)
        world.run_until_idle()
        world.checkpoint()
    assert any(segment.is_cold for segment in world.engine.topics["t"].archive.segments)
    world.crash("dropped")
    assert {record.tag for record in read_all(world.engine, "t")[0].values()} == {"a", "b", "c"}


@pytest.mark.parametrize("cap_records", [0, 20])
def test_ttl_that_is_lifted_before_a_record_is_visible_does_not_take_it_at_a_restart(cap_records: int) -> None:
    """DURABLE-10: a change of the config acts on what is visible then, before a crash and after it."""
    world = World()
    world.put("scratch", durability="memory", ttl_ms=9000, cap_records=cap_records)
    world.write("scratch", 3)
    world.run_until_idle()
    world.write("scratch", 2)
    world.clock.advance(9500)
    world.write("scratch", 1)
    world.put("scratch", ttl_ms=0)
    world.run_until_idle()
    shown, _ = read_all(world.engine, "scratch")
    assert sorted(shown) == [4, 5, 6], "what was not visible yet had not expired"
    world.crash("kill")
    assert read_all(world.engine, "scratch")[0] == shown


@pytest.mark.parametrize("at", [20, 60], ids=["header", "payload"])
def test_topic_whose_state_is_damaged_in_both_copies_keeps_its_sealed_records(at: int) -> None:
    """DURABLE-21: loss is always explicit. The name is lost, the records are not, and damage is counted."""
    world = World()
    for name in ("t", "other"):
        world.write(name, 13, durability="fsync")
        world.run_until_idle()
    world.checkpoint()
    topic = world.engine.topics["t"]
    assert not topic.log.tail(), "nothing of it is in the checkpoint but its state"
    shown, _ = read_all(world.engine, "t")
    _damage_state(world, topic.id, at)
    world.start()
    assert world.engine.totals.corruption_total
    records, gaps = read_all(world.engine, f"recovered-topic-{topic.id}")
    assert records == shown
    assert [(first, reason) for first, _, reason in gaps] == [(14, "corruption")]


def _damage_state(world: World, topic_id: int, at: int) -> None:
    """End the engine, and damage both copies of a topic's state in the checkpoint, so many bytes from their begin."""
    (path,) = [path for path in world.disk.files() if path.endswith(".snap")]
    size = len(world.disk.files()[path])
    content = world.disk.files()[path] + bytes(4096)
    copies = [
        found.at - frame.HEADER_BYTES
        for found in scan.walk(content, snapshot.HEADER_BYTES, size, torn_allowed=False)
        if isinstance(found, scan.Entry) and (found.kind, found.topic_id) == (snapshot.TOPIC, topic_id)
    ]
    assert len(copies) == 2
    world.disk.crash("kill", random.Random(1))
    for copy in copies:
        world.disk.damage(path, copy + at, bytes([content[copy + at] ^ 4]))


def test_topic_whose_state_is_lost_goes_on_above_every_seq_that_it_may_have_handed_out() -> None:
    """DURABLE-26: its last records were deleted, so nothing but its state said how far it went."""
    world = World()
    world.write("t", 13, durability="fsync")
    world.checkpoint()
    world.write("t", 13, tag="x")
    world.run_until_idle()
    world.delete("t", tag="x")
    world.checkpoint()
    topic = world.engine.topics["t"]
    shown, _ = read_all(world.engine, "t")
    assert (max(shown), topic.log.head) == (13, 26)
    name = f"recovered-topic-{topic.id}"
    _damage_state(world, topic.id, 60)
    world.start()
    records, gaps = read_all(world.engine, name)
    ((first, last, reason),) = gaps
    assert (records, first, reason) == (shown, 14, "corruption")
    ticket = world.engine.write(name, Write.of([1]))
    world.run_until_idle()
    assert ticket.first_seq == last + 1 > 26
    written = read_all(world.engine, name)
    for end in ("kill", "kill", "stop"):
        if end == "stop":
            world.upkeep.close()
            world.store.close()
        world.disk.crash("kill", random.Random(1))
        world.start()
        assert read_all(world.engine, name) == written


def test_topic_whose_state_is_lost_goes_on_after_the_writes_that_the_log_has() -> None:
    """DURABLE-26: a write after the checkpoint says how far it went."""
    world = World()
    world.write("t", 13, durability="fsync")
    world.checkpoint()
    world.write("t", 2)
    world.run_until_idle()
    topic = world.engine.topics["t"]
    shown = read_all(world.engine, "t")
    _damage_state(world, topic.id, 60)
    world.start()
    assert read_all(world.engine, f"recovered-topic-{topic.id}") == shown
    assert world.engine.topics[f"recovered-topic-{topic.id}"].next_seq == 16


def test_eviction_waits_for_a_block_that_a_router_has_to_copy_first() -> None:
    """RETAIN-4: a write is acked although what the cap takes has to be read from disk for a destination that lags."""
    world = World(cold_directory=None)
    world.put("s", durability="memory", cap_records=30)
    world.put("d", durability="memory", cap_records=1, discard="reject")
    world.engine.routers.put("r", PutRouter("s", "d"))
    for _ in range(5):
        world.write("s", 4)
        world.run_until_idle()
        world.clock.advance(6000)
    topic = world.engine.topics["s"]
    assert topic.archive.segments
    for segment in topic.archive.segments:
        for sealed in segment.blocks:
            segment.cache.drop(sealed)
    world.disk.uncached = {path for path in world.disk.files() if path.endswith(".data")}
    acked: list[Any] = []
    world.engine.write("s", Write.of(range(31)), acked.append)
    world.run_until_idle()
    assert [ticket.error for ticket in acked] == [None]
    world.write("s", 1)
    world.run_until_idle()
    assert topic.log.count == 30


def test_a_tightened_ttl_is_logged_once_where_it_has_to_read_a_block() -> None:
    """TOPIC-6, RETAIN-1: the change is acked, and applied once the Block is there."""
    world = World(cold_directory=None)
    world.put("t", durability="memory")
    for _ in range(5):
        for _ in range(4):
            world.write("t", 1)
            world.clock.advance(10)
        world.run_until_idle()
        world.clock.advance(6000)
    topic = world.engine.topics["t"]
    assert topic.archive.segments
    for segment in topic.archive.segments:
        for sealed in segment.blocks:
            segment.cache.drop(sealed)
    world.disk.uncached = {path for path in world.disk.files() if path.endswith(".data")}
    acked: list[Any] = []
    frames = world.engine.store.last_lsn
    world.engine.put_topic("t", ConfigPatch(ttl_ms=18105), acked.append)
    world.run_until_idle()
    assert [receipt.error for receipt in acked] == [None]
    assert world.engine.store.last_lsn - frames == 2, "a config is logged twice, and not four times"
    assert topic.config.ttl_ms == 18105
    assert world.engine.state("t").count == 10
