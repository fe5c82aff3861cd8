"""A checkpoint waits for the sealer, is captured in slices, and goes to the disk as it is captured (STORE-18)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw
from xxhash import xxh3_64_intdigest

from tests.harness.machine import Machine, numbers
from tests.harness.world import World
from topics.engine import ConfigPatch, Delete, RecordIn, Write
from topics.engine.restart.checkpoint import SLICE_TOPICS
from topics.engine.router.router import PutRouter
from topics.engine.upkeep.checkpointer import UNSEALED_PART, WAIT_FACTOR
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.storage.damage import UnknownFormat
from topics.storage.job import Job, run_inline
from topics.storage.snapshot import snapshot
from topics.storage.wal import frame

WAL_BYTES = 20_000
SETTINGS = UpkeepSettings(segment_max_events=50, checkpoint_wal_bytes=WAL_BYTES)


def grow(machine: Machine, wal_bytes: int) -> None:
    """Write until the log has this many bytes, without giving upkeep a turn."""
    while machine.store.wal_bytes <= wal_bytes:
        machine.engine.write("t", numbers(1, 25))


def step(machine: Machine) -> list[Job]:
    """What upkeep has for the threads now; nothing of it is run."""
    while machine.upkeep.step():
        pass
    return machine.store.jobs()


def snapshot_bytes(machine: Machine) -> int:
    """The length of the snapshot."""
    (name,) = machine.disk.list("data/snapshots")
    return len(machine.disk.files()[f"data/snapshots/{name}"])


def test_checkpoint_waits_for_the_sealer_and_holds_little_of_the_tail() -> None:
    """STORE-18: what is sealed meanwhile is not copied into the snapshot."""
    machine = Machine(SETTINGS)
    grow(machine, WAL_BYTES)
    assert machine.engine.totals.unsealed.bytes > WAL_BYTES // UNSEALED_PART
    (seal,) = [job for job in step(machine) if job.name == "seal"]
    machine.clock.advance(100)
    run_inline(job for job in step(machine) if job.name == "sync")
    assert [job.name for job in step(machine)] == [], "the tail is on its way, and the checkpoint waits"
    run_inline([seal])
    machine.run_until_idle()
    assert machine.store.checkpoints_total == 1
    assert machine.store.wal_bytes == 0
    assert snapshot_bytes(machine) < WAL_BYTES // 10


def test_checkpoint_waits_only_up_to_a_multiple_of_its_log() -> None:
    """STORE-18: however slow the sealer is, a restart reads a bounded log."""
    machine = Machine(SETTINGS)
    grow(machine, WAL_BYTES)
    sealing = [job for job in step(machine) if job.name == "seal"]
    assert sealing
    grow(machine, WAIT_FACTOR * WAL_BYTES)
    machine.clock.advance(100)
    machine.run_until_idle()
    assert machine.store.checkpoints_total == 1
    count = machine.engine.state("t").count
    run_inline(sealing)
    machine.crash("kill")
    assert machine.engine.state("t").count == count


def many(topics: int) -> Machine:
    """A machine with so many topics, each with a record."""
    machine = Machine()
    for i in range(topics):
        machine.engine.write(f"t{i}", numbers(i, i))
    machine.run_until_idle()
    return machine


def begin(machine: Machine) -> None:
    """Begin a checkpoint, and sync what it waits for."""
    machine.upkeep.checkpoint()
    machine.clock.advance(100)
    run_inline(machine.store.jobs())


def test_segment_that_is_dropped_while_a_checkpoint_is_captured_outlives_it() -> None:
    """STORE-18: the snapshot still lists it, so its files go with the next one."""
    machine = many(2 * SLICE_TOPICS)
    machine.engine.write("t0", numbers(1, 49))
    machine.run_until_idle()
    assert machine.engine.topics["t0"].archive.segments
    begin(machine)
    assert machine.upkeep.step(), "t0 is captured, and others are not"
    machine.engine.delete("t0", Delete(before_seq=51))
    assert not machine.engine.topics["t0"].archive.segments
    machine.run_until_idle()
    assert machine.store.checkpoints_total == 1
    machine.crash("kill")
    assert machine.engine.totals.corruption_total == 0
    assert machine.read("t0") == ([], [])
    machine.checkpoint()
    assert machine.disk.list("data/segments") == []


def test_tail_is_captured_block_by_block_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """STORE-18: a step has a bound, and what happens in between is in the log."""
    monkeypatch.setattr("topics.storage.snapshot.writer.WRITE_BYTES", 4_000)
    monkeypatch.setattr("topics.storage.snapshot.writer.UNWRITTEN_BYTES_MAX", 16_000)
    machine = Machine(UpkeepSettings(segment_max_events=10**9, checkpoint_wal_bytes=1 << 40))
    for _ in range(40):
        machine.engine.write("t", numbers(1, 200))
    machine.run_until_idle()
    begin(machine)
    steps = 0
    while not machine.store.checkpoints_total:
        steps += 1
        machine.upkeep.step()
        machine.engine.delete("t", Delete(before_seq=1 + 100 * steps))
        machine.engine.write("t", numbers(1, 3))
        run_inline(machine.store.jobs())
    assert steps > 5
    assert snapshot_bytes(machine) > 5 * 16_000
    seqs, gaps = machine.read("t")
    machine.crash("kill")
    assert machine.read("t") == (seqs, gaps)
    machine.crash("dropped")
    assert machine.read("t")[0][: len(seqs)] == seqs


def test_large_block_is_left_to_the_job_and_comes_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """STORE-18: however large a Block is, it is neither copied nor checked on the engine's thread."""
    made: list[int] = []

    def large(*args: Any, **fields: Any) -> frame.LargeFrame:
        made.append(fields["n"])
        return build(*args, **fields)

    build = frame.large
    machine = Machine(UpkeepSettings(segment_max_events=10**9, segment_max_bytes=1 << 40, checkpoint_wal_bytes=1 << 40))
    datas = [f"{i}" * 1000 for i in range(100, 1000)]
    machine.engine.write("t", numbers(1, 3))
    records = [
        RecordIn(Raw(b'"%b"' % data.encode()), tag="gone" if i in (1, 899) else None) for i, data in enumerate(datas)
    ]
    machine.engine.write("t", Write(records))
    machine.engine.write("t", numbers(4, 6))
    machine.run_until_idle()
    machine.engine.delete("t", Delete(match="gone"))
    machine.run_until_idle()
    begin(machine)
    monkeypatch.setattr(frame, "large", large)
    jobs = [job for job in step(machine) if job.name == "snapshot"]
    assert jobs
    assert made == [], "nothing is done to it before it is written"
    run_inline(jobs)
    assert made == [900]
    machine.run_until_idle()
    assert machine.store.checkpoints_total == 1
    assert machine.store.wal_bytes == 0
    machine.crash("kill")
    assert machine.engine.totals.corruption_total == 0
    assert machine.datas("t") == [1, 2, 3, datas[0], *datas[2:-1], 4, 5, 6]


def test_section_of_a_large_block_is_the_same_as_that_of_any_other() -> None:
    """STORE-15: how a section is put together does not show in the file."""
    large = snapshot.LargeBlock(7, 3, 11, 5, b"the text of a Block", b"\0\0\xd5\0\0")
    assert b"".join(large.parts()) == snapshot.block_section(7, 3, 11, 5, large.raw + large.flags)


def test_capture_begins_again_where_the_order_of_topics_has_changed() -> None:
    """STORE-18: a destination is captured after its source, also where it became one in between."""
    machine = many(2 * SLICE_TOPICS)
    begin(machine)
    assert machine.upkeep.step()
    machine.engine.routers.put("r", PutRouter(f"t{2 * SLICE_TOPICS - 1}", "t0"))
    machine.engine.write(f"t{2 * SLICE_TOPICS - 1}", numbers(7, 7))
    machine.run_until_idle()
    assert machine.store.checkpoints_total == 1
    machine.crash("kill")
    assert machine.datas("t0") == [0, 7]
    assert [name for name in machine.disk.list("data/snapshots") if name.endswith(".tmp")] == []


@pytest.mark.parametrize(("operation", "nth"), [("create", 1), ("write", 1), ("write", 3), ("sync", 1), ("rename", 1)])
def test_snapshot_that_cannot_be_written_leaves_no_file_and_is_tried_again(
    operation: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STORE-18: also where the disk fails in the middle of it."""
    monkeypatch.setattr("topics.storage.snapshot.writer.WRITE_BYTES", 64)
    monkeypatch.setattr("topics.engine.restart.checkpoint.SLICE_TOPICS", 1)
    world = World()
    for name in ("kept", "common", "scratch"):
        world.put(name, durability="fsync")
    world.checkpoint()
    world.write("kept", 2)
    world.clock.advance(60)
    world.run_until_idle()
    world.fault.fail(operation, nth)
    world.upkeep.checkpoint()
    world.run_until_idle()
    assert world.store.checkpoints_total == 1
    assert len(world.disk.list("data/snapshots")) == 1 + (operation == "rename")
    world.checkpoint()
    assert world.store.checkpoints_total == 2
    assert len(world.disk.list("data/snapshots")) == 1
    world.crash("dropped")


def test_stop_in_the_middle_of_a_capture_is_orderly() -> None:
    """DURABLE-7."""
    machine = many(2 * SLICE_TOPICS)
    begin(machine)
    machine.upkeep.step()
    machine.engine.put_topic("t0", ConfigPatch(priority=3))
    machine.upkeep.close()
    machine.store.close()
    machine.crash("kill")
    assert machine.engine.topics["t0"].config.priority == 3
    assert machine.datas(f"t{2 * SLICE_TOPICS - 1}") == [2 * SLICE_TOPICS - 1]


def test_header_of_the_first_version_is_read_and_of_a_later_one_refused() -> None:
    """STORE-15: a program that does not know a format says so, instead of leaving out what it does not understand."""
    header = snapshot.Header(7, 9, bytes(16), 3, clean=True)
    data = snapshot.encode_header(header)

    def of_version(version: int) -> bytes:
        head = data[:8] + version.to_bytes(4, "little") + data[12:56]
        return head + xxh3_64_intdigest(head).to_bytes(8, "little")

    assert of_version(snapshot.VERSION) == data
    assert snapshot.decode_header(of_version(1), "s") == header
    with pytest.raises(UnknownFormat, match="version 9; this program reads versions 1 and 2"):
        snapshot.decode_header(of_version(9), "s")
