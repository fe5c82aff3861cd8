"""The PROBE rules: liveness, readiness, metrics; and the page at the root."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.api import DEADLINE_S, Api, Reply, StartApi, until
from topics import __version__
from topics.testing import ServerProcess


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health(api: Api, path: str) -> None:
    """PROBE-1: with an alias at the root."""
    body = api.get(path).ok(200)
    assert (body["status"], body["version"]) == ("ok", __version__)
    assert isinstance(body["uptime_ms"], int)
    assert body["uptime_ms"] >= 0
    later = until(lambda: (b := api.get(path).ok(200))["uptime_ms"] > body["uptime_ms"] and b, "time has passed")
    assert later["status"] == "ok"


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready(api: Api, topic_name: str, path: str) -> None:
    """PROBE-2: with an alias at the root."""
    before = api.get(path).ok(200)
    assert (before["status"], before["wal_replay_complete"]) == ("ready", True)
    api.put(topic_name).ok(201)
    assert api.get(path).ok(200)["topics"] == before["topics"] + 1
    api.remove(topic_name).ok(200)
    assert api.get(path).ok(200)["topics"] == before["topics"]


# The server's own code on a disk whose syncs fail from a moment on.
_BAD_DISK = """
import os
sync = os.fdatasync
def fdatasync(handle):
    if os.path.exists({trigger!r}):
        raise OSError(5, "Input/output error")
    sync(handle)
os.fdatasync = fdatasync
"""


def test_not_ready_once_a_sync_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_api: StartApi) -> None:
    """PROBE-12: a load balancer learns that nothing can be stored; reads and the health probe go on."""
    trigger = tmp_path / "broken"
    (tmp_path / "sitecustomize.py").write_text(_BAD_DISK.format(trigger=str(trigger)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    api = start_api()
    api.put("t", durability="fsync").ok(201)
    api.fill("t", 1)
    api.get("/v0/ready").ok(200)
    trigger.touch()
    api.post("t", {"records": [{"data": 2}]}).refused(503, "storage_read_only")
    for path in ("/v0/ready", "/readyz"):
        reply = api.get(path)
        reply.refused_naming("Input/output error", status=503, code="storage_read_only")
        assert reply.headers["retry-after"]
    api.get("/v0/health").ok(200)
    assert api.seqs("t") == [1]


def test_draining_server_is_shutting_down() -> None:
    """PROBE-4: what is in flight is answered, and the exit code is 0."""
    with (
        ServerProcess() as running,
        socket.create_connection((running.host, running.port), timeout=DEADLINE_S) as probe,
        socket.create_connection((running.host, running.port), timeout=DEADLINE_S) as sending,
    ):
        probe.sendall(b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 OK" in probe.recv(4096)
        head = (
            b"PUT /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
        )
        sending.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert b" 100 Continue" in sending.recv(4096)
        os.kill(running.pid, signal.SIGTERM)
        until(lambda: "stopping" in running.log(), "the server drains")
        probe.sendall(b"GET /v0/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reply_of(probe).refused(503, "shutting_down")
        sending.sendall(b"{}")
        assert reply_of(sending).status in (201, 503)
        running.stop()


def reply_of(sock: socket.socket) -> Reply:
    """The next answer on a connection."""
    response = http.client.HTTPResponse(sock)
    response.begin()
    reply = Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    response.close()
    if reply.status == 503:
        assert int(reply.headers["retry-after"]) >= 1
    return reply


def test_stop_does_not_wait_for_news() -> None:
    """CONN-13: a waiting read ends with an ordinary empty answer, a waiting claim with `shutting_down`."""
    with ServerProcess(drain_timeout_ms=60_000, api_keys="k", max_inflight_per_key=2) as running:
        api = Api(running.host, running.port, "k")
        api.put("q", type="queue").ok(201)
        answers: dict[str, Reply] = {}

        def ask(action: str, body: dict[str, Any]) -> None:
            answers[action] = api.call("POST", f"/v0/topics/q/{action}", body)

        asked = (("diff", {"wait_ms": 30_000}), ("claim", {"node": "n", "wait_ms": 30_000}))
        waiting = [threading.Thread(target=ask, args=each) for each in asked]
        for thread in waiting:
            thread.start()
        until(lambda: api.topics().status == 429, "both are in flight")
        running.stop()
        for thread in waiting:
            thread.join(15)
        api.close()
        body = answers["diff"].ok(200)
        assert (body["records"], body["caught_up"]) == ([], True)
        answers["claim"].refused(503, "shutting_down")


def families(api: Api) -> dict[str, Any]:
    """The metric families of the Prometheus exposition by name."""
    reply = api.get("/v0/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {family.name: family for family in text_string_to_metric_families(reply.text)}


GAUGES = [
    "topics_topics",
    "topics_topics_by_class",
    "topics_routers",
    "topics_records_live",
    "topics_bytes_live",
    "topics_unsealed_bytes",
    "topics_pressure_level",
    "topics_resident_bytes",
    "topics_rendered_bytes",
    "topics_queue_topics",
    "topics_queue_leases_in_flight",
    "topics_sse_connections",
    "topics_watch_sessions",
    "topics_ready",
    "topics_recovery_progress",
    "topics_uptime_ms",
    "topics_topic_metrics_truncated",
    "topics_wal_queue_depth",
    "topics_wal_queue_depth_peak",
    "topics_wal_read_only",
]
COUNTERS = [
    "topics_wal_frames",
    "topics_wal_batches",
    "topics_wal_fsyncs",
    "topics_wal_bytes_written",
    "topics_wal_rotations",
    "topics_wal_submit_full",
]
TOPIC_GAUGES = [
    "topics_topic_head_seq",
    "topics_topic_earliest_seq",
    "topics_topic_records_live",
    "topics_topic_bytes_live",
]


@pytest.mark.parametrize("name", GAUGES)
def test_gauge_is_exposed(api: Api, name: str) -> None:
    """PROBE-6, PROBE-7: the process and aggregate gauges, by exactly these names, with HELP and TYPE."""
    text = api.get("/v0/metrics").text
    assert f"# HELP {name} " in text
    assert f"# TYPE {name} gauge\n" in text
    assert families(api)[name].samples


@pytest.mark.parametrize("name", COUNTERS)
def test_wal_counter_is_exposed(api: Api, name: str) -> None:
    """PROBE-9: by exactly these names."""
    text = api.get("/v0/metrics").text
    assert f"# TYPE {name}_total counter\n" in text or f"# TYPE {name} counter\n" in text
    assert any(line.startswith(f"{name}_total ") for line in text.splitlines()), text


def test_block_cache_is_exposed(api: Api) -> None:
    """How often a read of sealed records finds its Block in memory."""
    text = api.get("/v0/metrics").text
    for name in ("topics_block_cache_hits_total", "topics_block_cache_misses_total", "topics_block_cache_bytes"):
        assert any(line.startswith(f"{name} ") for line in text.splitlines()), text


def test_fsync_histogram_is_exposed(api: Api, topic_name: str) -> None:
    """PROBE-9."""
    api.put(topic_name, durability="fsync").ok(201)
    api.write(topic_name, {"data": 1})
    text = api.get("/v0/metrics").text
    assert "# TYPE topics_wal_fsync_latency_us histogram\n" in text
    assert 'topics_wal_fsync_latency_us_bucket{le="500"}' in text or 'le="500.0"' in text
    assert 'topics_wal_fsync_latency_us_bucket{le="+Inf"}' in text
    names = {line.split(" ")[0] for line in text.splitlines()}
    assert {"topics_wal_fsync_latency_us_sum", "topics_wal_fsync_latency_us_count"} <= names


def test_topic_gauges_follow_the_topic(start_api: StartApi) -> None:
    """PROBE-8: the gauges equal the state of the topic."""
    api = start_api()
    api.put("jobs:1", cap_records=3).ok(201)
    api.fill("jobs:1", 5)
    api.put("other").ok(201)
    state = api.state("jobs:1")
    found = families(api)
    values = {name: {s.labels["topic"]: s.value for s in found[name].samples} for name in TOPIC_GAUGES}
    assert values == {
        "topics_topic_head_seq": {"jobs:1": 5, "other": 0},
        "topics_topic_earliest_seq": {"jobs:1": 3, "other": 1},
        "topics_topic_records_live": {"jobs:1": 3, "other": 0},
        "topics_topic_bytes_live": {"jobs:1": state["bytes"], "other": 0},
    }


def test_topic_gauges_are_bounded_and_say_so(start_api: StartApi) -> None:
    """PROBE-8."""
    api = start_api()
    for n in range(1500):
        assert api.put(f"t{n}").status == 201
    found = families(api)
    assert found["topics_topics"].samples[0].value == 1500
    assert 0 < len(found["topics_topic_head_seq"].samples) < 1500
    assert found["topics_topic_metrics_truncated"].samples[0].value == 1


def test_expired_records_leave_the_metrics(start_api: StartApi) -> None:
    """PROBE-8: whether or not anyone has read the topic since."""
    api = start_api()
    api.put("t", ttl_ms=40).ok(201)
    api.fill("t", 3)
    until(lambda: families(api)["topics_topic_records_live"].samples[0].value == 0, "the gauge follows the clock")
    found = families(api)
    assert found["topics_records_live"].samples[0].value == 0
    assert found["topics_bytes_live"].samples[0].value == 0
    assert found["topics_topic_earliest_seq"].samples[0].value == 4


def test_aggregate_gauges_count_what_is_there() -> None:
    """PROBE-7."""
    with ServerProcess() as running:
        api = Api(running.host, running.port)
        for name, durability in (("a", "disk"), ("b", "fsync"), ("c", "memory"), ("d", "ephemeral"), ("e", "disk")):
            api.put(name, durability=durability).ok(201)
            api.fill(name, 2)
        api.put("q", type="queue").ok(201)
        total = sum(api.state(name)["bytes"] for name in "abcde")
        found = families(api)
        assert found["topics_topics"].samples[0].value == 6
        by_class = {s.labels["class"]: s.value for s in found["topics_topics_by_class"].samples}
        assert by_class == {"disk": 3, "fsync": 1, "memory": 1, "ephemeral": 1}
        assert found["topics_records_live"].samples[0].value == 10
        assert found["topics_bytes_live"].samples[0].value == total
        assert found["topics_queue_topics"].samples[0].value == 1
        assert found["topics_ready"].samples[0].value == 1
        assert found["topics_recovery_progress"].samples[0].value == 1
        assert found["topics_routers"].samples[0].value == 0
        assert found["topics_topic_metrics_truncated"].samples[0].value == 0
        api.close()


def test_deleted_topic_leaves_the_metrics(start_api: StartApi) -> None:
    """PROBE-8: gauges describe what is there now."""
    api = start_api()
    api.fill("short-lived", 1)
    assert 'topic="short-lived"' in api.get("/v0/metrics").text
    api.remove("short-lived").ok(200)
    assert 'topic="short-lived"' not in api.get("/v0/metrics").text


def test_metrics_as_json(start_api: StartApi) -> None:
    """PROBE-6."""
    api = start_api()
    api.fill("some-topic", 3)
    reply = api.get("/v0/metrics", headers={"Accept": "application/json"})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("application/json")
    said = json.dumps(reply.json)
    for name in ("topics_topics", "topics_records_live", "topics_wal_fsyncs_total", "some-topic"):
        assert name in said
    assert api.get("/v0/metrics", headers={"Accept": "*/*"}).headers["content-type"].startswith("text/plain")


def test_metrics_have_no_per_topic_counters(api: Api, topic_name: str) -> None:
    """PROBE-9."""
    api.fill(topic_name, 1)
    for name, family in families(api).items():
        assert name.startswith(("topics_", "process_")), name
        if any("topic" in sample.labels for sample in family.samples):
            assert family.type == "gauge", name
        assert "throttle" not in name


def test_root_is_a_page_for_people(api: Api) -> None:
    """PROBE-10: a small self-contained HTML page, with the version and curl commands for this very address."""
    reply = api.get("/", headers={"Accept": "text/html"})
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/html")
    assert __version__ in reply.text
    assert f"{api.host}:{api.port}" in reply.text
    assert "curl" in reply.text
    assert 'src="http' not in reply.text


def test_the_javascript_library_is_served(start_server: Callable[..., ServerProcess]) -> None:
    """PROBE-11: the very file of the package, without a key, for pages of any origin."""
    server = start_server(api_keys="secret")
    reply = server.request("GET", "/topics.js")
    assert reply.status == 200
    assert reply.body == files("topics").joinpath("javascript", "topics.js").read_bytes()
    assert reply.headers["content-type"] == "text/javascript; charset=utf-8"
    assert reply.headers["access-control-allow-origin"] == "*"


def test_page_names_no_topic(start_api: StartApi) -> None:
    """PROBE-10: the page and its files hold no data; it asks the API, with the key of the person who looks."""
    api = start_api(key="s3cret", api_keys="s3cret")
    api.fill("secret-plans", 1)
    for client in (api, api.with_key(None)):
        assert "secret-plans" not in client.get("/").text
        assert client.get("/console/main.js").status == 200


def test_every_file_of_the_console_is_served_with_a_strict_policy(api: Api) -> None:
    """CONSOLE-1: nothing from outside, nothing inline."""
    names = [entry.name for entry in files("topics").joinpath("console").iterdir() if entry.name != "index.html"]
    assert "main.js" in names
    for path in ("/", *(f"/console/{name}" for name in names)):
        reply = api.get(path)
        assert reply.status == 200
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "http://" not in reply.text.replace("http://www.w3.org/2000/svg", "").replace(f"http://{api.host}", "")


@pytest.mark.parametrize(
    ("entry", "scopes", "prefixes"),
    [("k", ["read", "write", "delete", "admin"], []), ("k:r+w:a.|b.", ["read", "write"], ["a.", "b."])],
)
def test_a_key_learns_what_it_may_do(start_api: StartApi, entry: str, scopes: list[str], prefixes: list[str]) -> None:
    """AUTH-27: and never a secret."""
    api = start_api(key="k", api_keys=entry)
    body = api.get("/v0/whoami").ok(200)
    assert (body["scopes"], body["prefixes"]) == (scopes, prefixes)
    assert body["key"] == sha256(b"k").hexdigest()[:8]
    assert api.with_key(None).get("/v0/whoami").status == 401


def test_an_administrator_sees_the_keys_and_no_secret(start_api: StartApi) -> None:
    """AUTH-28: a key with prefixes sees those within its own, any other key without admin none."""
    api = start_api(key="secret-0", api_keys="secret-0,secret-1:admin+read:a.,secret-2:r:a.b,secret-3:read:c.")
    ids = [sha256(f"secret-{n}".encode()).hexdigest()[:8] for n in range(4)]
    reply = api.get("/v0/keys")
    assert [key["key"] for key in reply.ok(200)["keys"]] == ids
    assert reply.ok(200)["keys"][2] == {"key": ids[2], "scopes": ["read"], "prefixes": ["a.b"], "yours": False}
    assert b"secret" not in reply.body
    some = api.with_key("secret-1").get("/v0/keys").ok(200)["keys"]
    assert [(key["key"], key["yours"]) for key in some] == [(ids[1], True), (ids[2], False)]
    api.with_key("secret-2").get("/v0/keys").refused(403, "forbidden")
