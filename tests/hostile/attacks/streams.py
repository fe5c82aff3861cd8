"""Attacks with streams: many of them, and nobody who reads; frames that only make work."""

from __future__ import annotations

import base64
import os
import resource
import socket
import threading
import time

from tests.hostile.attack import Target, attack

JSON = {"Content-Type": "application/json"}
STREAMS = 5_000
TOGETHER = 2_000


def raise_files() -> None:
    """Let this process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@attack("unread-streams", in_slice=False)
def unread_streams(target: Target) -> None:
    """Opens 5,000 streams on one topic, writes 10 MB to it, and reads nothing."""
    raise_files()
    target.request("PUT", "/v0/topics/s", {}, JSON)
    wids = [
        target.request("POST", "/v0/watch", {"topics": {"s": {"tail": True}}}, JSON).json["wid"] for _ in range(100)
    ]
    connections = []
    for number in range(STREAMS):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((target.host, target.port))
        connection.sendall(b"GET /v0/watch/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % wids[number % 100].encode())
        connections.append(connection)
    for _ in range(10):
        target.request("POST", "/v0/topics/s", {"records": [{"data": "x" * 1_000_000}]}, JSON)
    time.sleep(max(2.0, target.seconds))
    for connection in connections:
        connection.close()


def websocket(target: Target) -> socket.socket:
    """An open WebSocket, on a plain connection."""
    connection = target.connect()
    key = base64.b64encode(os.urandom(16))
    connection.sendall(
        b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % key
    )
    assert b" 101 " in connection.recv(1 << 16)
    return connection


def _drain(connection: socket.socket) -> None:
    try:
        while connection.recv(1 << 18):
            pass
    except OSError:
        pass


@attack("websocket-ping")
def websocket_ping(target: Target) -> None:
    """Floods with pings on 20 WebSockets, and reads the pongs; where one is closed, it comes again."""
    threads = [threading.Thread(target=_pings, args=(target,), daemon=True) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _pings(target: Target) -> None:
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        connection = websocket(target)
        threading.Thread(target=_drain, args=(connection,), daemon=True).start()
        try:
            while time.monotonic() < ends:
                connection.sendall(b"\x89\x80\0\0\0\0" * TOGETHER)
        except OSError:
            pass
        connection.close()


@attack("websocket-unfinished", in_slice=False)
def websocket_unfinished(target: Target) -> None:
    """Begins a message of 60 MiB on each of 24 WebSockets, and ends none."""
    connections = []
    for _ in range(24):
        connection = websocket(target)
        connections.append(connection)
        try:
            connection.sendall(b"\x81\xff" + (60 << 20).to_bytes(8) + b"\0\0\0\0")
            for _ in range(59):
                connection.sendall(b" " * (1 << 20))
        except OSError:
            pass
    time.sleep(max(1.0, target.seconds))
    for connection in connections:
        connection.close()
