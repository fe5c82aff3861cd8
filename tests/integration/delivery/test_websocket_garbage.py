"""A WebSocket that is over leaves nothing for the garbage collector, which looks at what lives long only once (FAIR-6).

The server runs in a process of its own, and its clients in a thread of that, without a collector: what is left of a
connection can be counted only from within.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import gc, json, os, signal, socket, struct, sys, threading, time
from pathlib import Path
from topics.server.auth import Keys
from topics.server.server import Server
from topics.settings import Settings

directory = Path(sys.argv[1])
port_file = directory / "port"
HANDSHAKE = (
    b"GET /v0/ws HTTP/1.1\\r\\nHost: localhost\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
    b"Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\\r\\n\\r\\n"
)
COMMANDS = {
    "publish": b'{"op":"publish","topic":"t","records":[{"data":1}]}',
    "subscribe": b'{"op":"subscribe","topic":"t"}',
    "unknown": b'{"op":"refuse"}',
    "missing": b'{"op":"subscribe","topic":"missing"}',
    "broken": b'{"op":',
}

def message(text):
    return b"\\x81\\xff" + len(text).to_bytes(8) + bytes(4) + text

def open_one(command):
    connection = socket.create_connection(("127.0.0.1", int(port_file.read_text().rpartition(":")[2])))
    for sent in (HANDSHAKE, message(command)):
        connection.sendall(sent)
        assert connection.recv(65536)
    return connection

def end(connection, how):
    if how == "close":
        connection.sendall(b"\\x88\\x80" + bytes(4))
        connection.recv(65536)
    elif how == "refused":
        connection.sendall(b"\\xff" * 16)
    elif how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()

def await_true(look):
    deadline = time.monotonic() + 5
    while not look() and time.monotonic() < deadline:
        time.sleep(0.01)

def count():
    names = ("WebSocket", "FrameLink", "Feed", "ServerProtocol", "StreamReader", "Relay")
    return sum(type(each).__name__ in names for each in gc.get_objects())

def use():
    await_true(port_file.exists)
    gc.disable()
    gc.unfreeze()
    for name, command in COMMANDS.items():
        for how in ("close", "refused", "reset", "vanish"):
            connections = [open_one(command) for _ in range(5)]
            there = count()
            for connection in connections:
                end(connection, how)
            await_true(lambda: count() == 0)
            print(json.dumps([name, how, there, count()]), flush=True)

def use_and_stop():
    try:
        use()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=use_and_stop).start()
Server(Settings(data_dir=directory / "data", port=0, port_file=port_file), Keys()).run()
"""


def test_a_websocket_that_is_over_leaves_nothing(tmp_path: Path) -> None:
    """FAIR-6: however it ends, and whatever was asked on it."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) == 20
    assert all(there >= 20 for _, _, there, _ in found)
    assert [(name, how, left) for name, how, _, left in found if left] == []
