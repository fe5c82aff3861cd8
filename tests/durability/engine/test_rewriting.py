"""Small segments become one, and deleted text leaves the disk, without a reader noticing (SPACE-1, SPACE-5)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import Raw

from tests.harness.machine import Machine, small
from topics.engine import ConfigPatch, Delete, Write
from topics.engine.requests import RecordIn
from topics.engine.topic import Topic
from topics.engine.upkeep import merger
from topics.engine.upkeep.rewriter import Rewriter
from topics.engine.upkeep.upkeep import UpkeepSettings
from topics.storage.flags import DELETED
from topics.storage.job import run_inline

HOUR_MS = 3_600_000
ROUND_MS = 6_000
SECRET = b"correct horse battery staple"


def machine(**options) -> Machine:
    settings = UpkeepSettings(
        segment_max_events=10,
        segment_max_age_ms=1000 * HOUR_MS,
        checkpoint_wal_bytes=1 << 40,
        erase_after_ms=2 * HOUR_MS,
    )
    return Machine(settings, **options)


def look_round(found: Machine, rounds: int = 1) -> None:
    for _ in range(rounds):
        found.run_until_idle()
        found.clock.advance(ROUND_MS)
    found.run_until_idle()


def segment_files(found: Machine) -> list[str]:
    return [path for path in found.disk.files() if path.endswith(".data")]


def fill(found: Machine, topic: str, segments: int) -> None:
    for _ in range(segments):
        found.engine.write(topic, Write.of(range(10)))
        found.run_until_idle()


def test_files_grow_with_bytes_and_not_with_records() -> None:
    """SPACE-1: many small segments become one, and the records stay what they were."""
    found = machine()
    fill(found, "t", 40)
    before = found.visible("t")
    look_round(found, 12)
    assert len(found.engine.topics["t"].archive.segments) < 12
    assert len(segment_files(found)) < 12
    assert found.visible("t") == before
    found.crash()
    assert found.visible("t") == before
    assert len(found.engine.topics["t"].archive.segments) < 12


def test_merges_that_wait_do_not_delay_an_erasure(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPACE-5: erasing has a time to keep, and has its turn before the next of many merges."""
    monkeypatch.setattr(merger, "MERGE_SEGMENTS", 1000)
    found = machine()
    for n in range(10):
        fill(found, f"m{n}", 9)
    fill(found, "t", 1)
    found.engine.delete("t", Delete(before_seq=3))
    look_round(found)
    begun: list[str] = []
    begin = Rewriter.begin

    def noted(rewriter: Rewriter, topic: Topic, *given: Any) -> None:
        begun.append(topic.name)
        begin(rewriter, topic, *given)

    monkeypatch.setattr(Rewriter, "begin", noted)
    monkeypatch.setattr(merger, "MERGE_SEGMENTS", 8)
    found.clock.advance(HOUR_MS)
    look_round(found, 4)
    assert sorted(begun) == [*(f"m{n}" for n in range(10)), "t"]
    assert begun.index("t") <= 1


def write_secret(found: Machine, topic: str, **fields) -> int:
    record = RecordIn(Raw(b'"%s"' % SECRET), **fields)
    return found.engine.write(topic, Write([record])).first_seq


def holders(found: Machine) -> list[str]:
    return [path for path, content in found.disk.files().items() if SECRET in content]


@pytest.mark.parametrize("where", ["tail", "segment", "cold", "merged"])
@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_deleted_text_is_in_no_file_after_the_horizon(durability: str, where: str) -> None:
    """SPACE-5: wherever a record was, after `erase_after_ms` no file holds its text, node, tag or meta."""
    found = machine(cold_directory="cold")
    found.engine.put_topic("t", ConfigPatch(durability=durability))
    found.engine.write("t", Write.of(range(3)))
    secret = SECRET.decode()
    seq = write_secret(found, "t", tag=secret, node=secret, meta=Raw(b'{"k":"%s"}' % SECRET))
    found.engine.write("t", Write.of(range(2 if where == "tail" else 8)))
    found.run_until_idle()
    if where != "tail":
        fill(found, "t", {"segment": 1, "cold": 6, "merged": 20}[where])
        look_round(found, 6)
    found.checkpoint()
    assert holders(found)
    live = found.visible("t")
    found.engine.delete("t", Delete(match=secret))
    deleted_ts = found.clock.now_ms()
    del live[seq]
    found.run_until_idle()
    assert found.engine.state("t").erased_before_ts <= deleted_ts
    look_round(found)
    assert holders(found), "nothing is rewritten before it is due"
    found.clock.advance(HOUR_MS)
    look_round(found, 8)
    assert not holders(found)
    assert found.engine.state("t").erased_before_ts > deleted_ts
    assert found.visible("t") == live
    for how in ("kill", "dropped"):
        found.crash(how)
        assert found.visible("t") == live
        assert [gap for gap in found.read("t")[1] if gap[2] != "crash"] == []
        assert not holders(found)
        # What a checkpoint has erased the one after it knows; without that it is looked at again.
        look_round(found, 3)
        assert found.engine.state("t").erased_before_ts > deleted_ts
        assert not holders(found)


def test_erasing_is_in_time_however_many_topics_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPACE-5: a round over very many topics takes its time, but never more than an eighth of what there is."""
    monkeypatch.setattr("topics.engine.upkeep.upkeep.ROUND_TOPIC_NS", 10**18)
    found = machine()
    write_secret(found, "t", tag="x")
    found.engine.write("t", Write.of(range(3)))
    found.checkpoint()
    found.engine.delete("t", Delete(match="x"))
    found.run_until_idle()
    assert holders(found)
    for _ in range(8):
        found.clock.advance(2 * HOUR_MS // 8)
        look_round(found)
    assert not holders(found)


def test_a_tag_delete_finds_records_of_merged_segments() -> None:
    """SPACE-1: the tags of a merged segment are those of its live records."""
    found = machine()
    for i in range(20):
        records = [RecordIn(Raw(b"%d" % k), tag=f"t{k % 3}") for k in range(10)]
        found.engine.write("t", Write(records))
        found.run_until_idle()
        if i == 10:
            found.engine.delete("t", Delete(match="t1"))
    look_round(found, 12)
    assert any(segment.name.edition for segment in found.engine.topics["t"].archive.segments)
    before = found.visible("t")
    result = found.engine.delete("t", Delete(match="t2")).result
    assert result.deleted == sum(tag == b"t2" for _, _, tag, _ in before.values())
    assert found.visible("t") == {seq: record for seq, record in before.items() if record[2] != b"t2"}
    state = found.engine.state("t")
    found.crash()
    again = found.engine.state("t")
    assert (again.count, again.bytes) == (state.count, state.bytes)


def test_a_damaged_flag_brings_no_erased_record_back() -> None:
    """SPACE-5: that a record is erased is under the checksum of its Block; no flag has to be believed."""
    found = machine()
    fill(found, "t", 3)
    found.engine.delete("t", Delete(before_seq=5))
    found.engine.write("t", Write([RecordIn(Raw(b"1"), tag="x"), RecordIn(Raw(b"2"))] * 5))
    found.run_until_idle()
    found.engine.delete("t", Delete(match="x"))
    found.run_until_idle()
    found.clock.advance(HOUR_MS)
    look_round(found, 6)
    live = found.visible("t")
    damaged = 0
    for segment in found.engine.topics["t"].archive.segments:
        for sealed in segment.blocks:
            if sealed.erased:
                damaged += sealed.erased
                path = f"data/segments/{segment.name.data_file}"
                found.disk.damage(path, sealed.offset + sealed.length, bytes(sealed.n))
    assert damaged
    count = found.engine.topics["t"].log.count
    found.crash()
    assert found.visible("t") == live
    assert found.engine.topics["t"].log.count == count


def test_a_damaged_block_of_a_merge_is_a_lost_range_and_the_rest_is_merged() -> None:
    """SPACE-1, DURABLE-18: what a merge cannot read is reported as a reader would, and nothing else is lost."""
    found = machine()
    fill(found, "t", 12)
    found.checkpoint()
    segment = found.engine.topics["t"].archive.segments[3]
    sealed = segment.blocks[0]
    lost = (sealed.first_seq, sealed.last_seq)
    found.disk.damage(f"data/segments/{segment.name.data_file}", sealed.offset + 70, b"\xff")
    found.store.segments.tiers.cache.drop(sealed)
    look_round(found, 6)
    assert any(segment.name.edition for segment in found.engine.topics["t"].archive.segments)
    seqs, gaps = found.read("t")
    assert gaps == [(*lost, "corruption")]
    assert seqs == [seq for seq in range(1, 121) if not lost[0] <= seq <= lost[1]]
    found.checkpoint()
    found.crash()
    assert found.read("t") == (seqs, gaps)


def test_records_of_a_damaged_block_are_not_counted_after_a_restart_either() -> None:
    """DURABLE-18: its segment goes on listing the Block, and its file may even be whole again, as in a backup."""
    found = machine()
    fill(found, "t", 3)
    found.checkpoint()
    segment = found.engine.topics["t"].archive.segments[1]
    sealed = segment.blocks[0]
    path = f"data/segments/{segment.name.data_file}"
    was = found.disk.files()[path][sealed.offset + 70 : sealed.offset + 71]
    found.disk.damage(path, sealed.offset + 70, bytes([was[0] ^ 1]))
    found.store.segments.tiers.cache.drop(sealed)
    seqs, gaps = found.read("t")
    assert gaps == [(11, 20, "corruption")]
    found.checkpoint()
    log = found.engine.topics["t"].log
    held = (log.count, log.bytes)
    assert held[0] == len(seqs) == 20
    found.disk.damage(path, sealed.offset + 70, was)
    found.crash()
    log = found.engine.topics["t"].log
    assert (log.count, log.bytes) == held
    assert found.read("t") == (seqs, gaps)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_deleted_while_segments_are_merged_stays_deleted(seed: int) -> None:
    """SPACE-1: whether the new segment was made before the delete or after it."""
    rng = random.Random(seed)
    found = machine()
    with small():
        for i in range(12):
            records = [RecordIn(Raw(b"%d" % (10 * i + k)), tag=f"s{10 * i + k + 1}") for k in range(10)]
            found.engine.write("t", Write(records))
            found.run_until_idle()
        model = found.visible("t")
        found.clock.advance(ROUND_MS)
        deleted_during = 0
        for _ in range(60):
            found.engine.turn()
            found.upkeep.step()
            jobs = found.store.jobs()
            if any(segment.rewriting for segment in found.engine.topics["t"].archive.segments):
                seq = rng.choice(sorted(model))
                deleted_during += found.engine.delete("t", Delete(match=f"s{seq}"), lambda receipt: None).result.deleted
                del model[seq]
            run_inline(jobs)
        assert deleted_during > 5
        found.run_until_idle()
        assert any(segment.name.edition for segment in found.engine.topics["t"].archive.segments)
        assert found.visible("t") == model
        state = found.engine.state("t")
        assert (state.count, state.bytes) == (
            len(model),
            sum(21 + len(r[1]) + len(r[2] or b"") for r in model.values()),
        )
        found.checkpoint()
        found.crash()
        assert found.visible("t") == model
        assert found.engine.state("t").bytes == state.bytes


def test_delete_in_a_segment_that_is_dropped_while_a_checkpoint_lists_it_stays_deleted() -> None:
    """SPACE-1: the checkpoint includes the delete, so the flag has to be on disk, though the segment goes."""
    found = machine()
    fill(found, "t", 1)
    [segment] = found.engine.topics["t"].archive.segments
    [sealed] = segment.blocks
    sealed.delete(4, 5)
    draft = found.store.begin_checkpoint()
    assert draft is not None
    found.store.segments.drop(segment)
    run_inline([found.store.end_checkpoint(draft, lsn=found.store.last_lsn, next_topic_id=2)])
    flags = segment.tier.read(segment.name.data_file, sealed.offset + sealed.length, sealed.n)
    assert flags == bytes((0, 0, 0, 0, DELETED, 0, 0, 0, 0, 0))
