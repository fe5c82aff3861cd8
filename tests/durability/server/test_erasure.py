"""No file of a running server holds deleted text after the horizon, wherever it was (SPACE-5, SPACE-6)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.harness.api import until
from topics.testing import ServerProcess

HORIZON_MS = 10_000
# For a machine that is busy with other tests.
SLACK_S = 20.0


def holders(directories: list[Path], text: bytes) -> list[str]:
    """The files that hold a text."""
    found = []
    for directory in directories:
        for folder, _, names in os.walk(directory):
            for name in names:
                path = Path(folder) / name
                try:
                    if text in path.read_bytes():
                        found.append(str(path.relative_to(directory.parent)))
                except FileNotFoundError:
                    continue
    return found


def write(server: ServerProcess, topic: str, records: list[dict[str, object]]) -> None:
    answer = server.request("POST", f"/v0/topics/{topic}", json={"records": records})
    assert answer.status in (200, 201), answer


def test_no_file_holds_erased_text_after_the_horizon(tmp_path: Path) -> None:
    """SPACE-5: in every class that goes to disk; in the log, in a snapshot, in a segment and in the cold directory.

    SPACE-6: where `erased_before_ts` is above the time of the delete, no file holds the text, never mind the horizon.
    """
    cold = tmp_path / "cold"
    settings = {
        "erase_after_ms": HORIZON_MS,
        "cold_dir": cold,
        "segment_max_events": 20,
        "hot_retain_segments": 1,
        "checkpoint_wal_bytes": 20_000,
    }
    with ServerProcess(tmp_path / "data", **settings) as server:
        directories = [server.data_dir, cold]
        filler = [{"data": i} for i in range(20)]
        topics: dict[str, bytes] = {}
        for durability in ("memory", "disk", "fsync"):
            for where in ("tail", "sealed"):
                topic = f"{durability}-{where}"
                topics[topic] = f"secret of {topic}".encode()
                server.request("PUT", f"/v0/topics/{topic}", json={"durability": durability})
                secret = topics[topic].decode()
                write(server, topic, [{"data": secret, "tag": secret, "node": secret, "meta": {"k": secret}}])
                if where == "sealed":
                    write(server, topic, filler)
                write(server, topic, [{"data": "stays"}])
        server.request("PUT", "/v0/topics/jobs", json={"type": "queue"})
        server.request("PUT", "/v0/topics/short", json={"ttl_ms": 1000})
        server.request("PUT", "/v0/topics/capped", json={"cap_records": 1})
        for topic in ("jobs", "short", "capped", "dropped"):
            topics[topic] = f"secret of {topic}".encode()
            write(server, topic, [{"data": topics[topic].decode()}])
        for topic in ("jobs", "short", "capped"):
            write(server, topic, [{"data": "stays"}])
        # Enough log for a checkpoint, and time for one.
        write(server, "other", [{"data": "x" * 30_000}])
        until(
            lambda: any("/snapshots/" in path for path in holders(directories, b"secret of fsync-tail")),
            "a snapshot has it",
        )
        until(
            lambda: any("/segments/" in path for path in holders(directories, b"secret of disk-sealed")),
            "a segment has it",
        )
        # The next segment has the one before it moved.
        write(server, "fsync-sealed", [*filler, {"data": "stays"}])
        until(
            lambda: any(path.startswith("cold/") for path in holders(directories, b"secret of")),
            "the cold store has it",
        )
        assert any("/wal/" in path for path in holders(directories, b"secret of"))
        for topic in topics:
            if topic == "jobs":
                answer = server.request("POST", "/v0/topics/jobs/claim", json={"node": "w", "max": 1})
                job = answer.json["claimed"][0]
                answer = server.request("POST", "/v0/topics/jobs/ack", json={"node": "w", "seqs": [job["$seq"]]})
            elif topic == "dropped":
                answer = server.request("DELETE", "/v0/topics/dropped")
            elif topic in ("short", "capped"):
                continue
            else:
                answer = server.request("POST", f"/v0/topics/{topic}/delete", json={"match": topics[topic].decode()})
            assert answer.status == 200, answer
        time.sleep(0.01)
        deleted_ms = int(time.time() * 1000)
        deadline = time.monotonic() + HORIZON_MS / 1000 + SLACK_S
        pending = set(topics) - {"dropped"}
        while pending and time.monotonic() < deadline:
            time.sleep(0.3)
            for topic in sorted(pending):
                if server.request("GET", f"/v0/topics/{topic}?touch=false").json["erased_before_ts"] > deleted_ms:
                    assert holders(directories, topics[topic]) == [], "the promise came before the deed"
                    pending.discard(topic)
        assert pending == set()
        until(lambda: holders(directories, b"secret of") == [], "nothing is left", SLACK_S)
        for topic in topics:
            if topic not in ("dropped", "short"):
                records = server.request("POST", f"/v0/topics/{topic}/diff", json={"from_seq": 0}).json["records"]
                assert records[-1]["data"] == "stays"
