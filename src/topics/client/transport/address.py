"""Address: where a server is, how its connections are made, and what every request to it carries.

A proxy is taken from the argument, or from `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` (in lower case first, as curl
does): a request over plain HTTP is sent to it in absolute form, and TLS goes through a tunnel (CONNECT), so that the
proxy never sees the content. The key goes into the head of each request, never into an address or a log line.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from topics.client.errors import BadAddress

DEFAULT_URL: Final = "http://127.0.0.1:4000"
_PORTS: Final = {"http": 80, "https": 443}


class Proxy(NamedTuple):
    """A proxy that speaks HTTP, and the credentials for it."""

    host: str
    port: int
    authorization: bytes = b""


class Address:
    """One server. `head` are the header lines of every request to it."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        agent: str = "topics-python",
        tls: ssl.SSLContext | None = None,
        ca: str | Path | None = None,
        proxy: str | Literal[False] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`ca` is a file of certificates to trust; `proxy=False` goes directly, whatever `environ` says."""
        if "@" in urlsplit(url).netloc:
            raise BadAddress("an address with a user or password is not valid: give the key as token=")
        scheme, self.host, self.port, path = _parts(url, f'the address "{url}" is not valid')
        self.url = url
        self.tls: ssl.SSLContext | None = None
        if scheme == "https":
            self.tls = tls if tls is not None else _context(ca)
        elif ca is not None or tls is not None:
            raise BadAddress(f'a certificate is of no use for "{url}": the address must begin with https://')
        self.proxy = _proxy(proxy, environ or {}, scheme, self.host, self.port)
        shown = f"[{self.host}]" if ":" in self.host else self.host
        # With the port also where it is the default one: every server accepts that.
        self.authority = f"{shown}:{self.port}".encode("idna" if not shown.isascii() else "ascii")
        relayed = self.proxy is not None and self.tls is None
        self.base = (b"http://" + self.authority if relayed else b"") + path.rstrip("/").encode()
        head = b"Host: %b\r\nUser-Agent: %b\r\nAccept-Encoding: identity\r\n" % (self.authority, agent.encode())
        if token is not None:
            if not (token.isascii() and token.isprintable()):
                raise BadAddress("the key holds characters that no key has: it must be printable ASCII")
            head += b"Authorization: Bearer %b\r\n" % token.encode()
        if relayed and self.proxy is not None and self.proxy.authorization:
            head += b"Proxy-Authorization: %b\r\n" % self.proxy.authorization
        self.head = head

    @property
    def peer(self) -> tuple[str, int]:
        """What a connection is opened to: the proxy, or else the server."""
        return (self.host, self.port) if self.proxy is None else (self.proxy.host, self.proxy.port)

    @property
    def tunnel(self) -> bytes | None:
        """What asks the proxy for a tunnel, where one is needed before TLS."""
        if self.proxy is None or self.tls is None:
            return None
        credentials = self.proxy.authorization
        line = b"Proxy-Authorization: %b\r\n" % credentials if credentials else b""
        return b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (self.authority, self.authority, line)

    def __str__(self) -> str:
        return self.url if self.proxy is None else f"{self.url} (through the proxy {self.proxy.host}:{self.proxy.port})"


def _parts(url: str, problem: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        port, parts = 0, urlsplit("")
    if parts.scheme not in _PORTS or not parts.hostname or port == 0 or parts.query or parts.fragment:
        raise BadAddress(f"{problem}: it must be like {DEFAULT_URL}")
    if not parts.path.isascii() or any(each <= " " for each in url):
        raise BadAddress(f"{problem}: it holds characters that must be percent-encoded")
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme], parts.path


def _context(ca: str | Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise BadAddress(f"the certificates in {ca} cannot be used: {error.strerror or error}") from None


def _proxy(
    asked: str | Literal[False] | None, environ: Mapping[str, str], scheme: str, host: str, port: int
) -> Proxy | None:
    if asked is False:
        return None
    url = asked
    if url is None:
        name = f"{scheme}_proxy"
        url = environ.get(name) or environ.get(name.upper()) or ""
        if not url or _is_excluded(host, port, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
            return None
    url = url if "://" in url else f"http://{url}"
    # A message about a proxy names no credentials.
    shown = url.rpartition("@")[2]
    kind, proxy_host, proxy_port, _ = _parts(url, f'the proxy "{shown}" is not valid')
    if kind != "http":
        raise BadAddress(f'the proxy "{shown}" must be spoken to over http://; TLS goes through it to the server')
    parts = urlsplit(url)
    authorization = b""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = b"Basic " + base64.b64encode(pair.encode())
    return Proxy(proxy_host, proxy_port, authorization)


def _is_excluded(host: str, port: int, no_proxy: str) -> bool:
    """Whether NO_PROXY names the host: itself, a domain that it is in, with or without a port, or `*`."""
    for item in (each.strip().lower() for each in no_proxy.split(",")):
        name, _, digits = item.rpartition(":") if item.rpartition(":")[2].isdigit() and "]" not in item[-1:] else (
            item, "", ""
        )  # fmt: skip
        if digits and int(digits) != port:
            continue
        name = name.strip("[]").removeprefix("*").lstrip(".")
        if item == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
    return False
