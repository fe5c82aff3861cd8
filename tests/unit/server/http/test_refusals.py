"""What a connection refuses, how it says so, and that nothing after a doubtful request is read as another one."""

from __future__ import annotations

import json
import logging

import pytest

from tests.harness.connection import Client, chunked, request
from tests.harness.malformed import MALFORMED
from topics.server.http.connection import LINGER_MAX_BYTES
from topics.server.http.intake import SKIP_MAX_BYTES

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

UNREAD = request("POST", "/missing", b"x" * (SKIP_MAX_BYTES + 1))[:-1000]


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_is_400_with_an_envelope_and_ends_the_connection(name: str) -> None:
    """CONN-5: nothing after it is taken for a request."""
    client = Client()
    client.send(MALFORMED[name] + SMUGGLED)
    (reply,) = client.replies()
    envelope = json.loads(reply.body)
    assert (reply.status, envelope["error"]["code"]) == (400, "invalid_request")
    assert envelope["error"]["message"]
    assert envelope["performance"]["server_total_ms"] >= 0
    assert reply.headers["connection"] == "close"
    assert client.ended
    assert ("GET", "/smuggled", b"") not in client.app.handled


def test_good_requests_before_a_malformed_one_are_answered_first() -> None:
    client = Client()
    client.send(request("GET", "/wait") + request("GET", "/b") + MALFORMED["no host"])
    assert client.replies() == []
    client.app.waiting[0].respond(200, b"first")
    replies = client.replies()
    assert [reply.body for reply in replies[:2]] == [b"first", b"GET /b "]
    assert replies[2].status == 400
    assert client.ended


def test_get_with_a_body_does_not_leak_it_into_the_next_request() -> None:
    client = Client()
    client.send(request("GET", "/a", SMUGGLED) + request("GET", "/b"))
    assert [handled[:2] for handled in client.app.handled] == [("GET", "/a"), ("GET", "/b")]


def test_chunk_extensions_are_ignored_and_bounded() -> None:
    client = Client()
    client.send(chunked("/a", b"abc").replace(b"\r\n3\r\n", b'\r\n3;name="a value";x;y=z\r\n'))
    assert client.replies()[0].body == b"POST /a abc"
    client.send(chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n3;" + b"x" * 300 + b"\r\n"))
    assert client.replies()[0].status == 431


def test_leading_zeros_of_a_chunk_size_are_taken() -> None:
    client = Client()
    client.send(chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n0003\r\n"))
    assert client.replies()[0].body == b"POST /a abc"


def test_content_length_over_the_limit_is_413_before_the_body_is_read() -> None:
    """HTTP-18: 413 is decided before the body."""
    client = Client(max_body_bytes=100)
    client.send(request("POST", "/a", b"x" * 100))
    assert client.replies()[0].status == 200
    client.send(request("POST", "/a", b"x" * 101)[:-101])
    (reply,) = client.replies()
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"], error["detail"]) == (
        413,
        "payload_too_large",
        {"limit": "max_body_bytes", "max": 100},
    )
    assert len(client.app.handled) == 1


def test_chunked_body_over_the_limit_is_413_while_it_streams() -> None:
    client = Client(max_body_bytes=100)
    client.send(chunked("/a", b"x" * 60, b"y" * 40))
    assert client.replies()[0].status == 200
    head, _, _ = chunked("/a").partition(b"0\r\n")
    client.send(head + b"3c\r\n" + b"x" * 60 + b"\r\n")
    assert client.replies() == []
    client.send(b"29\r\n")
    (reply,) = client.replies()
    assert (reply.status, reply.headers["connection"]) == (413, "close")


def test_resolve_decides_before_the_length_of_the_body_does() -> None:
    client = Client(max_body_bytes=10)
    client.send(request("POST", "/secret", b"x" * 11))
    assert client.replies()[0].status == 401


def test_head_over_the_size_limit_is_431() -> None:
    line = "X-Pad: " + "x" * 500
    for reads in (1, 7):
        client = Client(max_header_bytes=2000)
        data = request("GET", "/a", None, *[line] * 3)
        client.send(data + b"")
        assert client.replies()[0].status == 200
        data = request("GET", "/a", None, *[line] * 4)
        client.send(*(data[at : at + len(data) // reads] for at in range(0, len(data), len(data) // reads)))
        (reply,) = client.replies()
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["code"]) == (431, "head_too_large")
        assert error["detail"] == {"limit": "max_header_bytes", "max": 2000}
        assert client.ended


def test_head_that_never_ends_is_431_without_waiting_for_its_end() -> None:
    client = Client(max_header_bytes=1000)
    client.send(b"GET /" + b"a" * 994)
    assert client.replies() == []
    client.send(b"a")
    assert client.replies()[0].status == 431


def test_too_many_fields_are_431() -> None:
    client = Client(max_headers=20)
    client.send(request("GET", "/a", None, *[f"X-{number}: 1" for number in range(19)]))
    assert client.replies()[0].status == 200
    client.send(request("GET", "/a", None, *[f"X-{number}: 1" for number in range(20)]))
    (reply,) = client.replies()
    assert (reply.status, json.loads(reply.body)["error"]["detail"]) == (431, {"limit": "max_headers", "max": 20})


def test_too_many_trailers_are_431() -> None:
    client = Client(max_header_bytes=1000)
    client.send(chunked("/a", b"abc", trailer=b"X: " + b"y" * 500 + b"\r\n"))
    assert client.replies()[0].status == 200
    client.send(chunked("/a", b"abc", trailer=(b"X: " + b"y" * 500 + b"\r\n") * 2))
    assert client.replies()[0].status == 431


@pytest.mark.parametrize(
    ("path", "status", "name", "value"),
    [
        ("/secret", 401, "www-authenticate", "Bearer"),
        ("/readonly", 405, "allow", "GET, HEAD"),
        ("/busy", 429, "retry-after", "2"),
    ],
)
def test_errors_carry_the_header_of_their_status(path: str, status: int, name: str, value: str) -> None:
    """HTTP-19, HTTP-17."""
    client = Client()
    client.send(request("GET", path))
    (reply,) = client.replies()
    assert (reply.status, reply.headers[name]) == (status, value)


def test_throttle_says_when_to_retry_in_the_detail_too() -> None:
    """HTTP-19."""
    client = Client()
    client.send(request("GET", "/busy"))
    assert json.loads(client.replies()[0].body)["error"]["detail"] == {
        "limit": "max_topics",
        "max": 2,
        "retry_after_ms": 1500,
    }


def test_error_raised_by_the_handler_is_the_answer() -> None:
    client = Client()
    client.send(request("POST", "/full", b"abc"), request("POST", "/full", b"abc"))
    replies = client.replies()
    assert [reply.status for reply in replies] == [429, 429]
    assert replies[0].headers["retry-after"] == "1"


@pytest.mark.parametrize("path", ["/resolve-bug", "/handle-bug"])
def test_a_defect_is_logged_and_answered_500_without_a_traceback(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """HTTP-20."""
    client = Client()
    with caplog.at_level(logging.ERROR, "topics.server"):
        client.send(request("GET", path), request("GET", path))
    first, second = client.replies()
    assert (first.status, second.status) == (500, 500)
    assert json.loads(first.body)["error"]["code"] == "internal"
    assert b"ZeroDivision" not in first.body + second.body
    assert "ZeroDivisionError" in caplog.text
    assert not client.ended


def test_small_body_of_a_refused_request_is_read_past() -> None:
    client = Client()
    data = request("POST", "/missing", SMUGGLED + b"x" * (SKIP_MAX_BYTES - len(SMUGGLED)))
    client.send(data[:1000])
    assert client.replies()[0].status == 404
    client.send(data[1000:] + request("GET", "/b"))
    assert client.replies()[0].body == b"GET /b "
    assert client.app.handled == [("GET", "/b", b"")]


@pytest.mark.parametrize(
    "data",
    [request("POST", "/missing", b"x" * (SKIP_MAX_BYTES + 1)), chunked("/missing", b"abc")],
    ids=["long", "chunked"],
)
def test_other_body_of_a_refused_request_ends_the_connection(data: bytes) -> None:
    client = Client()
    client.send(data + SMUGGLED)
    (reply,) = client.replies()
    assert (reply.status, reply.headers["connection"]) == (404, "close")
    assert client.app.handled == []


def test_after_a_refusal_the_rest_is_thrown_away_for_a_while_and_not_reset_at_once() -> None:
    client = Client()
    client.send(UNREAD)
    transport = client.transport
    assert (transport.eof_sent, transport.closing) == (True, False)
    client.send(b"x" * LINGER_MAX_BYTES)
    assert not transport.closing
    client.send(b"x")
    assert transport.aborted


def test_lingering_ends_with_the_clients_end() -> None:
    client = Client()
    client.send(UNREAD)
    client.send_eof()
    assert client.transport.closing
    assert not client.transport.aborted


def test_lingering_ends_in_time() -> None:
    client = Client()
    client.send(UNREAD)
    client.connections.sweep(1.0)
    assert not client.transport.closing
    client.connections.sweep(4.0)
    assert client.transport.aborted


def test_answering_twice_is_a_defect() -> None:
    client = Client()
    client.send(request("GET", "/wait"))
    exchange = client.app.waiting[0]
    exchange.respond(200, b"{}")
    with pytest.raises(RuntimeError, match="already answered"):
        exchange.respond(200, b"{}")
    assert len(client.replies()) == 1
