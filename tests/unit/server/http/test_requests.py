"""What one connection makes of the requests that arrive on it."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

from tests.harness.connection import Client, chunked, request, split_replies
from topics.server.http.known_heads import KNOWN_HEADS_MAX

POST = request("POST", "/a", b"abc")


def test_keep_alive_serves_one_request_after_another() -> None:
    client = Client()
    for body in (b"1", b"22", b"22", b"3", b""):
        client.send(request("POST", "/a", body))
        (reply,) = client.replies()
        assert (reply.status, reply.body) == (200, b"POST /a " + body)
        assert "connection" not in reply.headers
    assert not client.ended


def test_response_carries_type_length_and_date() -> None:
    client = Client()
    client.send(request("GET", "/a"))
    (reply,) = client.replies()
    assert reply.headers["content-type"] == "text/plain"
    assert reply.headers["content-length"] == "7"
    assert reply.headers["date"].endswith(" GMT")


def test_repeated_head_is_resolved_once_and_its_body_is_the_new_one() -> None:
    client = Client()
    for body in (b"abc", b"def", b"ghi"):
        client.send(request("POST", "/a", body))
    assert [reply.body for reply in client.replies()] == [b"POST /a abc", b"POST /a def", b"POST /a ghi"]
    assert client.app.resolved == ["/a"]


def test_alternating_heads_are_resolved_once_each() -> None:
    client = Client()
    for _ in range(3):
        client.send(request("POST", "/a", b"abc"), request("POST", "/b", b"defg"))
    assert len(client.replies()) == 6
    assert client.app.resolved == ["/a", "/b"]
    assert client.app.handled[-1] == ("POST", "/b", b"defg")


def test_kept_heads_are_bounded() -> None:
    client = Client()
    for number in range(1000):
        client.send(request("GET", f"/{number}"))
    assert len(client.replies()) == 1000
    assert len(client.connection._intake._heads) <= 8
    client.lose()
    assert not client.connection._intake._heads


def test_repeated_head_whose_body_comes_later_waits_for_it() -> None:
    client = Client()
    client.send(POST, POST[:-3])
    assert len(client.replies()) == 1
    client.send(b"x", b"yz")
    assert client.replies()[0].body == b"POST /a xyz"


def test_head_that_begins_like_the_last_one_is_another_head() -> None:
    client = Client()
    longer = POST[: -len(b"\r\n\r\nabc")] + b"0\r\n\r\n" + b"x" * 30
    client.send(POST, longer)
    assert [reply.body for reply in client.replies()] == [b"POST /a abc", b"POST /a " + b"x" * 30]


@pytest.mark.parametrize("target", ["/a b", "/a#b", "/\x7f", "/\xe9", "/%zz", "a"])
def test_bad_target_is_refused_also_where_the_fields_are_known(target: str) -> None:
    client = Client()
    client.send(request("GET", "/a"), request("GET", "/b"), request("GET", target))
    assert [reply.status for reply in client.replies()] == [200, 200, 400]


def test_known_fields_with_another_target_or_length_are_read_anew() -> None:
    client = Client(max_body_bytes=1000)
    for path, size in (("/a", 5), ("/a", 17), ("/b?c", 17), ("/missing", 3), ("/a", 5), ("/a", 1001), ("/a", 0)):
        client.send(request("POST", path, b"x" * size))
    assert [reply.status for reply in client.replies()] == [200, 200, 200, 404, 200, 413, 200]
    # What is refused is resolved once more, by what says why.
    assert client.app.resolved == ["/a", "/b", "/missing", "/missing", "/a", "/a"]
    assert [(path, len(body)) for _, path, body in client.app.handled] == [
        ("/a", 5),
        ("/a", 17),
        ("/b", 17),
        ("/a", 5),
        ("/a", 0),
    ]


def test_many_targets_are_all_served_and_few_of_them_kept() -> None:
    client = Client()
    paths = [f"/a{i}" for i in range(5 * KNOWN_HEADS_MAX)]
    for _ in range(2):
        for path in paths:
            client.send(request("POST", path, path.encode()))
    assert [reply.body for reply in client.replies()] == [f"POST {path} {path}".encode() for path in paths * 2]
    # In the first round each is new. In the second most are still, because most are not kept; some are known.
    again = len(client.app.resolved) - len(paths)
    assert len(paths) // 2 < again < len(paths)
    # Those that come again and again are known soon, whatever came before.
    for _ in range(20):
        client.send(*(request("POST", path, b"x") for path in paths[:3]))
    client.app.resolved.clear()
    client.send(*(request("POST", path, b"x") for path in paths[:3]))
    assert client.app.resolved == []


def test_refused_head_is_resolved_again_each_time() -> None:
    client = Client()
    client.send(request("GET", "/missing"), request("GET", "/missing"))
    assert [reply.status for reply in client.replies()] == [404, 404]
    assert client.app.resolved == ["/missing", "/missing"]
    assert not client.ended


def test_body_arrives_in_pieces() -> None:
    client = Client()
    client.send(*(POST[index : index + 1] for index in range(len(POST))))
    assert client.replies()[0].body == b"POST /a abc"


def test_chunked_body_is_joined_and_trailers_are_dropped() -> None:
    client = Client()
    client.send(chunked("/a", b"ab", b"c" * 20, trailer=b"X-Sum: 1\r\n") + request("GET", "/b"))
    assert [reply.body for reply in client.replies()] == [b"POST /a ab" + b"c" * 20, b"GET /b "]


def test_one_empty_line_before_a_request_is_ignored() -> None:
    """CONN-12, RFC 9112 §2.2."""
    client = Client()
    client.send(b"\r\n" + POST, b"\r\n", POST + b"\r", b"\n" + POST)
    assert [reply.status for reply in client.replies()] == [200, 200, 200]
    client.send(b"\r\n\r\n")
    assert client.replies()[0].status == 400


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v0/routers/a%3Eb", "/v0/routers/a>b"),
        ("/caf%C3%A9?x=%zz", "/café"),
        ("http://elsewhere:1/a?b", "/a"),
        ("http://elsewhere", "/"),
        ("HTTPS://elsewhere?q", "/"),
    ],
)
def test_target_is_decoded_and_absolute_form_is_taken(target: str, path: str) -> None:
    """CONN-12, RFC 9112 §3.2.2: a server accepts the absolute form."""
    client = Client()
    client.send(request("GET", target))
    assert client.replies()[0].status == 200
    assert client.app.handled == [("GET", path, b"")]


def test_query_is_kept_raw() -> None:
    client = Client()
    client.send(request("GET", "/wait?cursor=a%20b&c"))
    assert client.app.waiting[0].head.query == "cursor=a%20b&c"


def test_options_asterisk_reaches_the_app() -> None:
    client = Client()
    client.send(request("OPTIONS", "*"))
    assert client.app.handled == [("OPTIONS", "*", b"")]


def test_repeated_fields_are_joined_and_names_are_lower_case() -> None:
    client = Client()
    client.send(request("GET", "/wait", None, "X-Tag:  one \t", "x-tag: two"))
    assert client.app.waiting[0].head.headers[b"x-tag"] == b"one, two"


def test_head_request_gets_the_length_but_no_body() -> None:
    client = Client()
    client.send(request("HEAD", "/a"), request("HEAD", "/missing"))
    first, second = split_replies(client.received(), head_only=True)
    assert (first.status, first.headers["content-length"]) == (200, str(len("HEAD /a ")))
    assert (second.status, int(second.headers["content-length"]) > 50) == (404, True)


def test_http_1_0_closes_unless_it_asks_to_keep_alive() -> None:
    client = Client()
    client.send(b"GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
    (reply,) = client.replies()
    assert reply.headers["connection"] == "keep-alive"
    assert not client.ended
    client.send(b"GET /a HTTP/1.0\r\n\r\n")
    (reply,) = client.replies()
    assert reply.headers["connection"] == "close"
    assert client.ended


def test_connection_close_is_honoured_and_what_follows_is_not_read() -> None:
    client = Client()
    client.send(request("GET", "/a", None, "Connection: close, te") + request("GET", "/b"))
    (reply,) = client.replies()
    assert (reply.body, reply.headers["connection"]) == (b"GET /a ", "close")
    assert client.app.handled == [("GET", "/a", b"")]
    assert client.ended


def test_100_continue_is_sent_only_once_the_head_is_accepted() -> None:
    client = Client()
    head = request("POST", "/a", b"abc", "Expect: 100-continue")[:-3]
    client.send(head)
    assert client.received() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(b"abc")
    assert client.replies()[0].body == b"POST /a abc"
    client.send(head.replace(b"/a", b"/missing"))
    (reply,) = client.replies()
    assert (reply.status, reply.headers["connection"]) == (404, "close")


def test_100_continue_is_not_needed_when_the_body_is_there() -> None:
    client = Client()
    client.send(request("POST", "/a", b"abc", "Expect: 100-continue"))
    assert [reply.status for reply in client.replies()] == [200]


def test_100_continue_waits_for_the_answers_before_it() -> None:
    client = Client()
    client.send(request("GET", "/wait") + request("POST", "/a", b"abc", "Expect: 100-continue")[:-3])
    assert client.received() == b""
    client.app.waiting[0].respond(200, b"{}")
    assert [reply.status for reply in client.replies()] == [200, 100]
    client.send(b"abc")
    assert client.replies()[0].body == b"POST /a abc"


def test_other_expectations_are_417() -> None:
    client = Client()
    client.send(request("POST", "/a", b"abc", "Expect: miracles"))
    (reply,) = client.replies()
    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (417, "expectation_failed")


def test_gzip_body_is_inflated_and_kept_apart_from_the_plain_one() -> None:
    """HTTP-5."""
    client = Client()
    packed = gzip.compress(b"hello" * 100)
    for _ in range(2):
        client.send(request("POST", "/a", packed, "Content-Encoding: gzip"))
        assert client.replies()[0].body == b"POST /a " + b"hello" * 100


def test_gzip_body_of_several_members_is_one_body() -> None:
    """HTTP-5: what was compressed in pieces; an empty piece is one too."""
    client = Client()
    packed = b"".join(gzip.compress(piece) for piece in (b"hello ", b"", b"x" * 100_000, b" world"))
    client.send(request("POST", "/a", packed, "Content-Encoding: gzip"))
    assert client.replies()[0].body == b"POST /a hello " + b"x" * 100_000 + b" world"


def test_gzip_body_of_too_many_members_is_400() -> None:
    """HTTP-5: each costs a little."""
    client = Client()
    for members, status in ((256, 200), (257, 400)):
        client.send(request("POST", "/a", gzip.compress(b"a") * members, "Content-Encoding: gzip"))
        assert client.replies()[0].status == status


@pytest.mark.parametrize(
    "body",
    [
        b"not gzip",
        gzip.compress(b"abc", mtime=0)[:-4],
        gzip.compress(b"abc", mtime=0) + b"tail",
        gzip.compress(b"abc", mtime=0) + gzip.compress(b"abc", mtime=0)[:-4],
        zlib.compress(b"abc"),
    ],
)
def test_broken_gzip_body_is_400_and_the_connection_lives(body: bytes) -> None:
    client = Client()
    client.send(request("POST", "/a", body, "Content-Encoding: gzip") + POST)
    assert [reply.status for reply in client.replies()] == [400, 200]


def test_inflation_is_bounded_by_the_body_limit() -> None:
    client = Client(max_body_bytes=10_000)
    client.send(request("POST", "/a", gzip.compress(b"x" * 10_000), "Content-Encoding: gzip"))
    assert client.replies()[0].status == 200
    client.send(request("POST", "/a", gzip.compress(b"x" * 10_001), "Content-Encoding: gzip"))
    (reply,) = client.replies()
    assert (reply.status, json.loads(reply.body)["error"]["detail"]["max"]) == (413, 10_000)


def test_unknown_content_coding_is_415() -> None:
    client = Client()
    client.send(request("POST", "/a", b"abc", "Content-Encoding: br") + POST)
    assert [reply.status for reply in client.replies()] == [415, 200]


@pytest.mark.parametrize(
    ("accept", "packed"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("*;q=0", False),
        ("br", False),
        ("", False),
    ],
)
def test_large_answers_are_gzipped_when_the_client_takes_it(accept: str, packed: bool) -> None:
    """HTTP-6."""
    client = Client()
    client.send(request("GET", "/large?5000", None, f"Accept-Encoding: {accept}"))
    (reply,) = client.replies()
    assert (reply.headers.get("content-encoding") == "gzip") is packed
    assert (gzip.decompress(reply.body) if packed else reply.body) == b"x" * 5000
    client.send(request("GET", "/large?1000", None, f"Accept-Encoding: {accept}"))
    assert client.replies()[0].body == b"x" * 1000
