"""Streams and figures of a topic whose TTL has come to a Block that is on the disk only, a part of it (RETAIN-1)."""

from __future__ import annotations

import json

import pytest

from tests.harness.machine import Machine, numbers, uncached
from tests.harness.server import ManualServer
from topics.engine import ConfigPatch
from topics.testing import ManualClock

TTL_MS = 10_000


@pytest.fixture
def machine() -> Machine:
    """A topic `t` whose records 1 to 50, ten in ten milliseconds from 0 on, are in one sealed Block."""
    machine = Machine(clock=ManualClock(0))
    machine.engine.put_topic("t", ConfigPatch(ttl_ms=TTL_MS))
    for first in range(1, 51, 10):
        machine.engine.write("t", numbers(first, first + 9))
        machine.clock.advance(10)
    machine.checkpoint()
    return machine


@pytest.fixture
def server(machine: Machine) -> ManualServer:
    return ManualServer(machine=machine)


def expire_a_part(machine: Machine) -> None:
    """Let the records 1 to 30 expire, with none of them in memory."""
    machine.clock.set(TTL_MS + 25)
    uncached(machine, "t")


def session(server: ManualServer, **asked: int | bool) -> str:
    """Where the stream of a new session is."""
    (reply,) = server.send("POST", "/v0/watch", {"topics": {"t": asked}}).replies()
    url: str = json.loads(reply.body)["stream_url"]
    return url


def test_follower_gets_what_is_new_without_waiting_for_the_disk(server: ManualServer, machine: Machine) -> None:
    """STORE-6: what has expired is nothing to a stream that follows the head."""
    stream = server.send("GET", session(server, tail=True))
    expire_a_part(machine)
    server.send("POST", "/v0/topics/t", {"records": [{"data": "new"}]})
    assert b'"data":"new"' in stream.received()
    assert server.engine.topics["t"].log.start == 1, "it is not expired yet"


def test_stream_from_the_beginning_gets_nothing_that_has_expired(server: ManualServer, machine: Machine) -> None:
    """STORE-6, RETAIN-1: it needs the Block, has it read, and the TTL comes first."""
    url = session(server, from_seq=0)
    expire_a_part(machine)
    stream = server.send("GET", url)
    server.run_jobs()
    text = stream.received()
    assert b'"gap_from":1,"gap_to":30' in text
    assert b'"$seq":31,' in text
    assert b'"$seq":30,' not in text


def test_session_that_waits_for_the_disk_is_made_once(server: ManualServer, machine: Machine) -> None:
    """STORE-6: the request is handled from the start again, and has left nothing the first time."""
    expire_a_part(machine)
    created = server.send("POST", "/v0/watch", {"topics": {"t": {"tail": True}}})
    assert created.replies() == []
    server.run_jobs()
    (reply,) = created.replies()
    assert json.loads(reply.body)["topics"]["t"]["earliest_seq"] == 31
    metrics = server.send("GET", "/v0/metrics")
    server.run_jobs()
    assert b"\ntopics_watch_sessions 1.0\n" in metrics.received()


@pytest.mark.parametrize("path", ["/v0/metrics", "/v0/overview"])
def test_figures_do_not_wait_for_the_disk(server: ManualServer, machine: Machine, path: str) -> None:
    """STORE-6: they are those of before, until the Block is at hand."""
    expire_a_part(machine)
    (reply,) = server.send("GET", path).replies()
    assert reply.status == 200
    assert server.jobs == []
