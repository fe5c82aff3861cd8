"""What a web page may do here through the browser of whoever opens it, and by which names the server is served."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.harness.api import Reply
from tests.harness.server import ManualServer
from topics.server.auth import Keys, check_exposure
from topics.settings import BadSettings, Settings

OWN = "Origin: http://topics.localhost"
FOREIGN = "Origin: https://evil.example"
APP = "https://app.example"
LISTED = f"Origin: {APP}"
# What is public any page may load.
ROWS = [(row.method, row.path, row.get_changes) for row in ManualServer().assembly.rows if not row.public]
CHANGES = [(method, path) for method, path, get_changes in ROWS if method != "GET" or get_changes]
READS = [(method, path) for method, path, get_changes in ROWS if method == "GET" and not get_changes]


def path_of(pattern: str) -> str:
    query = "?node=n" if pattern.endswith("/work") else ""
    return re.sub(":[a-z]+", "t", pattern) + query


def ask(server: ManualServer, method: str, path: str, *headers: str, body: Any = None) -> Reply:
    return server.send(method, path, body, *headers).replies()[0]


def with_jobs() -> ManualServer:
    server = ManualServer()
    config = {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}
    assert server.send("PUT", "/v0/topics/t", config).replies()[0].status == 201
    assert server.post().replies()[0].status == 200
    return server


def under(host: str, settings: Settings | None = None, keys: str = "") -> Reply:
    """The answer to a read of a server that is addressed by this name."""
    server = ManualServer(keys, settings=settings)
    raw = f"GET /v0/health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    client = server.send("GET", "/v0/health")
    client.received()
    client.send(raw)
    server.loop.run_until_idle()
    return client.replies()[0]


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:4000", "localhost.", "a.b.localhost:1", "127.0.0.1:4000", "127.9.9.9", "[::1]:4000"],
)
def test_without_keys_loopback_names_are_served(host: str) -> None:
    """AUTH-21."""
    assert under(host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:4000", "evil.example", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example",
        "192.168.1.5:4000", "0.0.0.0:4000", "[fd00::5]:4000", "::1", "2130706433", "localhost:4000:4000", "[", ":4000",
    ],
)  # fmt: skip
def test_without_keys_another_name_is_not_served(host: str) -> None:
    """AUTH-21: the page of a name that was rebound to loopback reads nothing."""
    detail = under(host).refused_naming("TOPICS_ALLOWED_HOSTS", host, status=421, code="misdirected_request")
    assert detail == {"host": host}


def test_names_that_the_operator_lists_are_served() -> None:
    """AUTH-21: what a container or a proxy calls the server."""
    settings = Settings(allowed_hosts=("topics", "*.internal", "10.0.0.7"))
    for host in ("topics:4000", "a.b.internal", "10.0.0.7:4000", "localhost"):
        assert under(host, settings).status == 200, host
    for host in ("topics.example", "internal", "internal.example", "10.0.0.8"):
        assert under(host, settings).status == 421, host
    assert under("anything.example", Settings(allowed_hosts=("*",))).status == 200


def test_server_bound_beyond_loopback_is_served_by_its_name_and_by_any_address() -> None:
    """AUTH-21: an address cannot be rebound."""
    for bind in ("0.0.0.0", "::", "db.internal"):
        settings = Settings(host=bind, allow_insecure_no_auth=True)
        for host in ("192.168.1.5:4000", "[fd00::5]:4000", "localhost"):
            assert under(host, settings).status == 200, (bind, host)
        assert under("evil.example:4000", settings).status == 421, bind
    assert under("DB.internal:4000", Settings(host="db.internal")).status == 200


def test_the_host_of_an_absolute_target_counts() -> None:
    """AUTH-21: it is what the request is for, whatever `Host` says."""
    server = ManualServer()
    assert ask(server, "GET", "http://evil.example/v0/health").status == 421
    assert ask(server, "GET", "http://localhost:4000/v0/health").status == 200


def test_http_1_0_without_a_host_is_served() -> None:
    """AUTH-21: no browser leaves it out, and simple probes do."""
    server = ManualServer()
    client = server.send("GET", "/v0/health")
    client.received()
    client.send(b"GET /v0/health HTTP/1.0\r\n\r\n")
    server.loop.run_until_idle()
    assert client.replies()[0].status == 200


@pytest.mark.parametrize(("method", "pattern"), CHANGES)
@pytest.mark.parametrize(
    "headers",
    [
        [FOREIGN],
        ["Origin: null"],
        ["Origin: http://topics.localhost:81"],
        ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-site"],
        [OWN, "Sec-Fetch-Site: cross-site"],
        [FOREIGN, "Sec-Fetch-Site: same-origin"],
    ],
    ids=" ".join,
)
def test_without_keys_a_foreign_page_changes_nothing(method: str, pattern: str, headers: list[str]) -> None:
    """AUTH-22, AUTH-20: on every route that changes something, with an empty body too."""
    server = with_jobs()
    reply = ask(server, method, path_of(pattern), *headers)
    reply.refused_naming("TOPICS_CORS_ORIGINS", status=403, code="forbidden")
    assert server.engine.queues.topic("t")[1].in_flight == 0
    assert list(server.engine.topics) == ["t"]


@pytest.mark.parametrize(
    "headers",
    [[], [OWN], ["Origin: HTTP://TOPICS.localhost:80"], [OWN, "Sec-Fetch-Site: same-origin"], ["Sec-Fetch-Site: none"]],
    ids=" ".join,
)
@pytest.mark.parametrize(("method", "pattern"), CHANGES)
def test_the_servers_own_pages_and_other_clients_change_what_they_like(
    method: str, pattern: str, headers: list[str]
) -> None:
    """AUTH-22: a page that the server itself has served is no foreign one."""
    server = with_jobs()
    client = server.send(method, path_of(pattern), None, *headers)
    assert b" 403 " not in client.received()[:20]


@pytest.mark.parametrize(("method", "pattern"), READS)
def test_a_foreign_page_gets_a_read_answered_that_its_browser_hides(method: str, pattern: str) -> None:
    """AUTH-23: no header allows it to see the answer, and one forbids it to embed it."""
    server = with_jobs()
    for header in (FOREIGN, "Sec-Fetch-Site: cross-site"):
        reply = ask(server, method, path_of(pattern), header)
        assert reply.status not in (403, 421), reply
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert not any(name.startswith("access-control") for name in reply.headers)
    own = ask(server, method, path_of(pattern), OWN, "Sec-Fetch-Site: same-origin")
    assert "cross-origin-resource-policy" not in own.headers


def test_any_page_may_load_the_library() -> None:
    """PROBE-11: the headers of its own are the only ones."""
    for server in (ManualServer(), with_list()):
        for header in (FOREIGN, LISTED, "Sec-Fetch-Site: cross-site"):
            reply = ask(server, "GET", "/topics.js", header)
            assert reply.status == 200
            assert reply.headers["access-control-allow-origin"] == "*"
            assert reply.headers["cross-origin-resource-policy"] == "cross-origin"


def with_list(keys: str = "") -> ManualServer:
    return ManualServer(keys, settings=Settings(cors_origins=(APP, "http://localhost:5173")))


def test_a_listed_origin_reads_and_writes() -> None:
    """AUTH-24: without keys too, and whatever else the browser says about the page."""
    server = with_list()
    written = ask(server, "POST", "/v0/topics/t", LISTED, "Sec-Fetch-Site: cross-site", body={"records": [{"data": 1}]})
    assert written.status == 201
    read = ask(server, "POST", "/v0/topics/t/diff", LISTED, body={})
    for reply in (written, read):
        assert reply.headers["access-control-allow-origin"] == APP
        assert reply.headers["vary"] == "Origin"
        assert "Retry-After" in reply.headers["access-control-expose-headers"]
        assert "access-control-allow-credentials" not in reply.headers
    ask(server, "POST", "/v0/topics/t", FOREIGN, body={"records": [{"data": 1}]}).refused(403, "forbidden")
    assert "access-control-allow-origin" not in ask(server, "GET", "/v0/topics", FOREIGN).headers


def test_errors_for_a_listed_origin_carry_the_headers() -> None:
    """AUTH-24: a page that may use the server sees why it was refused."""
    for keys, method, path, status in (
        ("", "GET", "/v0/topics/missing", 404),
        ("", "GET", "/nowhere", 404),
        ("", "PATCH", "/v0/topics/t", 405),
        ("", "POST", "/v0/topics/t", 400),
        ("k", "GET", "/v0/topics", 401),
        ("k:read", "DELETE", "/v0/topics/t", 403),
    ):
        key = ["Authorization: Bearer k"] if ":" in keys else []
        reply = ask(with_list(keys), method, path, LISTED, *key)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, APP), (method, path)
    overloaded = with_list()
    overloaded.send("PUT", "/v0/topics/q", {"type": "queue"})
    overloaded.overload()
    reply = ask(overloaded, "GET", "/v0/topics/q/work?node=n", LISTED)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (429, APP)
    assert "retry-after" in reply.headers


def test_heads_that_repeat_keep_their_headers() -> None:
    """AUTH-24: on a connection that is kept alive, whatever changes in the target or the length."""
    server = with_list()
    client = server.send("PUT", "/v0/topics/t", None, LISTED)
    for path, length in (("/v0/topics/t", 10), ("/v0/topics/t", 10), ("/v0/topics/t", 200), ("/v0/topics/u", 200)) * 2:
        body = b'{"records":[{"data":"%b"}]}' % (b"x" * length)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{LISTED}\r\nContent-Type: application/json\r\n"
        client.send(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        server.loop.run_until_idle()
    replies = client.replies()
    assert len(replies) == 9
    assert [reply.headers["access-control-allow-origin"] for reply in replies] == [APP] * 9


def test_streams_of_a_listed_origin_carry_the_headers() -> None:
    """AUTH-24."""
    server = with_list()
    server.send("PUT", "/v0/topics/q", {"type": "queue"})
    head = server.send("GET", "/v0/topics/q/work?node=n", None, LISTED, "Accept: text/event-stream").received()
    assert b"HTTP/1.1 200 OK\r\n" in head
    assert b"\r\nAccess-Control-Allow-Origin: https://app.example\r\n" in head
    assert b"\r\nVary: Origin\r\n" in head


def test_answers_that_a_cache_may_keep_vary_by_origin() -> None:
    """AUTH-24: a page must not be given what was kept for a client without an origin."""
    server = with_list()
    assert ask(server, "GET", "/v0/topics").headers["vary"] == "Origin"
    assert "vary" not in ask(ManualServer(), "GET", "/v0/topics").headers
    assert "vary" not in ask(server, "POST", "/v0/topics/t", body={"records": [{"data": 1}]}).headers


PREFLIGHT = [
    "Access-Control-Request-Method: PUT",
    "Access-Control-Request-Headers: authorization,content-type, x-trace",
]


@pytest.mark.parametrize("path", ["/v0/topics/t", "/v0/watch", "/nowhere"])
@pytest.mark.parametrize("keys", ["", "k"])
def test_preflight_of_a_listed_origin(keys: str, path: str) -> None:
    """AUTH-24, AUTH-26: answered without a key, and the same for every path."""
    server = with_list(keys)
    reply = ask(server, "OPTIONS", path, LISTED, *PREFLIGHT)
    assert (reply.status, reply.body) == (204, b"")
    headers = reply.headers
    assert headers["access-control-allow-origin"] == APP
    assert headers["access-control-allow-methods"] == "GET, HEAD, POST, PUT, DELETE"
    assert headers["access-control-allow-headers"] == "authorization,content-type, x-trace"
    assert headers["access-control-max-age"] == "7200"
    assert "content-length" not in headers
    assert "content-type" not in headers
    assert not server.engine.topics


def test_preflight_of_another_origin_is_refused() -> None:
    """AUTH-24: with the setting to change in the message."""
    for server in (with_list(), with_list("k"), ManualServer(), ManualServer("k")):
        reply = ask(server, "OPTIONS", "/v0/topics/t", FOREIGN, *PREFLIGHT)
        reply.refused_naming("https://evil.example", "TOPICS_CORS_ORIGINS", status=403, code="forbidden")
        assert not any(name.startswith("access-control") for name in reply.headers)


def test_preflight_repeats_no_header_name_that_is_none() -> None:
    """AUTH-24."""
    odd = "Access-Control-Request-Headers: a b, {}"
    reply = ask(with_list(), "OPTIONS", "/v0/topics/t", LISTED, "Access-Control-Request-Method: PUT", odd)
    assert reply.status == 204
    assert "access-control-allow-headers" not in reply.headers


def test_preflight_for_a_private_network_is_answered() -> None:
    """AUTH-24: a public page of the user's own may reach a server on loopback."""
    private = "Access-Control-Request-Private-Network: true"
    reply = ask(with_list(), "OPTIONS", "/v0/topics/t", LISTED, *PREFLIGHT, private)
    assert reply.headers["access-control-allow-private-network"] == "true"


def test_preflight_is_answered_while_the_log_is_replayed() -> None:
    """AUTH-24: the request after it then says `not_ready`, where the page can read it."""
    server = ManualServer(replayed=0.5, settings=Settings(cors_origins=(APP,)))
    assert ask(server, "OPTIONS", "/v0/topics/t", LISTED, *PREFLIGHT).status == 204
    reply = ask(server, "GET", "/v0/topics", LISTED)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (503, APP)


def test_options_that_is_no_preflight_is_not_allowed() -> None:
    """HTTP-17."""
    assert ask(with_list(), "OPTIONS", "/v0/topics/t", LISTED).status == 405
    assert ask(with_list(), "OPTIONS", "/v0/topics/t").status == 405


def test_every_origin_needs_keys() -> None:
    """AUTH-25."""
    everyone = Settings(cors_origins=("*",))
    with pytest.raises(BadSettings, match=r"TOPICS_CORS_ORIGINS is '\*' and there are no keys"):
        check_exposure(everyone, Keys())
    check_exposure(everyone, Keys("k"))
    reply = ask(ManualServer("k", settings=everyone), "GET", "/v0/topics", FOREIGN, "Authorization: Bearer k")
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, "*")
    assert "vary" not in reply.headers


def test_with_keys_neither_host_nor_origin_is_checked() -> None:
    """AUTH-26: what protects the server is the key, which no foreign page has."""
    assert under("evil.example:4000", keys="k").status == 200
    server = ManualServer("k")
    key = "Authorization: Bearer k"
    body = {"records": [{"data": 1}]}
    assert ask(server, "POST", "/v0/topics/t", FOREIGN, key, body=body).status == 201
    assert ask(server, "POST", "/v0/topics/t", FOREIGN, body=body).status == 401


def test_with_keys_a_websocket_follows_the_list_where_its_key_is_no_header() -> None:
    """AUTH-20: a browser asks no server whether a page may open one."""
    upgrade = (
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version: 13",
    )
    server, key = with_list("k"), "Sec-WebSocket-Protocol: topics, topics.bearer.aw"
    for headers, status in (
        ((LISTED, key), b"101"),
        ((OWN, key), b"101"),
        ((key,), b"101"),
        ((FOREIGN, key), b"403"),
        ((FOREIGN, "Authorization: Bearer k"), b"101"),
        ((LISTED,), b"401"),
    ):
        answer = server.send("GET", "/v0/ws", None, *upgrade, *headers).received()
        assert answer.startswith(b"HTTP/1.1 " + status), (headers, answer)
