"""What a client makes of the bytes that a server, a proxy or something else sends."""

from __future__ import annotations

import pytest

from topics.client.transport import answer as answers
from topics.client.transport.answer import AnswerParser, Malformed

PLAIN = b'HTTP/1.1 200 OK\r\nDate: now\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}'
CHUNKED = (
    b'HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n5;x=y\r\n": 1}\r\n0\r\nTrailer: t\r\n\r\n'
)
INTERIM = b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" + PLAIN
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
ZERO = b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def split_everywhere(data: bytes) -> list[list[bytes]]:
    """The bytes whole, cut in two at every place, and one by one."""
    cut = [[data[:at], data[at:]] for at in range(1, len(data))]
    return [[data], *cut, [bytes((byte,)) for byte in data]]


@pytest.mark.parametrize(
    ("data", "status", "body", "keep_alive"),
    [
        (PLAIN, 200, b'{"a": 1}', True),
        (CHUNKED, 201, b'{"a": 1}', True),
        (INTERIM, 200, b'{"a": 1}', True),
        (EMPTY, 204, b"", True),
        (ZERO, 503, b"", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, b"{}", False),
    ],
)
def test_an_answer_is_the_same_wherever_its_bytes_are_cut(
    data: bytes, status: int, body: bytes, keep_alive: bool
) -> None:
    """CLIENT-1."""
    for pieces in split_everywhere(data):
        parser = AnswerParser()
        parser.expect()
        for i, piece in enumerate(pieces):
            assert not parser.complete, (pieces, i)
            parser.feed(piece)
        assert parser.complete, pieces
        found = parser.answer()
        assert (found.status, found.body, parser.keep_alive, parser.surplus) == (status, body, keep_alive, False)


def test_the_short_way_and_the_parser_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLIENT-1: an answer that is taken whole is the one that the parser would have found."""

    def read(data: bytes) -> tuple[object, ...]:
        parser = AnswerParser()
        parser.expect()
        try:
            parser.feed(memoryview(data))
        except Malformed:
            return ("malformed",)
        found = parser.answer()
        kind = found.headers.get(b"content-type")
        return found.status, found.body, kind, parser.complete, parser.keep_alive, parser.surplus

    variants = [
        PLAIN,
        PLAIN.replace(b"200 OK", b"404 Not Found"),
        PLAIN.replace(b"200 OK", b"204 No Content"),
        PLAIN.replace(b": 8", b": 7"),
        PLAIN.replace(b": 8", b": 9"),
        PLAIN.replace(b": 8", b": 08"),
        PLAIN.replace(b": 8", b": 8, 8"),
        PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        PLAIN.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
        PLAIN.replace(b"Date: now\r\n", b""),
        PLAIN.replace(b"now", b"now\nX: y"),
        PLAIN + PLAIN,
    ]
    short = [read(data) for data in variants]
    assert short[0] == (200, b'{"a": 1}', b"application/json", True, True, False)
    monkeypatch.setattr(AnswerParser, "_is_plain", lambda *_: False)
    assert [read(data) for data in variants] == short


def test_one_connection_gives_one_answer_after_the_other() -> None:
    parser = AnswerParser()
    for data in (PLAIN, CHUNKED, ZERO.replace(b"Connection: close\r\n", b""), PLAIN):
        parser.expect()
        parser.feed(data)
        assert parser.complete
    assert parser.answer().body == b'{"a": 1}'
    assert parser.answer().headers[b"content-type"] == b"application/json"


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    parser = AnswerParser()
    parser.expect()
    parser.feed(b"HTTP/1.1 502 Bad Gateway\r\nServer: proxy\r\n\r\n<html>")
    parser.feed(b"</html>")
    assert not parser.complete
    parser.eof()
    assert parser.complete
    assert parser.answer().body == b"<html></html>"
    assert not parser.keep_alive


@pytest.mark.parametrize("at", [0, 5, 30, len(PLAIN) - 1])
def test_a_connection_that_ends_within_an_answer_gives_none(at: int) -> None:
    """CLIENT-1: half an answer is no answer."""
    parser = AnswerParser()
    parser.expect()
    if at:
        parser.feed(PLAIN[:at])
    assert parser.started == bool(at)
    with pytest.raises(EOFError):
        parser.eof()


@pytest.mark.parametrize("extra", [b"x", PLAIN, b"\r\nHTTP/1.1 200 OK\r\n"])
def test_what_nobody_asked_for_makes_a_connection_unusable(extra: bytes) -> None:
    """CLIENT-1: no answer is taken for that of another request."""
    for together in (True, False):
        parser = AnswerParser()
        parser.expect()
        try:
            parser.feed(PLAIN + extra if together else PLAIN)
            if not together:
                parser.feed(extra)
        except Malformed:
            continue
        assert parser.complete
        assert parser.answer().body == b'{"a": 1}'
        assert parser.surplus


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\x00\x01\x00\x00",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    """CLIENT-1."""
    parser = AnswerParser()
    parser.expect()
    with pytest.raises(Malformed):
        parser.feed(data)


def test_an_answer_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "BODY_BYTES_MAX", 100)
    parser = AnswerParser()
    parser.expect()
    parser.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with pytest.raises(Malformed, match="larger than 100 bytes"):
        parser.feed(b"65\r\n" + b"x" * 101 + b"\r\n")
    stream = AnswerParser()
    stream.expect()
    stream.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(5):
        stream.feed(b"32\r\n" + b"x" * 50 + b"\r\n")
        assert stream.take_body() == b"x" * 50
