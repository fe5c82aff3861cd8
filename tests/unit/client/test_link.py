"""What a command does when the server does not answer as it should: retry what may be retried, and report the rest."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from topics.client import calling
from topics.client.link import Link, Refused, ServerError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 52\r\n\r\n"
    b'{"error":{"code":"shutting_down","message":"later"}}'
)
FOREIGN = b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>"


@contextmanager
def answering(*connections: list[bytes]) -> Iterator[str]:
    """A server that answers each connection with these replies, a request each, and then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)

    def serve() -> None:
        for replies in connections:
            accepted, _ = listener.accept()
            with accepted:
                for reply in replies:
                    accepted.recv(65_536)
                    accepted.sendall(reply)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join()
        listener.close()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "PAUSE_FIRST_S", 0.001)


def test_a_server_that_restarts_is_waited_for() -> None:
    with answering([], [BUSY], [OK]) as url, Link(url, None) as client:
        assert client.call("GET", "/", patience_s=10) == b"{}"


def test_without_patience_the_first_failure_is_reported() -> None:
    with answering([]) as url, pytest.raises(ServerError, match="cannot reach"):
        Link(url, None).call("GET", "/")
    with answering([BUSY]) as url, Link(url, None) as client, pytest.raises(Refused) as refused:
        client.call("GET", "/")
    assert str(refused.value) == "later (503 shutting_down)"


def test_a_connection_that_was_closed_while_it_rested_is_opened_again() -> None:
    with answering([OK], [OK]) as url, Link(url, None) as client:
        assert client.call("GET", "/") == client.call("GET", "/") == b"{}"


def test_an_answer_of_something_else_is_reported_as_such() -> None:
    with (
        answering([FOREIGN]) as url,
        Link(url, None) as client,
        pytest.raises(Refused, match="404 and is not from"),
    ):
        client.call("GET", "/", patience_s=10)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:4000", "ftp://x", "http://", "http://h:0", "http://h:x", "http://h:99999"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ServerError, match=r"it must be like http://127\.0\.0\.1:4000"):
        Link(url, None)


def test_a_key_that_could_not_be_one_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ServerError, match="printable ASCII") as refused:
        Link("http://127.0.0.1:1", "se\ncret")
    assert "se" not in str(refused.value).split()
