"""The LIMIT rules: the resource caps, what is refused and how, and that room comes back."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from tests.harness.api import DEADLINE_S, Api, Reply, StartApi, until


def capped(reply: Reply, limit: str, most: int) -> None:
    """Check a refusal by a resource cap: 429 throttled, Retry-After, the cap by name and its value."""
    detail = reply.refused(429, "throttled")
    assert detail["limit"] == limit
    assert detail["max"] == most
    assert int(reply.headers["retry-after"]) >= 1


def test_max_topics_holds_on_put_and_on_lazy_create(start_api: StartApi) -> None:
    """LIMIT-1, LIMIT-3: 429 with `Retry-After`, the name of the cap and its value."""
    api = start_api(max_topics=2)
    api.put("one").ok(201)
    api.fill("two", 1)
    capped(api.put("three"), "max_topics", 2)
    capped(api.post("three", {"records": [{"data": 1}]}), "max_topics", 2)
    assert not api.exists("three")
    assert api.get("/v0/ready").ok(200)["topics"] == 2


def test_max_topics_leaves_existing_topics_alone(start_api: StartApi) -> None:
    """LIMIT-3: a repeated PUT is an update and always succeeds."""
    api = start_api(max_topics=1)
    api.put("one").ok(201)
    api.put("one").ok(200)
    assert api.put("one", ttl_ms=60000).ok(200)["config"]["ttl_ms"] == 60000
    assert api.write("one", {"data": 1})["seqs"] == [1]
    api.post("two", {"records": [{"data": 1}], "create": False}).refused(404, "topic_not_found")


def test_deleted_topic_makes_room(start_api: StartApi) -> None:
    """LIMIT-3."""
    api = start_api(max_topics=1)
    api.put("one").ok(201)
    capped(api.put("two"), "max_topics", 1)
    api.remove("one").ok(200)
    api.put("two").ok(201)
    capped(api.put("one"), "max_topics", 1)


def test_zero_disables_a_cap(start_api: StartApi) -> None:
    """LIMIT-2."""
    api = start_api(key="k", max_topics=0, max_inflight_per_key=0, max_total_bytes=0, api_keys="k")
    for n in range(5):
        api.put(f"t{n}").ok(201)
        api.write(f"t{n}", {"data": "x" * 1000})


def test_total_bytes_quota(start_api: StartApi) -> None:
    """LIMIT-5: a write that would push the retained bytes of all topics over the quota is 429."""
    api = start_api(max_total_bytes=5000)
    api.write("one", {"data": "x" * 2000})
    api.write("two", {"data": "x" * 2000})
    with api.unchanged("one"):
        capped(api.post("one", {"records": [{"data": "x" * 2000}]}), "max_total_bytes", 5000)
    with api.unchanged("two"):
        batch = {"records": [{"data": "x" * 500}, {"data": "x" * 1500}]}
        capped(api.post("two", batch), "max_total_bytes", 5000)
    capped(api.post("three", {"records": [{"data": "x" * 2000}]}), "max_total_bytes", 5000)
    assert not api.exists("three")
    assert api.write("one", {"data": "x" * 100})["seqs"] == [2]


def test_total_bytes_quota_frees_with_deletes(start_api: StartApi) -> None:
    """LIMIT-5: deleting records or a topic makes room again."""
    api = start_api(max_total_bytes=3000)
    api.write("one", {"data": "x" * 2000})
    capped(api.post("two", {"records": [{"data": "x" * 2000}]}), "max_total_bytes", 3000)
    api.erase("one", before_seq=2).ok(200)
    api.write("two", {"data": "x" * 2000})
    capped(api.post("one", {"records": [{"data": "x" * 2000}]}), "max_total_bytes", 3000)
    api.remove("two").ok(200)
    assert api.write("one", {"data": "x" * 2000})["seqs"] == [2]


def test_total_bytes_quota_frees_with_expiry(start_api: StartApi) -> None:
    """LIMIT-5: expired records are not retained, so they do not count."""
    api = start_api(max_total_bytes=3000)
    api.put("one", ttl_ms=50).ok(201)
    api.write("one", {"data": "x" * 2000})
    until(lambda: api.state("one")["count"] == 0, "the record expired")
    api.write("two", {"data": "x" * 2000})


def test_retry_of_a_committed_write_passes_the_quota(start_api: StartApi) -> None:
    """RETRY-1: a deduplicated retry appends nothing, so a full server still answers it."""
    api = start_api(max_total_bytes=3000)
    api.write("one", {"data": "x" * 2000}, idempotency_key="k")
    again = api.write("one", {"data": "x" * 2000}, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, [1])


def _wait_in_thread(api: Api, topic: str, answers: list[Reply]) -> threading.Thread:
    path = f"/v0/topics/{topic}/diff"
    body = {"from_seq": 0, "wait_ms": 25000}
    thread = threading.Thread(target=lambda: answers.append(api.call("POST", path, body)))
    thread.start()
    return thread


def test_inflight_cap_is_per_key_and_frees_itself(start_api: StartApi) -> None:
    """LIMIT-7, LIMIT-10: a slot is held for the duration of the request."""
    one = start_api(key="one", api_keys="one,two", max_inflight_per_key=2)
    two = one.with_key("two")
    two.put("t").ok(201)
    answers: list[Reply] = []
    waiting = [_wait_in_thread(one, "t", answers) for _ in range(2)]
    refused = until(lambda: (r := one.topics()).status == 429 and r, "both slots are taken")
    capped(refused, "max_inflight_per_key", 2)
    two.topics().ok(200)
    two.write("t", {"data": 1})
    for thread in waiting:
        thread.join(20)
    assert [reply.status for reply in answers] == [200, 200]
    one.topics().ok(200)


def test_inflight_slot_is_freed_when_the_client_goes_away(start_api: StartApi) -> None:
    """LIMIT-10."""
    api = start_api(key="one", api_keys="one,two", max_inflight_per_key=1)
    api.put("t").ok(201)
    body = b'{"wait_ms":25000}'
    request = (
        b"POST /v0/topics/t/diff HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer one\r\n"
        b"Content-Type: application/json\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    with socket.create_connection((api.host, api.port), timeout=DEADLINE_S) as connection:
        connection.sendall(request)
        capped(until(lambda: (r := api.topics()).status == 429 and r, "the slot is taken"), "max_inflight_per_key", 1)
    until(lambda: api.topics().status == 200, "the slot is free again")


def test_inflight_cap_does_not_apply_without_keys(start_api: StartApi) -> None:
    """LIMIT-11."""
    api = start_api(max_inflight_per_key=1)
    api.put("t").ok(201)
    answers: list[Reply] = []
    waiting = [_wait_in_thread(api, "t", answers) for _ in range(3)]
    for _ in range(5):
        api.topics().ok(200)
    api.write("t", {"data": 1})
    for thread in waiting:
        thread.join(20)
    assert [reply.status for reply in answers] == [200] * 3


def test_reads_are_served_at_every_cap(start_api: StartApi) -> None:
    """LIMIT-12: the caps are on creation and growth; reading and shrinking go on."""
    api = start_api(max_topics=1, max_total_bytes=300)
    api.write("one", {"data": "x" * 150})
    capped(api.post("one", {"records": [{"data": "x" * 300}]}), "max_total_bytes", 300)
    assert api.seqs("one") == [1]
    api.state("one", touch=True)
    assert api.erase("one", before_seq=2).ok(200)["deleted"] == 1


DEFAULTS: dict[str, Any] = {
    "max_topics": 100_000,
    "max_routers": 10_000,
    "max_watch_sessions": 10_000,
    "max_sse_connections": 10_000,
    "max_sse_connections_per_key": 1000,
    "max_inflight_per_key": 1000,
    "max_total_bytes": 0,
    "max_batch_records": 10_000,
    "max_record_bytes": 1 << 20,
    "max_body_bytes": 64 << 20,
    "max_command_bytes": 1 << 20,
    "max_meta_bytes": 16 << 10,
    "max_tag_bytes": 256,
    "max_node_bytes": 128,
    "max_limit": 1000,
    "max_claim": 1000,
    "max_watch_topics": 256,
    "host": "127.0.0.1",
    "port": 4000,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_documented_default_of_each_setting(name: str) -> None:
    """LIMIT-13, AUTH-17."""
    from topics.settings import Settings

    assert getattr(Settings(), name) == DEFAULTS[name]


def test_answer_that_is_not_read_is_held_here_and_counted(start_api: StartApi) -> None:
    """FAIR-3: and not by the kernel, where nobody counts it, and which would copy megabytes at a time for it."""
    api = start_api()
    for _ in range(8):
        api.write("t", {"data": "x" * 1_000_000})
    body = b'{"from_seq":0,"limit":1000,"max_batch_bytes":8388608}'
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((api.host, api.port))
        head = b"POST /v0/topics/t/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        reader.sendall(b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))

        def held() -> float:
            lines = api.get("/v0/metrics").body.decode().splitlines()
            (found,) = [line for line in lines if line.startswith('topics_buffered_bytes{kind="answers"}')]
            return float(found.partition(" ")[2])

        until(lambda: held() > 7_400_000, "nearly all of it is counted")
