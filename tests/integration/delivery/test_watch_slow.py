"""Streams with a client that does not read, and streams that come and go (WATCH-29 to WATCH-31, LIMIT-9, LIMIT-10)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.harness.api import Api, StartServer, until
from tests.harness.events import Event, Events, follow, handshake, watch
from topics.testing import ServerProcess

PAD = "x" * 60_000


def open_streams(api: Api) -> int:
    count: int = api.get("/v0/metrics", headers={"Accept": "application/json"}).json["topics_sse_connections"]
    return count


def read_on(events: Events) -> list[Event]:
    """Everything up to the end of the stream."""
    found = []
    while (event := events.next_or_end()) is not None:
        found.append(event)
    return found


@pytest.fixture
def impatient(start_api: Callable[..., Api]) -> Api:
    """A server that gives a slow consumer little time."""
    return start_api(buffer_grace_ms=200, slow_consumer_timeout_ms=1000)


def test_client_that_stops_reading_is_ended_and_loses_nothing(impatient: Api) -> None:
    """WATCH-31: past slow_consumer_timeout a final error frame and the end; the session resumes without loss."""
    api = impatient
    api.put("t")
    url = watch(api, "t")["stream_url"]
    total = 400
    with Events(api, url, receive_buffer=4096) as stuck:
        stuck.until("caught-up")
        for n in range(total):
            api.write("t", {"data": {"n": n, "pad": PAD}})
        until(lambda: open_streams(api) == 0, "the stream is given up")
        seen = read_on(stuck)
    assert seen[-1].kind == "error"
    assert seen[-1].json["code"] == 408
    got = [seq for event in seen if event.kind == "record" for seq in event.seqs]
    assert got == list(range(1, len(got) + 1))
    assert len(got) < total, "the client never lagged: the test shows nothing"
    last_id = stuck.last_id
    while got[-1] < total:
        # A machine under load may make this client slow once more; then it comes back once more.
        with Events(api, url, last_event_id=last_id) as resumed:
            while got[-1] < total and (event := resumed.next_or_end()) is not None:
                got += event.seqs if event.kind == "record" else []
            last_id = resumed.last_id or last_id
    assert got == list(range(1, total + 1)), "a resume neither skips nor repeats what was processed"


def test_session_of_a_cut_client_resumes_where_its_socket_stopped(impatient: Api) -> None:
    """WATCH-31: what was still queued here when the client was given up is sent again, without a Last-Event-ID."""
    api = impatient
    api.put("t")
    url = watch(api, "t")["stream_url"]
    with Events(api, url, receive_buffer=4096) as stuck:
        stuck.until("caught-up")
        for n in range(400):
            api.write("t", {"data": {"n": n, "pad": PAD}})
        until(lambda: open_streams(api) == 0, "the stream is given up")
        # The client is gone for good: what its kernel had not taken never arrives.
        stuck.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with Events(api, url) as resumed:
        first = resumed.until("record")[-1].seqs[0]
        assert first <= 400 - 8, "the queue was not empty when the client was given up"


def test_lossy_topic_degrades_to_a_tombstone(start_api: Callable[..., Api]) -> None:
    """WATCH-30: past buffer_grace_ms what the cap took is a tombstone `from_seq_too_old`, with the exact range."""
    api = start_api(buffer_grace_ms=100)
    api.put("t", cap_records=5)
    url = watch(api, "t")["stream_url"]
    with Events(api, url, receive_buffer=4096) as slow:
        slow.until("caught-up")
        for n in range(400):
            api.write("t", {"data": {"n": n, "pad": PAD}})
        for _ in range(5):
            # Answers in between: it is the server whose time has to pass.
            time.sleep(0.1)
            api.state("t")
        expected, reasons = 1, set()
        while expected <= 400:
            event = slow.next()
            if event.kind == "tombstone":
                assert event.json["gap_from"] == expected
                expected = event.json["gap_to"] + 1
                reasons.add(event.json["reason"])
            elif event.kind == "record":
                assert event.seqs == list(range(expected, expected + len(event.seqs)))
                expected += len(event.seqs)
    assert "from_seq_too_old" in reasons


def test_websocket_that_stops_reading_is_ended_too(impatient: Api) -> None:
    """WS-10: the same rules; the last frame says why."""
    api = impatient
    api.put("t")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((api.host, api.port))
    with connect(f"ws://{api.host}:{api.port}/v0/ws", sock=sock, max_queue=1, max_size=None) as room:
        room.send('{"op":"subscribe","topic":"t"}')
        for n in range(400):
            api.write("t", {"data": {"n": n, "pad": PAD}})
        until(lambda: open_streams(api) == 0, "the connection is given up", 30)
        last = ""
        with suppress(ConnectionClosed):
            for message in room:
                last = str(message)
        assert room.close_code == 1008
    assert "slow_consumer" in last


def test_caps_are_global_and_per_creating_key(start_api: Callable[..., Api]) -> None:
    """LIMIT-9: streams beyond the caps are 429 that names the limit; the rest of the key's requests go on."""
    caps = {"max_sse_connections": 3, "max_sse_connections_per_key": 2, "max_inflight_per_key": 1}
    a = start_api("a", api_keys="a,b", **caps)
    b = a.with_key("b")
    a.fill("t", 1)
    stream = {"Accept": "text/event-stream"}
    urls = {api: [watch(api, "t")["stream_url"] for _ in range(3)] for api in (a, b)}
    opened = [Events(a, url) for url in urls[a][:2]]
    detail = a.get(urls[a][2], headers=stream).refused(429, "throttled")
    assert (detail["limit"], detail["max"]) == ("max_sse_connections_per_key", 2)
    opened.append(Events(b, urls[b][0]))
    reply = b.get(urls[b][1], headers=stream)
    assert reply.refused(429, "throttled")["limit"] == "max_sse_connections"
    assert int(reply.headers["retry-after"]) >= 1
    assert a.state("t")["head_seq"] == 1, "an open stream holds no in-flight slot"
    for events in opened:
        events.close()
    until(lambda: _opens(b, urls[b][1]), "the slots are free again")


def _opens(api: Api, url: str) -> bool:
    with Events(api, url) as events:
        return events.status == 200


def test_streams_that_come_and_go_leave_nothing(start_server: StartServer) -> None:
    """LIMIT-10: 1,000 connects and disconnects; descriptors and memory return to where they were."""
    server = start_server(session_ttl_ms=1500)
    with closing(Api(server.host, server.port)) as api:
        api.fill("t", 3)
        check_churn(server, api)


def check_churn(server: ServerProcess, api: Api) -> None:

    def churn(times: int) -> None:
        for i in range(times):
            events = follow(api, {"t": {"tail": i % 3 == 0}})
            if i % 2:
                events.until("caught-up")
            if i % 5 == 0:
                events.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            events.close()
            if i % 4 == 0:
                room = handshake(api)
                room.sendall(b"\x81\x9e\0\0\0\0" + b'{"op":"subscribe","topic":"t"}')
                room.close()

    def all_ended() -> bool:
        return open_streams(api) == 0

    churn(300)
    until(all_ended, "all streams have ended")
    descriptors, memory = descriptors_of(server.pid), resident_kib(server.pid)
    threads = [threading.Thread(target=churn, args=(350,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(all_ended, "all streams have ended")
    until(lambda: descriptors_of(server.pid) <= descriptors + 4, "the descriptors are closed")
    assert resident_kib(server.pid) - memory < 8 * 1024
    until(lambda: watch(api, "t") and sessions(api) < 400, "the sessions are reclaimed")


def sessions(api: Api) -> int:
    count: int = api.get("/v0/metrics", headers={"Accept": "application/json"}).json["topics_watch_sessions"]
    return count


def descriptors_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def resident_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


def test_clean_stop_ends_streams(start_server: StartServer) -> None:
    """WATCH-34: a stop closes open streams and ends with exit code 0."""
    server = start_server()
    with closing(Api(server.host, server.port)) as api:
        api.fill("t", 1)
        events = Events(api, watch(api, "t")["stream_url"])
    with events:
        events.until("caught-up")
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert events.next_or_end() is None
        stopping.join()
