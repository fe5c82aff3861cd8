"""A real server, killed under load: kill -9 loses no acked record of any class that has a log (DURABLE-3)."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from topics.testing import ServerProcess

CLASSES = ("fsync", "disk", "memory")
RUN_S = 1.0
ROUNDS = int(os.environ.get("TOPICS_SOAK_ROUNDS", "3"))


class Writer(threading.Thread):
    """Writes numbered records to one topic until the server dies; `acked` maps each seq to what was written there."""

    def __init__(self, server: ServerProcess, topic: str, name: str) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._topic = topic
        self._label = name
        self.acked: dict[int, str] = {}

    def run(self) -> None:
        number = 0
        while True:
            ids = [f"{self._label}-{number + i}" for i in range(1 + number % 3)]
            number += len(ids)
            try:
                response = self._server.request(
                    "POST", f"/v0/topics/{self._topic}", json={"records": [{"data": each} for each in ids]}
                )
            except (OSError, EOFError, ValueError, AssertionError):
                return
            except Exception as error:
                if type(error).__module__.startswith("http"):
                    return
                raise
            if response.status == 429:
                continue
            if response.status not in (200, 201):
                return
            self.acked.update(zip(response.json["seqs"], ids, strict=True))


def read_all(server: ServerProcess, topic: str) -> tuple[dict[int, Any], list[tuple[int, int]]]:
    """Every record from the beginning, and every gap that was said."""
    records: dict[int, Any] = {}
    gaps: list[tuple[int, int]] = []
    cursor = 0
    while True:
        body = server.request("POST", f"/v0/topics/{topic}/diff", json={"from_seq": cursor, "limit": 1000}).json
        if body["tombstone"] is not None:
            gaps.append((body["tombstone"]["gap_from"], body["tombstone"]["gap_to"]))
        records.update({record["$seq"]: record["data"] for record in body["records"]})
        cursor = body["next_from_seq"]
        if body["caught_up"]:
            return records, gaps


def unsaid(records: dict[int, Any], gaps: list[tuple[int, int]], head: int) -> list[int]:
    """The seqs that are neither delivered nor inside a gap."""
    said = {seq for first, last in gaps for seq in range(first, last + 1)}
    return [seq for seq in range(1, head + 1) if seq not in records and seq not in said]


def test_kill_under_load_loses_nothing_that_was_acked(tmp_path: Path) -> None:
    """DURABLE-3: after kill -9 the next seq is head + 1, with no gap and no tombstone, in every class with a log."""
    acked: dict[str, dict[int, str]] = {topic: {} for topic in CLASSES}
    with ServerProcess(data_dir=tmp_path / "data", segment_max_events=200, checkpoint_wal_bytes=300_000) as server:
        for topic in CLASSES:
            server.request("PUT", f"/v0/topics/{topic}", json={"durability": topic})
        for turn in range(ROUNDS):
            writers = [Writer(server, topic, f"{turn}-{i}") for topic in CLASSES for i in range(2)]
            for writer in writers:
                writer.start()
            deadline = time.monotonic() + RUN_S
            while time.monotonic() < deadline or not all(writer.acked for writer in writers):
                time.sleep(0.02)
            server.kill()
            for writer in writers:
                writer.join(20)
                written = acked[writer._topic]
                assert not written.keys() & writer.acked.keys(), "a seq was handed out twice"
                written.update(writer.acked)
            server.restart()
            for topic in CLASSES:
                records, gaps = read_all(server, topic)
                assert {seq: records.get(seq) for seq in acked[topic]} == acked[topic]
                assert gaps == []
                head = server.request("GET", f"/v0/topics/{topic}").json["head_seq"]
                assert unsaid(records, gaps, head) == []
