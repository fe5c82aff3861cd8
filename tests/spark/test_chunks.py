"""Staged records become writes of bounded size, each of one topic, with the order within a topic kept (SPARK-16)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from topics.spark import depot, stage
from topics.spark.client import Client
from topics.spark.depot import depot_of
from topics.spark.options import WriteOptions
from topics.spark.rows import Rendered
from topics.spark.source import schema_of
from topics.spark.stage import Stage
from topics.spark.writer import TopicsWriter


class Listener(Client):
    """Takes the place of a server: keeps what is written."""

    def __init__(self) -> None:
        super().__init__(WriteOptions({"url": "http://127.0.0.1:1", "topic": "t"}).address)
        self.written: list[tuple[str, dict[str, object]]] = []

    def write(self, topic: str, body: bytes) -> dict[str, object]:
        self.written.append((topic, json.loads(body)))
        return {"deduped": False}


def writes(root: Path, records: Iterable[Rendered]) -> list[tuple[str, list[int]]]:
    """The topic of each write and the data of its records, after a check of their numbers."""
    staging, listener = Stage(depot_of("stagingDir", root), "p", 3), Listener()
    file = staging.write(records, 0)
    delivered = staging.publish([file], listener)
    assert delivered.records == file.records
    numbers = [body["producer_seq"] for _, body in listener.written]
    assert numbers == [3 * stage.CHUNKS_MAX + k for k in range(file.chunks)]
    return [(topic, [record["data"] for record in body["records"]]) for topic, body in listener.written]  # type: ignore[attr-defined]


def numbered(*values: int, topic: str = "t") -> Rendered:
    return Rendered.of(topic, *(b'{"data":%d}' % value for value in values))


def test_a_write_has_at_most_so_many_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "CHUNK_RECORDS", 3)
    found = writes(tmp_path, [numbered(1, 2), numbered(3, 4, 5, 6, 7, 8), numbered(9)])
    assert found == [("t", [1, 2, 3]), ("t", [4, 5, 6]), ("t", [7, 8, 9])]


def test_a_write_has_at_most_so_many_bytes_unless_one_record_has_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "CHUNK_BYTES", 2 * len(b'{"data":1},'))
    large = 10**40
    found = writes(tmp_path, [numbered(1, 2, 3), numbered(4, large, 5), numbered(large)])
    assert found == [("t", [1, 2]), ("t", [3, 4]), ("t", [large]), ("t", [5]), ("t", [large])]


def test_topics_that_take_turns_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "CHUNK_RECORDS", 2)
    rows = [numbered(n, topic="odd" if n % 2 else "even") for n in range(7)]
    found = writes(tmp_path, rows)
    for topic, wanted in (("even", [0, 2, 4, 6]), ("odd", [1, 3, 5])):
        assert [value for of, values in found if of == topic for value in values] == wanted
    assert max(len(values) for _, values in found) == 2


def test_a_task_without_rows_stages_nothing(tmp_path: Path) -> None:
    assert Stage(depot_of("stagingDir", tmp_path), "p", 0).write([], 5) == (None, 5, 0, 0)


@pytest.mark.parametrize(("options", "synced"), [({}, False), ({"txnId": "monday"}, True)])
def test_only_a_write_that_can_be_taken_up_again_is_staged_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], synced: bool
) -> None:
    """SPARK-16: without a `txnId` a write is one attempt, and nobody looks for its files after a crash."""
    calls: list[int] = []
    monkeypatch.setattr(depot.os, "fsync", calls.append)
    given = {"url": "http://127.0.0.1:1", "topic": "t", "stagingDir": str(tmp_path), **options}
    writer = TopicsWriter(WriteOptions(given), schema_of(("data",)))
    file = writer._stage().write([numbered(1, 2)], 0)
    assert file.records == 2
    assert bool(calls) is synced
