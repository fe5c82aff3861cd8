"""The connection layer on uvloop and real sockets: what only a kernel can show."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import os
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest
import uvloop

from tests.harness.api import Reply
from tests.harness.connection import PathApp, request, split_replies
from topics.server.http.account import Account
from topics.server.http.connection import Connection
from topics.server.http.connections import Connections
from topics.server.http.http2 import Http2
from topics.server.http.limits import ConnectionLimits
from topics.server.http.traffic import Traffic
from topics.server.http.turns import Turns
from topics.testing import ServerProcess

DEADLINE_S = 40.0


class Listening:
    """A loop in a thread of its own that serves a PathApp; ask it things with `call`."""

    def __init__(self, app: PathApp, loop: asyncio.AbstractEventLoop, connections: Connections, port: int) -> None:
        self.app = app
        self.loop = loop
        self.connections = connections
        self.port = port

    def call(self, function: Callable[[], Any]) -> Any:
        """What `function` returns on the loop's thread."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE_S)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Poll on the loop's thread until the condition holds."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := self.call(condition)):
            assert time.monotonic() < deadline, "the condition never came true"
            time.sleep(0.002)
        return found

    @contextmanager
    def client(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S) as sock:
            yield sock


@contextmanager
def serving(**limits: int) -> Iterator[Listening]:
    app = PathApp()
    loop = uvloop.new_event_loop()
    connections = Connections(
        app, loop, ConnectionLimits(**limits), Turns(loop, perf_counter_ns), Account(), Http2, Traffic()
    )

    async def start() -> asyncio.Server:
        connections.start()
        return await loop.create_server(lambda: Connection(connections), "127.0.0.1", 0)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        await connections.drain(0.2)
        connections.stop()

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(DEADLINE_S)
        yield Listening(app, loop, connections, server.sockets[0].getsockname()[1])
        asyncio.run_coroutine_threadsafe(stop(server), loop).result(DEADLINE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()


@pytest.fixture
def listening() -> Iterator[Listening]:
    with serving() as running:
        yield running


def read_all(sock: socket.socket) -> bytes:
    """Everything up to the peer's end; a reset fails the test."""
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def read_reply(sock: socket.socket) -> Reply:
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(1 << 16)
        assert part, "closed before an answer"
        data += part
    head = data.partition(b"\r\n\r\n")[0].lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(data) < len(head) + 4 + length:
        data += sock.recv(1 << 16)
    return split_replies(data)[0]


def test_keep_alive_and_pipelining_over_a_socket(listening: Listening) -> None:
    with listening.client() as sock:
        for body in (b"one", b"two"):
            sock.sendall(request("POST", "/a", body))
            assert read_reply(sock).body == b"POST /a " + body
        sock.sendall(request("GET", "/b") * 99 + request("GET", "/c", None, "Connection: close"))
        replies = split_replies(read_all(sock))
    assert [reply.body for reply in replies] == [b"GET /b "] * 99 + [b"GET /c "]


def test_nagle_is_off(listening: Listening) -> None:
    """CONN-14."""
    with listening.client():
        connection = listening.until(lambda: next(iter(listening.connections.live), None))
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_body_of_many_reads_arrives_whole(listening: Listening) -> None:
    body = os.urandom(5_000_000)
    with listening.client() as sock:
        sock.sendall(request("POST", "/a", body))
        assert read_reply(sock).body == b"POST /a " + body


def test_refusal_is_readable_although_the_client_is_still_sending() -> None:
    """A close with unread input would reset the connection and destroy the answer."""
    with serving(max_body_bytes=100_000) as listening, listening.client() as sock:
        sock.sendall(request("POST", "/a", b"x" * 3_000_000))
        (reply,) = split_replies(read_all(sock))
        assert (reply.status, reply.headers["connection"]) == (413, "close")


def test_malformed_request_is_answered_and_closed(listening: Listening) -> None:
    with listening.client() as sock:
        sock.sendall(b"GET /a HTTP/1.1\nHost: x\n\n" + b"x" * 100_000)
        (reply,) = split_replies(read_all(sock))
        assert reply.status == 400


def test_half_closed_client_is_answered(listening: Listening) -> None:
    with listening.client() as sock:
        sock.sendall(request("GET", "/wait"))
        exchange = listening.until(lambda: next(iter(listening.app.waiting), None))
        sock.shutdown(socket.SHUT_WR)
        listening.until(lambda: exchange.closes)
        listening.call(lambda: exchange.respond(200, b"answer"))
        (reply,) = split_replies(read_all(sock))
        assert reply.body == b"answer"


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "reset"])
def test_client_that_leaves_while_its_request_waits_is_noticed(listening: Listening, reset: bool) -> None:
    with listening.client() as sock:
        sock.sendall(request("GET", "/wait-watching"))
        listening.until(lambda: listening.app.waiting)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    listening.until(lambda: listening.app.left == ["/wait-watching"])
    listening.until(lambda: len(listening.connections) == 0)
    assert listening.app.over == ["/wait-watching"]


def test_client_that_does_not_read_stops_being_read_and_is_cut_off() -> None:
    with serving(write_timeout_ms=3_600_000) as listening, listening.client() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.sendall(request("GET", "/large?100000") * 500_000)
        (connection,) = listening.connections.live
        assert listening.call(lambda: connection.outbox.write_paused)
        unsent = listening.call(lambda: connection.outbox.unsent_bytes)
        assert unsent < 1_000_000
        assert len(listening.app.handled) * 100_000 < 20_000_000
        listening.call(lambda: listening.connections.sweep(listening.loop.time() + 4_000))
        listening.until(lambda: len(listening.connections) == 0)


def test_client_that_reads_late_gets_every_answer_in_order(listening: Listening) -> None:
    with listening.client() as sock:
        requests = b"".join(request("GET", f"/large?{100_000 + number}") for number in range(100))
        sock.sendall(requests + request("GET", "/a", None, "Connection: close"))
        listening.until(lambda: any(each.outbox.write_paused for each in listening.connections.live))
        replies = split_replies(read_all(sock))
    assert [len(reply.body) for reply in replies[:-1]] == list(range(100_000, 100_100))
    assert replies[-1].body == b"GET /a "


def test_closing_is_bounded_for_a_client_that_never_reads() -> None:
    with serving(write_timeout_ms=3_600_000) as listening, listening.client() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(request("GET", "/large?30000000", None, "Connection: close"))
        listening.until(lambda: listening.app.handled)
        assert len(listening.connections) == 1
        listening.call(lambda: next(iter(listening.connections.live)).close())
        assert len(listening.connections) == 1
        listening.call(lambda: listening.connections.sweep(listening.loop.time() + 4_000))
        listening.until(lambda: len(listening.connections) == 0)


def test_silent_and_slow_clients_are_ended() -> None:
    limits = {"idle_timeout_ms": 3_600_000, "header_timeout_ms": 1_800_000}
    with serving(**limits) as listening, listening.client() as idle, listening.client() as slow:
        slow.sendall(b"GET /a HT")
        listening.until(lambda: len(listening.connections) == 2)
        listening.until(lambda: any(not each.idle for each in listening.connections.live))
        listening.call(lambda: listening.connections.sweep(listening.loop.time() + 2_000))
        (reply,) = split_replies(read_all(slow))
        assert reply.status == 408
        listening.call(lambda: listening.connections.sweep(listening.loop.time() + 4_000))
        assert read_all(idle) == b""


def test_connection_over_the_cap_reads_429_even_if_it_has_sent_a_request() -> None:
    """CONN-15."""
    with serving(max_connections=1) as listening:
        with listening.client() as first:
            first.sendall(request("GET", "/a"))
            assert read_reply(first).status == 200
            with listening.client() as second:
                second.sendall(request("POST", "/a", b"x" * 50_000))
                (reply,) = split_replies(read_all(second))
                assert reply.status == 429
        listening.until(lambda: not listening.connections.live)
        with listening.client() as third:
            third.sendall(request("GET", "/a"))
            assert read_reply(third).status == 200


def test_connects_and_disconnects_leave_nothing_open(listening: Listening) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def visit(number: int) -> None:
        with listening.client() as sock:
            sock.sendall(
                (b"", b"GET /a", request("GET", "/a"), request("GET", "/wait-watching"), b"\0", b"\r\n")[number % 6]
            )

    visit(0)
    listening.until(lambda: not listening.connections.live)
    before = descriptors()
    for number in range(600):
        visit(number)
    # The loop closes a descriptor a moment after it has reported that the connection is lost.
    listening.until(lambda: not listening.connections.live and descriptors() <= before)


def test_stream_reaches_the_client_and_its_leaving_is_noticed(listening: Listening) -> None:
    closed = threading.Event()
    with listening.client() as sock:
        sock.sendall(request("GET", "/stream"))
        stream = listening.until(lambda: next(iter(listening.app.streams), None))
        stream.on_close = closed.set
        listening.call(lambda: stream.write(b"data: 1\n\n"))
        data = b""
        while not data.endswith(b"data: 1\n\n"):
            data += sock.recv(4096)
    assert closed.wait(DEADLINE_S)


def test_drain_ends_everything(listening: Listening) -> None:
    with listening.client() as idle, listening.client() as busy:
        busy.sendall(request("GET", "/wait"))
        exchange = listening.until(lambda: next(iter(listening.app.waiting), None))
        listening.until(lambda: len(listening.connections) == 2)
        draining = asyncio.run_coroutine_threadsafe(listening.connections.drain(DEADLINE_S), listening.loop)
        listening.call(lambda: exchange.respond(200, b"last"))
        (reply,) = split_replies(read_all(busy))
        assert (reply.body, reply.headers["connection"]) == (b"last", "close")
        busy.close()
        assert read_all(idle) == b""
        assert draining.result(DEADLINE_S) is True


def test_python_http_client(listening: Listening) -> None:
    client = http.client.HTTPConnection("127.0.0.1", listening.port, timeout=DEADLINE_S)
    for body in (b"abc", iter([b"a", b"b" * 100_000])):
        client.request("POST", "/a", body=body)
        response = client.getresponse()
        assert (response.status, response.read()[:9]) == (200, b"POST /a a")
    client.request("HEAD", "/a")
    assert client.getresponse().read() == b""
    for size in (9_999, 999_999):
        client.request("GET", f"/large?{size}", headers={"Accept-Encoding": "gzip"})
        assert gzip.decompress(client.getresponse().read()) == b"x" * size
    client.close()


def test_large_answers_are_packed_beside_the_loop_and_stay_in_order(listening: Listening) -> None:
    packed = request("GET", "/large?2000000", None, "Accept-Encoding: gzip")
    with listening.client() as sock:
        sock.sendall(packed + request("GET", "/b") + packed + request("GET", "/c", None, "Connection: close"))
        replies = split_replies(read_all(sock))
    assert [reply.headers.get("content-encoding") for reply in replies] == ["gzip", None, "gzip", None]
    assert (replies[1].body, replies[3].body) == (b"GET /b ", b"GET /c ")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--http1.0"], b"POST /a abc"),
        (["--http2-prior-knowledge"], b"POST /a abc"),
        (["--http2-prior-knowledge", "-H", "Expect: 100-continue", "--expect100-timeout", "60"], b"POST /a abc"),
        (["-H", "Expect: 100-continue", "--expect100-timeout", "60"], b"POST /a abc"),
        (["-H", "Transfer-Encoding: chunked"], b"POST /a abc"),
        (["-H", "Transfer-Encoding: chunked", "-H", "Expect: 100-continue"], b"POST /a abc"),
    ],
)
def test_curl(listening: Listening, arguments: list[str], output: bytes) -> None:
    url = f"http://127.0.0.1:{listening.port}/a"
    command = ["curl", "-sS", "--max-time", "60", *arguments, "--data-binary", "abc", url]
    assert subprocess.run(command, capture_output=True, check=True, timeout=90).stdout == output


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_over_http2_uploads_and_downloads_much(listening: Listening, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(os.urandom(3_000_000))
    url = f"http://127.0.0.1:{listening.port}/a"
    command = ["curl", "-sS", "--max-time", "60", "--http2-prior-knowledge", "-w", "%{http_version} %{http_code}"]
    result = subprocess.run(
        [*command, "--data-binary", f"@{tmp_path / 'body'}", url, "-o", tmp_path / "out"],
        capture_output=True,
        check=True,
        timeout=90,
    )
    assert result.stdout == b"2 200"
    assert (tmp_path / "out").read_bytes() == b"POST /a " + (tmp_path / "body").read_bytes()


def test_a_server_has_room_for_its_connections_before_they_come(server: ServerProcess) -> None:
    """FAIR-1: `max_connections` is 20,000, or what the limit of open files leaves of it."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 8_000 if hard == resource.RLIM_INFINITY else min(8_000, hard)
    assert int(status.partition("FDSize:")[2].split()[0]) >= wanted
