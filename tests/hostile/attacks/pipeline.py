"""Attacks by pipelining: many small requests on one connection, and no pause between them."""

from __future__ import annotations

import socket
import threading
import time

from tests.hostile.attack import Target, attack

REQUEST = b"GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
TOGETHER = 2_000


@attack("pipelined-health", in_slice=False)
def pipelined_health(target: Target) -> None:
    """Pipelines GET /v0/health as fast as the server takes them, and reads the answers."""
    connection = target.connect()
    reader = threading.Thread(target=_drain, args=(connection,), daemon=True)
    reader.start()
    ends = time.monotonic() + target.seconds
    while time.monotonic() < ends:
        connection.sendall(REQUEST * TOGETHER)
    connection.close()


def _drain(connection: socket.socket) -> None:
    try:
        while connection.recv(1 << 18):
            pass
    except OSError:
        pass


@attack("pipelined-health-many")
def pipelined_health_many(target: Target) -> None:
    """Pipelines GET /v0/health on 50 connections at a time."""
    threads = [threading.Thread(target=pipelined_health, args=(target,), daemon=True) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@attack("tiny-chunks", in_slice=False)
def tiny_chunks(target: Target) -> None:
    """Sends chunked bodies whose chunks have one byte each, on 10 connections at a time."""
    threads = [threading.Thread(target=_chunks, args=(target,), daemon=True) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _chunks(target: Target) -> None:
    ends = time.monotonic() + target.seconds
    connection = target.connect()
    head = b"POST /v0/topics/chunks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
    try:
        while time.monotonic() < ends:
            connection.sendall(b"1\r\n \r\n" * 10_000)
    except OSError:
        pass
    connection.close()
