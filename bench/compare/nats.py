"""NATS JetStream with file storage; there is no client in the distribution, so Python speaks its protocol.

It acknowledges when the kernel has the bytes, and syncs every two minutes; Debian's version cannot be told to sync
first. Reads are a push consumer over the whole stream, because there is no read at a cursor; a queue is a stream with
the retention `workqueue` and a pull consumer, each ack confirmed.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from contextlib import AbstractContextManager
from pathlib import Path

from bench import nats, records
from bench.bed import Bench
from bench.compare.system import CLAIM, READ_RECORDS, Dry, Line, Pair, Sample, System, Target

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'
FILL_IN_FLIGHT = 2_000
_REPLIES = re.compile(rb"MSG \S+ \d+ (\$JS\.ACK\.\S+) ")


class Nats(System):
    """A stream `bench`."""

    name = "NATS JetStream"
    synced = False

    def version(self) -> str | None:
        if shutil.which("nats-server") is None:
            return None
        shown = subprocess.run(["nats-server", "--version"], capture_output=True, text=True, check=True).stdout
        return shown.split()[-1].removeprefix("v")

    def serve(self, bench: Bench, data_dir: Path | None = None) -> AbstractContextManager[Target]:
        return bench.peer(*nats.COMMAND, data_dir=data_dir)

    def serve_synced(self, bench: Bench) -> AbstractContextManager[Target]:
        raise NotImplementedError

    def append(self, target: Target, per_request: int, in_flight: int, seconds: float, synced: bool) -> Sample:
        with socket.create_connection((target.host, target.port)) as sock:
            nats.create_stream(sock)
            begin = time.perf_counter()
            latencies_ms = sorted(nats.publish(sock, seconds, per_request * in_flight))
            took = time.perf_counter() - begin
        count = len(latencies_ms)
        return Sample(count, took, latencies_ms[count // 2], latencies_ms[int(count * 0.99)])

    def fill(self, target: Target, count: int) -> None:
        self._fill(target, count, "limits")

    def _fill(self, target: Target, count: int, retention: str) -> None:
        with socket.create_connection((target.host, target.port)) as sock:
            nats.create_stream(sock, retention)
            nats.publish(sock, 3600, FILL_IN_FLIGHT, count)

    def read(self, target: Target, seconds: float) -> Sample:
        begin, read = time.perf_counter(), 0
        with socket.create_connection((target.host, target.port)) as sock:
            sock.sendall(CONNECT + b"SUB inbox 1\r\n")
            turn = 0
            while time.perf_counter() < begin + seconds:
                turn += 1
                sock.sendall(b"SUB heard%d %d\r\n" % (turn, turn + 1))
                _subscribe(sock, f"heard{turn}", "all")
                read += _drain(sock, READ_RECORDS)
        return Sample(read, time.perf_counter() - begin)

    def fill_jobs(self, target: Target, count: int) -> None:
        self._fill(target, count, "workqueue")
        with socket.create_connection((target.host, target.port)) as sock:
            sock.sendall(CONNECT + b"SUB inbox 1\r\n")
            config = {"durable_name": "g", "ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": -1}
            nats.ask(sock, "CONSUMER.DURABLE.CREATE.bench.g", {"stream_name": "bench", "config": config})

    def line(self, target: Target, number: int) -> Line:
        return _Worker(target.host, target.port, number)

    def pair(self, target: Target) -> Pair:
        return _Pair(target.host, target.port)

    def holds(self, target: Target, count: int) -> bool:
        with socket.create_connection((target.host, target.port)) as sock:
            sock.sendall(CONNECT + b"SUB inbox 1\r\n")
            return b'"messages":%d,' % count in nats.ask(sock, "STREAM.INFO.bench")


def _subscribe(sock: socket.socket, subject: str, policy: str) -> None:
    """A push consumer without acks. What it answers is read with the first records."""
    config = {"deliver_subject": subject, "ack_policy": "none", "deliver_policy": policy}
    body = str({"stream_name": "bench", "config": config}).replace("'", '"').encode()
    sock.sendall(b"PUB $JS.API.CONSUMER.CREATE.bench inbox %d\r\n%b\r\n" % (len(body), body))


def _drain(sock: socket.socket, count: int) -> int:
    """Read until this many records have come."""
    seen, rest = 0, b""
    keep = len(records.DATA)
    while seen < count:
        data = rest + sock.recv(1 << 20)
        if b"PING\r\n" in data[-100:]:
            sock.sendall(b"PONG\r\n")
        seen += data.count(records.DATA)
        # A record that is cut may begin within the last bytes; one that was counted must not be counted again.
        end = data.rfind(records.DATA)
        rest = data[max(end + keep if end >= 0 else 0, len(data) - keep + 1) :]
    return seen


class _Worker(Line):
    def __init__(self, host: str, port: int, number: int) -> None:
        super().__init__(host, port)
        self._inbox = b"inbox.%d" % number
        self.sock.sendall(CONNECT + b"SUB %b 1\r\n" % self._inbox)
        body = b'{"batch":%d,"no_wait":true}' % CLAIM
        self._claim = b"PUB $JS.API.CONSUMER.MSG.NEXT.bench.g %b %d\r\n%b\r\n" % (self._inbox, len(body), body)
        self._held = 0

    def claim(self) -> None:
        self._held = 0
        self.sock.sendall(self._claim)

    def take(self) -> int:
        if b"PING\r\n" in self.buffer:
            self.buffer = self.buffer.replace(b"PING\r\n", b"")
            self.sock.sendall(b"PONG\r\n")
        if self._held:
            if self.buffer.count(b"MSG ") < self._held or not self.buffer.endswith(b"\r\n\r\n"):
                return 0
            done, self.buffer = self._held, b""
            self.claim()
            return done
        if b"NATS/1.0 404" in self.buffer:
            raise Dry
        if self.buffer.count(records.DATA + b"\r\n") < CLAIM:
            return 0
        replies = _REPLIES.findall(self.buffer)
        self.buffer, self._held = b"", len(replies)
        self.sock.sendall(b"".join(b"PUB %b %b 4\r\n+ACK\r\n" % (reply, self._inbox) for reply in replies))
        return 0


class _Pair(Pair):
    def __init__(self, host: str, port: int) -> None:
        self._writer = socket.create_connection((host, port))
        self._reader = socket.create_connection((host, port))
        for sock in (self._writer, self._reader):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nats.create_stream(self._writer)
        self._reader.sendall(CONNECT + b"SUB inbox 1\r\nSUB heard 2\r\n")
        config = {"deliver_subject": "heard", "ack_policy": "none", "deliver_policy": "new"}
        nats.ask(self._reader, "CONSUMER.CREATE.bench", {"stream_name": "bench", "config": config})
        self._request = b"PUB bench inbox %d\r\n%b\r\n" % (len(records.DATA), records.DATA)

    def write(self) -> None:
        self._writer.sendall(self._request)

    def hear(self) -> None:
        seen = b""
        while records.DATA + b"\r\n" not in seen:
            seen += self._reader.recv(65536)

    def settle(self) -> None:
        seen = b""
        while b'"seq":' not in seen:
            seen += self._writer.recv(65536)

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
