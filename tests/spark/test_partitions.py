"""How a read is divided into tasks (SPARK-6)."""

from __future__ import annotations

import pytest

from topics.spark import scan
from topics.spark.client import Gap, Plan
from topics.spark.scan import Range

MIB = 1 << 20


def tasks(monkeypatch: pytest.MonkeyPatch, cores: int, mib: int, partitions_min: int = 1) -> list[Range]:
    """A topic of so many MiB, of records of 1 KiB, on so many cores."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    count = mib * 1024
    plan = Plan("t", 1, count, 1, count, mib * MIB, [])
    parts = scan.split([Range("t", 1, 0, count)], {"t": plan}, partitions_min)
    assert [part.from_seq for part in parts] == [0, *(part.to_seq for part in parts[:-1])]
    assert parts[-1].to_seq == count
    return parts


def test_every_core_has_work_and_no_task_is_too_small_or_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(tasks(monkeypatch, 2, 32)) == 2
    assert len(tasks(monkeypatch, 2, 500)) == 2
    assert len(tasks(monkeypatch, 8, 100)) == 8
    assert len(tasks(monkeypatch, 8, 10)) == 2, "4 MiB is the least"
    assert len(tasks(monkeypatch, 1, 2560)) == 10, "256 MiB is the most"
    assert len(tasks(monkeypatch, 2, 1)) == 1
    assert len(tasks(monkeypatch, 2, 1, partitions_min=7)) == 7


def test_tasks_come_in_turns_in_which_every_core_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth task on two cores would have one of them wait while the other reads it."""
    assert len(tasks(monkeypatch, 2, 1200)) == 6
    assert len(tasks(monkeypatch, 4, 2049)) == 12


def test_topics_share_the_tasks_by_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(2)))
    plans = {name: Plan(name, 1, 1000, 1, 1000, size, []) for name, size in (("a", 60 * MIB), ("b", 20 * MIB))}
    parts = scan.split([Range("a", 1, 0, 1000), Range("b", 1, 0, 1000)], plans, 1)
    assert [(part.topic, part.size) for part in parts] == [("a", 500), ("a", 500), ("b", 1000)]


def test_a_gap_is_a_task_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    gap = Range("t", 1, 0, 5, Gap(1, 5, "cap"))
    parts = scan.split([gap, Range("t", 1, 5, 6)], {"t": Plan("t", 1, 6, 6, 1, 10, [])}, 1)
    assert parts == [gap, Range("t", 1, 5, 6)]
