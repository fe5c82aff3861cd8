"""A stream whose connection is lost: its session goes on where the client's socket stopped (WATCH-31)."""

from __future__ import annotations

import json
from typing import cast

from tests.harness.connection import Client, connections_of, request
from tests.harness.loop import ManualLoop
from tests.harness.server import ManualServer
from topics.server.http.connections import DEPART_TOGETHER


def session(server: ManualServer) -> str:
    """Where the stream of a new session over topic `t` is."""
    (reply,) = server.send("POST", "/v0/watch", {"topics": {"t": {"from_seq": 0}}}).replies()
    url: str = json.loads(reply.body)["stream_url"]
    return url


def first_seq(stream: Client) -> int:
    """The seq of the first record that was sent."""
    return int(stream.received().partition(b'"$seq":')[2].partition(b",")[0])


def test_session_of_a_slow_client_that_is_reset_resumes_where_its_socket_stopped() -> None:
    """WATCH-31: what was still queued here when the connection was lost is sent again, without a Last-Event-ID."""
    server = ManualServer()
    server.post()
    url = session(server)
    stream = server.send("GET", url)
    assert first_seq(stream) == 1
    stream.transport.unsent = 100_000
    server.post()
    stream.connection.pause_writing()
    stream.transport.unsent = 0  # as a transport drops what it could not send
    stream.lose()
    assert first_seq(server.send("GET", url)) <= 2


def test_session_of_a_client_that_reads_goes_on_after_what_was_sent() -> None:
    """WATCH-17: a connection that is lost brings nothing again that its socket has taken."""
    server = ManualServer()
    server.post()
    url = session(server)
    server.send("GET", url).lose()
    server.post()
    assert first_seq(server.send("GET", url)) == 2


def test_what_is_published_while_a_lost_stream_waits_for_its_end_is_not_skipped() -> None:
    """WATCH-17: nothing is sent on it, so its position does not move; a slot is free once it has ended."""
    server = ManualServer()
    server.post()
    url = session(server)
    stream = server.send("GET", url)
    assert first_seq(stream) == 1
    stream.note_lost()
    server.post()
    assert len(server.assembly.delivery.open) == 1, "it has not ended yet: the test shows nothing otherwise"
    stream.connections._close_departing()
    assert not server.assembly.delivery.open
    assert first_seq(server.send("GET", url)) == 2


def test_newer_stream_takes_over_from_a_lost_one_that_has_not_ended() -> None:
    """WATCH-17: the client's socket had taken what was sent, so the session goes on after it."""
    server = ManualServer()
    server.post()
    url = session(server)
    stream = server.send("GET", url)
    assert first_seq(stream) == 1
    stream.note_lost()
    server.post()
    resumed = server.send("GET", url)
    assert first_seq(resumed) == 2
    stream.connections._close_departing()
    server.post()
    assert first_seq(resumed) == 3, "the end of the old stream is not that of the new one"


def test_streams_that_are_lost_at_once_end_over_many_turns() -> None:
    """FAIR-1: a turn ends so many of them and no more."""
    server = ManualServer()
    server.post()
    connections = connections_of(server.app)
    streams = [Client(connections=connections) for _ in range(3 * DEPART_TOGETHER)]
    for stream in streams:
        stream.send(request("GET", session(server)))
    for stream in streams:
        stream.note_lost()
    left = [len(server.assembly.delivery.open)]
    for _ in range(3):
        cast("ManualLoop", connections._loop).turn()
        left.append(len(server.assembly.delivery.open))
    assert left == [3 * DEPART_TOGETHER, 2 * DEPART_TOGETHER, DEPART_TOGETHER, 0]


def test_work_stream_that_is_lost_ends_at_once() -> None:
    """WORK-3: its jobs are ready at once, and none is pushed on it for nothing."""
    server = ManualServer()
    server.send("PUT", "/v0/topics/q", {"type": "queue"})
    stream = server.send("GET", "/v0/topics/q/work?node=n")
    assert len(server.assembly.delivery.open) == 1
    stream.note_lost()
    assert not server.assembly.delivery.open
