"""A watcher that checks everything it receives, through reconnects, restarts and kill -9 (WATCH-36).

It keeps what a careful client keeps: its position in each topic and the id it has processed. It checks that every
record comes in order, that a repeat comes after the id it resumed from, that a gap has a tombstone or was made by
a delete, and that a delete never is one.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api, until
from tests.harness.events import Events
from topics.testing import ServerProcess


class Checker:
    """One watcher of several topics."""

    def __init__(self, api: Api, topics: list[str], deleted: dict[str, set[int]]) -> None:
        self.api = api
        self.topics = topics
        self.deleted = deleted
        self.position = dict.fromkeys(topics, 0)
        self.id: str | None = None
        self.url: str | None = None
        self.reconnects = 0
        self.sessions = 0
        self.reported_lost: dict[str, set[int]] = {topic: set() for topic in topics}
        self.seen: dict[str, dict[int, Any]] = {topic: {} for topic in topics}

    def connect(self) -> Events:
        """Open the session's stream, or make a new session where the server does not know it any more."""
        if self.url is not None:
            events = Events(self.api, self.url, last_event_id=self.id)
            if events.status == 200:
                self.reconnects += 1
                return events
            assert events.status == 404, events.status
            events.close()
        positions = {topic: {"from_seq": seq} for topic, seq in self.position.items()}
        body: dict[str, Any] = {"topics": positions, "limit": 7}
        if self.id is not None and self.sessions % 2:
            body["cursor"] = self.id
        self.url = self.api.call("POST", "/v0/watch", body).ok()["stream_url"]
        self.sessions += 1
        return Events(self.api, self.url)

    def follow(self, goal: dict[str, int], chance: random.Random, patience: int = 4) -> None:
        """Read until every topic has come to its goal, hanging up at random."""
        while any(self.position[topic] < goal[topic] for topic in self.topics):
            with contextlib.suppress(OSError, TimeoutError), contextlib.closing(self.connect()) as events:
                for _ in range(chance.randint(1, patience)):
                    event = events.next_or_end(1.0)
                    if event is None:
                        break
                    self.take(event)

    def take(self, event: Any) -> None:
        """Check one event and process it."""
        body = event.json
        if event.kind == "error":
            return
        topic = body["topic"]
        at = self.position[topic]
        if event.kind == "tombstone":
            assert body["reason"] != "recreated", body
            assert body["gap_from"] == at + 1, (at, body)
            lost = set(range(body["gap_from"], body["gap_to"] + 1))
            self.reported_lost[topic] |= lost
            self.position[topic] = body["gap_to"]
        elif event.kind == "record":
            assert body["from_seq"] == at, f"resumed at {body['from_seq']}, but {at} was processed"
            for record in body["records"]:
                seq = record["$seq"]
                assert seq > at, "out of order, or a repeat of what was processed"
                skipped = set(range(at + 1, seq))
                assert skipped <= self.deleted[topic], f"{sorted(skipped)} vanished without a tombstone"
                self.seen[topic][seq] = record["data"]
                at = seq
            assert set(range(at + 1, body["to_seq"] + 1)) <= self.deleted[topic]
            self.position[topic] = body["to_seq"]
        elif event.kind == "caught-up":
            skipped = set(range(at + 1, body["head_seq"] + 1))
            assert skipped <= self.deleted[topic], f"{sorted(skipped)} vanished before caught-up"
            self.position[topic] = body["head_seq"]
        self.id = event.id


class Load:
    """Writers, and a deleter, that run beside the checker until they are stopped."""

    def __init__(self, api: Api, topics: list[str], deleted: dict[str, set[int]]) -> None:
        self.api = api
        self.topics = topics
        self.deleted = deleted
        self.acked: dict[str, dict[int, Any]] = {topic: {} for topic in topics}
        self.stop = threading.Event()
        self.hold = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        chance, n = random.Random(1), 0
        while not self.stop.is_set():
            if self.hold.is_set():
                time.sleep(0.005)
                continue
            topic = chance.choice(self.topics)
            records = [{"data": {"n": n + i}, "tag": f"k{chance.randint(0, 9)}"} for i in range(chance.randint(1, 5))]
            n += len(records)
            try:
                answer = self.api.write(topic, *records)
                for seq, record in zip(answer["seqs"], records, strict=True):
                    self.acked[topic][seq] = record["data"]
                if chance.random() < 0.05:
                    self._delete(topic, chance)
            except (OSError, AssertionError):
                # The server is going down or coming up; whether this write is there, its seqs will tell.
                time.sleep(0.02)

    def _delete(self, topic: str, chance: random.Random) -> None:
        head = self.api.state(topic)["head_seq"]
        before = chance.randint(1, head + 1)
        self.deleted[topic] |= set(range(1, before))
        self.api.erase(topic, before_seq=before).ok()

    def end(self) -> None:
        """Stop writing."""
        self.stop.set()
        self._thread.join()


@contextlib.contextmanager
def loaded(api: Api, topics: list[str], deleted: dict[str, set[int]]) -> Iterator[Load]:
    load = Load(api, topics, deleted)
    try:
        yield load
    finally:
        load.end()


@pytest.mark.parametrize("restart", ["none", "stop", "kill"])
def test_watcher_sees_every_record_in_order_through_it_all(tmp_path: Path, restart: str) -> None:
    """WATCH-36: order, no gap without a tombstone, no tombstone for a delete; exact resume."""
    chance = random.Random(7)
    with reserved_port() as port, ServerProcess(data_dir=tmp_path / "data", port=port) as server:
        api = Api(server.host, server.port)
        with contextlib.closing(api):
            topics = ["safe", "plain"]
            api.put("safe", durability="fsync").ok()
            api.put("plain", durability="disk").ok()
            deleted: dict[str, set[int]] = {topic: set() for topic in topics}
            checker = Checker(api, topics, deleted)
            with loaded(api, topics, deleted) as load:
                for _ in range(1 if restart == "none" else 3):
                    until(lambda: api.state("plain")["head_seq"] > checker.position["plain"] + 80, "there is work")
                    checker.follow({topic: checker.position[topic] + 60 for topic in topics}, chance)
                    if restart == "stop":
                        server.restart()
                    elif restart == "kill":
                        server.kill()
                        server.start()
            heads = {topic: api.state(topic)["head_seq"] for topic in topics}
            checker.follow(heads, chance, patience=60)
            for topic in topics:
                assert checker.reported_lost[topic] == set(), "nothing was lost, so nothing may be reported as lost"
                kept = {seq: data for seq, data in load.acked[topic].items() if seq not in deleted[topic]}
                missing = {seq for seq in kept if checker.seen[topic].get(seq) != kept[seq]}
                assert missing == set(), "an acked record never came"
            assert checker.reconnects > 3
            assert checker.sessions == 1 if restart == "none" else checker.sessions > 1


def test_lossy_topic_reports_every_gap(tmp_path: Path) -> None:
    """WATCH-36: with a small cap, every seq is either delivered or inside a tombstone."""
    chance = random.Random(3)
    with ServerProcess(data_dir=tmp_path / "data") as server, contextlib.closing(Api(server.host, server.port)) as api:
        topics = ["lossy"]
        api.put("lossy", cap_records=40, durability="disk").ok()
        deleted: dict[str, set[int]] = {"lossy": set()}
        checker = Checker(api, topics, deleted)
        with loaded(api, topics, deleted):
            for _ in range(6):
                until(
                    lambda: api.state("lossy")["head_seq"] > checker.position["lossy"] + 120, "the cap has taken some"
                )
                checker.follow({"lossy": checker.position["lossy"] + 60}, chance)
        checker.follow({"lossy": api.state("lossy")["head_seq"]}, chance)
        reported = checker.reported_lost["lossy"]
        assert reported, "the cap took nothing: the test shows nothing"
        assert reported.isdisjoint(checker.seen["lossy"])


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A port on which a server listens again after a restart: while it is held here, no other process gets it."""
    with socket.socket() as held:
        # Two may be bound to a port if both say so and only one of them listens.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
