"""Addresses, keys, proxies."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.client.errors import BadAddress
from topics.client.transport.address import Address
from topics.client.transport.request import Request, path


def head(address: Address) -> bytes:
    return Request(b"GET", path("v0", "topics", "a b/ü")).encode(address)


def test_a_request_names_its_host_key_and_quoted_path() -> None:
    sent = head(Address("http://h.example/base/", token="k"))
    assert sent == (
        b"GET /base/v0/topics/a%20b%2F%C3%BC HTTP/1.1\r\nHost: h.example:80\r\nUser-Agent: topics-python\r\n"
        b"Accept-Encoding: identity\r\nAuthorization: Bearer k\r\n\r\n"
    )
    posted = Request(b"POST", b"/x", b"{}").encode(Address("http://[::1]:4000"))
    assert b"\r\nHost: [::1]:4000\r\n" in posted
    assert posted.endswith(b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")


def test_plain_http_is_relayed_in_absolute_form_and_tls_through_a_tunnel() -> None:
    """CLIENT-4: the proxy sees the key only where there is no TLS anyway."""
    relayed = Address("http://h:4000/b", token="k", proxy="http://us%40er:pa@proxy:3128")
    assert relayed.peer == ("proxy", 3128)
    assert relayed.tunnel is None
    assert head(relayed).startswith(b"GET http://h:4000/b/v0/")
    assert b"Proxy-Authorization: Basic dXNAZXI6cGE=\r\n" in head(relayed)
    tunnelled = Address("https://h", token="k", proxy="proxy:3128")
    assert tunnelled.tunnel == b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n"
    assert head(tunnelled).startswith(b"GET /v0/")
    assert b"Proxy-Authorization" not in head(tunnelled)


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("http://h", {"HTTP_PROXY": "http://p:1"}, ("p", 1)),
        ("http://h", {"http_proxy": "p:2", "HTTP_PROXY": "http://p:1"}, ("p", 2)),
        ("https://h", {"HTTP_PROXY": "http://p:1"}, ("h", 443)),
        ("https://h", {"HTTPS_PROXY": "http://p:1"}, ("p", 1)),
        ("http://h.in.example", {"HTTP_PROXY": "p:1", "NO_PROXY": "other, .in.example"}, ("h.in.example", 80)),
        ("http://in.example", {"HTTP_PROXY": "p:1", "NO_PROXY": "in.example"}, ("in.example", 80)),
        ("http://xin.example", {"HTTP_PROXY": "p:1", "NO_PROXY": "in.example"}, ("p", 1)),
        ("http://h:4000", {"HTTP_PROXY": "p:1", "no_proxy": "h:4000"}, ("h", 4000)),
        ("http://h:4001", {"HTTP_PROXY": "p:1", "no_proxy": "h:4000"}, ("p", 1)),
        ("http://h", {"HTTP_PROXY": "p:1", "NO_PROXY": "*"}, ("h", 80)),
        ("http://[::1]:4000", {"HTTP_PROXY": "p:1", "NO_PROXY": "[::1]"}, ("::1", 4000)),
        ("http://h", {"HTTP_PROXY": ""}, ("h", 80)),
    ],
)
def test_proxies_come_from_the_environment(url: str, environ: dict[str, str], expected: tuple[str, int]) -> None:
    """CLIENT-4."""
    assert Address(url, environ=environ).peer == expected
    assert Address(url, environ=environ, proxy=False).proxy is None


@pytest.mark.parametrize("proxy", ["ftp://u:secret@p", "http://", "https://u:secret@p:1", "http://u:secret@p:x"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(proxy: str) -> None:
    with pytest.raises(BadAddress) as refused:
        Address("http://h", proxy=proxy)
    assert "secret" not in refused.value.message


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(BadAddress, match="token=") as refused:
        Address("http://u:secret@h")
    assert "secret" not in refused.value.message


def test_certificates_are_for_tls_and_must_be_readable(tmp_path: Path) -> None:
    with pytest.raises(BadAddress, match="https://"):
        Address("http://h", ca=tmp_path / "ca.pem")
    with pytest.raises(BadAddress, match=r"ca\.pem cannot be used"):
        Address("https://h", ca=tmp_path / "ca.pem")
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(BadAddress, match=r"bad\.pem cannot be used"):
        Address("https://h", ca=tmp_path / "bad.pem")
