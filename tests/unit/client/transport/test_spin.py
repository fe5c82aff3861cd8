"""Looking for an answer before sleeping for it: while it pays, and one request at a time."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from itertools import pairwise
from time import monotonic, process_time_ns

import pytest

from topics.client.transport import blocking
from topics.client.transport.address import Address
from topics.client.transport.request import Request
from topics.client.transport.spin import SKIPPED_MAX, SPIN_NS, Spin
from topics.client.transport.waiting_connection import Connection as WaitingConnection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(autouse=True)
def several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where the server has a core of its own."""
    monkeypatch.setattr(Spin, "possible", True)


class Looks:
    """Counts the looks at an answer that comes with the one of number `there`, or never."""

    def __init__(self, there: int | None) -> None:
        self.there = there
        self.count = 0

    def __call__(self) -> bool:
        self.count += 1
        return self.count == self.there


def test_it_returns_with_the_look_that_finds_the_answer() -> None:
    """There is nothing to look for any more."""
    looks = Looks(3)
    Spin().until(looks)
    assert looks.count == 3
    assert not Spin.taken


def test_after_looks_in_vain_more_and_more_requests_do_not_look() -> None:
    """A server that takes longer costs a hundred microseconds now and then, not with each request."""
    spin = Spin()
    looked = []
    for i in range(2_000):
        looks = Looks(None)
        spin.until(looks)
        if looks.count:
            looked.append(i)
    gaps = [after - before - 1 for before, after in pairwise(looked)]
    assert gaps[:9] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert max(gaps) == SKIPPED_MAX


def test_an_answer_that_was_found_makes_the_next_requests_look() -> None:
    """The server is quick again."""
    spin = Spin()
    for there in (None, 1, 1):
        spin.until(Looks(there))
    for _ in range(3):
        looks = Looks(1)
        spin.until(looks)
        assert looks.count == 1


def test_one_request_of_a_process_looks_at_a_time() -> None:
    """Others that look would take the core from the one whose answer is there."""
    inner = Looks(1)

    def look() -> bool:
        Spin().until(inner)
        return True

    Spin().until(look)
    assert inner.count == 0


def test_nothing_is_looked_for_on_a_single_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server could not answer meanwhile."""
    monkeypatch.setattr(Spin, "possible", False)
    looks = Looks(1)
    Spin().until(looks)
    assert looks.count == 0


class SlowServer:
    """Answers the requests of one connection after the other, each only when it is let."""

    def __init__(self, listener: socket.socket) -> None:
        self.address = Address(f"http://127.0.0.1:{listener.getsockname()[1]}")
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self._listener = listener

    def serve(self) -> None:
        """Serve one connection."""
        with self._listener.accept()[0] as client:
            while client.recv(65536):
                self.asked.set()
                assert self.may_answer.wait(30)
                client.sendall(ANSWER)


@pytest.fixture
def slow_server() -> Iterator[SlowServer]:
    """A server that answers when it is let."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = SlowServer(listener)
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield server
        server.may_answer.set()
        thread.join(30)


def request() -> Request:
    """A request that has half a minute."""
    made = Request(b"GET", b"/v0/health")
    made.until = monotonic() + 30
    return made


def test_a_thread_sleeps_for_an_answer_that_takes_its_time(slow_server: SlowServer) -> None:
    """Looking ends after a moment, the answer arrives all the same, and the connection can be used again."""
    connection = blocking.Connection(slow_server.address, 30)

    def let_it_sleep() -> None:
        assert slow_server.asked.wait(30)
        begin = process_time_ns()
        while Spin.taken:
            # Both threads may be on the processor for as long as the look lasts, and no longer.
            assert process_time_ns() - begin < 1_000 * SPIN_NS
        slow_server.may_answer.set()

    helper = threading.Thread(target=let_it_sleep)
    helper.start()
    assert connection.exchange(request()).status == 200
    helper.join(30)
    assert connection.exchange(request()).status == 200
    connection.close()


async def _ask_slowly(server: SlowServer) -> None:
    connection = await WaitingConnection.connect(server.address, 30)
    asked = asyncio.ensure_future(connection.exchange(request()))
    async with asyncio.timeout(30):
        # Nothing tells when looking ends.
        while not server.asked.is_set() or Spin.taken:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert not asked.done()
    server.may_answer.set()
    assert (await asked).status == 200
    assert (await connection.exchange(request())).status == 200
    connection.close()


def test_a_loop_sleeps_for_an_answer_that_takes_its_time(slow_server: SlowServer) -> None:
    """As above, and other tasks go on meanwhile."""
    asyncio.run(_ask_slowly(slow_server))
    assert not Spin.taken
