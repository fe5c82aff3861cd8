"""Attacks by what one write makes the server do elsewhere: routers that fan out, and retries to remember."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator

from tests.hostile.attack import Target, attack

FAN_OUT = 2_000
BATCH = 1_000


def _client(target: Target) -> Callable[[str, str, object], tuple[int, dict[str, object]]]:
    """Requests on one connection, one after the other: their status and body."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=60)

    def request(method: str, path: str, body: object) -> tuple[int, dict[str, object]]:
        connection.request(method, path, json.dumps(body).encode(), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    return request


def _route(target: Target, pairs: Iterator[tuple[str, str]], **config: object) -> None:
    request = _client(target)
    assert request("PUT", "/v0/topics/fan", config)[0] < 300
    for i, (source, dest) in enumerate(pairs):
        status, answer = request("PUT", f"/v0/routers/r{i}", {"source": source, "dest": dest})
        assert status < 300, answer


def _fan_out(target: Target) -> None:
    _route(target, (("fan", f"fan-{i}") for i in range(FAN_OUT)))


def _fan_out_of_a_small_cap(target: Target) -> None:
    _route(target, (("fan", f"fan-{i}") for i in range(FAN_OUT)), cap_records=1)


def _same_pair(target: Target) -> None:
    _route(target, (("fan", "into") for _ in range(FAN_OUT)))


def _write(target: Target, records: int) -> None:
    """Write for as long as the attack lasts."""
    request = _client(target)
    body = {"records": [{"data": i} for i in range(records)]}
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        status, answer = request("POST", "/v0/topics/fan", body)
        assert status in (200, 201, 429, 503), answer


@attack("router-fan-out-singles", prepare=_fan_out, in_slice=False)
def fan_out_singles(target: Target) -> None:
    """Writes single records that 2,000 routers copy."""
    _write(target, 1)


@attack("router-fan-out-batches", prepare=_fan_out, in_slice=False)
def fan_out_batches(target: Target) -> None:
    """Writes batches of 1,000 records that 2,000 routers copy."""
    _write(target, BATCH)


@attack("router-same-pair", prepare=_same_pair, in_slice=False)
def same_pair(target: Target) -> None:
    """Writes batches of 1,000 records that 2,000 routers copy into the same topic."""
    _write(target, BATCH)


@attack("router-fan-out-of-a-cap", prepare=_fan_out_of_a_small_cap, in_slice=False)
def fan_out_of_a_cap(target: Target) -> None:
    """Writes to a source that keeps one record, so that 2,000 routers have to copy each before the next."""
    _write(target, 2)


@attack("producer-flood", settings={"max_producers_per_topic": 2_000})
def producer_flood(target: Target) -> None:
    """Writes with a new producer and a new idempotency key each time."""
    request = _client(target)
    limits = set()
    ends = time.monotonic() + target.seconds
    for i in range(1 << 30):
        if i > 2_100 and time.monotonic() > ends:
            break
        name = uuid.uuid4().hex
        body = {"records": [{"data": 1}], "idempotency_key": name, "producer_id": name * 8, "producer_seq": 1}
        status, answer = request("POST", "/v0/topics/produced", body)
        if status == 429:
            limits.add(answer["error"]["detail"]["limit"])  # type: ignore[index]
    assert limits == {"max_producers_per_topic"}, limits
