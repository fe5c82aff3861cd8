"""FAIR-7: a write of tens of MiB, and what reads, copies, claims or seals some of it: none of them pays for all of it.

The writes are of 63 records of 64 KiB, and the bounds are as much smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import msgspec
import pytest

from tests.harness.machine import Machine
from topics.engine import ConfigPatch, Delete, Diff, Write
from topics.engine.log import difference as differences
from topics.engine.log import render as renders
from topics.engine.queue import ready
from topics.engine.queue.requests import ClaimJobs
from topics.engine.requests import RecordIn
from topics.engine.router import backlog
from topics.engine.router.router import PutRouter
from topics.engine.upkeep import seal as seals
from topics.engine.upkeep.seal import Seal
from topics.storage.block import Block
from topics.storage.job import run_inline

RECORD_BYTES = 64 << 10
RECORDS = 63
DATA = b'"%b"' % (b"x" * (RECORD_BYTES - 2))


def large(**fields: str) -> Write:
    return Write([RecordIn(msgspec.Raw(DATA), **fields) for _ in range(RECORDS)])


@pytest.fixture(autouse=True)
def small_bounds() -> Iterator[None]:
    with (
        patch.object(differences, "WHOLE_BYTES_MAX", 3 * RECORD_BYTES),
        patch.object(differences, "LARGE_BYTES", RECORD_BYTES // 2),
        patch.object(seals, "CUT_BYTES", 3 * RECORD_BYTES),
        patch.object(seals, "BLOCK_BYTES", 2 * RECORD_BYTES),
        patch.object(backlog, "SLICE_BYTES", 4 * RECORD_BYTES),
        patch.object(ready, "READ_BYTES_MAX", 8 * RECORD_BYTES),
    ):
        yield


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every Block that is rendered as a whole."""
    sizes: list[int] = []
    whole = renders.render_whole

    def render_whole(block: Block, fields: int) -> renders.Wire:
        sizes.append(len(block.raw))
        return whole(block, fields)

    monkeypatch.setattr(renders, "render_whole", render_whole)
    return sizes


def test_read_of_one_record_does_not_render_the_others(rendered: list[int]) -> None:
    machine = Machine()
    machine.engine.write("t", large(tag="a", node="n"))
    machine.engine.run_until_idle()
    found = machine.engine.diff("t", Diff(from_seq=40, limit=2, include_tags=True))
    assert msgspec.json.decode(b"[%b]" % found.text) == [
        {"$seq": seq, "$ts": machine.clock.now_ms(), "$node": "n", "$tag": "a", "data": "x" * (RECORD_BYTES - 2)}
        for seq in (41, 42)
    ]
    assert rendered == []


def test_bytes_of_a_read_end_it_within_a_large_block() -> None:
    machine = Machine()
    machine.engine.write("t", large())
    machine.engine.run_until_idle()
    found = machine.engine.diff("t", Diff(from_seq=10, limit=100, max_batch_bytes=3 * RECORD_BYTES))
    assert (found.count, found.next_from_seq, found.caught_up) == (3, 13, False)


def test_large_record_is_rendered_once_for_all_readers(rendered: list[int]) -> None:
    """To copy it for each of them would take longer than everything else."""
    machine = Machine()
    machine.engine.write("t", Write([RecordIn(msgspec.Raw(DATA))]))
    machine.engine.run_until_idle()
    pieces = [machine.engine.diff("t", Diff(from_seq=0)).pieces for _ in range(3)]
    assert len(rendered) == 1
    assert pieces[0][0] is pieces[1][0] is pieces[2][0]


def sealed_in(machine: Machine, steps: int) -> Seal:
    """A seal of topic `t` after some of its steps."""
    seal = Seal(machine.engine.topics["t"], 100, 64 << 20)
    for _ in range(steps):
        assert seal.step()
    return seal


def test_large_block_is_cut_before_it_is_sealed() -> None:
    machine = Machine()
    machine.engine.write("t", large(tag="a"))
    machine.run_until_idle()
    (segment,) = machine.engine.topics["t"].archive.segments
    assert len(segment.blocks) == -(-RECORDS // 2)
    assert max(block.length for block in segment.blocks) < 3 * RECORD_BYTES
    assert machine.read("t")[0] == list(range(1, RECORDS + 1))
    assert machine.engine.topics["t"].log.tail_bytes == 0
    machine.checkpoint()
    machine.crash("dropped")
    assert machine.read("t")[0] == list(range(1, RECORDS + 1))
    machine.engine.delete("t", Delete(match=["tag", "Eq", "a"]))
    machine.run_until_idle()
    assert machine.read("t")[0] == []


def test_what_is_deleted_while_a_block_is_cut_is_deleted_in_its_parts() -> None:
    machine = Machine()
    write = large()
    for seq in (2, 3, 50):
        write.records[seq - 1].tag = "gone"
    machine.engine.write("t", write)
    machine.engine.run_until_idle()
    log = machine.engine.topics["t"].log
    before = log.bytes
    seal = sealed_in(machine, 10)
    assert len(log.entries) == 1, "it is whole until all of it is cut"
    machine.engine.delete("t", Delete(match=["tag", "Eq", "gone"]))
    machine.engine.run_until_idle()
    while seal.step():
        pass
    live = [seq for seq in range(1, RECORDS + 1) if seq not in (2, 3, 50)]
    assert len(log.entries) == -(-RECORDS // 2)
    assert machine.read("t")[0] == live
    assert log.count == len(live)
    assert before - 4 * RECORD_BYTES < log.bytes < before - 3 * RECORD_BYTES
    assert sum(entry.live_bytes for entry in log.entries) == log.bytes
    assert sum(part.live for part in seal.builder.sources) == len(live)


def test_block_whose_beginning_a_cap_takes_while_it_is_cut_leaves_the_rest() -> None:
    machine = Machine()
    machine.engine.write("t", large())
    machine.engine.run_until_idle()
    seal = sealed_in(machine, 10)
    machine.engine.put_topic("t", ConfigPatch(cap_records=20))
    machine.engine.run_until_idle()
    while seal.step():
        pass
    kept = list(range(RECORDS - 19, RECORDS + 1))
    assert machine.read("t")[0] == kept
    assert seal.builder.places[0].first_seq >= kept[0] - 1
    assert seal.builder.places[-1].first_seq + seal.builder.places[-1].n - 1 == RECORDS


def test_topic_that_goes_while_a_block_of_it_is_cut_leaves_nothing() -> None:
    machine = Machine()
    machine.engine.write("t", large())
    machine.engine.run_until_idle()
    seal = sealed_in(machine, 10)
    machine.engine.delete_topic("t")
    machine.engine.run_until_idle()
    while seal.step():
        pass
    assert seal.is_empty


def test_router_copies_a_large_block_in_slices() -> None:
    machine = Machine()
    for topic in ("t", "copy"):
        machine.engine.put_topic(topic, ConfigPatch())
    machine.engine.routers.put("r", PutRouter("t", "copy"))
    machine.engine.run_until_idle()
    machine.engine.write("t", large())
    machine.engine.run_until_idle()
    copies = machine.engine.topics["copy"].log
    assert copies.head == RECORDS
    assert max(len(entry.block().raw) for entry in copies.entries) < 5 * RECORD_BYTES


def test_claim_reads_no_more_of_the_disk_than_it_may() -> None:
    machine = Machine()
    machine.engine.put_topic("q", ConfigPatch(type="queue"))
    machine.engine.write("q", large())
    machine.run_until_idle()
    cache = machine.engine.topics["q"].archive.segments[0].cache
    seqs: list[int] = []
    claims = 0
    while len(seqs) < RECORDS:
        before = cache.misses_total
        claim = machine.engine.queues.claim("q", ClaimJobs("w", 1000, 60_000), id)
        while not claim.done:
            machine.engine.run_until_idle()
            run_inline(machine.store.jobs())
        assert cache.misses_total - before <= 8
        assert claim.leased.leases, "what is ready is delivered, if not all of it at once"
        seqs += [lease.seq for lease in claim.leased.leases]
        claims += 1
    assert seqs == list(range(1, RECORDS + 1))
    assert claims >= RECORDS // 8
