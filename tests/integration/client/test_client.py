"""Everything that a client can ask of a server, in threads and on asyncio."""

from __future__ import annotations

import asyncio
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import topics.errors
from tests.harness.api import Api, StartServer, until
from tests.harness.client import CA, Proxy, Relay
from topics import (
    AsyncClient,
    BadAddress,
    BadAnswer,
    BadData,
    Client,
    Draft,
    Record,
    RecordsLost,
    TimedOut,
    Tombstone,
    Unreachable,
)
from topics.client.operations import identity
from topics.errors import HeadMismatch, NotFound, TopicNotFound
from topics.testing import ServerProcess


class Order(msgspec.Struct):
    id: int
    total: float = 0.0


@dataclass
class Point:
    x: int
    y: int


def test_what_is_written_is_read_with_its_labels(client: Any, topic_name: str) -> None:
    """CLIENT-2."""
    topic = client.topic(topic_name)
    first = topic.write({"n": 1}, tag="a", node="n1", meta={"k": "v"})
    assert (first.seq, first.created, first.deduped) == (1, True, False)
    many = topic.write_many([2, Draft(data="three", tag="b"), msgspec.Raw(b'{"raw": 4.50}')])
    assert (many.first_seq, many.last_seq, many.count) == (2, 4, 3)

    records = list(topic.read())
    assert [(record.seq, record.data, record.tag, record.node) for record in records] == [
        (1, {"n": 1}, "a", "n1"), (2, 2, None, None), (3, "three", "b", None), (4, {"raw": 4.5}, None, None),
    ]  # fmt: skip
    assert records[0].meta == {"k": "v"}
    assert records[0].topic == topic_name
    assert bytes(records[3].raw) == b'{"raw": 4.50}'
    assert abs(records[0].ts - time.time() * 1000) < 60_000
    assert [record.seq for record in topic.read(match="b")] == [3]
    assert [record.seq for record in topic.read(from_seq=2, node="n1")] == [3, 4]
    assert [record.seq for record in topic.read(from_ts=records[3].ts)][-1] == 4


def test_reading_follows_the_cursor_over_many_answers(client: Any, topic_name: str) -> None:
    """CLIENT-2."""
    topic = client.topic(topic_name)
    topic.write_many(range(2_500))
    reader = topic.read(limit=100)
    assert [record.data for record in reader] == list(range(2_500))
    assert reader.cursor == reader.head_seq == 2_500
    halfway = topic.read(from_seq=1_000)
    next(halfway)
    next(halfway)
    assert (halfway.cursor, halfway.lag) == (1_002, 1_498)


@pytest.mark.parametrize(("shape", "data"), [(Order, Order(1, 2.5)), (Point, Point(1, 2)), (list[int], [1, 2])])
def test_data_is_decoded_into_a_type(client: Any, topic_name: str, shape: Any, data: Any) -> None:
    """CLIENT-3."""
    topic = client.topic(topic_name, type=shape)
    topic.write(data)
    record = next(iter(topic.read()))
    assert record.data == data
    assert record.data is record.data
    assert isinstance(record, Record)


def test_data_that_does_not_fit_names_seq_and_field(client: Any, topic_name: str) -> None:
    """CLIENT-3: and only the record that does not fit fails."""
    client.topic(topic_name).write_many([{"id": 1}, {"id": 2, "total": "much"}, {"id": 3}])
    first, second, third = client.topic(topic_name, type=Order).read()
    assert (first.data.id, third.data.id) == (1, 3)
    with pytest.raises(BadData, match=f'topic "{topic_name}", seq 2: data.total: expected `float`') as bad:
        _ = second.data
    assert bad.value.detail == {"topic": topic_name, "seq": 2, "field": "data.total"}


def test_loss_is_raised_or_yielded_and_never_skipped(client: Any, topic_name: str) -> None:
    """CLIENT-5."""
    topic = client.topic(topic_name)
    topic.configure(cap_records=3)
    topic.write_many(range(1, 11))
    reader = topic.read()
    with pytest.raises(RecordsLost) as lost:
        list(reader)
    assert (lost.value.gap_from, lost.value.gap_to, lost.value.reason, lost.value.topic) == (1, 7, "cap", topic_name)
    assert [record.seq for record in topic.read(from_seq=lost.value.next_from_seq)] == [8, 9, 10]
    # To go on after the exception loses nothing either.
    assert [record.seq for record in reader] == [8, 9, 10]

    gap, *rest = topic.read(on_loss="yield")
    assert isinstance(gap, Tombstone)
    assert (gap.gap_from, gap.gap_to, gap.topic) == (1, 7, topic_name)
    assert [record.seq for record in rest] == [8, 9, 10]


def test_follow_delivers_what_is_written_later(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-6."""
    api.fill(topic_name, 3)
    follower = client.topic(topic_name).follow(from_seq=1)
    assert [next(follower).seq, next(follower).seq] == [2, 3]
    writer = threading.Timer(0.1, lambda: api.fill(topic_name, 1))
    writer.start()
    assert next(follower).seq == 4
    writer.join()
    tail = client.topic(topic_name).follow(tail=True)
    writer = threading.Timer(0.1, lambda: api.fill(topic_name, 1))
    writer.start()
    assert next(tail).seq == 5
    writer.join()


def test_follow_of_a_topic_that_is_missing_raises_or_waits(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-6."""
    with pytest.raises(TopicNotFound):
        next(client.topic(topic_name).follow())
    writer = threading.Timer(0.2, lambda: api.fill(topic_name, 1))
    writer.start()
    assert next(client.topic(topic_name).follow(missing="wait")).seq == 1
    writer.join()


def test_follow_reports_a_topic_that_was_created_anew(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-6: also where the cursor would fit the new one, and once."""
    api.fill(topic_name, 3)
    follower = client.topic(topic_name).follow(on_loss="yield", missing="wait")
    assert [next(follower).seq for _ in range(3)] == [1, 2, 3]

    def recreate() -> None:
        api.remove(topic_name)
        api.fill(topic_name, 10)

    recreator = threading.Timer(0.1, recreate)
    recreator.start()
    gap = next(follower)
    assert isinstance(gap, Tombstone)
    assert (gap.reason, gap.gap_from, gap.gap_to) == ("recreated", 1, 3)
    assert [next(follower).seq for _ in range(10)] == list(range(1, 11))
    recreator.join()

    resumed = client.topic(topic_name).follow(from_seq=follower.cursor, epoch=follower.epoch)
    api.fill(topic_name, 1)
    assert next(resumed).seq == 11
    stale = client.topic(topic_name).follow(from_seq=3, epoch=follower.epoch - 1, on_loss="yield")
    assert next(stale).reason == "recreated"
    assert next(stale).seq == 1


def test_follow_goes_on_after_a_crash_of_the_server(connect: Any, start_server: StartServer, free_port: int) -> None:
    """CLIENT-6."""
    server = start_server(port=free_port)
    topic = connect(server.url).topic("t")
    topic.write(1)
    follower = topic.follow()
    assert next(follower).seq == 1

    def crash() -> None:
        server.kill()
        server.start()
        server.request("POST", "/v0/topics/t", json={"records": [{"data": 2}]})

    crasher = threading.Timer(0.1, crash)
    crasher.start()
    assert next(follower).data == 2
    crasher.join()


def test_conditional_append_and_refusals_have_their_classes(client: Any, topic_name: str) -> None:
    """CLIENT-7: the class is that of the code, with the server's message and detail."""
    topic = client.topic(topic_name)
    with pytest.raises(TopicNotFound) as missing:
        topic.state()
    assert isinstance(missing.value, NotFound)
    assert (missing.value.code, missing.value.status) == ("topic_not_found", 404)
    assert missing.value.request_id
    with pytest.raises(TopicNotFound):
        topic.write(1, create=False)
    topic.write(1, expected_head_seq=0)
    with pytest.raises(HeadMismatch) as mismatch:
        topic.write(1, expected_head_seq=0)
    assert mismatch.value.detail["head_seq"] == 1
    with pytest.raises(topics.errors.NotAQueue):
        topic.claim()
    with pytest.raises(topics.errors.InvalidRequest, match="is not a topic name"):
        client.topic("_no")
    with pytest.raises(TypeError):
        topic.write(object())


def test_a_write_with_a_key_is_stored_once(client: Any, topic_name: str) -> None:
    topic = client.topic(topic_name)
    first = topic.write(1, idempotency_key="k")
    again = topic.write(1, idempotency_key="k")
    assert (again.seq, again.deduped) == (first.seq, True)
    assert topic.write(1).deduped is False
    assert topic.write(1).deduped is False
    assert topic.state().count == 3


def test_topics_are_configured_listed_trimmed_and_deleted(client: Any, topic_name: str) -> None:
    topic = client.topic(topic_name)
    made = topic.configure(ttl_ms=60_000)
    assert (made.created, made.config.ttl_ms, made.unknown_fields) == (True, 60_000, [])
    topic.write_many([Draft(data=n, tag="even" if n % 2 == 0 else "odd") for n in range(10)])
    assert topic.delete(match="odd").deleted == 5
    assert topic.delete(before_seq=4).deleted == 2
    with pytest.raises(ValueError, match="before_seq"):
        topic.delete()
    state = topic.state()
    assert (state.count, state.head_seq, state.config.ttl_ms, state.queue) == (3, 10, 60_000, None)
    assert [found.count for found in client.topics(topic_name)] == [3]
    with pytest.raises(topics.errors.TopicNotEmpty):
        topic.delete_topic(if_empty=True)
    assert topic.delete_topic().deleted
    assert client.topics(topic_name) == []


def test_jobs_are_claimed_extended_returned_and_acked(client: Any, topic_name: str) -> None:
    """CLIENT-8."""
    queue = client.topic(topic_name, type=Order)
    queue.configure(type="queue", max_deliveries=1, dead_letter=f"{topic_name}.dead")
    queue.write_many([Order(n) for n in range(3)])
    jobs = queue.claim(3, lease_ms=5_000)
    assert [(job.seq, job.data.id, job.deliveries, job.topic) for job in jobs] == [
        (1, 0, 1, topic_name), (2, 1, 1, topic_name), (3, 2, 1, topic_name),
    ]  # fmt: skip
    before = jobs[0].deadline
    assert queue.extend(jobs[0], 60_000).extended == 1
    assert jobs[0].deadline > before
    assert queue.ack(jobs[:2]).acked == 2
    assert queue.ack(jobs[0]).skipped == [1]
    assert queue.nack(jobs[2], reason="broken").nacked == 1
    assert queue.claim(1) == []
    counts = queue.state().queue
    assert (counts.ready, counts.in_flight, counts.dead_lettered) == (0, 0, 1)
    assert queue.redrive(dry_run=True).redriven == 1
    assert queue.redrive().redriven == 1
    [again] = queue.claim(1, wait_ms=1_000)
    assert (again.data.id, again.deliveries) == (2, 1)
    queue.ack(again)


def test_routers_are_made_listed_and_deleted(client: Any, topic_name: str) -> None:
    made = client.put_router(f"{topic_name}->x", source=topic_name, dest=f"{topic_name}.x", filter="a")
    assert (made.created, made.source, made.filter) == (True, topic_name, "a")
    client.topic(topic_name).write_many([Draft(data=1, tag="a"), Draft(data=2, tag="b")])
    assert [record.data for record in client.topic(f"{topic_name}.x").read()] == [1]
    assert client.router(f"{topic_name}->x").forwarded_total == 1
    assert [router.router for router in client.routers(source=topic_name)] == [f"{topic_name}->x"]
    assert client.delete_router(f"{topic_name}->x")
    assert not client.delete_router(f"{topic_name}->x")


def test_health_and_plain_requests(client: Any) -> None:
    assert client.health().status == "ok"
    assert b"topics" in client.request("GET", "/v0/topics?page_size=1")


def test_a_key_is_sent_and_a_wrong_one_is_refused(connect: Any, start_server: StartServer) -> None:
    server = start_server(api_keys="secret:read+write+admin")
    assert connect(server.url, token="secret").topic("t").write(1).seq == 1
    with pytest.raises(topics.errors.Unauthorized):
        connect(server.url, token="wrong").topic("t").write(1)


def test_a_server_that_is_not_there_is_named_when_the_time_is_over(connect: Any) -> None:
    """CLIENT-9: no call takes longer than its deadline."""
    begin = time.monotonic()
    with pytest.raises(Unreachable, match=r"cannot reach http://127\.0\.0\.1:1: connection refused; is the server"):
        connect("http://127.0.0.1:1", deadline_s=0.3).health()
    assert time.monotonic() - begin < 20


def test_more_calls_than_connections_wait_for_their_turn(connect: Any, server: ServerProcess, topic_name: str) -> None:
    client = connect(server.url, connections_max=1)
    client.topic(topic_name).write(1)
    assert client.topic(topic_name).write(2).seq == 2


def test_tls_with_an_authority_of_ones_own(connect: Any, server: ServerProcess, topic_name: str) -> None:
    """CLIENT-4."""
    with Relay(server.host, server.port, tls=True).running() as relay:
        url = f"https://localhost:{relay.port}"
        topic = connect(url, ca=CA).topic(topic_name)
        assert [topic.write("x" * 200_000).seq for _ in range(3)] == [1, 2, 3]
        assert [len(record.data) for record in topic.read()] == [200_000] * 3
        with pytest.raises(BadAddress, match="is not trusted"):
            connect(url).health()
        with pytest.raises(BadAddress, match=r"is not trusted.*127\.0\.0\.1"):
            connect(f"https://127.0.0.1:{relay.port}", ca=CA).health()


@pytest.mark.parametrize("tls", [False, True])
def test_requests_go_through_a_proxy(connect: Any, server: ServerProcess, topic_name: str, tls: bool) -> None:
    """CLIENT-4."""
    with Relay(server.host, server.port, tls=tls).running() as relay, Proxy().running() as proxy:
        url = f"https://localhost:{relay.port}" if tls else f"http://127.0.0.1:{relay.port}"
        options = {"ca": CA} if tls else {}
        client = connect(url, proxy=f"http://127.0.0.1:{proxy.port}", **options)
        assert client.topic(topic_name).write(1).seq == 1
        assert [record.data for record in client.topic(topic_name).read()] == [1]
        assert len(proxy.seen) == 1, "the connection is kept"
        expected = f"CONNECT localhost:{relay.port} " if tls else f"POST {url}/v0/topics/"
        assert proxy.seen[0].decode().startswith(expected)


def test_something_else_that_answers_is_not_taken_for_a_server(connect: Any) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            with pytest.raises(BadAnswer, match="not from a topics server"):
                connect(f"http://127.0.0.1:{other.server_port}").health()
            with pytest.raises(BadAnswer, match="501 and is not from"):
                connect(f"http://127.0.0.1:{other.server_port}").topic("t").write(1)
        finally:
            other.shutdown()
            thread.join()


def test_a_server_that_does_not_answer_is_given_up_in_time(connect: Any) -> None:
    """CLIENT-9: a connection that is open and silent does not hold a caller."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()
        with pytest.raises(TimedOut, match="did not answer in time"):
            connect(url, timeout_s=0.2, deadline_s=0.5).health()
        assert 0.2 <= time.monotonic() - begin < 20


def test_a_follower_is_closed_from_another_thread(server: ServerProcess, api: Api, topic_name: str) -> None:
    api.fill(topic_name, 1)
    with Client(server.url) as client:
        follower = client.topic(topic_name).follow()
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.extend(record.seq for record in follower))
        thread.start()
        until(lambda: found == [1], "the record is read")
        follower.close()
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_does_not_share_connections(server: ServerProcess, topic_name: str) -> None:
    code = f"""
import os, sys
from topics import Client
client = Client({server.url!r})
topic = client.topic({topic_name!r})
topic.write("parent")
child = os.fork()
who = "child" if child == 0 else "parent"
try:
    seqs = {{topic.write([who, n]).seq: [who, n] for n in range(300)}}
    found = {{record.seq: record.data for record in topic.read()}}
    assert all(found[seq] == data for seq, data in seqs.items()), "an answer was for the other process"
except BaseException:
    if child == 0:
        os._exit(1)
    raise
if child == 0:
    os._exit(0)
assert os.wait()[1] == 0
assert len(list(topic.read())) == 601
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr


def test_many_writes_from_many_threads_are_each_stored_once(
    server: ServerProcess, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLIENT-9: also those that are numbered instead of having a key."""
    monkeypatch.setattr(identity, "KEYED_WRITES", 50)
    with Client(server.url) as client:
        topic = client.topic(topic_name)
        threads = [
            threading.Thread(target=lambda k=k: [topic.write([k, n]) for n in range(200)])  # type: ignore[misc]
            for k in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [record.data for record in topic.read()]
    assert sorted(found) == [[k, n] for k in range(8) for n in range(200)]
    for k in range(8):
        assert [n for who, n in found if who == k] == list(range(200))


def test_a_call_that_finds_every_connection_in_use_is_told(server: ServerProcess, api: Api, topic_name: str) -> None:
    """CLIENT-9: and one that waits for its turn gets it."""
    api.put(topic_name, type="queue")
    with Client(server.url, connections_max=1, deadline_s=2) as client:
        claiming = threading.Thread(target=lambda: client.topic(topic_name).claim(wait_ms=20_000))
        claiming.start()
        until(lambda: client._pool._open == 1 and not client._pool._idle, "the connection is in use")
        with pytest.raises(TimedOut, match=r"all 1 connections .* are in use"):
            client.health()
        api.fill(topic_name, 1)
        claiming.join()
        assert client.health().status == "ok"


def test_a_task_that_is_cancelled_leaves_its_connection_to_nobody(
    server: ServerProcess, api: Api, topic_name: str
) -> None:
    """CLIENT-1: an answer that comes later is not taken for that of the next request."""
    api.put(topic_name, type="queue")

    async def main() -> None:
        async with AsyncClient(server.url, connections_max=1, deadline_s=5) as client:
            topic = client.topic(topic_name)
            for _ in range(3):
                waiting = asyncio.create_task(topic.claim(wait_ms=20_000))
                await asyncio.sleep(0.05)
                queued = asyncio.create_task(client.health())
                await asyncio.sleep(0.05)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                assert (await queued).status == "ok"
            assert client._pool._open == 1

    asyncio.run(main())


def test_several_topics_are_followed_over_one_stream(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-20."""
    one, two = f"{topic_name}.1", f"{topic_name}.2"
    api.put(two, cap_records=2)
    api.write(one, {"data": "a", "tag": "x"}, {"data": "b"})
    api.write(two, *({"data": n, "tag": "x"} for n in range(4)))
    with client.follow({one: 1, two: 0}, on_loss="yield") as follower:
        found = [next(follower) for _ in range(4)]
        assert [item.data for item in found if item.topic == one] == ["b"]
        gap, *rest = [item for item in found if item.topic == two]
        assert (gap.gap_from, gap.gap_to) == (1, 2)
        assert [record.data for record in rest] == [2, 3]
        api.write(one, {"data": "c"})
        assert next(follower).data == "c"
        assert follower.cursors == {one: 3, two: 4}
    with client.follow([one], match="x") as follower:
        assert next(follower).data == "a"
    with pytest.raises(TopicNotFound):
        next(client.follow([f"{topic_name}.none"]))
    with pytest.raises(ValueError, match="at least one"):
        client.follow([])


def test_consumers_of_a_server_are_listed_with_their_lag(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-20: the last commit counts, and what is no commit is passed over."""
    cursors, gone = f"{topic_name}.cursors", f"{topic_name}.gone"
    api.fill(topic_name, 10)
    commit = {"consumer": "mail", "cursors": {topic_name: {"seq": 4}, gone: {"seq": 9}}, "committed_ts": 17}
    first = commit | {"cursors": {topic_name: {"seq": 1}}}
    api.write(cursors, {"data": first, "tag": "mail"}, {"data": "no commit"}, {"data": commit, "tag": "mail"})

    [found] = client.consumers(cursors)
    assert (found.consumer, found.committed_ts) == ("mail", 17)
    assert found.cursors == {topic_name: 4, gone: 9}
    assert found.lag == {topic_name: 6}, "a topic that does not exist has no lag"
    assert client.consumers(f"{topic_name}.none") == []


def test_flows_are_listed_as_they_reported_last(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-20: what is no report is passed over."""
    first = {"name": "lake", "kind": "archive", "state": "starting"}
    api.write(topic_name, {"data": first}, {"data": {"name": "lake"}}, {"data": first | {"state": "running", "lag": 4}})
    [found] = client.pipelines(topic_name)
    assert (found.name, found.state, found.lag, found.lag_s, found.ended) == ("lake", "running", 4, None, False)
    assert client.pipelines(f"{topic_name}.none") == []


def test_a_server_tells_about_itself(connect: Any, server: ServerProcess, start_server: StartServer) -> None:
    """CLIENT-20."""
    client = connect(server.url)
    assert client.ready().status == "ready"
    assert client.metrics()["topics_ready"] == 1
    assert set(client.whoami().scopes) >= {"read", "write", "admin"}
    limited = connect(start_server(api_keys="k:read:shop.").url, token="k").whoami()
    assert (limited.scopes, limited.prefixes) == (["read"], ["shop."])


def test_jobs_may_be_named_by_their_seqs(client: Any, api: Api, topic_name: str) -> None:
    """CLIENT-8: a seq alone is the lease that this node holds; without a delay the queue's backoff counts."""
    jobs = client.topic(topic_name)
    jobs.configure(type="queue", backoff_ms=3_600_000)
    jobs.write_many([1, 2, 3])
    assert [job.seq for job in jobs.claim(3)] == [1, 2, 3]
    assert jobs.extend([1, 2, 3], 60_000).extended == 3
    assert (jobs.ack(1).acked, jobs.ack([1, 9]).skipped) == (1, [1, 9])
    assert jobs.nack(2).nacked == 1
    assert jobs.nack([3], delay_ms=0).nacked == 1
    states = {lease.seq: lease.state for lease in jobs.leases()}
    assert states[2] == "delayed"
    assert [job.seq for job in jobs.claim(3)] == [3]
    assert jobs.state().config.backoff_ms == 3_600_000
