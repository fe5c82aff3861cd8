"""The AUTH rules: keys, scopes, prefixes, and servers that refuse to start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import Api
from topics.testing import ServerProcess

KEYS = ",".join(
    [
        "full-secret",
        "read-secret:read",
        "write-secret:write",
        "delete-secret:delete",
        "admin-secret:admin",
        "rw-secret:rw",
        "letters-secret:r+w+d+a",
        "r-secret:r",
        "w-secret:w",
        "d-secret:d",
        "a-secret:a",
        "two-secret:read+delete",
        "tenant-secret::tenant42:|shared.",
        "dash-secret:read:tenant42:",
        "ops-secret::",
    ]
)
SCOPES = {
    "full-secret": {"read", "write", "delete", "admin"},
    "read-secret": {"read"},
    "write-secret": {"write"},
    "delete-secret": {"delete"},
    "admin-secret": {"admin"},
    "rw-secret": {"read", "write"},
    "letters-secret": {"read", "write", "delete", "admin"},
    "r-secret": {"read"},
    "w-secret": {"write"},
    "d-secret": {"delete"},
    "a-secret": {"admin"},
    "two-secret": {"read", "delete"},
    "ops-secret": {"read", "write", "delete", "admin"},
}
ROUTES: list[tuple[str, str, str, Any]] = [
    ("read", "GET", "/v0/topics", None),
    ("read", "GET", "/v0/topics/{topic}", None),
    ("read", "POST", "/v0/topics/{topic}/diff", {}),
    ("read", "GET", "/v0/metrics", None),
    ("write", "POST", "/v0/topics/{topic}", {"records": [{"data": 1}]}),
    ("delete", "POST", "/v0/topics/{topic}/delete", {"before_seq": 1}),
    ("delete", "DELETE", "/v0/topics/{topic}", None),
    ("admin", "PUT", "/v0/topics/{topic}", {}),
]


@pytest.fixture(scope="module")
def guarded() -> Iterator[ServerProcess]:
    """One server with the keys above."""
    with ServerProcess(api_keys=KEYS) as running:
        yield running


@pytest.fixture
def full(guarded: ServerProcess) -> Iterator[Api]:
    """The guarded server, spoken to with the full-access key."""
    client = Api(guarded.host, guarded.port, "full-secret")
    yield client
    client.close()


@pytest.mark.parametrize(("scope", "method", "path", "body"), ROUTES)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer full-secre",
        "Bearer full-secrett",
        "Bearer FULL-SECRET",
        "Bearer read-secret:read",
        "Basic full-secret",
        "full-secret",
        "Bearer full-secret extra",
    ],
)
def test_missing_or_unknown_key_is_unauthorized(
    full: Api, topic_name: str, scope: str, method: str, path: str, body: Any, authorization: str | None
) -> None:
    """AUTH-1."""
    full.fill(topic_name, 1)
    headers = {} if authorization is None else {"Authorization": authorization}
    with full.unchanged(topic_name):
        reply = full.with_key(None).call(method, path.format(topic=topic_name), body, headers=headers)
        reply.refused(401, "unauthorized")


def test_key_is_asked_for_before_anything_else_is_revealed(full: Api, topic_name: str) -> None:
    """AUTH-3: without a key a client learns neither what exists nor what would be wrong with its request."""
    stranger = full.with_key(None)
    stranger.get(f"/v0/topics/{topic_name}").refused(401, "unauthorized")
    stranger.post(topic_name, raw=b"{").refused(401, "unauthorized")
    stranger.post(topic_name, raw=b"{}", content_type="text/plain").refused(401, "unauthorized")
    stranger.get("/v0/topics/..").refused(401, "unauthorized")
    stranger.get("/v0/topics?page_size=0").refused(401, "unauthorized")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_bearer_key_opens(full: Api, scheme: str) -> None:
    """AUTH-2. RFC 9110 §11.1: the scheme is case-insensitive."""
    full.with_key(None).get("/v0/topics", headers={"Authorization": f"{scheme} full-secret"}).ok(200)


@pytest.mark.parametrize(("scope", "method", "path", "body"), ROUTES)
@pytest.mark.parametrize("key", SCOPES)
def test_route_needs_exactly_its_scope(
    full: Api, topic_name: str, key: str, scope: str, method: str, path: str, body: Any
) -> None:
    """AUTH-10, AUTH-11: read, write, delete, admin; single letters and `rw`; an empty scopes field means all."""
    full.fill(topic_name, 1)
    client = full.with_key(key)
    if scope in SCOPES[key]:
        assert client.call(method, path.format(topic=topic_name), body).status == 200
        return
    with full.unchanged(topic_name):
        client.call(method, path.format(topic=topic_name), body).refused(403, "forbidden")


def test_forbidden_comes_before_not_found(full: Api, topic_name: str) -> None:
    """AUTH-13: a request that lacks the scope returns 403 forbidden, whether or not the topic exists."""
    full.with_key("write-secret").get(f"/v0/topics/{topic_name}").refused(403, "forbidden")
    full.with_key("read-secret").post(topic_name, {"records": [{"data": 1}]}).refused(403, "forbidden")
    assert not full.exists(topic_name)


def test_inline_config_needs_only_write(full: Api, topic_name: str) -> None:
    """AUTH-12."""
    body = {"records": [{"data": 1}], "config": {"cap_records": 5}}
    full.with_key("write-secret").post(topic_name, body).ok(201)
    assert full.state(topic_name)["config"]["cap_records"] == 5


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("tenant42:x", True),
        ("shared.x", True),
        ("tenant42x", False),
        ("tenant4", False),
        ("tenant420:x", False),
        ("Tenant42:x", False),
        ("xtenant42:", False),
        ("shared", False),
        ("sharedx", False),
        ("%74enant43:x", False),
        ("tenant42%3Ax", True),
    ],
)
@pytest.mark.parametrize(("scope", "method", "path", "body"), [r for r in ROUTES if "{topic}" in r[2]])
def test_prefix_is_a_boundary_on_the_path_name(
    full: Api, name: str, allowed: bool, scope: str, method: str, path: str, body: Any
) -> None:
    """AUTH-14: the match is a byte prefix of the raw name; outside of it is 403 `forbidden`."""
    full.fill(name, 1)
    client = full.with_key("tenant-secret")
    if allowed:
        assert client.call(method, path.format(topic=name), body).status == 200
    else:
        with full.unchanged(name):
            client.call(method, path.format(topic=name), body).refused(403, "forbidden")
    full.remove(name).ok(200)


def test_prefix_and_scope_both_hold(full: Api) -> None:
    """AUTH-9, AUTH-14: `dash:read:tenant42:` is a read-only key for one tenant; a prefix may contain the delimiter."""
    full.fill("tenant42:dash", 1)
    full.fill("other:dash", 1)
    dash = full.with_key("dash-secret")
    dash.get("/v0/topics/tenant42:dash").ok(200)
    dash.get("/v0/topics/other:dash").refused(403, "forbidden")
    dash.post("tenant42:dash", {"records": [{"data": 1}]}).refused(403, "forbidden")
    dash.remove("tenant42:dash").refused(403, "forbidden")


def test_metrics_name_only_topics_within_the_allowlist(full: Api) -> None:
    """AUTH-15: in the per-topic gauges a prefix-limited key cannot enumerate the names of others either."""
    names = {"tenant42:metrics", "shared.metrics", "tenant43:metrics"}
    for name in names:
        full.put(name, type="queue").ok()
    try:
        seen = full.with_key("tenant-secret").get("/v0/metrics").body.decode()
        assert [name for name in sorted(names) if name in seen] == ["shared.metrics", "tenant42:metrics"]
        gauges = full.with_key("tenant-secret").get("/v0/metrics", headers={"Accept": "application/json"}).ok(200)
        everything = full.get("/v0/metrics", headers={"Accept": "application/json"}).ok(200)
        assert "tenant43:metrics" not in str(gauges)
        assert "tenant43:metrics" in everything["topics_topic_queue_ready"]
        assert gauges["topics_topics"] == everything["topics_topics"]
    finally:
        for name in names:
            full.remove(name).ok()


def test_list_is_filtered_to_the_allowlist(full: Api) -> None:
    """AUTH-15: a prefix-limited key cannot enumerate the names of others, page by page."""
    mine = {f"tenant42:list{n}" for n in range(3)} | {"shared.list"}
    foreign = {"a-foreign-list", "tenant41:list", "tenant43:list", "zz-foreign-list"}
    for name in mine | foreign:
        full.put(name).ok()
    try:
        tenant = full.with_key("tenant-secret")
        seen: list[str] = []
        query: dict[str, Any] = {"page_size": 1}
        while True:
            page = tenant.topics(**query).ok(200)
            assert len(page["topics"]) <= 1
            seen += [item["topic"] for item in page["topics"]]
            if "next_cursor" not in page:
                break
            query["cursor"] = page["next_cursor"]
        assert mine <= set(seen)
        assert not foreign & set(seen)
        assert all(name.startswith(("tenant42:", "shared.")) for name in seen)
        assert len(seen) == len(set(seen))
        assert tenant.names("tenant43:") == []
        assert tenant.names("") == sorted(seen) or set(tenant.names("")) == set(seen)
        assert mine | foreign <= set(full.names(""))
    finally:
        for name in mine | foreign:
            full.remove(name)


def test_query_token_is_never_taken_on_ordinary_routes(full: Api, topic_name: str) -> None:
    """AUTH-19: `?token=` is for the SSE streams only."""
    stranger = full.with_key(None)
    stranger.get("/v0/topics?token=full-secret").refused(401, "unauthorized")
    stranger.get("/v0/metrics?token=full-secret").refused(401, "unauthorized")
    stranger.post(topic_name, {"records": [{"data": 1}]}, "?token=full-secret").refused(401, "unauthorized")
    assert not full.exists(topic_name)


@pytest.mark.parametrize("path", ["/v0/health", "/v0/ready", "/healthz", "/readyz"])
def test_probes_need_no_key_by_default(full: Api, path: str) -> None:
    """PROBE-5."""
    full.with_key(None).get(path).ok(200)
    full.with_key("wrong").get(path).ok(200)


def test_probe_auth_closes_the_probes() -> None:
    """PROBE-5: `TOPICS_PROBE_AUTH=true` requires a key."""
    with ServerProcess(api_keys="k1,k2:write", probe_auth="true") as running:
        api = Api(running.host, running.port)
        for path in ("/v0/health", "/v0/ready", "/healthz", "/readyz"):
            api.get(path).refused(401, "unauthorized")
            api.with_key("wrong").get(path).refused(401, "unauthorized")
            api.with_key("k1").get(path).ok(200)
        api.close()


def test_metrics_need_the_read_scope(full: Api) -> None:
    """PROBE-6, AUTH-11: where there are keys, the metrics need one with the read scope."""
    full.with_key(None).get("/v0/metrics").refused(401, "unauthorized")
    full.with_key("write-secret").get("/v0/metrics").refused(403, "forbidden")
    assert full.with_key("read-secret").get("/v0/metrics").status == 200
    assert full.get("/v0/metrics").status == 200


def test_without_keys_the_header_is_ignored_and_the_log_says_so_at_boot(server: ServerProcess, api: Api) -> None:
    """AUTH-8: auth is off, the header is ignored, and the log says so."""
    api.with_key("anything").topics().ok(200)
    assert api.get("/v0/metrics").status == 200
    assert "auth" in server.log().lower()


def test_tokens_appear_in_no_log_line() -> None:
    """AUTH-6: at any level, boot included."""
    with ServerProcess(api_keys="sesame-open-7781:read,second-pass-9902", log_level="debug") as running:
        api = Api(running.host, running.port)
        api.with_key("sesame-open-7781").topics().ok(200)
        api.with_key("sesame-open-7781").put("x").refused(403, "forbidden")
        api.with_key("second-pass-9902").put("x").ok(201)
        api.with_key("presented-wrong-5503").topics().refused(401, "unauthorized")
        api.with_key("second-pass-9902").get("/v0/topics?token=in-the-query-4404").ok(200)
        api.close()
        running.stop()
        log = running.log()
    for secret in ("sesame-open-7781", "second-pass-9902", "presented-wrong-5503"):
        assert secret not in log
        assert secret[:12] not in log


def _serve(tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to end by itself at once."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    environ |= {f"TOPICS_{name.upper()}": value for name, value in settings.items()}
    environ |= {"TOPICS_DATA_DIR": str(tmp_path / "data"), "TOPICS_PORT": "0"}
    return subprocess.run(
        [sys.executable, "-m", "topics", "serve"], env=environ, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    "keys",
    ["k:bogus", "k:read+bogus", "k:read+", "k:+", "k:Read", "good,k:rwx", ":read", "k:read,:"],
)
def test_malformed_key_refuses_to_start(tmp_path: Path, keys: str) -> None:
    """AUTH-16: fail-closed."""
    ended = _serve(tmp_path, api_keys=keys)
    assert ended.returncode != 0
    assert "TOPICS_API_KEYS" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_public_bind_without_keys_refuses_to_start(tmp_path: Path, host: str) -> None:
    """AUTH-18: it refuses to start and logs why."""
    ended = _serve(tmp_path, host=host)
    assert ended.returncode != 0
    assert "TOPICS_ALLOW_INSECURE_NO_AUTH" in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("settings", [{"allow_insecure_no_auth": "1"}, {"api_keys": "k"}])
def test_public_bind_starts_with_keys_or_when_insisted_upon(settings: dict[str, str]) -> None:
    """AUTH-18: with `TOPICS_ALLOW_INSECURE_NO_AUTH=1`, or with keys."""
    with ServerProcess(host="0.0.0.0", **settings) as running:
        key = settings.get("api_keys")
        api = Api("127.0.0.1", running.port, key)
        api.put("t").ok(201)
        api.close()


def test_white_space_around_keys_is_no_part_of_them() -> None:
    """AUTH-9: the list is comma-separated."""
    with ServerProcess(api_keys=" one , two:read ") as running:
        api = Api(running.host, running.port)
        api.with_key("one").topics().ok(200)
        api.with_key("two").topics().ok(200)
        api.close()


def test_topic_names_never_become_file_names() -> None:
    """TOPIC-3: names from clients never reach the file system."""
    with ServerProcess() as running:
        api = Api(running.host, running.port)
        for name in ("Zebra..Quagga", "Zebra:" + "Q" * 200, "0Zebra"):
            api.put(name, durability="fsync").ok(201)
            api.fill(name, 3)
        api.close()
        running.stop()
        paths = [str(path.relative_to(running.data_dir)) for path in running.data_dir.rglob("*")]
    assert not [path for path in paths if "ebra" in path or "Quagga" in path or ":" in path]
