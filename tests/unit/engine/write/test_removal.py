"""Deletes below a seq where the Blocks that they take a part of have to be read first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.machine import Machine, numbers, uncached
from topics.engine import ConfigPatch, Delete


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
