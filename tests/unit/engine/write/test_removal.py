"""Deletes below a seq where Blocks that lose a part have to be read first, and deletes of records here and there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.machine import Machine, numbers, uncached
from topics.engine import ConfigPatch, Delete, RecordIn, Write
from topics.engine.router.router import PutRouter
from topics.storage.flags import DELETED, deleted_runs, from_bits, to_bits


@pytest.fixture
def sealed() -> Machine:
    """A topic `t` with the seqs 26 to 100 in two sealed Blocks, 1 to 50 and 51 to 100, neither of them in memory."""
    machine = Machine()
    machine.engine.put_topic("t", ConfigPatch(cap_records=75))
    for first in range(1, 101, 25):
        machine.engine.write("t", numbers(first, first + 24))
        machine.run_until_idle()
    machine.checkpoint()
    topic = machine.engine.topics["t"]
    assert [(entry.first_seq, entry.last_seq) for entry in topic.log.retained()] == [(1, 50), (51, 100)]
    assert (topic.log.start, topic.log.tail_records) == (26, 0)
    uncached(machine, "t")
    return machine


@pytest.mark.parametrize("before_seq", [30, 50, 51, 52, 90, 100, 101])
def test_delete_that_waits_for_its_blocks_is_logged_and_answered_once(sealed: Machine, before_seq: int) -> None:
    """DELETE-2: a cap has taken the beginning of the first Block, and the delete takes a part of the last one."""
    answers: list[Any] = []
    last_lsn = sealed.store.last_lsn
    sealed.engine.delete("t", Delete(before_seq=before_seq), answers.append)
    assert answers == []
    sealed.run_until_idle()
    assert [answer.result.deleted for answer in answers] == [before_seq - 26]
    assert sealed.store.last_lsn == last_lsn + 1
    sealed.disk.uncached = set()
    assert sealed.read("t", 25)[0] == list(range(before_seq, 101))
    sealed.crash("kill")
    assert sealed.read("t", 25)[0] == list(range(before_seq, 101))


@given(st.lists(st.sampled_from([0, DELETED])).map(bytes))
def test_bits_are_of_the_mask_that_they_were_made_from(mask: bytes) -> None:
    made = from_bits(to_bits(mask))
    assert made[: len(mask)] == mask
    assert not any(deleted_runs(made[len(mask) :]))


def test_delete_of_records_here_and_there_is_a_small_frame_that_a_restart_reads() -> None:
    """DELETE-10: its length follows from how many records the Blocks have, and not from how many runs of them go."""
    machine = Machine()
    for name in ("t", "copies"):
        machine.engine.put_topic(name, ConfigPatch())
    machine.engine.routers.put("r", PutRouter("t", "copies"))
    for first in range(1, 5001, 1000):
        records = [RecordIn(msgspec.Raw(b"%d" % i), tag=f"t{i % 2}") for i in range(first, first + 1000)]
        machine.engine.write("t", Write(records))
        machine.run_until_idle()
    shard = machine.store.shard_of(machine.engine.topics["t"].id)
    before = shard.bytes_written_total
    deleted: list[Any] = []
    machine.engine.delete("t", Delete(match=["tag", "Eq", "t0"]), deleted.append)
    machine.run_until_idle()
    assert [answer.result.deleted for answer in deleted] == [2500]
    assert shard.bytes_written_total - before < 1000
    odd = list(range(1, 5001, 2))
    assert machine.read("t", 0)[0] == odd
    machine.crash("kill")
    assert machine.read("t", 0)[0] == odd
    assert machine.read("copies", 0)[0] == list(range(1, 5001))
