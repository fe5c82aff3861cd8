"""Commands of one WebSocket that arrive together, on a server without sockets."""

from __future__ import annotations

import json
from typing import Any

from websockets.frames import Frame, Opcode

from tests.harness.server import ManualServer

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
