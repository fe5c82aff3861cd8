"""Room that was freed is given back soon, and a disk that was full takes writes again (SPACE-2 to SPACE-4, SPACE-8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.machine import Machine
from tests.harness.small_disk import SmallDisk
from topics.engine import ConfigPatch, Delete, Write
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.errors import StorageFull
from topics.storage.job import run_inline

SETTINGS = UpkeepSettings(segment_max_events=20, checkpoint_wal_bytes=1 << 40)
TEXT = "x" * 1000


def size(machine: Machine, part: str = "") -> int:
    return sum(len(content) for path, content in machine.disk.files().items() if part in path)


def wait(machine: Machine, ms: int = 10_000) -> None:
    """Time passes, and nobody does anything."""
    for _ in range(ms // 500):
        machine.run_until_idle()
        machine.clock.advance(500)
    machine.run_until_idle()


def fill(machine: Machine, topic: str, batches: int = 30) -> None:
    for _ in range(batches):
        machine.engine.write(topic, Write.of([TEXT] * 20))
        machine.run_until_idle()


@pytest.mark.parametrize("how", ["delete", "topic", "cap", "ttl"])
@pytest.mark.parametrize("sealed", [True, False])
def test_freed_room_comes_back_within_ten_seconds_on_an_idle_server(how: str, sealed: bool) -> None:
    """SPACE-2: whatever frees it, segments and WAL files go without a write, and without a restart."""
    settings = SETTINGS if sealed else UpkeepSettings(segment_max_events=1 << 30, checkpoint_wal_bytes=1 << 40)
    machine = Machine(settings, wal_file_bytes=64 << 10)
    ttl = {"ttl_ms": 60_000} if how == "ttl" else {}
    machine.engine.put_topic("t", ConfigPatch(**ttl))
    fill(machine, "t", 30 if sealed else 60)
    machine.checkpoint()
    fill(machine, "t", 3 if sealed else 60)
    full = size(machine)
    if how == "delete":
        machine.engine.delete("t", Delete(before_seq=1 << 40))
    elif how == "topic":
        machine.engine.delete_topic("t")
    elif how == "cap":
        machine.engine.put_topic("t", ConfigPatch(cap_records=1))
    else:
        machine.clock.advance(60_000)
    wait(machine)
    assert size(machine) < full // 4
    assert size(machine, "segments") < 30_000
    machine.crash()
    assert machine.read("t")[0] in ([], [machine.engine.topics["t"].log.head]) if how != "topic" else True


def test_checkpoints_for_room_do_not_follow_each_other_closely() -> None:
    """SPACE-2: a server that frees something all the time makes one every few seconds, not one each time."""
    machine = Machine(SETTINGS)
    machine.engine.put_topic("t", ConfigPatch(cap_records=40))
    before = machine.store.checkpoints_total
    for _ in range(100):
        fill(machine, "t", 1)
        machine.clock.advance(100)
    assert 1 <= machine.store.checkpoints_total - before <= 4


def fill_tagged(machine: Machine, topic: str, batches: int) -> None:
    """Write batches of 20 records, of which every tenth is tagged `stays` and the others `goes`."""
    for _ in range(batches):
        machine.engine.write(topic, mixed())
        machine.run_until_idle()


def mixed() -> Write:
    write = Write.of([TEXT] * 20)
    for i, record in enumerate(write.records):
        record.tag = "goes" if i % 10 else "stays"
    return write


LARGER = UpkeepSettings(segment_max_events=20, segment_max_bytes=128 << 10, checkpoint_wal_bytes=1 << 40)


@pytest.mark.parametrize("restarted", [False, True])
def test_deleted_records_among_live_ones_give_their_room_back(restarted: bool) -> None:
    """SPACE-8: also where a restart comes between the delete and the rewrite, and no live record changes."""
    machine = Machine(LARGER, wal_file_bytes=64 << 10)
    fill_tagged(machine, "t", 30)
    wait(machine)
    full = size(machine, "segments")
    assert full > 600_000
    assert machine.engine.delete("t", Delete(match=["tag", "Eq", "goes"])).result.deleted == 540
    machine.run_until_idle()
    if restarted:
        machine.crash()
    wait(machine)
    assert size(machine, "segments") < full // 5
    stays = list(range(1, 601, 10))
    assert machine.read("t")[0] == stays
    machine.crash()
    assert machine.read("t")[0] == stays


def test_a_segment_with_few_deleted_records_is_left_alone() -> None:
    """SPACE-8: to write nine records again in order to be rid of one would free less than it costs."""
    machine = Machine(LARGER, wal_file_bytes=64 << 10)
    fill_tagged(machine, "t", 30)
    # Until everything is merged.
    wait(machine, 60_000)
    before = {path for path in machine.disk.files() if "segments" in path}
    machine.engine.delete("t", Delete(match=["tag", "Eq", "stays"]))
    wait(machine, 60_000)
    assert {path for path in machine.disk.files() if "segments" in path} == before


def small(capacity: int = 1 << 20, **options: Any) -> tuple[Machine, SmallDisk]:
    disk = SmallDisk(capacity)
    return Machine(SETTINGS, disk=disk, **{"wal_file_bytes": 64 << 10, "min_free_bytes": 0, **options}), disk


def plain() -> Write:
    return Write.of([TEXT] * 20)


def fill_up(machine: Machine, topic: str, make: Callable[[], Write] = plain) -> None:
    for _ in range(1000):
        try:
            machine.engine.write(topic, make())
        except StorageFull:
            return
        machine.run_until_idle()
        machine.clock.advance(100)
    pytest.fail("the disk is never full")


@pytest.mark.parametrize("min_free_bytes", [0, 200_000])
@pytest.mark.parametrize("how", ["delete", "topic"])
def test_a_full_disk_takes_writes_again_once_something_is_deleted(how: str, min_free_bytes: int) -> None:
    """SPACE-3, SPACE-4: deletes work on a full disk, their room comes back, and then writes work, without a restart."""
    machine, disk = small(min_free_bytes=min_free_bytes, reserve_bytes=64 << 10)
    machine.engine.write("kept", Write.of([1, 2, 3]))
    fill_up(machine, "t")
    count = machine.engine.topics["t"].log.count
    assert count > 300
    # Others take what was left.
    disk.foreign = disk.free_bytes("")
    wait(machine)
    if how == "delete":
        machine.engine.delete("t", Delete(before_seq=count - 10))
    else:
        machine.engine.delete_topic("t")
    wait(machine)
    assert machine.engine.write("kept", Write.of([4])).first_seq == 4
    fill(machine, "u", 5)
    machine.crash()
    assert machine.datas("kept")[:3] == [1, 2, 3]
    assert machine.read("u")[0] == list(range(1, 101))


def test_a_full_disk_has_room_again_once_most_of_every_segment_is_deleted() -> None:
    """SPACE-8: each segment holds records that stay and is too large to be merged, so no file goes by itself."""
    settings = UpkeepSettings(segment_max_events=20, segment_max_bytes=64 << 10, checkpoint_wal_bytes=1 << 40)
    machine = Machine(settings, disk=SmallDisk(1 << 20), wal_file_bytes=64 << 10, min_free_bytes=100_000)
    fill_up(machine, "t", mixed)
    wait(machine)
    count = machine.engine.topics["t"].log.count
    deleted = machine.engine.delete("t", Delete(match=["tag", "Eq", "goes"])).result.deleted
    assert deleted > 300
    wait(machine, 60_000)
    fill_up(machine, "u")
    assert machine.engine.topics["u"].log.count > deleted // 2
    machine.crash()
    assert len(machine.read("t")[0]) == count - deleted


@pytest.mark.parametrize("tail_records", [60, 200])
def test_writes_leave_the_room_that_their_own_tails_need(tail_records: int) -> None:
    """SPACE-7: where much is not sealed, writes are refused earlier: a checkpoint and the seals find room."""
    settings = UpkeepSettings(
        segment_max_events=tail_records, checkpoint_wal_bytes=400 << 10, max_unsealed_bytes=1 << 20
    )
    machine = Machine(settings, disk=SmallDisk(1 << 20), wal_file_bytes=64 << 10, min_free_bytes=64 << 10)
    machine.engine.write("kept", Write.of([1, 2, 3]))
    fill_up(machine, "t")
    wait(machine)
    count = machine.engine.topics["t"].log.count
    assert machine.upkeep.checkpoints.failed_total == machine.upkeep.seals.failed_total == 0
    machine.engine.delete("t", Delete(before_seq=count // 2))
    wait(machine)
    assert machine.engine.write("kept", Write.of([4])).first_seq == 4
    machine.crash()
    assert machine.datas("kept")[:3] == [1, 2, 3]


def test_a_full_disk_gets_no_files_for_very_small_tails() -> None:
    """SPACE-7: two files for each of a thousand topics would take more room than they give back."""
    settings = UpkeepSettings(checkpoint_wal_bytes=1 << 40, max_unsealed_bytes=1 << 20)
    disk = SmallDisk(4 << 20)
    machine = Machine(settings, disk=disk, wal_file_bytes=64 << 10, min_free_bytes=64 << 10)
    for n in range(100):
        machine.engine.write(f"t{n}", Write.of([TEXT]))
    machine.engine.write("large", Write.of([TEXT] * 100))
    machine.run_until_idle()
    disk.foreign = disk.free_bytes("") - (100 << 10)
    wait(machine)
    with pytest.raises(StorageFull):
        machine.engine.write("t1", Write.of([1]))
    sealed = [name for name, topic in machine.engine.topics.items() if topic.archive.segments]
    assert sealed == ["large"]


def test_a_full_disk_takes_writes_again_once_others_make_room() -> None:
    """SPACE-3: the server need not be told."""
    machine, disk = small()
    fill_up(machine, "t")
    disk.capacity *= 2
    wait(machine, 3_000)
    fill(machine, "t", 5)
    machine.crash()
    assert machine.engine.topics["t"].log.count > 400


def test_a_start_on_a_full_disk_has_the_room_of_the_reserve() -> None:
    """SPACE-4: a server that was killed on a full disk comes back, and then something can be deleted."""
    machine, disk = small(reserve_bytes=64 << 10)
    fill_up(machine, "t")
    count = machine.engine.topics["t"].log.count
    disk.foreign = disk.free_bytes("")
    machine.crash()
    assert machine.engine.topics["t"].log.count == count
    machine.engine.delete_topic("t")
    wait(machine)
    fill(machine, "u", 5)


def test_what_was_queued_when_the_disk_was_full_is_acknowledged_when_there_is_room() -> None:
    """SPACE-3: a log without room for its next file waits for it; it does not end as read-only."""
    machine, disk = small()
    machine.engine.write("t", Write.of([TEXT] * 10))
    disk.foreign = disk.free_bytes("")
    acked: list[int] = []
    machine.engine.write("t", Write.of([TEXT] * 60), lambda ticket: acked.append(ticket.first_seq))
    machine.engine.turn()
    run_inline(machine.store.jobs())
    assert acked == []
    assert machine.store.shards[0].read_only is None
    with pytest.raises(StorageFull):
        machine.engine.write("t", Write.of([1]), lambda ticket: None)
    disk.foreign = 0
    for _ in range(10):
        machine.clock.advance(500)
        machine.engine.turn()
        run_inline(machine.store.jobs())
    assert acked == [11]
    machine.engine.write("t", Write.of([1]))
    machine.crash()
    assert machine.engine.topics["t"].log.count == 71
