"""What a server says of its requests, streams, queues, routers and of itself (PROBE-14 to PROBE-18)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.api import Api, until
from tests.harness.events import follow
from topics.testing import ServerProcess

TOPIC = "/v0/topics/:topic"


@pytest.fixture(scope="module")
def metered() -> Iterator[Api]:
    """One server for the module: each test uses names of its own, or looks at what has changed."""
    with ServerProcess() as running:
        api = Api(running.host, running.port)
        yield api
        api.close()


def value(api: Api, name: str, **labels: str) -> float:
    """The sum of the samples of this name with these labels."""
    families = text_string_to_metric_families(api.get("/v0/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    assert samples, name
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def test_requests_are_counted_by_route_method_and_status(metered: Api) -> None:
    """PROBE-14."""

    def counts() -> list[float]:
        name, took = "topics_http_requests_total", "topics_http_request_duration_seconds"
        return [
            value(metered, name, route=TOPIC, method="PUT", status="201"),
            value(metered, name, route=TOPIC, method="POST", status="200"),
            value(metered, name, route=f"{TOPIC}/diff", method="POST", status="404"),
            value(metered, f"{took}_count", route=TOPIC, method="POST"),
        ]

    metered.topics().ok(200)
    before = counts()
    metered.put("by-route").ok(201)
    for _ in range(3):
        metered.write("by-route", {"data": 1})
    metered.diff("not-there").refused(404, "topic_not_found")
    assert [after - before for after, before in zip(counts(), before, strict=True)] == [1, 3, 1, 3]
    assert 0 < value(metered, "topics_http_request_duration_seconds_sum", route=TOPIC, method="POST") < 60


def test_bytes_are_counted_by_route(metered: Api) -> None:
    """PROBE-14."""
    sizes = []
    for _ in range(2):
        metered.write("sizes", {"data": "x" * 5_000})
        received = value(metered, "topics_http_received_bytes_total", route=TOPIC, method="POST")
        metered.read("sizes", limit=1)
        sizes.append((received, value(metered, "topics_http_sent_bytes_total", route=f"{TOPIC}/diff")))
    (before_in, before_out), (after_in, after_out) = sizes
    assert 5_000 < after_in - before_in < 6_000
    assert 5_000 < after_out - before_out < 6_000


def test_no_label_holds_what_a_client_chose(metered: Api) -> None:
    """PROBE-14: paths and methods of clients do not become series."""
    for i in range(5):
        metered.get(f"/nothing/at-all-{i}?key=unseen{i}").refused(404, "not_found")
        metered.call("PATCH", f"/v0/topics/pot{i}").refused(405, "method_not_allowed")
    text = metered.get("/v0/metrics").text
    assert "at-all" not in text
    assert "PATCH" not in text
    assert "unseen" not in text
    assert value(metered, "topics_http_requests_total", route="none", status="404") >= 5
    assert value(metered, "topics_http_requests_total", route="none", status="405") >= 5


def test_the_wait_of_a_long_poll_is_no_latency(metered: Api) -> None:
    """PROBE-14: the client asked for it."""
    metered.put("polled").ok(201)
    name = "topics_http_request_duration_seconds_sum"
    before = value(metered, name, route=f"{TOPIC}/diff")
    metered.diff("polled", wait_ms=600).ok(200)
    assert value(metered, name, route=f"{TOPIC}/diff") - before < 0.5


def test_streams_connections_and_frames(metered: Api) -> None:
    """PROBE-15."""
    metered.put("streamed").ok(201)
    frames = value(metered, "topics_delivery_frames_total", kind="records")
    rounds = value(metered, "topics_delivery_lag_seconds_count")
    with follow(metered, {"streamed": {"from_seq": 0}}) as events:
        assert value(metered, "topics_streams", kind="watch") == 1
        assert value(metered, "topics_connections", protocol="http1") >= 2
        metered.write("streamed", {"data": 1})
        assert events.until("record")[-1].seqs == [1]
        assert value(metered, "topics_delivery_frames_total", kind="records") > frames
        until(lambda: value(metered, "topics_delivery_lag_seconds_count") > rounds, "the round is over")
        assert value(metered, "topics_delivery_sent_bytes_total") > 0
    until(lambda: value(metered, "topics_streams", kind="watch") == 0, "the stream is gone")


def test_jobs_by_state_and_the_age_of_the_oldest(metered: Api) -> None:
    """PROBE-8, PROBE-7: what is ready, in flight, delayed and dead."""
    metered.put("q", type="queue", max_deliveries=1, dead_letter="q.dead").ok(201)
    metered.write("q", {"data": 1}, {"data": 2}, {"data": 3}, {"data": 4, "delay_ms": 3_600_000})
    claimed = metered.call("POST", "/v0/topics/q/claim", {"node": "w", "max": 2}).ok(200)["claimed"]
    seqs = [claimed[0]["$seq"]]
    metered.call("POST", "/v0/topics/q/nack", {"node": "w", "seqs": seqs}).ok(200)

    def state() -> dict[str, float]:
        names = ("ready", "in_flight", "delayed", "dead")
        return {name: value(metered, f"topics_topic_queue_{name}", topic="q") for name in names}

    until(lambda: state() == {"ready": 1, "in_flight": 1, "delayed": 1, "dead": 1}, "the dead letter has moved")
    assert value(metered, "topics_queue_jobs", state="delayed") >= 1
    age_s = value(metered, "topics_topic_queue_oldest_age_seconds", topic="q")
    until(lambda: value(metered, "topics_topic_queue_oldest_age_seconds", topic="q") > age_s, "it grows older")


def test_evictions_are_counted_by_reason(metered: Api) -> None:
    """PROBE-16."""
    name = "topics_evicted_records_total"
    before = value(metered, name, reason="cap")
    metered.put("capped", cap_records=2).ok(201)
    metered.fill("capped", 5)
    assert value(metered, name, reason="cap") == before + 3
    expired = value(metered, name, reason="ttl")
    metered.put("short", ttl_ms=40).ok(201)
    metered.fill("short", 4)
    until(lambda: value(metered, name, reason="ttl") == expired + 4, "all of it has expired")
    assert value(metered, "topics_lost_records_total", reason="corruption") == 0


def test_router_lag_is_there_and_falls_to_zero(metered: Api) -> None:
    """PROBE-8."""
    metered.put("from").ok(201)
    metered.call("PUT", "/v0/routers/r", {"source": "from", "dest": "to"}).ok(201)
    metered.fill("from", 10)
    until(lambda: value(metered, "topics_router_lag_records", router="r") == 0, "everything is copied")


def test_checkpoints_seals_and_the_disk(start_server: Any, metered: Api) -> None:
    """PROBE-16."""
    running = start_server(segment_max_events=10, checkpoint_wal_bytes=1, erase_after_ms=10_000)
    api = Api(running.host, running.port)
    for _ in range(20):
        api.fill("t", 10)
    until(lambda: value(api, "topics_seal_duration_seconds_count") > 0, "a segment is sealed")
    until(lambda: value(api, "topics_checkpoint_duration_seconds_count") > 0, "a checkpoint is made")
    assert value(api, "topics_checkpoint_duration_seconds_sum") > 0
    assert value(api, "topics_checkpoint_age_seconds") >= 0
    assert value(api, "topics_checkpoint_failures_total") == value(api, "topics_seal_failures_total") == 0
    until(lambda: value(api, "topics_disk_free_bytes") > 0, "the disk was looked at")
    api.close()
    # A checkpoint leaves nothing of the log, and this server has not made one yet.
    metered.fill("logged", 1)
    assert value(metered, "topics_wal_bytes") > 0


def test_the_process_is_described(metered: Api) -> None:
    """PROBE-17: under the names of every Prometheus client library."""
    assert value(metered, "process_cpu_seconds_total") > 0
    assert value(metered, "process_resident_memory_bytes") > 1 << 20
    assert 0 < value(metered, "process_open_fds") <= value(metered, "process_max_fds")
    assert value(metered, "process_start_time_seconds") > 1_600_000_000
    assert value(metered, "topics_build_info") == 1
    assert value(metered, "topics_loop_lag_seconds") >= 0
    assert value(metered, "topics_parked_requests") == 0


def test_the_clock_and_the_disk_are_described(metered: Api) -> None:
    """PROBE-18: a clock that differs from that of others is seen, and so are writes that are refused for room."""
    before_s = time.time()
    assert before_s - 1 < value(metered, "topics_time_seconds") < time.time() + 1
    assert value(metered, "topics_disk_full") == 0
