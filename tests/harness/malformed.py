"""Requests that break the rules of HTTP/1.1, by what is wrong with them. Each is answered with 400."""

from __future__ import annotations

from typing import Final

from tests.harness.connection import chunked


def post(*lines: bytes, body: bytes = b"") -> bytes:
    """A POST with these header lines."""
    return b"POST /a HTTP/1.1\r\nHost: x\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


MALFORMED: Final = {
    "content-length and transfer-encoding": post(
        b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "transfer-encoding and content-length": post(
        b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n"
    ),
    "two differing lengths": post(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"),
    "two equal lengths": post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
    "list of lengths": post(b"Content-Length: 3, 3", body=b"abc"),
    "signed length": post(b"Content-Length: +3", body=b"abc"),
    "negative length": post(b"Content-Length: -3", body=b"abc"),
    "hexadecimal length": post(b"Content-Length: 0x3", body=b"abc"),
    "underscore in length": post(b"Content-Length: 1_0", body=b"abcdefghij"),
    "empty length": post(b"Content-Length:"),
    "overflowing length": post(b"Content-Length: 18446744073709551619", body=b"abc"),
    "space before colon": post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
    "tab before colon": post(b"Content-Length\t: 3", body=b"abc"),
    "other transfer coding": post(b"Transfer-Encoding: gzip", body=b"abc"),
    "list of transfer codings": post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "two transfer-encodings": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=b"0\r\n\r\n"),
    "misspelt chunked": post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
    "quoted chunked": post(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"),
    "vertical tab before chunked": post(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "transfer-encoding on 1.0": post(b"Transfer-Encoding: chunked", body=b"0\r\n\r\n").replace(b"/1.1", b"/1.0"),
    "folded field": post(b"X-A: b\r\n c"),
    "folded first field": b"GET /a HTTP/1.1\r\n Host: x\r\n\r\n",
    "field without colon": post(b"nonsense"),
    "field without name": post(b": x"),
    "bare LF lines": b"GET /a HTTP/1.1\nHost: x\n\n",
    "one bare LF": b"GET /a HTTP/1.1\r\nHost: x\nX-A: b\r\n\r\n",
    "bare CR": b"GET /a HTTP/1.1\r\nHost: x\rX-A: b\r\n\r\n",
    "NUL in value": post(b"X-A: b\x00c"),
    "NUL in name": post(b"X\x00A: b"),
    "DEL in value": post(b"X-A: b\x7fc"),
    "no host": b"GET /a HTTP/1.1\r\n\r\n",
    "two hosts": post(b"Host: y"),
    "bad host": b"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n",
    "two authorizations": post(b"Authorization: Bearer a", b"Authorization: Bearer b"),
    "unknown method": b"FETCH /a HTTP/1.1\r\nHost: x\r\n\r\n",
    "lower-case method": b"get /a HTTP/1.1\r\nHost: x\r\n\r\n",
    "version 1.2": b"GET /a HTTP/1.2\r\nHost: x\r\n\r\n",
    "version 2.0": b"GET /a HTTP/2.0\r\nHost: x\r\n\r\n",
    "version 0.9": b"GET /a\r\n\r\n",
    "other protocol": b"DESCRIBE /a RTSP/1.0\r\nHost: x\r\n\r\n",
    "two spaces": b"GET  /a HTTP/1.1\r\nHost: x\r\n\r\n",
    "space after version": b"GET /a HTTP/1.1 \r\nHost: x\r\n\r\n",
    "space in target": b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    "raw byte in target": b"GET /\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
    "fragment in target": b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n",
    "bad escape": b"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
    "escape cut short": b"GET /a%2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "escaped slash": b"GET /v0/topics/a%2Fdiff HTTP/1.1\r\nHost: x\r\n\r\n",
    "escaped NUL": b"GET /a%00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "escapes not UTF-8": b"GET /%ff HTTP/1.1\r\nHost: x\r\n\r\n",
    "relative target": b"GET a HTTP/1.1\r\nHost: x\r\n\r\n",
    "asterisk without OPTIONS": b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT topics.test:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "upgrade with a body": post(
        b"Connection: upgrade", b"Upgrade: websocket", b"Content-Length: 3", body=b"abc"
    ).replace(b"POST", b"GET", 1),
    "letters as chunk size": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\nxyz\r\n"),
    "signed chunk size": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n+3\r\n"),
    "prefixed chunk size": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n0x3\r\n"),
    "empty chunk size": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n\r\n"),
    "space before chunk size": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n 3\r\n"),
    "space after chunk size": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n3 \r\n"),
    "NUL in chunk extension": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n3;a=\x00\r\n"),
    "bare LF after chunk size": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n3\n"),
    "malformed chunk extension": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n3 ; a\r\n"),
    "bare LF in chunk extension": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n3;a\nb\r\n"),
    "overflowing chunk size": chunked("/a", b"abc").replace(b"\r\n3\r\n", b"\r\n" + b"f" * 17 + b"\r\n"),
    "chunk longer than its size": chunked("/a", b"abc").replace(b"abc", b"abcd"),
    "chunk shorter than its size": chunked("/a", b"abc").replace(b"abc", b"ab"),
    "chunk without its end": chunked("/a", b"abc").replace(b"abc\r\n", b"abc"),
    "malformed trailer": chunked("/a", b"abc", trailer=b"no colon\r\n"),
    "folded trailer": chunked("/a", b"abc", trailer=b"X: a\r\n b\r\n"),
}
