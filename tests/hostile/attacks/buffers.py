"""Attacks on memory: bodies that do not end, answers that nobody reads."""

from __future__ import annotations

import socket
import time

from tests.hostile.attack import Target, attack

BODY_BYTES = 64 << 20
PART = b" " * (1 << 20)
JSON = {"Content-Type": "application/json"}


@attack("unfinished-bodies")
def unfinished_bodies(target: Target) -> None:
    """Sends all but the last byte of a body of 64 MiB on each of 24 connections, and waits."""
    head = (
        b"POST /v0/topics/b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    connections = []
    refused = 0
    for _ in range(24):
        connection = target.connect()
        connections.append(connection)
        try:
            connection.sendall(head % BODY_BYTES)
            for _ in range(BODY_BYTES // len(PART) - 1):
                connection.sendall(PART)
        except OSError:
            pass
        connection.setblocking(False)
        try:
            answer = connection.recv(1 << 16)
        except OSError:
            continue
        refused += b" 429 " in answer and b"max_buffered_bytes" in answer
    time.sleep(max(1.0, target.seconds))
    small = target.request("POST", "/v0/topics/b", {"records": [{"data": 1}]}, JSON)
    assert small.status in (200, 201), small.body[:200]
    for connection in connections:
        connection.close()
    assert refused > 10, f"{refused} of 24 bodies were refused by name"


@attack("unread-answers")
def unread_answers(target: Target) -> None:
    """Asks for diffs of 8 MiB on 200 connections with small socket buffers, and reads none."""
    record = {"records": [{"data": "x" * 1_000_000}]}
    for _ in range(9):
        target.request("POST", "/v0/topics/b", record, JSON)
    body = b'{"from_seq":0,"limit":1000,"max_batch_bytes":8388608}'
    request = (
        b"POST /v0/topics/b/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    connections = []
    for _ in range(200):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((target.host, target.port))
        connection.sendall(request * 3)
        connections.append(connection)
    time.sleep(max(1.0, target.seconds))
    for connection in connections:
        connection.close()


@attack("waiting-reads", in_slice=False)
def waiting_reads(target: Target) -> None:
    """Has 2,000 long polls wait for a record of 1 MB, on connections that are not read."""
    target.request("POST", "/v0/topics/b", {"records": [{"data": 1}]}, JSON)
    body = b'{"from_seq":1,"wait_ms":20000,"max_batch_bytes":8388608}'
    request = (
        b"POST /v0/topics/b/diff HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    connections = []
    for _ in range(100):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((target.host, target.port))
        connection.sendall(request * 20)
        connections.append(connection)
    target.request("POST", "/v0/topics/b", {"records": [{"data": "x" * 1_000_000}]}, JSON)
    time.sleep(max(1.0, target.seconds))
    for connection in connections:
        connection.close()
