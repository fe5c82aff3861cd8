"""Commands of one WebSocket that arrive together, on a server without sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.frames import Frame, Opcode

from tests.harness.machine import Machine, numbers, uncached
from tests.harness.server import ManualServer
from topics.testing import ManualClock

UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)


def message(**command: Any) -> bytes:
    return Frame(Opcode.TEXT, json.dumps(command).encode()).serialize(mask=True)


def frames_in(data: bytes) -> list[Any]:
    """The JSON of the text frames in what a server sent."""
    found = []
    while data:
        assert data[0] == 0x81
        size, at = data[1], 2
        if size == 126:
            size, at = int.from_bytes(data[2:4]), 4
        found.append(json.loads(data[at : at + size]))
        data = data[at + size :]
    return found


def test_a_command_after_a_publish_sees_what_was_published() -> None:
    """WS-11: a publish waits for others of its turn, and a subscribe of that turn comes after it."""
    server = ManualServer()
    server.send("PUT", "/v0/topics/t", {"durability": "ephemeral"})
    client = server.send("GET", "/v0/ws", None, *UPGRADE)
    assert client.received().startswith(b"HTTP/1.1 101 ")

    client.send(
        message(op="publish", topic="t", records=[{"data": 1}])
        + message(op="subscribe", request_id="s", topic="t", tail=True)
    )
    server.loop.run_until_idle()

    frames = frames_in(client.received())
    assert [frame["op"] for frame in frames] == ["ack", "subscribed", "caught_up"]
    assert frames[1]["topics"]["t"]["head_seq"] == 1


@pytest.fixture
def cold() -> ManualServer:
    """A topic `t` whose records 1 to 50, ten in ten milliseconds from 0 on, are in one Block and on the disk only."""
    machine = Machine(clock=ManualClock(0))
    for first in range(1, 51, 10):
        machine.engine.write("t", numbers(first, first + 9))
        machine.clock.advance(10)
    machine.checkpoint()
    uncached(machine, "t")
    return ManualServer(machine=machine)


def test_a_subscribe_that_needs_a_block_from_the_disk_waits_for_it(cold: ManualServer) -> None:
    """STORE-6: to find a time, a Block has to be read; what comes after it on this connection waits for it too."""
    client = cold.send("GET", "/v0/ws", None, *UPGRADE)
    client.received()
    client.send(message(op="subscribe", request_id="s", topic="t", from_ts=25) + message(op="ping"))
    cold.loop.run_until_idle()
    assert client.received() == b""
    assert [job.name for job in cold.jobs] == ["read"]
    cold.run_jobs()
    frames = frames_in(client.received())
    assert [frame["op"] for frame in frames[:2]] == ["subscribed", "pong"]
    assert frames[0]["topics"]["t"]["from_seq"] == 30


def test_a_subscribe_of_a_connection_that_ended_while_it_waited_follows_nothing(cold: ManualServer) -> None:
    """STORE-6: nothing of it is left."""
    client = cold.send("GET", "/v0/ws", None, *UPGRADE)
    client.send(message(op="subscribe", topic="t", from_ts=25))
    cold.loop.run_until_idle()
    client.transport.protocol.connection_lost(None)
    cold.loop.run_until_idle()
    cold.run_jobs()
    assert cold.engine.topics["t"].listeners == {}
