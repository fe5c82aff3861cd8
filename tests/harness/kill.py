"""KillLoop: a real server under load, killed again and again, and held to what it had acknowledged.

Writers on topics of every class with a log send numbered records until the server dies under them, and one client
deletes. After each restart every acknowledged record must be there with its content, no seq may have been handed out
twice, and no seq may be missing, with or without a tombstone: a kill loses nothing (DURABLE-3). A write that got no
answer is sent again under the same idempotency key, and must be there once (RETRY-1).

`make soak` runs it for hours; the tests run it for seconds.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from tests.harness.oracle import Broken
from topics.testing.process import ServerProcess

CLASSES: Final = ("fsync", "disk", "memory")
BATCH_MAX: Final = 5
TIMEOUT_S: Final = 30.0
READ_LIMIT: Final = 1000
JOIN_S: Final = 90.0


@dataclass
class Ledger:
    """What one topic has acknowledged."""

    topic: str
    acked: dict[int, str] = field(default_factory=dict)
    # Writes without an answer, by their idempotency key.
    doubtful: dict[str, list[str]] = field(default_factory=dict)
    deleted_below: int = 0
    doubtful_below: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def took(self, seqs: list[int], datas: list[str]) -> None:
        """Note an ack."""
        with self.lock:
            for seq, data in zip(seqs, datas, strict=True):
                if self.acked.get(seq, data) != data:
                    raise Broken(f"{self.topic}: seq {seq} was given to {self.acked[seq]} and to {data}")
                self.acked[seq] = data


class Writer(threading.Thread):
    """One client that writes until the server dies or `stopped` is set."""

    def __init__(self, server: ServerProcess, ledger: Ledger, label: str, seed: int) -> None:
        super().__init__(name=label, daemon=True)
        self._server = server
        self._ledger = ledger
        self._label = label
        self._rng = random.Random(seed)
        self.stopped = threading.Event()
        self.writes = 0
        self.broken: Broken | None = None

    def run(self) -> None:
        """Write one batch after the other."""
        connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=TIMEOUT_S)
        while not self.stopped.is_set():
            key = f"{self._label}-{self.writes}"
            datas = [f"{key}-{i}" for i in range(self._rng.randint(1, BATCH_MAX))]
            with self._ledger.lock:
                self._ledger.doubtful[key] = datas
            try:
                answer = post(connection, f"/v0/topics/{self._ledger.topic}", write_body(key, datas))
                self._ledger.took(answer["seqs"], datas)
            except (OSError, http.client.HTTPException, ValueError):
                break
            except Broken as error:
                self.broken = error
                break
            with self._ledger.lock:
                del self._ledger.doubtful[key]
            self.writes += 1
        connection.close()


class Deleter(threading.Thread):
    """One client that deletes old records of a topic while others write to it."""

    def __init__(self, server: ServerProcess, ledger: Ledger) -> None:
        super().__init__(name="deleter", daemon=True)
        self._server = server
        self._ledger = ledger
        self.stopped = threading.Event()

    def run(self) -> None:
        """Delete all but the newest, again and again."""
        connection = http.client.HTTPConnection(self._server.host, self._server.port, timeout=TIMEOUT_S)
        ledger = self._ledger
        while not self.stopped.wait(0.05):
            with ledger.lock:
                below = max(ledger.acked, default=0) - 20
                ledger.doubtful_below = max(ledger.doubtful_below, below)
            if below <= 0:
                continue
            try:
                post(connection, f"/v0/topics/{ledger.topic}/delete", {"before_seq": below})
            except (OSError, http.client.HTTPException, ValueError):
                break
            with ledger.lock:
                ledger.deleted_below = max(ledger.deleted_below, below)
        connection.close()


def write_body(key: str, datas: list[str]) -> dict[str, Any]:
    """The body of a write under an idempotency key."""
    return {"idempotency_key": key, "records": [{"data": data} for data in datas]}


def post(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> Any:
    """The JSON answer to a POST; ValueError for any status but 200 and 201."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status not in (200, 201):
        raise ValueError(f"{answer.status}: {content[:200]!r}")
    return json.loads(content)


class KillLoop:
    """Rounds of load, kill, restart and judgement on one server."""

    def __init__(self, server: ServerProcess, seed: int = 0, writers_per_topic: int = 2) -> None:
        self.server = server
        self.rounds = 0
        self.acked = 0
        self._rng = random.Random(seed)
        self._writers_per_topic = writers_per_topic
        self._generation = 0
        self.ledgers: list[Ledger] = []
        self.renew()

    def renew(self) -> None:
        """Go on with fresh topics, so that a long run does not read more and more."""
        for ledger in self.ledgers:
            self.server.request("DELETE", f"/v0/topics/{ledger.topic}")
        self._generation += 1
        self.ledgers = [Ledger(f"{name}-{self._generation}") for name in (*CLASSES, "trimmed")]
        for ledger in self.ledgers:
            durability = ledger.topic.partition("-")[0]
            body = {"durability": durability if durability in CLASSES else "fsync", "idempotency_window_ms": 3_600_000}
            answer = self.server.request("PUT", f"/v0/topics/{ledger.topic}", json=body)
            if answer.status not in (200, 201):
                raise Broken(f"PUT of {ledger.topic}: {answer.status}")

    def round(self, seconds: float, *, kill: bool = True) -> int:
        """Load for so long, then kill (or stop) the server, start it again and judge it; how many writes were acked."""
        self.rounds += 1
        writers = [
            Writer(self.server, ledger, f"r{self.rounds}.{ledger.topic}.{i}", self._rng.randrange(1 << 30))
            for ledger in self.ledgers
            for i in range(self._writers_per_topic)
        ]
        deleter = Deleter(self.server, self.ledgers[-1])
        threads: list[Writer | Deleter] = [*writers, deleter]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        if not kill:
            for thread in threads:
                thread.stopped.set()
                thread.join(JOIN_S)
            self.server.stop()
        self.server.kill()
        for thread in threads:
            thread.join(JOIN_S)
            if thread.is_alive():
                raise Broken(f"{thread.name} waits for a server that is dead")
        for writer in writers:
            if writer.broken is not None:
                raise writer.broken
        self.server.start()
        for ledger in self.ledgers:
            self._send_again(ledger)
            self._judge(ledger)
        acked = sum(writer.writes for writer in writers)
        self.acked += acked
        return acked

    def _send_again(self, ledger: Ledger) -> None:
        """Send again what had no answer, under its key."""
        with self._connect() as connection:
            for key, datas in ledger.doubtful.items():
                # Right after a start the server may be late and hold writers back: this one would rather wait.
                body = {**write_body(key, datas), "disable_backpressure": True}
                ledger.took(post(connection, f"/v0/topics/{ledger.topic}", body)["seqs"], datas)
        ledger.doubtful = {}

    def _connect(self) -> closing[http.client.HTTPConnection]:
        return closing(http.client.HTTPConnection(self.server.host, self.server.port, timeout=TIMEOUT_S))

    def _judge(self, ledger: Ledger) -> None:
        records, head = self._read(ledger)
        topic, acked = ledger.topic, ledger.acked
        upto = max(ledger.deleted_below, ledger.doubtful_below)
        for seq, data in acked.items():
            if seq not in records and seq >= upto:
                raise Broken(f"{topic}: {seq} was acked and is gone")
            if records.get(seq, data) != data:
                raise Broken(f"{topic}: {seq} is {records[seq]}, and {data} was acked")
            if seq in records and seq < ledger.deleted_below:
                raise Broken(f"{topic}: {seq} was deleted and is there")
        strange = [seq for seq in records if seq not in acked]
        if strange:
            raise Broken(f"{topic}: {strange[:5]} were written twice, or never")
        first = min(records, default=head + 1)
        if sorted(records) != list(range(first, head + 1)):
            raise Broken(f"{topic}: there are holes between {first} and {head}")
        if head != max(acked, default=0):
            raise Broken(f"{topic}: the head is {head}, and {max(acked, default=0)} was acked")
        ledger.acked = {seq: data for seq, data in acked.items() if seq >= ledger.deleted_below}

    def _read(self, ledger: Ledger) -> tuple[dict[int, str], int]:
        records: dict[int, str] = {}
        cursor = 0
        with self._connect() as connection:
            while True:
                got = post(connection, f"/v0/topics/{ledger.topic}/diff", {"from_seq": cursor, "limit": READ_LIMIT})
                if got["tombstone"] is not None:
                    raise Broken(f"{ledger.topic}: a kill lost {got['tombstone']}")
                for record in got["records"]:
                    if record["$seq"] <= cursor or record["$seq"] in records:
                        raise Broken(f"{ledger.topic}: {record['$seq']} comes twice")
                    records[record["$seq"]] = record["data"]
                cursor = got["next_from_seq"]
                if got["caught_up"]:
                    return records, got["head_seq"]
