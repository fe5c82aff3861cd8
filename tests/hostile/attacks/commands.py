"""Attacks by commands that concern very many things at once: a million records, ten thousand routers, leases in crowds.

Each is one honest request, or a few of them; what it costs is in what was there before. A short slice is of a twentieth
of that.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.hostile.attack import TIMEOUT_S, Target, attack

BATCH = 5_000
RECORDS = 1_000_000
TAGS = 100_000
ROUTERS = 9_990
LETTERS = 300_000
TOPICS = 99_000
JOBS = 200_000


class Client:
    """Requests on one connection that stays open; what is refused is a failure of the attack."""

    def __init__(self, target: Target) -> None:
        self._connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)

    def __call__(self, method: str, path: str, body: object = None) -> Any:
        """The decoded answer."""
        payload = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, payload, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = response.read()
        assert response.status < 300, f"{method} {path}: {response.status} {content[:200]!r}"
        return json.loads(content)

    def fill(self, topic: str, texts: Iterator[str]) -> None:
        """Append records, given as JSON texts."""
        batch: list[str] = []
        for text in texts:
            batch.append(text)
            if len(batch) == BATCH:
                self._write(topic, batch)
                batch = []
        if batch:
            self._write(topic, batch)

    def _write(self, topic: str, batch: list[str]) -> None:
        self("POST", f"/v0/topics/{topic}?return_seqs=false", f'{{"records":[{",".join(batch)}]}}'.encode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextmanager
def client(target: Target) -> Iterator[Client]:
    """A client for the time of a block."""
    made = Client(target)
    try:
        yield made
    finally:
        made.close()


def scaled(count: int, target: Target) -> int:
    """The size of an attack: all of it, or that of a slice."""
    return count if target.seconds >= 1.5 else count // 20


def _tagged(count: int, tags: int) -> Iterator[str]:
    return (f'{{"data":{i},"tag":"t{i % tags:06}"}}' for i in range(count))


def _fill_tagged(target: Target) -> None:
    with client(target) as call:
        call.fill("big", _tagged(scaled(RECORDS, target), scaled(TAGS, target)))
    # What was written last is sealed by then.
    time.sleep(min(3.0, target.seconds))


@attack("delete-by-tag", prepare=_fill_tagged)
def delete_by_tag(target: Target) -> None:
    """Deletes from a million records with 100,000 tags: one tag, then a tenth of them by a prefix, then all."""
    records, tags = scaled(RECORDS, target), scaled(TAGS, target)
    with client(target) as call:
        one = call("POST", "/v0/topics/big/delete", {"match": "t000001"})
        assert one["deleted"] == records // tags
        call("POST", "/v0/topics/big/delete", {"match": ["tag", "Glob", "t00001*"]})
        rest = call("POST", "/v0/topics/big/delete", {"match": ["tag", "Glob", "t*"]})
        assert rest["count"] == 0


def _fill_halves(target: Target) -> None:
    with client(target) as call:
        call.fill("big", _tagged(scaled(RECORDS, target), 2))
    time.sleep(min(3.0, target.seconds))


@attack("delete-every-second", prepare=_fill_halves, in_slice=False)
def delete_every_second(target: Target) -> None:
    """Deletes every second one of a million records, then tightens the caps on what is left."""
    with client(target) as call:
        assert call("POST", "/v0/topics/big/delete", {"match": "t000000"})["deleted"] == scaled(RECORDS, target) // 2
        call("PUT", "/v0/topics/big", {"cap_bytes": 1_000_000})
        call("PUT", "/v0/topics/big", {"cap_records": 10})
        call("PUT", "/v0/topics/big", {"ttl_ms": 1000})
        call("DELETE", "/v0/topics/big")


def _route(target: Target) -> None:
    with client(target) as call:
        for i in range(scaled(ROUTERS, target)):
            call("PUT", f"/v0/routers/r{i:05}", {"source": "src", "dest": f"d{i:05}"})


@attack("delete-source-of-routers", prepare=_route, in_slice=False)
def delete_source_of_routers(target: Target) -> None:
    """Writes to the source of ten thousand routers, deletes records there, and deletes it at once."""
    with client(target) as call:
        call("POST", "/v0/topics/src", {"records": [{"data": i} for i in range(1000)]})
        call("POST", "/v0/topics/src/delete", {"before_seq": 500})
        call("POST", "/v0/topics/src", {"records": [{"data": i} for i in range(1000)]})
        removed = call("DELETE", "/v0/topics/src")["routers_removed"]
        assert len(removed) == scaled(ROUTERS, target)


def _write_letters(target: Target) -> None:
    with client(target) as call:
        call("PUT", "/v0/topics/jobs", {"type": "queue", "dead_letter": "letters", "max_deliveries": 3})
        letter = '{"data":1,"meta":{"$dead_letter_from":"elsewhere","$dead_letter_deliveries":"3"}}'
        call.fill("letters", (letter for _ in range(scaled(LETTERS, target))))
        call.fill("letters", (letter.replace("elsewhere", "jobs") for _ in range(10)))


@attack("redrive-foreign-letters", prepare=_write_letters)
def redrive_foreign_letters(target: Target) -> None:
    """Puts back the letters of one queue from a dead-letter topic that holds 300,000 of another."""
    with client(target) as call:
        assert call("POST", "/v0/topics/jobs/redrive", {"dry_run": True})["redriven"] == 10
        assert call("POST", "/v0/topics/jobs/redrive", {})["redriven"] == 10
        assert call("POST", "/v0/topics/jobs/redrive", {"match": "none"})["redriven"] == 0


def _lease_all(target: Target) -> None:
    with client(target) as call:
        config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead", "leases_durable": False}
        call("PUT", "/v0/topics/lost", config)
        call("PUT", "/v0/topics/held", {"type": "queue"})
        jobs = scaled(JOBS, target)
        # Those that are lost are fewer: each of them is written once more.
        for name, count in (("lost", jobs // 4), ("held", jobs)):
            call.fill(name, (f'{{"data":{i},"tag":"t"}}' for i in range(count)))
            for _ in range(count // 1000):
                call("POST", f"/v0/topics/{name}/claim", {"node": "w", "max": 1000, "lease_ms": 30_000})


@attack("leases-run-out", prepare=_lease_all, in_slice=False)
def leases_run_out(target: Target) -> None:
    """Lets 200,000 leases run out at once, claims, and meets 50,000 jobs that were delivered too often."""
    time.sleep(31)
    jobs = scaled(JOBS, target)
    with client(target) as call:
        assert call("POST", "/v0/topics/held/claim", {"node": "v", "max": 10})["count"] == 10
        while call("GET", "/v0/topics/held")["queue"]["in_flight"] > 10:
            time.sleep(0.01)
        assert call("POST", "/v0/topics/lost/claim", {"node": "v", "max": 10})["count"] == 0
        assert call("GET", "/v0/topics/lost")["queue"]["dead_lettered"] == jobs // 4
        assert call("POST", "/v0/topics/held/delete", {"match": "t"})["deleted"] == jobs


def _delay_all(target: Target) -> None:
    due_ms = int(time.time() * 1000) + 20_000
    with client(target) as call:
        call("PUT", "/v0/topics/later", {"type": "queue"})
        call.fill("later", (f'{{"data":{i},"deliver_at":{due_ms}}}' for i in range(scaled(JOBS, target))))
        call("POST", "/v0/topics/later", {"records": [{"data": 1}]})
    time.sleep(max(0.0, due_ms / 1000 - time.time() - 3))


@attack("delays-end", prepare=_delay_all, in_slice=False)
def delays_end(target: Target) -> None:
    """Claims what comes after 200,000 delayed jobs, and then meets all of them as their time comes."""
    with client(target) as call:
        for _ in range(400):
            call("POST", "/v0/topics/later/claim", {"node": "w", "max": 10})
            time.sleep(0.01)
        call("DELETE", "/v0/topics/later")


def _make_topics(target: Target) -> None:
    with client(target) as call:
        for i in range(scaled(TOPICS, target)):
            call("POST", f"/v0/topics/t{i:05}", b'{"records":[{"data":1}]}')


@attack("list-many-topics", prepare=_make_topics, in_slice=False)
def list_many_topics(target: Target) -> None:
    """Lists, and measures, a hundred thousand topics."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        for path in ("/v0/topics?page_size=1000", "/v0/topics?prefix=t9&page_size=1000", "/v0/metrics"):
            connection.request("GET", path)
            connection.getresponse().read()
    connection.close()


def _filter(target: Target) -> None:
    with client(target) as call:
        call("PUT", "/v0/routers/some", {"source": "in", "dest": "out", "filter": ["tag", "Glob", "t*"]})


@attack("read-far-behind", prepare=_filter)
def read_far_behind(target: Target) -> None:
    """Writes large batches through a filter, and reads the copies before they are made."""
    with client(target) as call:
        batch = [f'{{"data":{i},"tag":"t{i}"}}' for i in range(BATCH)]
        ends = time.monotonic() + target.seconds
        while time.monotonic() < ends:
            for _ in range(4):
                call.fill("in", iter(batch))
            call("GET", "/v0/topics/out")
