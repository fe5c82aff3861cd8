"""The QUEUE and WORK rules over HTTP: shapes and refusals, the work stream, and queues across a kill."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.api import DEADLINE_S, Api, Json, Reply, until
from tests.harness.events import Events
from topics.testing import ServerProcess

StartApi = Callable[..., Api]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """What is to be closed when the test is over."""
    with ExitStack() as stack:
        yield stack


def queue(api: Api, name: str, jobs: int = 0, **config: Any) -> str:
    api.put(name, type="queue", **config).ok(201)
    if jobs:
        api.fill(name, jobs)
    return name


def act(api: Api, name: str, action: str, **fields: Any) -> Reply:
    return api.call("POST", f"/v0/topics/{name}/{action}", fields)


def claim(api: Api, name: str, node: str = "w", **fields: Any) -> Json:
    return act(api, name, "claim", node=node, **fields).ok(200)


def seqs(body: Json) -> list[int]:
    return [job["$seq"] for job in body["claimed"]]


def test_claim_answers_with_leased_jobs(api: Api, topic_name: str) -> None:
    """QUEUE-2: every field of the answer, `$tag` and `meta` only where they are set."""
    name = queue(api, topic_name)
    api.write(name, {"data": {"a": [1, 2]}, "tag": "t", "meta": {"trace": "z9"}}, {"data": None})
    before_ms = time.time_ns() // 1_000_000
    body = claim(api, name, max=5, lease_ms=60_000)
    assert set(body) == {"topic", "claimed", "count", "ready", "performance"}
    assert (body["topic"], body["count"], body["ready"]) == (name, 2, 0)
    first, second = body["claimed"]
    assert set(first) == {"$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta"}
    assert set(second) == {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
    assert (first["$seq"], first["$tag"], first["data"], first["meta"]) == (1, "t", {"a": [1, 2]}, {"trace": "z9"})
    assert first["lease_id"] != second["lease_id"]
    assert before_ms + 60_000 <= first["deadline"] <= before_ms + 75_000
    assert body["performance"]["throttle_wait_ms"] == 0


def test_ack_nack_extend_answer_with_counters(api: Api, topic_name: str) -> None:
    """QUEUE-7, QUEUE-19: the shapes of the three answers."""
    name = queue(api, topic_name, 5)
    jobs = claim(api, name, max=4)["claimed"]
    acked = act(api, name, "ack", node="w", seqs=[1, 99], lease_ids=[jobs[0]["lease_id"], "lease_0"]).ok(200)
    assert {key: acked[key] for key in ("topic", "acked", "skipped", "ready", "in_flight")} == {
        "topic": name,
        "acked": 1,
        "skipped": [99],
        "ready": 1,
        "in_flight": 3,
    }
    nacked = act(api, name, "nack", node="w", seqs=[2, 1], delay_ms=0).ok(200)
    assert (nacked["nacked"], nacked["skipped"], nacked["ready"], nacked["in_flight"]) == (1, [1], 2, 2)
    extended = act(api, name, "extend", node="w", seqs=[3, 2], lease_ms=90_000).ok(200)
    assert (extended["extended"], extended["skipped"], list(extended["deadlines"])) == (1, [2], ["3"])
    assert extended["deadlines"]["3"] > jobs[2]["deadline"]
    state = api.state(name)
    assert state["type"] == "queue"
    assert state["queue"] == {"ready": 2, "in_flight": 2, "dead_lettered": 0}
    assert state["count"] == 4


def test_log_has_no_queue_part_and_refuses_queue_calls(api: Api, topic_name: str) -> None:
    """QUEUE-1, QUEUE-19: 409 `not_a_queue` on a log, 404 on nothing, and nothing is created."""
    api.put(topic_name).ok(201)
    assert "queue" not in api.state(topic_name)
    bodies: dict[str, Json] = {
        "claim": {},
        "ack": {"seqs": [1]},
        "nack": {"seqs": [1]},
        "extend": {"seqs": [1], "lease_ms": 1000},
    }
    for action, fields in bodies.items():
        act(api, topic_name, action, node="w", **fields).refused(409, "not_a_queue")
        act(api, topic_name + ".none", action, node="w", **fields).refused(404, "topic_not_found")
    api.get(f"/v0/topics/{topic_name}/work?node=w").refused(409, "not_a_queue")
    api.get(f"/v0/topics/{topic_name}.none/work?node=w").refused(404, "topic_not_found")
    assert not api.exists(topic_name + ".none")


@pytest.mark.parametrize(
    ("action", "fields", "named"),
    [
        ("claim", {"node": None}, "node"),
        ("claim", {"node": ""}, "node"),
        ("claim", {"node": "n" * 129}, "node"),
        ("claim", {"max": 0}, "max"),
        ("claim", {"max": -1}, "max"),
        ("claim", {"max": "many"}, "max"),
        ("claim", {"lease_ms": 1.5}, "lease_ms"),
        ("ack", {}, "seqs"),
        ("ack", {"seqs": []}, "seqs"),
        ("ack", {"seqs": [-1]}, "seqs"),
        ("ack", {"seqs": ["1"]}, "seqs"),
        ("ack", {"seqs": [1, 2], "lease_ids": ["lease_1"]}, "lease_ids"),
        ("nack", {"seqs": [1], "delay_ms": -5}, "delay_ms"),
        ("extend", {"seqs": [1]}, "lease_ms"),
    ],
)
def test_bad_queue_call_is_a_400_that_names_the_field(
    api: Api, topic_name: str, action: str, fields: Json, named: str
) -> None:
    """QUEUE-4."""
    name = queue(api, topic_name, 1)
    body = {key: value for key, value in {"node": "w", **fields}.items() if value is not None}
    with api.unchanged(name):
        act(api, name, action, **body).refused_naming(named)


def test_too_many_seqs_are_refused_and_max_is_clamped(start_api: StartApi) -> None:
    """QUEUE-3: `seqs` over TOPICS_MAX_CLAIM is 400 `batch_too_large`; `max` is clamped."""
    api = start_api(max_claim=3)
    name = queue(api, "q", 5)
    for action, fields in (("ack", {}), ("nack", {}), ("extend", {"lease_ms": 1000})):
        detail = act(api, name, action, node="w", seqs=[1, 2, 3, 4], **fields).refused(400, "batch_too_large")
        assert (detail["limit"], detail["max"]) == ("max_claim", 3)
    assert claim(api, name, max=1000)["count"] == 3


def test_dead_letters_keep_their_provenance(api: Api, topic_name: str) -> None:
    """QUEUE-14: the deliveries that happened, as a string; the counter; the job is gone."""
    name = queue(api, topic_name, 1, max_deliveries=2, dead_letter=f"{topic_name}.dlq")
    for _ in range(2):
        assert seqs(claim(api, name)) == [1]
        act(api, name, "nack", node="w", seqs=[1]).ok(200)
    (letter,) = api.read(f"{topic_name}.dlq")["records"]
    assert letter["meta"] == {
        "$dead_letter_from": name,
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }
    assert api.state(name)["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 1}


def test_last_nack_leaves_a_dead_letter_with_its_reason(api: Api, topic_name: str) -> None:
    """QUEUE-14, QUEUE-32: the answer comes after the letter is there, and nobody has to claim."""
    dead = f"{topic_name}.dlq"
    name = queue(api, topic_name, 2, max_deliveries=1, dead_letter=dead, durable=True)
    api.put(dead, durable=True)
    assert seqs(claim(api, name, max=2)) == [1, 2]
    body = act(api, name, "nack", node="w", seqs=[2, 1], reason="no route to host", delay_ms=60_000).ok(200)
    assert (body["nacked"], body["ready"], body["in_flight"]) == (2, 0, 0)
    records = api.read(dead)["records"]
    assert [record["data"] for record in records] == [1, 2]
    assert {record["meta"]["$dead_letter_reason"] for record in records} == {"no route to host"}
    act(api, name, "nack", node="w", seqs=[1], reason=7).refused_naming("reason")


def test_last_expiry_leaves_a_dead_letter_without_a_claim(api: Api, topic_name: str) -> None:
    """QUEUE-14."""
    dead = f"{topic_name}.dlq"
    name = queue(api, topic_name, 1, max_deliveries=1, dead_letter=dead, lease_ms=100)
    assert seqs(claim(api, name)) == [1]
    until(lambda: api.exists(dead) and api.state(dead)["count"] == 1, "the letter is there")
    assert api.state(name)["queue"] == {"ready": 0, "in_flight": 0, "dead_lettered": 1}


def test_backoff_holds_a_job_back(api: Api, topic_name: str) -> None:
    """QUEUE-33: a claim that waits gets it when its pause is over."""
    name = queue(api, topic_name, 1, backoff_ms=400)
    claim(api, name)
    act(api, name, "nack", node="w", seqs=[1]).ok(200)
    assert claim(api, name)["count"] == 0
    began = time.monotonic()
    assert seqs(claim(api, name, wait_ms=20_000)) == [1]
    assert time.monotonic() - began > 0.15


def test_waiting_claim_is_answered_by_a_produced_job(api: Api, topic_name: str) -> None:
    """QUEUE-25."""
    name = queue(api, topic_name)
    answers: list[Json] = []
    waiting = threading.Thread(target=lambda: answers.append(claim(api, name, max=3, wait_ms=20_000)))
    waiting.start()
    time.sleep(0.05)
    api.fill(name, 2)
    waiting.join(20)
    assert seqs(answers[0]) == [1, 2]
    assert claim(api, name, wait_ms=30)["count"] == 0


def test_cohort_divides_evenly_over_http(api: Api, topic_name: str) -> None:
    """QUEUE-21: ten workers that ask for 10 of 50 jobs get 5 each."""

    def divided(name: str) -> list[int]:
        counts: list[int] = []
        workers = [
            threading.Thread(target=lambda i=i: counts.append(claim(api, name, f"w{i}", max=10)["count"]))  # type: ignore[misc]
            for i in range(10)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(DEADLINE_S)
        return counts

    # Where the machine stands still for a second, some come too late for the others' cohort; unit tests have a clock.
    for attempt in range(5):
        counts = divided(queue(api, f"{topic_name}.{attempt}", 50, claim_jitter_ms=1000))
        assert sum(counts) == 50
        if counts == [5] * 10:
            return
    raise AssertionError(f"no cohort of ten was divided evenly: {counts}")


def test_durable_queue_reports_the_sync_of_its_acks(api: Api, topic_name: str) -> None:
    """HTTP-24: `fsync_ms` is above 0 on a durable queue only."""
    for durable in (True, False):
        name = queue(api, f"{topic_name}.{durable}", 1, durable=durable)
        claim(api, name)
        acked = act(api, name, "ack", node="w", seqs=[1]).ok(200)
        assert (acked["performance"]["fsync_ms"] > 0) is durable


def test_queue_scopes(start_api: StartApi) -> None:
    """AUTH-11: claim and /work need read and write, ack, nack and extend need write."""
    api = start_api(key="full", api_keys="full,r-key:read,w-key:write,rw-key:rw,other-key::other")
    name = queue(api, "q", 3)
    for key in ("r-key", "w-key"):
        act(api.with_key(key), name, "claim", node="w").refused(403, "forbidden")
        api.with_key(key).get(f"/v0/topics/{name}/work?node=w").refused(403, "forbidden")
    assert claim(api.with_key("rw-key"), name, max=3)["count"] == 3
    for action, fields in (("nack", {}), ("ack", {}), ("extend", {"lease_ms": 1000})):
        act(api.with_key("r-key"), name, action, node="w", seqs=[1], **fields).refused(403, "forbidden")
        act(api.with_key("w-key"), name, action, node="w", seqs=[1], **fields).ok(200)
    act(api.with_key("other-key"), name, "claim", node="w").refused(403, "forbidden")


def test_queue_gauges(start_api: StartApi) -> None:
    """PROBE-7, PROBE-8: topics_queue_topics, topics_queue_leases_in_flight and the per-topic queue gauges."""
    api = start_api()
    queue(api, "q", 5)
    api.put("log").ok(201)
    claim(api, "q", max=2)
    metrics = api.get("/v0/metrics", headers={"Accept": "application/json"}).ok(200)
    assert metrics["topics_queue_topics"] == 1
    assert metrics["topics_queue_leases_in_flight"] == 2
    assert metrics["topics_topic_queue_ready"] == {"q": 3}
    assert metrics["topics_topic_queue_in_flight"] == {"q": 2}


# The work stream


def work(api: Api, name: str, node: str = "s", query: str = "", **options: Any) -> Events:
    return Events(api, f"/v0/topics/{name}/work?node={node}{query}", **options)


def test_work_stream_pushes_jobs_and_refills_on_ack(api: Api, topic_name: str) -> None:
    """WORK-1, WORK-2: headers, `retry`, initial heartbeat, the job event, backpressure at `max`."""
    name = queue(api, topic_name)
    api.write(name, *({"data": {"n": n}, "tag": "t"} for n in range(1, 5)))
    with work(api, name, query="&max=2&lease_ms=60000") as stream:
        assert stream.status == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["x-accel-buffering"] == "no"
        first, second = stream.next(), stream.next()
        assert (first.kind, first.id, second.id) == ("job", "1", "2")
        assert stream.retry == 2000
        assert stream.comments[0].strip().startswith("hb ")
        assert set(first.json) == {"topic", "$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data"}
        assert (first.json["topic"], first.json["data"]) == (name, {"n": 1})
        assert api.state(name)["queue"] == {"ready": 2, "in_flight": 2, "dead_lettered": 0}
        act(api, name, "ack", node="s", seqs=[1], lease_ids=[first.json["lease_id"]]).ok(200)
        assert stream.next().json["$seq"] == 3
        act(api, name, "nack", node="s", seqs=[2], delay_ms=60_000).ok(200)
        assert stream.next().json["$seq"] == 4


def test_work_stream_keeps_line_breaks_of_data_inside_the_event(api: Api, topic_name: str) -> None:
    """WATCH-22: `data` is verbatim, also where its JSON has line breaks between tokens."""
    name = queue(api, topic_name)
    api.post(name, raw=b'{"records":[{"data":{"a":\n1,\r\n"b":2}}]}').ok(200)
    with work(api, name) as stream:
        assert stream.next().json["data"] == {"a": 1, "b": 2}


def test_closed_work_stream_releases_its_jobs_at_once(api: Api, topic_name: str) -> None:
    """WORK-3: instant failover, and a lease from a separate claim of the same node is unaffected."""
    name = queue(api, topic_name, 4)
    assert seqs(claim(api, name, "s")) == [1]
    stream = work(api, name, query="&max=2")
    assert [stream.next().json["$seq"], stream.next().json["$seq"]] == [2, 3]
    stream.close()
    until(lambda: api.state(name)["queue"]["ready"] == 3, "the jobs are released")
    assert sorted(seqs(claim(api, name, "v", max=10))) == [2, 3, 4]
    assert act(api, name, "ack", node="s", seqs=[1]).ok(200)["acked"] == 1


def test_work_stream_gets_the_next_job_when_its_own_is_deleted(api: Api, topic_name: str) -> None:
    """WORK-4: a deleted job makes room, long before its lease runs out."""
    name = queue(api, topic_name, 2)
    with work(api, name) as stream:
        assert stream.next().json["$seq"] == 1
        api.call("POST", f"/v0/topics/{name}/delete", {"before_seq": 2}).ok(200)
        assert stream.next().json["$seq"] == 2


def test_work_stream_gets_a_lapsed_job_without_anybody_asking(api: Api, topic_name: str) -> None:
    """WORK-4: expiry needs no claim to be noticed while a stream waits."""
    name = queue(api, topic_name, 1, lease_ms=100)
    claim(api, name, "crashed")
    with work(api, name) as stream:
        job = stream.next().json
        assert (job["$seq"], job["deliveries"]) == (1, 2)


@pytest.mark.parametrize(
    ("query", "accept", "status", "code"),
    [
        ("", "text/event-stream", 400, "invalid_request"),
        ("?node=", "text/event-stream", 400, "invalid_request"),
        ("?node=w&max=0", "text/event-stream", 400, "invalid_request"),
        ("?node=w&max=x", "text/event-stream", 400, "invalid_request"),
        ("?node=w", "application/json", 406, "not_acceptable"),
    ],
)
def test_bad_work_request_is_refused(
    api: Api, topic_name: str, query: str, accept: str, status: int, code: str
) -> None:
    """WORK-5: errors at establishment."""
    name = queue(api, topic_name)
    api.get(f"/v0/topics/{name}/work{query}", headers={"Accept": accept}).refused(status, code)


def test_work_stream_ends_when_its_queue_becomes_a_log(api: Api, topic_name: str) -> None:
    """WORK-5: 409 if the topic ceased to be a queue; it closes the stream, and the worker reconnects."""
    name = queue(api, topic_name)
    with work(api, name) as stream:
        until(lambda: stream.status, "the stream is open")
        api.remove(name).ok(200)
        event = stream.next()
        assert event.kind == "error"
        assert event.json["code"] == 409
        assert stream.next_or_end() is None
    api.put(name).ok(201)
    api.get(f"/v0/topics/{name}/work?node=w").refused(409, "not_a_queue")


def test_work_streams_count_against_the_stream_cap(start_api: StartApi) -> None:
    """WORK-6, LIMIT-9: `max_sse_connections` holds for /work, and a closed stream gives its place back."""
    api = start_api(max_sse_connections=1)
    name = queue(api, "q")
    stream = work(api, name)
    detail = api.get(f"/v0/topics/{name}/work?node=w").refused(429, "throttled")
    assert detail["limit"] == "max_sse_connections"
    stream.close()

    def again() -> bool:
        with work(api, name) as other:
            return other.status == 200

    until(again, "the place is free")


def test_work_stream_takes_the_key_as_a_token(start_api: StartApi) -> None:
    """AUTH-19."""
    api = start_api(key="full", api_keys="full")
    name = queue(api, "q", 1)
    no_key = api.with_key(None)
    with work(no_key, name, query="&token=full") as stream:
        assert stream.next().json["$seq"] == 1
    no_key.get(f"/v0/topics/{name}/work?node=w&token=wrong").refused(401, "unauthorized")
    no_key.call("POST", f"/v0/topics/{name}/claim?token=full", {"node": "w"}).refused(401, "unauthorized")


# Restart


def test_queue_survives_a_kill_with_its_leases_and_dead_letters(
    start_server: Callable[..., ServerProcess], closing: ExitStack
) -> None:
    """QUEUE-24: nothing is lost; what was acked stays gone; leases that survived still hold."""
    server = start_server()
    api = Api(server.host, server.port)
    name = queue(api, "q", 10, max_deliveries=1, dead_letter="dlq", durable=True)
    claim(api, name, max=6, lease_ms=600_000)
    act(api, name, "ack", node="w", seqs=[1, 2]).ok(200)
    act(api, name, "nack", node="w", seqs=[3]).ok(200)
    assert seqs(claim(api, name, "v", max=2)) == [7, 8]
    before = (api.state(name)["queue"], api.seqs(name), api.read("dlq")["records"])
    assert before[0] == {"ready": 2, "in_flight": 5, "dead_lettered": 1}
    api.close()
    server.kill()
    server.restart()
    api = Api(server.host, server.port)
    closing.callback(api.close)
    assert (api.state(name)["queue"], api.seqs(name), api.read("dlq")["records"]) == before
    assert act(api, name, "ack", node="w", seqs=[1, 4]).ok(200)["acked"] == 1
    assert seqs(claim(api, name, "v", max=10)) == [9, 10]


def test_dead_letters_stay_inside_the_prefixes_of_the_key(start_api: StartApi) -> None:
    """AUTH-14: a key cannot route data into a topic outside its prefixes, by a queue either."""
    api = start_api(key="full", api_keys="full,tenant-key::t:")
    tenant = api.with_key("tenant-key")
    config = {"type": "queue", "dead_letter": "other"}
    tenant.call("PUT", "/v0/topics/t:q", config).refused(403, "forbidden")
    body = {"records": [{"data": 1}], "config": config}
    tenant.call("POST", "/v0/topics/t:q", body).refused(403, "forbidden")
    tenant.call("PUT", "/v0/topics/t:q", {**config, "dead_letter": "t:d"}).ok(201)
    tenant.call("PUT", "/v0/topics/t:q", {"dead_letter": None}).ok(200)
    api.call("PUT", "/v0/topics/t:q", {"dead_letter": "other"}).ok(200)


def test_leases_show_who_holds_what_and_until_when(api: Api, topic_name: str) -> None:
    """QUEUE-40: leased and delayed jobs; a job that nobody had has no lease."""
    api.put(topic_name, type="queue")
    api.fill(topic_name, 4)
    claimed = api.call("POST", f"/v0/topics/{topic_name}/claim", {"node": "w1", "max": 2}).ok()["claimed"]
    api.call("POST", f"/v0/topics/{topic_name}/nack", {"node": "w1", "seqs": [2], "delay_ms": 60_000}).ok()
    leases = api.get(f"/v0/topics/{topic_name}/leases").ok()["leases"]
    assert [(lease["seq"], lease["state"], lease["node"], lease["deliveries"]) for lease in leases] == [
        (1, "leased", "w1", 1),
        (2, "delayed", "w1", 1),
    ]
    assert leases[0]["lease_id"] == claimed[0]["lease_id"]
    # Leases are kept on a clock that never goes back: as a date, each answer rounds it anew.
    assert abs(leases[0]["deadline"] - claimed[0]["deadline"]) <= 1
    assert len(api.get(f"/v0/topics/{topic_name}/leases?limit=1").ok()["leases"]) == 1
    assert api.get(f"/v0/topics/{topic_name}-none/leases").status == 404


def test_history_shows_why_a_job_came_back(api: Api, topic_name: str) -> None:
    """QUEUE-41: of one job, or of those that had trouble last."""
    api.put(topic_name, type="queue")
    api.fill(topic_name, 2)
    path = f"/v0/topics/{topic_name}"
    api.call("POST", f"{path}/claim", {"node": "w1"}).ok()
    api.call("POST", f"{path}/nack", {"node": "w1", "seqs": [1], "reason": "no answer"}).ok()
    api.call("POST", f"{path}/claim", {"node": "w2"}).ok()
    (job,) = api.get(f"{path}/history?seq=1").ok()["jobs"]
    assert (job["state"], job["node"], job["deliveries"], job["reason"]) == ("leased", "w2", 2, "no answer")
    released, claimed = job["steps"]
    assert (released["step"], released["node"], released["reason"]) == ("released", "w1", "no answer")
    assert (claimed["step"], claimed["node"], claimed["until"]) == ("claimed", "w2", job["until"])
    assert [each["seq"] for each in api.get(f"{path}/history").ok()["jobs"]] == [1]
    (other,) = api.get(f"{path}/history?seq=2").ok()["jobs"]
    assert (other["state"], other["steps"]) == ("ready", [])
    assert api.get(f"{path}/history?seq=9").ok()["jobs"][0]["state"] == "gone"
    assert api.get(f"{path}-none/history").status == 404
