"""Sealed segments, delete flags, the tag index, tiers and reads that would wait (the STORE rules)."""

from __future__ import annotations

import random

import pytest

from tests.harness.storage import DIRECTORY, Mini, resolve
from topics.errors import ColdUnavailable
from topics.storage import block
from topics.storage.damage import Corrupt, UnknownFormat
from topics.storage.job import Miss, run_inline
from topics.storage.segment import format as segment
from topics.storage.segment import loading
from topics.storage.segment.cache import BlockCache
from topics.storage.segment.format import Builder, SegmentName, Tags
from topics.testing.clock import ManualClock
from topics.testing.fake_disk import FakeDisk
from topics.testing.fault_disk import FaultDisk

HOT = f"{DIRECTORY}/segments"


def sealed_topic(disk: FakeDisk | None = None, blocks: int = 3, per_block: int = 10) -> Mini:
    mini = Mini(disk or FakeDisk())
    for k in range(blocks):
        tags = [b"odd" if i % 2 else (b"even/%d" % (i % 4) if i % 3 else None) for i in range(per_block)]
        mini.append(7, [b'"%d-%d"' % (k, i) for i in range(per_block)], tags)
        mini.turn()
    mini.seal(7)
    return mini


def restart(mini: Mini) -> Mini:
    assert isinstance(mini.disk, FakeDisk)
    mini.disk.crash("kill", random.Random(1))
    return Mini(mini.disk)


def test_sealed_records_read_as_they_were_written() -> None:
    mini = sealed_topic()
    assert mini.records() == {(7, 1 + k * 10 + i): b'"%d-%d"' % (k, i) for k in range(3) for i in range(10)}
    (found,) = mini.segments[7]
    assert (found.first_seq, found.last_seq, found.is_dead) == (1, 30, False)
    assert [sealed.live_in(0, 10) for sealed in found.blocks] == [
        (extent.n, extent.block().size_bytes(0, 10)) for extent in mini.extents[7]
    ]


def test_files_are_named_by_topic_id_and_first_seq() -> None:
    """TOPIC-3."""
    mini = sealed_topic()
    assert mini.store.segments.tiers.hot.list() == [
        "0000000000000007-0000000000000001.data",
        "0000000000000007-0000000000000001.idx",
    ]
    assert segment.parse_name("0000000000000007-0000000000000001.idx") == (SegmentName(7, 1), "idx")
    assert segment.parse_name("../x.data") is None


def test_delete_of_a_sealed_record_flips_one_byte_outside_the_checksum_and_survives_the_trim() -> None:
    """STORE-3: the flag outlives the DELETE frame."""
    mini = sealed_topic()
    path = f"{HOT}/{SegmentName(7, 1).data_file}"
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    before = mini.disk.files()[path]
    mini.delete(7, 4, 4)
    mini.turn()
    assert mini.disk.files()[path] == before, "the flag is not on the disk before its frame is durable"
    mini.store.run_until_idle()
    mini.turn()
    after = mini.disk.files()[path]
    assert (before[-8:], after[-8:]) == (segment.ALL_LIVE, segment.SOME_DELETED)
    changed = [i for i in range(len(after) - 8) if before[i] != after[i]]
    assert len(changed) == 1
    assert after[changed[0]] == 0xD5
    mini.checkpoint()
    again = restart(mini)
    assert (7, 4) not in again.records()
    assert len(again.records()) == 29
    sealed = again.extents[7][0]
    assert (sealed.live, sealed.next_live(3)) == (9, 4)
    assert sealed.live_bytes == sealed.live_in(0, 3)[1] + sealed.live_in(4, 10)[1]


def test_neighbours_that_were_deleted_one_by_one_are_flipped_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """STORE-3: many workers ack a few jobs each, and their jobs are next to each other."""
    mini = sealed_topic()
    mini.checkpoint()
    tier, written = mini.store.segments.flips._hot, []
    patch = tier.patch
    monkeypatch.setattr(tier, "patch", lambda name, writes: (written.extend(writes), patch(name, writes)))
    for seq in (6, 4, 9, 5):
        mini.delete(7, seq, seq)
    mini.turn()
    mini.store.run_until_idle()
    mini.turn()
    assert [content for _, content in written] == [segment.SOME_DELETED, b"\xd5" * 3, b"\xd5"]
    assert [seq for _, seq in restart(mini).records() if seq < 11] == [1, 2, 3, 7, 8, 10]


def test_flips_of_many_syncs_are_written_after_a_pause() -> None:
    """STORE-3: the first at once, those of the syncs that follow together, at a time that the driver is told."""
    mini = sealed_topic()
    mini.checkpoint()
    store, clock = mini.store, mini.store.clock
    assert isinstance(clock, ManualClock)
    store.segments.flips.pause_ns = 100_000_000
    begun: list[str] = []

    def turn() -> None:
        jobs = [*store.jobs()]
        begun.extend(job.name for job in jobs if job.name == "flip")
        run_inline(jobs)

    for seq in (1, 2, 3):
        mini.delete(7, seq, seq)
        store.run_until_idle()
        turn()
    assert begun == ["flip"]
    assert store.next_due_ns() == clock.elapsed_ns() + 100_000_000
    clock.advance(100)
    assert store.next_due_ns() is None, "it is due now, so the next turn takes it"
    turn()
    assert (begun, bool(store.segments.flips), store.next_due_ns()) == (["flip"] * 2, False, None)
    assert next(seq for _, seq in restart(mini).records()) == 4


@pytest.mark.parametrize("value", [0x00, 0x01, 0x55, 0xD4, 0xFF])
def test_any_flag_but_the_sentinel_reads_live(value: int) -> None:
    """STORE-3: only 0xD5 means deleted."""
    mini = sealed_topic()
    mini.checkpoint()
    path = f"{HOT}/{SegmentName(7, 1).data_file}"
    assert isinstance(mini.disk, FakeDisk)
    mini.disk.damage(path, len(mini.disk.files()[path]) - 1, bytes([value]))
    assert (7, 30) in restart(mini).records()


def test_checkpoint_writes_the_flips_before_it_trims() -> None:
    """STORE-3: until then the WAL covers a flip that is not on the disk."""
    mini = sealed_topic()
    mini.checkpoint()
    mini.delete(7, 1, 30)
    mini.store.run_until_idle()
    assert mini.store.segments.flips
    mini.checkpoint()
    assert not mini.store.segments.flips
    assert restart(mini).records() == {}


def test_deletes_during_a_seal_and_during_a_move_are_not_forgotten() -> None:
    mini = Mini(FakeDisk())
    mini.append(7, [b'"%d"' % i for i in range(10)])
    mini.delete(7, 1, 1)
    mini.turn()
    mini.seal(7, during=lambda: mini.delete(7, 2, 2))
    assert {seq for _, seq in mini.records()} == set(range(3, 11))
    mini.turn()
    mini.checkpoint()
    mini.relocate(7, during=lambda: mini.delete(7, 3, 3))
    mini.turn()
    mini.delete(7, 4, 4)
    mini.turn()
    mini.checkpoint()
    mini.checkpoint()
    again = restart(mini)
    assert {seq for _, seq in again.records()} == set(range(5, 11))
    assert again.segments[7][0].is_cold


def test_a_block_that_is_not_in_memory_misses_and_is_there_after_its_job() -> None:
    """STORE-6: a cold page goes to the read pool and never stops the loop."""
    mini = restart_after_checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    mini.disk.uncached.add(f"{HOT}/{SegmentName(7, 1).data_file}")
    sealed = mini.extents[7][0]
    with pytest.raises(Miss) as missed:
        sealed.block()
    run_inline([missed.value.job])
    assert sealed.block().data(0) == b'"0-0"'
    assert sealed.ts_at(0) == sealed.first_ts
    assert mini.extents[7][1].ts_index(1 << 60) == 10, "answered from the directory, without a read"


def test_a_scan_leaves_nothing_in_the_block_cache() -> None:
    """A scan reads everything once, and must not push out of memory what others read again and again."""
    mini = restart_after_checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    cache = mini.store.segments.tiers.cache
    first, second, _ = mini.extents[7]
    kept = cache.bytes
    assert first.block(keep=False).data(0) == b'"0-0"'
    assert cache.bytes == kept
    assert first.block().data(0) == b'"0-0"'
    assert cache.bytes > kept
    assert first.block(keep=False) is first.block(), "what is kept serves it too"
    mini.disk.uncached.add(f"{HOT}/{SegmentName(7, 1).data_file}")
    with pytest.raises(Miss) as missed:
        second.block(keep=False)
    run_inline([missed.value.job])
    assert second.block(keep=False).data(0) == b'"1-0"', "what had to be waited for is there then"


def restart_after_checkpoint() -> Mini:
    mini = sealed_topic()
    mini.checkpoint()
    return restart(mini)


def test_tags_are_looked_up_without_reading_records() -> None:
    """DELETE-9: a tag delete is a lookup per segment."""
    mini = restart_after_checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    mini.disk.uncached.add(f"{HOT}/{SegmentName(7, 1).data_file}")
    tags = mini.segments[7][0].tags()
    assert tags.equal(b"odd") == [1 + k * 10 + i for k in range(3) for i in range(1, 10, 2)]
    assert tags.equal(b"od") == []
    assert tags.equal(b"zzz") == []
    even = [1 + k * 10 + i for k in range(3) for i in range(0, 10, 2) if i % 3]
    assert tags.starting(b"even/") == even
    assert tags.starting(b"") == sorted(even + tags.equal(b"odd"))
    assert (
        tags.starting(b"even/2") == [1 + k * 10 + i for k in range(3) for i in (2,) if i % 3] == tags.equal(b"even/2")
    )


def test_a_segment_without_tags_has_an_empty_index() -> None:
    builder = Builder(3)
    builder.add(block.encode(3, 1, 1, [b"1"]))
    tags = Tags(builder.tags(), 1)
    assert tags.starting(b"") == []


def test_damaged_tags_are_made_again_from_the_blocks() -> None:
    mini = restart_after_checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    path = f"{HOT}/{SegmentName(7, 1).index_file}"
    good = mini.disk.files()[path]
    mini.disk.damage(path, len(good) - 20, b"\xff\xff")
    with pytest.raises(Corrupt) as caught:
        resolve(mini.segments[7][0].tags)
    assert caught.value.lost.n == 0, "the damage is reported, once, and costs nothing"
    assert mini.disk.exists(caught.value.quarantined)
    assert resolve(mini.segments[7][0].tags).equal(b"odd")[:2] == [2, 4]
    assert mini.disk.files()[path] == good
    assert mini.store.segments.tiers.corrupt_total == 1


def test_a_damaged_block_names_its_records_and_is_kept_aside() -> None:
    """DURABLE-17: corruption in a sealed segment is detected, counted, quarantined, and exact."""
    mini = restart_after_checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    sealed = mini.segments[7][0].blocks[1]
    mini.disk.damage(f"{HOT}/{SegmentName(7, 1).data_file}", sealed.offset + 70, b"\xff")
    with pytest.raises(Corrupt) as caught:
        sealed.block()
    assert caught.value.lost == (7, 11, 10)
    assert mini.disk.exists(caught.value.quarantined)
    assert len(mini.records()) == 20


@pytest.mark.parametrize("is_cold", [False, True], ids=["hot", "cold"])
def test_damage_to_a_block_whose_records_are_all_deleted_costs_nothing(is_cold: bool) -> None:
    """DURABLE-20: a deletion is silent; there was nothing left that the damage could take."""
    mini = sealed_topic()
    sealed = mini.segments[7][0].blocks[1]
    if is_cold:
        mini.checkpoint()
        mini.relocate(7)
    mini.delete(7, 11, 20)
    mini.turn()
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    directory = "/cold" if is_cold else HOT
    mini.disk.damage(f"{directory}/{SegmentName(7, 1).data_file}", sealed.offset + 70, b"\xff")
    again = restart(mini)
    assert (again.lost, again.damage) == (set(), [])
    assert [extent.live for extent in again.extents[7]] == [10, 0, 10]
    assert not again.store.segments.flips


def test_flags_of_a_dead_segment_say_nothing_about_the_one_its_file_was_copied_over() -> None:
    """DURABLE-18: no silent loss, also where a file is not the one that its name says."""
    mini = Mini(FakeDisk())
    for k in range(2):
        mini.append(7, [b'"%d-%d"' % (k, i) for i in range(10)])
        mini.turn()
        mini.seal(7)
    mini.delete(7, 1, 10)
    mini.turn()
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    dead = mini.disk.files()[f"{HOT}/{SegmentName(7, 1).data_file}"]
    live = f"{HOT}/{SegmentName(7, 11).data_file}"
    mini.disk.unlink(live)
    handle = mini.disk.create(live)
    mini.disk.write(handle, 0, dead)
    mini.disk.sync(handle)
    mini.disk.close(handle)
    mini.disk.sync_dir(HOT)
    assert restart(mini).lost == {(7, seq) for seq in range(11, 21)}


def test_relocation_moves_the_records_and_keeps_everything_readable() -> None:
    """STORE-1: tiering changes nothing about semantics."""
    mini = sealed_topic()
    everything = mini.records()
    mini.checkpoint()
    mini.relocate(7)
    assert mini.segments[7][0].is_cold
    mini.store.segments.tiers.cache.drop((SegmentName(7, 1), 64))
    assert mini.records() == everything
    mini.checkpoint()
    assert mini.store.segments.tiers.hot.list() == [
        "0000000000000007-0000000000000001.flags",
        "0000000000000007-0000000000000001.idx",
    ]
    assert mini.store.segments.tiers.cold is not None
    assert mini.store.segments.tiers.cold.list() == ["0000000000000007-0000000000000001.data"]
    assert restart(mini).records() == everything


def test_an_unreachable_cold_store_fails_that_read_alone() -> None:
    """STORE-4: a clear 503 for that read alone; a start does not need the cold store."""
    mini = sealed_topic()
    mini.checkpoint()
    mini.relocate(7)
    mini.delete(7, 2, 3)
    mini.turn()
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    mini.disk.unreachable.add("/cold")
    again = restart(mini)
    again.append(7, [b'"new"'])
    again.turn()
    with pytest.raises(ColdUnavailable) as caught:
        resolve(again.extents[7][0].block)
    assert caught.value.status == 503
    assert again.extents[7][0].live == 8
    assert again.extents[7][-1].block().data(0) == b'"new"'
    mini.disk.unreachable.clear()
    assert {seq for _, seq in again.records()} == {1, *range(4, 32)}


def test_the_stricter_bound_decides_what_stays_hot() -> None:
    """STORE-5: TOPICS_HOT_RETAIN_SEGMENTS and _BYTES, the stricter wins."""
    mini = Mini(FakeDisk())
    for k in range(5):
        mini.append(7, [b'"%d"' % k])
        mini.turn()
        mini.seal(7)
    segments = mini.store.segments
    size = mini.segments[7][0].data_bytes
    seqs = [found.first_seq for found in segments.to_relocate(mini.segments[7], 4, 0)]
    assert seqs == [1]
    seqs = [found.first_seq for found in segments.to_relocate(mini.segments[7], 4, 2 * size)]
    assert seqs == [1, 2, 3]


def test_files_of_a_dropped_segment_go_after_the_next_checkpoint() -> None:
    """STORE-2: the pair is unlinked instead of N flips."""
    mini = sealed_topic()
    mini.checkpoint()
    mini.drop(7)
    assert len(mini.store.segments.tiers.hot.list()) == 2
    mini.checkpoint()
    assert mini.store.segments.tiers.hot.list() == []
    assert restart(mini).records() == {}


def test_a_segment_that_no_checkpoint_lists_is_swept_and_its_records_come_from_the_wal() -> None:
    mini = sealed_topic()
    everything = mini.records()
    again = restart(mini)
    assert again.records() == everything
    assert again.store.segments.tiers.hot.list() == []
    assert all(isinstance(extent, block.Block) for extent in again.extents[7])


def test_a_failed_seal_changes_nothing() -> None:
    fake = FakeDisk()
    disk = FaultDisk(fake)
    mini = Mini(disk)  # type: ignore[arg-type]
    mini.append(7, [b"1"])
    mini.turn()
    builder = Builder(7)
    found = mini.extents[7][0]
    assert isinstance(found, block.Block)
    builder.add(found)
    outcome: list[BaseException | None] = []
    disk.fail("sync", 2)
    run_inline([mini.store.segments.seal_job([builder], lambda made, error: outcome.append(error))])
    assert isinstance(outcome[0], OSError)
    fake.crash("kill", random.Random(1))
    assert Mini(fake).records() == {(7, 1): b"1"}


def test_cache_gives_up_the_least_recently_used_and_keeps_the_newest() -> None:
    cache = BlockCache(1000)
    blocks = [block.encode(1, 1, 1, [b'"%s"' % (b"x" * 200)]) for _ in range(3)]
    for i, found in enumerate(blocks):
        cache.put(i, found)
    assert cache.bytes <= 1000
    assert cache.get(0) is None
    assert cache.get(2) is blocks[2]
    huge = block.encode(1, 1, 1, [b'"%s"' % (b"x" * 2000)])
    cache.put("huge", huge)
    assert cache.get("huge") is huge
    assert cache.get(2) is None


def test_unknown_segment_version_is_refused() -> None:
    head = bytearray(segment.encode_header(segment.INDEX_MAGIC, SegmentName(1, 1), 1, 1, 99))
    head[8] = 3
    head[56:] = segment._CHECKSUM.pack(segment.xxh3_64_intdigest(bytes(head[:56])))
    with pytest.raises(UnknownFormat, match="version 3"):
        segment.decode_header(bytes(head), segment.INDEX_MAGIC, "x.idx")


def first_flag(data: bytes) -> int:
    """Where the flag of the first record of a `.data` file is."""
    place = segment.scan_blocks(data)[0]
    return place.offset + place.length


def test_start_reads_no_flag_of_a_file_that_says_that_all_are_live() -> None:
    """STORE-3: what a start reads does not depend on the number of records. Anything else at the end: it does read."""
    mini = sealed_topic()
    path = f"{HOT}/{SegmentName(7, 1).data_file}"
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    data = mini.disk.files()[path]
    mini.disk.damage(path, first_flag(data), b"\xd5")
    assert (7, 1) in restart(mini).records()
    for end in (b"\0LL LIVE", bytes(8), b"all live"):
        mini.disk.damage(path, len(data) - 8, end)
        again = restart(mini)
        assert (7, 1) not in again.records()
        assert not again.damage


@pytest.mark.parametrize("length", [0, 64, 100, 200, 231])
@pytest.mark.parametrize("flipped", [None, 70, 120, 230])
def test_a_directory_that_is_longer_than_the_first_read_is_read_whole(
    monkeypatch: pytest.MonkeyPatch, length: int, flipped: int | None
) -> None:
    """STORE-1: one with a damaged byte in it is made again, and all of it is kept."""
    monkeypatch.setattr(loading, "DIRECTORY_BYTES", max(length, segment.HEADER_BYTES))
    mini = sealed_topic()
    path = f"{HOT}/{SegmentName(7, 1).index_file}"
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    whole = mini.disk.files()[path]
    if flipped is not None:
        mini.disk.damage(path, flipped, bytes([whole[flipped] ^ 1]))
    again = restart(mini)
    assert len(again.records()) == 30
    assert [corrupt.length for corrupt in again.damage] == ([] if flipped is None else [len(whole)])
    assert again.disk.files()[path] == whole  # type: ignore[attr-defined]
    assert not restart(again).damage


def test_start_reads_the_directory_and_no_tags() -> None:
    """STORE-1: tags are as many as records, so a start would take the longer the more there are."""
    mini = Mini(FakeDisk())
    mini.append(7, [b"1"] * 1000, [b"%0100d" % i for i in range(1000)])
    mini.turn()
    mini.seal(7)
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    assert len(mini.disk.files()[f"{HOT}/{SegmentName(7, 1).index_file}"]) > 100_000
    read = 0
    plain = mini.disk.read

    def counted(handle: int, offset: int, length: int) -> bytes:
        nonlocal read
        data = plain(handle, offset, length)
        read += len(data)
        return data

    mini.disk.crash("kill", random.Random(1))
    mini.disk.read = counted  # type: ignore[method-assign]
    again = Mini(mini.disk)
    assert 0 < read < 50_000
    assert again.segments[7][0].tags().equal(b"%0100d" % 7) == [8]


def test_segment_of_version_1_has_no_such_end() -> None:
    """STORE-3: its flags are read, and what is deleted from it later is there after a restart."""
    mini = sealed_topic()
    name = SegmentName(7, 1)
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    for file, end in ((name.data_file, -8), (name.index_file, None)):
        old = mini.disk.files()[f"{HOT}/{file}"][:end]
        size = len(mini.disk.files()[f"{HOT}/{name.data_file}"]) - (8 if end is None else 0)
        head = old[:8] + b"\1\0\0\0" + old[12:40] + size.to_bytes(8, "little") + old[48:56]
        head += segment._CHECKSUM.pack(segment.xxh3_64_intdigest(head))
        handle = mini.disk.create(f"{HOT}/{file}.old")
        mini.disk.write(handle, 0, head + old[64:])
        mini.disk.sync(handle)
        mini.disk.close(handle)
        mini.disk.rename(f"{HOT}/{file}.old", f"{HOT}/{file}")
        mini.disk.sync_dir(HOT)
    length = len(mini.disk.files()[f"{HOT}/{name.data_file}"])
    mini = restart(mini)
    assert not mini.damage
    assert len(mini.records()) == 30
    mini.delete(7, 4, 4)
    mini.turn()
    mini.checkpoint()
    assert isinstance(mini.disk, FakeDisk)
    assert len(mini.disk.files()[f"{HOT}/{name.data_file}"]) == length
    assert (7, 4) not in restart(mini).records()
