"""Origins: which web pages may use this server through a browser, and by which names it is served (AUTH-20 to AUTH-26).

A browser is a client that obeys strangers: any page that a person opens can have it send requests to any address that
it reaches, loopback included. Where keys are needed that is harmless, because a page cannot have a browser add a key
that it does not know. Without keys these rules take their place:

- *A name that is not this server's is not served.* A page whose own name resolves to 127.0.0.1 (DNS rebinding) is of
  the same origin as the server for its browser, which lets it read everything; but its name is in `Host`. Only
  loopback names, the name that the server is bound to and those of `TOPICS_ALLOWED_HOSTS` are served. A server that is
  bound beyond loopback is also served by any address: it takes a name to be rebound.
- *A page of another origin changes nothing.* `Origin` names the page, and `Sec-Fetch-Site` says how it is related to
  the server where there is no `Origin`. `same-site` is no better than `cross-site`: every port of localhost is the
  same site.

A read that changes nothing is answered, because the browser keeps the answer from the page; it is also told not to let
the page embed it.

`TOPICS_CORS_ORIGINS` names the pages that may do everything, with keys or without. All of it follows from the head
alone, and a connection resolves a head that repeats only once.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from topics.errors import Forbidden, MisdirectedRequest
from topics.server.auth import is_loopback
from topics.server.http import reply
from topics.server.http.exchange import Exchange
from topics.server.http.head import Head
from topics.settings import Settings

PREFLIGHT_MAX_AGE_S: Final = 7200
"""How long a browser may keep the answer to a preflight; Chromium keeps none for longer."""

_METHODS: Final = b"GET, HEAD, POST, PUT, DELETE"
_EXPOSED: Final = b"Access-Control-Expose-Headers: Retry-After, Allow, WWW-Authenticate, X-Request-Id, Date\r\n"
_NOT_EMBEDDED: Final = b"Cross-Origin-Resource-Policy: same-origin\r\n"
_VARY: Final = b"Vary: Origin\r\n"
_DEFAULT_PORTS: Final = {b"http": b":80", b"https": b":443"}
_SHOWN_CHARS_MAX: Final = 200

_host_and_port: Final = re.compile(r"(\[[^\]]*\]|[^:]*)(?::[0-9]*)?").fullmatch
_absolute: Final = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?#]*)").match
_are_names: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*").fullmatch


class Origins:
    """What a browser may do here, see the module."""

    def __init__(self, settings: Settings, *, guarded: bool) -> None:
        """A `guarded` server asks for keys."""
        self._guarded = guarded
        self._everyone = "*" in settings.cors_origins
        self._listed = frozenset(origin.encode() for origin in settings.cors_origins)
        self._any_host = guarded or "*" in settings.allowed_hosts
        self._any_address = not is_loopback(settings.host)
        self._names = frozenset({"localhost", "127.0.0.1", "::1", settings.host.lower(), *settings.allowed_hosts})
        self._suffixes = (".localhost", *(name[1:] for name in settings.allowed_hosts if name.startswith("*.")))
        # The authority of the last head that was served: nearly all of them have the same.
        self._served: bytes | None = None

    def greet(self, head: Head) -> None:
        """Refuse a head that is meant for another host, and say what the browser may show of the answers to it."""
        if not self._any_host:
            self._require_host(head)
        origin = head.headers.get(b"origin")
        if origin is not None and self._allows(origin):
            head.add_to_answers(self._allow_lines(origin) + _EXPOSED)
        elif self._is_foreign(head):
            head.add_to_answers(_NOT_EMBEDDED)
        elif self._listed and not self._everyone and head.method in ("GET", "HEAD"):
            # What a cache keeps of this answer must not be given to a page that names its origin.
            head.add_to_answers(_VARY)

    def require_own(self, head: Head) -> None:
        """Raise Forbidden where a browser would change something for a page that may not (AUTH-22).

        With keys, a browser itself refuses what a page that is not listed sends; but not a WebSocket, whose key is no
        header (AUTH-20).
        """
        if self._guarded and (head.upgrade is None or b"authorization" in head.headers):
            return
        if not self._is_foreign(head):
            return
        origin = head.headers.get(b"origin")
        page = "another site" if origin is None else _shown(origin)
        raise Forbidden(
            f"a page of {page} may not do this: add its origin to TOPICS_CORS_ORIGINS",
            origin=None if origin is None else _shown(origin),
        )

    @staticmethod
    def is_preflight(head: Head) -> bool:
        """Whether a browser asks what a page may send."""
        return (
            head.method == "OPTIONS" and b"origin" in head.headers and b"access-control-request-method" in head.headers
        )

    def preflight(self, exchange: Exchange) -> None:
        """Answer a preflight: the same for every path, so that it tells nothing and errors reach the page."""
        headers = exchange.head.headers
        origin = headers[b"origin"]
        if not self._allows(origin):
            raise Forbidden(
                f"a page of {_shown(origin)} may not use this server: add its origin to TOPICS_CORS_ORIGINS",
                origin=_shown(origin),
            )
        lines = b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Max-Age: %d\r\n" % (_METHODS, PREFLIGHT_MAX_AGE_S)
        names = headers.get(b"access-control-request-headers", b"").strip()
        if _are_names(names) is not None:
            # A header that this server does not read does nothing, so a page may send whatever its libraries add.
            lines += b"Access-Control-Allow-Headers: %b\r\n" % names
        if headers.get(b"access-control-request-private-network") == b"true":
            lines += b"Access-Control-Allow-Private-Network: true\r\n"
        exchange.head.tally.count_status(204)
        exchange.respond_raw(reply.status_line(204) + lines + b"\r\n")

    def _allow_lines(self, origin: bytes) -> bytes:
        if self._everyone:
            return b"Access-Control-Allow-Origin: *\r\n"
        return b"Access-Control-Allow-Origin: %b\r\n%b" % (origin, _VARY)

    def _allows(self, origin: bytes) -> bool:
        """Whether pages of this origin are listed."""
        return self._everyone or origin in self._listed

    def _is_foreign(self, head: Head) -> bool:
        """Whether a browser sends this for a page that is neither this server's own nor listed."""
        headers = head.headers
        origin = headers.get(b"origin")
        if origin is not None:
            if self._allows(origin):
                return False
            if not _is_same(origin, _authority(head)):
                return True
        elif b"sec-fetch-site" not in headers:
            return False
        return headers.get(b"sec-fetch-site", b"none") not in (b"same-origin", b"none")

    def _require_host(self, head: Head) -> None:
        raw = _authority(head)
        if not raw or raw == self._served:
            return
        authority = raw.decode("latin-1")
        matched = _host_and_port(authority)
        host = "" if matched is None else matched[1].lower().removesuffix(".").strip("[]")
        if host and self._serves(host):
            self._served = raw
            return
        shown = authority[:_SHOWN_CHARS_MAX]
        raise MisdirectedRequest(
            f'"{shown}" is no name of this server: without keys it is served by loopback names only, so that no web '
            "page can pass for it; add the name to TOPICS_ALLOWED_HOSTS, or use keys",
            host=shown,
        )

    def _serves(self, host: str) -> bool:
        if host in self._names or host.endswith(self._suffixes):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return self._any_address or address.is_loopback


def _authority(head: Head) -> bytes:
    """The host and port that the request is for: of the target where it names one, else of `Host`."""
    if head.target.startswith(b"/"):
        return head.headers.get(b"host", b"")
    absolute = _absolute(head.target)
    return head.headers.get(b"host", b"") if absolute is None else absolute[1]


def _is_same(origin: bytes, authority: bytes) -> bool:
    """Whether an origin is that of the server as this client addresses it; a proxy may have taken the TLS off."""
    scheme, _, place = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme, b"")
    return bool(place) and place.removesuffix(port) == authority.lower().removesuffix(port)


def _shown(origin: bytes) -> str:
    return origin[:_SHOWN_CHARS_MAX].decode("latin-1")
