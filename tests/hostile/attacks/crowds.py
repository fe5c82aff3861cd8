"""Attacks by numbers: very many connections, sessions, streams and waits, each of them small and honest by itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable

from tests.hostile.attack import Target, attack
from tests.hostile.attacks.commands import client, scaled
from tests.hostile.attacks.streams import JSON, raise_files, websocket

POLLS = 4_000
IDLE = 5_000
SLOW = 500
SESSIONS = 9_000
WATCHED = 200
RESETS = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which a close resets the connection."""


def request_text(method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def connections(target: Target, count: int, first: bytes) -> list[socket.socket]:
    """So many connections, each with this sent on it."""
    raise_files()
    opened = []
    for _ in range(count):
        connection = target.connect()
        connection.sendall(first)
        opened.append(connection)
    return opened


def reset(connections: list[socket.socket]) -> None:
    """End all of them at once, as a client that dies does."""
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
    for connection in connections:
        connection.close()


def read_all(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(1 << 18):
            pass


def message(text: bytes) -> bytes:
    return b"\x81\xff" + len(text).to_bytes(8) + b"\0\0\0\0" + text


@attack("long-polls-vanish")
def long_polls_vanish(target: Target) -> None:
    """Has thousands of long polls wait on one topic, writes to it, and ends all of them at once."""
    target.request("POST", "/v0/topics/polled", {"records": [{"data": 1, "node": "n"}]}, JSON)
    body = b'{"from_seq":1,"wait_ms":30000,"node":"n"}'
    polls = connections(target, scaled(POLLS, target), request_text("POST", "/v0/topics/polled/diff", body))
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        # None of them wants these, so all of them look and wait on.
        target.request("POST", "/v0/topics/polled", {"records": [{"data": 1, "node": "n"}]}, JSON)
    reset(polls)


@attack("claims-vanish")
def claims_vanish(target: Target) -> None:
    """Has thousands of claims wait on one queue, produces a few jobs, and ends all of them at once."""
    target.request("PUT", "/v0/topics/claimed", {"type": "queue"}, JSON)
    body = b'{"node":"n","max":10,"wait_ms":30000}'
    claims = connections(target, scaled(POLLS, target), request_text("POST", "/v0/topics/claimed/claim", body))
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        target.request("POST", "/v0/topics/claimed", {"records": [{"data": 1}]}, JSON)
    reset(claims)


@attack("polls-with-many-nodes", in_slice=False)
def polls_with_many_nodes(target: Target) -> None:
    """Has 600 long polls wait, each with a filter of 1,000 nodes that takes almost a megabyte."""
    target.request("POST", "/v0/topics/polled", {"records": [{"data": 1}]}, JSON)
    nodes = [f"{i:04}" + "n" * 1000 for i in range(990)]
    body = json.dumps({"from_seq": 1, "wait_ms": 30000, "node": nodes}).encode()
    polls = connections(target, scaled(600, target), request_text("POST", "/v0/topics/polled/diff", body))
    time.sleep(max(1.0, target.seconds))
    reset(polls)


@attack("sessions-with-many-nodes")
def sessions_with_many_nodes(target: Target) -> None:
    """Makes watch sessions and opens none, each with a filter of 1,000 nodes that takes almost a megabyte."""
    target.request("POST", "/v0/topics/watched", {"records": [{"data": 1}]}, JSON)
    with contextlib.suppress(AssertionError), client(target) as call:
        for i in range(scaled(SESSIONS, target) // 3):
            nodes = [f"{i:04}{j:04}" + "n" * 1000 for j in range(990)]
            call("POST", "/v0/watch", {"topics": {"watched": {}}, "node": nodes})


def _make_watched(target: Target) -> None:
    with client(target) as call:
        for i in range(WATCHED):
            call("POST", f"/v0/topics/{_name(i)}", b'{"records":[{"data":1}]}')


def _name(i: int) -> str:
    return f"{i:03}" + "w" * 250


@attack("abandoned-sessions", prepare=_make_watched)
def abandoned_sessions(target: Target) -> None:
    """Makes thousands of watch sessions over 200 topics each, and opens none."""
    body: dict[str, object] = {"topics": {_name(i): {} for i in range(WATCHED)}}
    with contextlib.suppress(AssertionError), client(target) as call:
        for _ in range(scaled(SESSIONS, target)):
            call("POST", "/v0/watch", body)


@attack("websocket-subscribe-again", prepare=_make_watched, in_slice=False)
def subscribe_again(target: Target) -> None:
    """Subscribes to 200 topics, one by one, with filters of almost a megabyte, and again and again."""
    connections = [websocket(target) for _ in range(5)]
    for connection in connections:
        threading.Thread(target=read_all, args=(connection,), daemon=True).start()
    ends = time.monotonic() + max(target.seconds, 2.0)
    number = 0
    while time.monotonic() < ends:
        for connection in list(connections):
            number += 1
            nodes = [f"{number:06}{j:04}" + "n" * 1000 for j in range(900)]
            command = {"op": "subscribe", "topic": _name(number % WATCHED), "tail": True, "node": nodes}
            try:
                connection.sendall(message(json.dumps(command).encode()))
            except OSError:
                connections.remove(connection)
    for connection in connections:
        connection.close()


@attack("slow-heads", in_slice=False)
def slow_heads(target: Target) -> None:
    """Sends the heads and bodies of 500 requests byte by byte, all at the same time."""
    request = request_text("POST", "/v0/topics/slow", b'{"records":[{"data":1}]}')
    slow = connections(target, SLOW, b"")
    for at in range(len(request)):
        for connection in slow:
            connection.sendall(request[at : at + 1])
    for connection in slow:
        assert b" 20" in connection.recv(1 << 16)[:14]
    reset(slow)


@attack("idle-connections", in_slice=False)
def idle_connections(target: Target) -> None:
    """Opens 5,000 connections on which nothing is sent, and ends them all at once."""
    idle = connections(target, IDLE, b"")
    time.sleep(target.seconds)
    reset(idle)


@attack("a-process-ends")
def process_ends(target: Target) -> None:
    """Kills a process that has used 9,000 connections, so that the system closes all of them in one moment."""
    request = request_text("GET", "/v0/health")
    _end_process(lambda: _answered(connections(target, scaled(9_000, target), request)))


@attack("a-process-resets", in_slice=False)
def process_resets(target: Target) -> None:
    """Kills a process that has used 5,000 connections, so that the system resets all of them in one moment."""
    request = request_text("GET", "/v0/health")

    def open_all() -> list[socket.socket]:
        opened = _answered(connections(target, scaled(IDLE, target), request))
        for connection in opened:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
        return opened

    _end_process(open_all)


@attack("a-process-with-streams-ends", in_slice=False)
def process_with_streams_ends(target: Target) -> None:
    """Kills a process that reads 2,000 streams and 1,000 WebSockets."""
    target.request("POST", "/v0/topics/watched", {"records": [{"data": 1}]}, JSON)

    def open_streams() -> list[socket.socket]:
        raise_files()
        opened = []
        with client(target) as call:
            for _ in range(2_000):
                url = call("POST", "/v0/watch", {"topics": {"watched": {}}})["stream_url"]
                opened += connections(target, 1, request_text("GET", url))
        for _ in range(1_000):
            opened.append(websocket(target))
            opened[-1].sendall(message(b'{"op":"subscribe","topic":"watched"}'))
        return opened

    _end_process(open_streams)


def _answered(opened: list[socket.socket]) -> list[socket.socket]:
    for connection in opened:
        assert connection.recv(1 << 16)
    return opened


def _end_process(open_all: Callable[[], list[socket.socket]]) -> None:
    """Have a process open connections, then kill it."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        opened = open_all()
        os.write(told, b"%d" % len(opened))
        signal.pause()
    os.close(told)
    counted = os.read(ready, 16)
    os.close(ready)
    time.sleep(0.5)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert counted, "the process could not open its connections"
    time.sleep(0.5)


@attack("connection-churn", in_slice=False)
def connection_churn(target: Target) -> None:
    """Connects and resets, or asks for something and resets, as fast as four threads can."""

    def churn(first: bytes) -> None:
        ends = time.monotonic() + target.seconds
        while time.monotonic() < ends:
            with contextlib.suppress(OSError):
                reset(connections(target, 20, first))

    firsts = (b"", b"GET", request_text("GET", "/v0/health"), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    threads = [threading.Thread(target=churn, args=(first,)) for first in firsts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("streams-vanish", in_slice=False)
def streams_vanish(target: Target) -> None:
    """Opens 3,000 streams over one topic, each of a session of its own, and ends them all at once."""
    target.request("POST", "/v0/topics/watched", {"records": [{"data": 1}]}, JSON)
    opened = []
    with client(target) as call:
        for _ in range(3_000):
            url = call("POST", "/v0/watch", {"topics": {"watched": {}}})["stream_url"]
            opened += connections(target, 1, request_text("GET", url))
    time.sleep(0.5)
    reset(opened)


@attack("websockets-vanish", prepare=_make_watched, in_slice=False)
def websockets_vanish(target: Target) -> None:
    """Opens 300 WebSockets with 200 topics each, and ends them all at once."""
    raise_files()
    command = json.dumps({"op": "subscribe", "topics": {_name(i): {"tail": True} for i in range(WATCHED)}}).encode()
    opened = []
    for _ in range(300):
        connection = websocket(target)
        connection.sendall(message(command))
        opened.append(connection)
    time.sleep(1.0)
    reset(opened)


@attack("work-streams-vanish")
def work_streams_vanish(target: Target) -> None:
    """Opens 500 work streams that hold 200 jobs each, and ends them all at once."""
    streams = scaled(500, target)
    with client(target) as call:
        call("PUT", "/v0/topics/worked", {"type": "queue"})
        call.fill("worked", (f'{{"data":{i}}}' for i in range(streams * 200)))
    opened = connections(target, streams, request_text("GET", "/v0/topics/worked/work?node=w&max=200"))
    for connection in opened:
        threading.Thread(target=read_all, args=(connection,), daemon=True).start()
    time.sleep(max(2.0, target.seconds))
    for connection in opened:
        connection.shutdown(socket.SHUT_RDWR)
    time.sleep(1.0)


@attack("takeover-storm", in_slice=False)
def takeover_storm(target: Target) -> None:
    """Opens the stream of one session again and again, with ids that move it back, and reads nothing."""
    with client(target) as call:
        for _ in range(20):
            call("POST", "/v0/topics/taken", {"records": [{"data": "x" * 1000}] * 500})
        url = call("POST", "/v0/watch", {"topics": {"taken": {}}})["stream_url"]
    ends = time.monotonic() + target.seconds
    opened = []
    while time.monotonic() < ends:
        head = f"GET {url} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: eyJ0YWtlbiI6MX0\r\n\r\n"
        opened += connections(target, 1, head.encode())
        if len(opened) == 200:
            reset(opened)
            opened = []
    reset(opened)


@attack("answers-byte-by-byte", in_slice=False)
def answers_byte_by_byte(target: Target) -> None:
    """Reads large answers a few bytes at a time on 200 connections."""
    with client(target) as call:
        for _ in range(8):
            call("POST", "/v0/topics/sipped", {"records": [{"data": "x" * 900_000}]})
    body = b'{"max_batch_bytes":8388608}'
    opened = []
    for _ in range(200):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((target.host, target.port))
        connection.sendall(request_text("POST", "/v0/topics/sipped/diff", body))
        opened.append(connection)
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.recv(64, socket.MSG_DONTWAIT)
    reset(opened)
