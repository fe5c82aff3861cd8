"""Bystander: an honest client that does a small POST and a diff every 5 ms, and notes how long each took.

It is a process of its own, so that an attack in Python does not slow it down, and keeps one connection as an honest
client does; where the server closes it, it connects again and counts that. It goes on until its standard input ends,
then prints what it saw as one line of JSON: pairs of when (seconds on the monotonic clock) and how long (ms).

    python -m tests.hostile.bystander HOST PORT
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

EVERY_S = 0.005
TIMEOUT_S = 120.0


class Bystander:
    """The client, and what it saw."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._connection: socket.socket | None = None
        self.waits: list[tuple[float, float]] = []
        self.refused = 0
        self.disconnected = 0

    def once(self) -> None:
        """A small POST, and a small diff."""
        body = b'{"records":[{"data":{"n":1}}]}'
        self._timed(b"POST", b"/v0/topics/bystander", body)
        self._timed(b"POST", b"/v0/topics/bystander/diff", b'{"from_seq":0,"limit":10}')

    def _timed(self, method: bytes, path: bytes, body: bytes) -> None:
        head = b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        started = time.monotonic()
        try:
            status = self._exchange(head % (method, path, len(body)) + body)
        except OSError:
            self.disconnected += 1
            self._connection = None
        else:
            self.refused += status >= 400
        self.waits.append((started, (time.monotonic() - started) * 1000))

    def _exchange(self, request: bytes) -> int:
        if self._connection is None:
            self._connection = socket.create_connection(self._address, TIMEOUT_S)
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._more()
        head, _, content = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(content) < length:
            content += self._more()
        return int(head[9:12])

    def _more(self) -> bytes:
        assert self._connection is not None
        chunk = self._connection.recv(1 << 16)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        return chunk


def main() -> None:
    """Go on until standard input ends, then report."""
    bystander = Bystander(sys.argv[1], int(sys.argv[2]))
    while True:
        bystander.once()
        if select.select([sys.stdin], [], [], EVERY_S)[0] and not sys.stdin.readline():
            break
    report = {
        "waits": bystander.waits,
        "refused": bystander.refused,
        "disconnected": bystander.disconnected,
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main()
