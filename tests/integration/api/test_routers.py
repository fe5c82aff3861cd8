"""The ROUTER rules over HTTP: the router endpoints, their shapes and refusals, and routers across a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import pytest

from tests.harness.api import Api, Json, Reply, until
from topics.testing import ServerProcess

StartApi = Callable[..., Api]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    """What is to be closed when the test is over."""
    with ExitStack() as stack:
        yield stack


def put(api: Api, source: str, dest: str, name: str | None = None, **fields: Any) -> Reply:
    body = {"source": source, "dest": dest, **fields}
    return api.call("PUT", f"/v0/routers/{quote(name or f'{source}->{dest}', safe='')}", body)


def get(api: Api, name: str) -> Reply:
    return api.get(f"/v0/routers/{quote(name, safe='')}")


def drop(api: Api, name: str) -> Reply:
    return api.call("DELETE", f"/v0/routers/{quote(name, safe='')}")


def datas(api: Api, topic: str) -> list[Any]:
    return [record["data"] for record in api.read(topic, limit=1000)["records"]]


def bare(body: Json) -> Json:
    return {key: value for key, value in body.items() if key != "performance"}


def test_router_is_created_read_and_deleted(api: Api, topic_name: str) -> None:
    """ROUTER-3, ROUTER-10: 201 with the rule echoed, GET with `forwarded_total`, DELETE with `deleted`."""
    source, dest = f"{topic_name}.s", f"{topic_name}.d"
    name = f"{topic_name}.s->d"
    rule = {
        "router": name,
        "source": source,
        "dest": dest,
        "preserve_node": True,
        "preserve_tag": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    assert bare(put(api, source, dest, name).ok(201)) == {**rule, "created": True}
    assert bare(put(api, source, dest, name).ok(200)) == {**rule, "created": False}
    api.write(source, {"data": 1, "node": "n", "tag": "t", "meta": {"k": "v"}})
    (record,) = api.read(dest, include_tags=True)["records"]
    assert (record["$node"], record["$tag"], record["meta"], record["data"]) == ("n", "t", {"k": "v"}, 1)
    assert bare(get(api, name).ok(200)) == {**rule, "forwarded_total": 1, "lag": 0}
    assert bare(drop(api, name).ok(200)) == {"router": name, "deleted": True}
    assert bare(drop(api, name).ok(200)) == {"router": name, "deleted": False}
    assert get(api, name).refused(404, "router_not_found") == {"router": name}
    api.write(source, {"data": 2})
    assert datas(api, dest) == [1]


def test_writer_reads_its_own_forward_at_once(api: Api, topic_name: str) -> None:
    """ROUTER-17: a client that wrote to the source and then reads the destination sees the copy, every time."""
    source, dest, last = (f"{topic_name}.{part}" for part in "sdl")
    put(api, source, dest).ok(201)
    put(api, dest, last).ok(201)
    for n in range(1, 51):
        api.write(source, {"data": n})
        assert api.read(last, n - 1)["records"][0]["data"] == n


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"dest": "d"}, "source"),
        ({"source": "s"}, "dest"),
        ({"source": "s", "dest": "s"}, "dest"),
        ({"source": "s", "dest": "not a name"}, "not a name"),
        ({"source": "s", "dest": "d", "filter": ["tag", "Glob", "x"]}, "filter"),
        ({"source": "s", "dest": "d", "filter": ["node", "Eq", "x"]}, "filter"),
        ({"source": "s", "dest": "d", "filter": "x" * 257}, "filter"),
        ({"source": "s", "dest": "d", "filter": ["tag", "Glob", "x" * 257 + "*"]}, "filter"),
        ({"source": "s", "dest": "d", "guarantee": "maybe"}, "guarantee"),
        ({"source": "s", "dest": "d", "preserve_node": "yes"}, "preserve_node"),
        ({"source": "s", "dest": "d", "source ": 1, "allow_cycle": None}, "allow_cycle"),
    ],
)
def test_bad_router_is_a_400_that_names_the_field(api: Api, topic_name: str, body: Json, field: str) -> None:
    """ROUTER-2, ROUTER-4."""
    renamed = {key: f"{topic_name}.{value}" if value in ("s", "d") else value for key, value in body.items()}
    api.call("PUT", f"/v0/routers/{topic_name}", renamed).refused_naming(field)
    assert api.names(topic_name) == []


def test_router_name_may_hold_an_arrow_and_nothing_else(api: Api, topic_name: str) -> None:
    """ROUTER-5: the topic charset plus `>`."""
    body = {"source": f"{topic_name}.s", "dest": f"{topic_name}.d"}
    api.call("PUT", "/v0/routers/a%20b", body).refused_naming("a b")
    api.call("PUT", "/v0/routers/-%3Ea", body).refused_naming("->a")
    assert api.call("PUT", f"/v0/topics/{topic_name}%3Ex", {}).status == 400


def test_missing_dest_without_create_dest_is_404(api: Api, topic_name: str) -> None:
    """ROUTER-6: `create_dest: false` is 404 if missing, and nothing is created."""
    put(api, f"{topic_name}.s", f"{topic_name}.d", create_dest=False).refused(404, "topic_not_found")
    assert api.names(topic_name) == []


def test_cycle_and_fan_in_are_409(api: Api, topic_name: str) -> None:
    """ROUTER-7, ROUTER-8: `router_cycle` with `detail.cycle`, `topic_exists_incompatible` with `detail.reason`."""
    a, b, c = (f"{topic_name}.{part}" for part in "abc")
    put(api, a, b).ok(201)
    assert put(api, b, a).refused(409, "router_cycle")["cycle"] == [b, a, b]
    detail = put(api, c, b).refused(409, "topic_exists_incompatible")
    assert detail["reason"] == "router_dest_fan_in"
    assert not api.exists(c)
    put(api, b, a, allow_cycle=True).ok(201)
    api.write(a, {"data": 1})
    until(lambda: len(datas(api, a)) + len(datas(api, b)) >= 17, "the record has gone round")
    api.write(c, {"data": "another turn of the server"})
    assert len(datas(api, a)) + len(datas(api, b)) == 17


def test_list_is_paged_and_filtered(api: Api, topic_name: str) -> None:
    """HTTP-22, ROUTER-11: `prefix`, `source`, `dest`, `page_size`, `cursor`; `next_cursor` only where there is more."""
    names = [f"{topic_name}-{i}" for i in range(5)]
    for i, name in enumerate(names):
        put(api, f"{topic_name}.s{i % 2}", f"{topic_name}.d{i}", name).ok(201)
    page = api.get(f"/v0/routers?prefix={topic_name}-&page_size=3").ok(200)
    assert [router["router"] for router in page["routers"]] == names[:3]
    assert set(page["routers"][0]) == {"router", "source", "dest", "guarantee", "forwarded_total", "lag", "filter"}
    rest = api.get(f"/v0/routers?prefix={topic_name}-&page_size=3&cursor={quote(page['next_cursor'])}").ok(200)
    assert [router["router"] for router in rest["routers"]] == names[3:]
    assert "next_cursor" not in rest
    odd = api.get(f"/v0/routers?source={topic_name}.s1").ok(200)["routers"]
    assert [router["router"] for router in odd] == names[1::2]
    (only,) = api.get(f"/v0/routers?dest={topic_name}.d4").ok(200)["routers"]
    assert only["router"] == names[4]
    assert only["filter"] is None
    chosen = ["tag", "Glob", "eu*"]
    put(api, f"{topic_name}.s0", f"{topic_name}.eu", f"{topic_name}-eu", filter=chosen).ok(201)
    (filtered,) = api.get(f"/v0/routers?dest={topic_name}.eu").ok(200)["routers"]
    assert filtered["filter"] == api.get(f"/v0/routers/{topic_name}-eu").ok(200)["filter"] == chosen
    api.get("/v0/routers?cursor=nonsense").refused_naming("cursor")
    api.get("/v0/routers?page_size=0").refused_naming("page_size")


def test_cursor_may_be_passed_back_as_it_came(api: Api, topic_name: str) -> None:
    """HTTP-22: base64 has a `+`, which a query takes for a space."""
    names = [f"{topic_name}{'x' * i}->y" for i in range(4)]
    for name in names:
        put(api, f"{topic_name}.s", f"{topic_name}.d", name).ok(201)
    found, cursor, cursors = [], "", []
    while True:
        page = api.get(f"/v0/routers?prefix={topic_name}&page_size=1{cursor}").ok(200)
        found += [router["router"] for router in page["routers"]]
        if "next_cursor" not in page:
            break
        cursors.append(page["next_cursor"])
        cursor = f"&cursor={page['next_cursor']}"
    assert any("+" in cursor for cursor in cursors)
    assert found == sorted(names)


def test_deleted_topic_takes_its_routers_along(api: Api, topic_name: str) -> None:
    """ROUTER-12: `routers_removed` names every router with the topic as source or dest."""
    hub = f"{topic_name}.hub"
    put(api, f"{topic_name}.in", hub, f"{topic_name}.1").ok(201)
    put(api, hub, f"{topic_name}.out", f"{topic_name}.2").ok(201)
    assert api.remove(hub).ok(200)["routers_removed"] == [f"{topic_name}.1", f"{topic_name}.2"]
    get(api, f"{topic_name}.1").refused(404, "router_not_found")


def test_router_cap_counts_new_routers_only(start_api: StartApi) -> None:
    """LIMIT-4, PROBE-7: 429 naming `max_routers`, before any topic is created; a repeated PUT succeeds."""
    api = start_api(max_routers=1)
    put(api, "a", "b").ok(201)
    reply = put(api, "c", "d")
    assert reply.refused(429, "throttled")["limit"] == "max_routers"
    assert reply.headers["retry-after"]
    assert not api.exists("c")
    put(api, "a", "b", preserve_tag=False).ok(200)
    assert api.get("/v0/metrics", headers={"Accept": "application/json"}).ok(200)["topics_routers"] == 1


def test_router_scopes_and_prefixes(start_api: StartApi) -> None:
    """AUTH-11, AUTH-14: prefixes hold for name, source and dest, and for the list."""
    keys = "full,admin-key:admin,read-key:read,delete-key:delete,tenant-key::t:"
    api = start_api(key="full", api_keys=keys)
    put(api, "a", "b").ok(201)
    put(api, "t:a", "t:b").ok(201)
    reader, tenant = api.with_key("read-key"), api.with_key("tenant-key")
    put(reader, "x", "y").refused(403, "forbidden")
    put(api.with_key("delete-key"), "x", "y").refused(403, "forbidden")
    put(api.with_key("admin-key"), "x", "y").ok(201)
    get(reader, "a->b").ok(200)
    get(api.with_key("admin-key"), "a->b").refused(403, "forbidden")
    drop(reader, "a->b").refused(403, "forbidden")
    put(tenant, "t:a", "b", "t:r").refused(403, "forbidden")
    put(tenant, "a", "t:c", "t:r").refused(403, "forbidden")
    put(tenant, "t:a", "t:c", "r").refused(403, "forbidden")
    get(tenant, "a->b").refused(403, "forbidden")
    assert [router["router"] for router in tenant.get("/v0/routers").ok(200)["routers"]] == ["t:a->t:b"]
    drop(api.with_key("delete-key"), "a->b").ok(200)


def test_deleted_topic_names_no_router_outside_the_keys_prefixes(start_api: StartApi) -> None:
    """AUTH-15: every router goes all the same."""
    api = start_api(key="full", api_keys="full,tenant-key::t:|shared.")
    put(api, "t:a", "t:b").ok(201)
    put(api, "t:a", "shared.c", "shared.copy").ok(201)
    put(api, "t:a", "u:a", "u:spy").ok(201)
    removed = api.with_key("tenant-key").remove("t:a").ok(200)
    assert removed["routers_removed"] == ["shared.copy", "t:a->t:b"]
    assert api.get("/v0/routers").ok(200)["routers"] == []
    put(api, "t:a", "u:a", "u:spy").ok(201)
    assert api.remove("t:a").ok(200)["routers_removed"] == ["u:spy"]


def test_nothing_outside_the_keys_prefixes_is_named(start_api: StartApi) -> None:
    """AUTH-15: neither by a list, a router, a cycle nor a source that was there first."""
    api = start_api(key="full", api_keys="full,tenant-key::t:")
    tenant = api.with_key("tenant-key")
    put(api, "t:a", "t:b").ok(201)
    put(api, "t:a", "secret.b", "t:out").ok(201)
    put(api, "secret.b", "secret.c", "secret.1").ok(201)
    put(api, "secret.c", "t:d", "t:in").ok(201)

    replies = [
        tenant.get("/v0/routers"),
        tenant.get("/v0/routers?source=secret.c"),
        tenant.get("/v0/routers?dest=secret.b"),
        get(tenant, "t:out"),
        get(tenant, "t:in"),
        put(tenant, "t:d", "t:a", "t:cycle"),
        put(tenant, "t:x", "t:d", "t:fan"),
    ]

    for reply in replies:
        assert b"secret" not in reply.body, reply
    assert [router["router"] for router in replies[0].json["routers"]] == ["t:a->t:b"]
    assert replies[1].json["routers"] == replies[2].json["routers"] == []
    assert (replies[3].json["source"], "dest" in replies[3].json) == ("t:a", False)
    assert (replies[4].json["dest"], "source" in replies[4].json) == ("t:d", False)
    assert replies[5].refused(409, "router_cycle")["cycle"] == ["t:d", "t:a", "...", "t:d"]
    assert replies[6].refused(409, "topic_exists_incompatible") == {"reason": "router_dest_fan_in", "dest": "t:d"}
    assert put(api, "t:d", "t:a").refused(409, "router_cycle")["cycle"] == ["t:d", "t:a", "secret.b", "secret.c", "t:d"]
    assert put(api, "x", "t:d").refused(409, "topic_exists_incompatible")["source"] == "secret.c"
    assert len(api.get("/v0/routers").ok(200)["routers"]) == 4


def test_routers_and_copies_survive_a_kill(start_server: Callable[..., ServerProcess], closing: ExitStack) -> None:
    """ROUTER-15: the same copies under the same seqs after a crash, with direct writes and deletes in between."""
    server = start_server()
    api = Api(server.host, server.port)
    put(api, "a", "b", filter=["tag", "Glob", "keep*"]).ok(201)
    put(api, "b", "c", guarantee="exactly_once").ok(201)
    for n in range(40):
        api.write("a", {"data": n, "tag": "keep" if n % 3 else "drop"})
        if n % 7 == 0:
            api.write("b", {"data": f"direct {n}"})
        if n == 20:
            api.erase("a", before_seq=15).ok()
            api.erase("b", before_seq=4).ok()
    before = {topic: api.read(topic, limit=1000)["records"] for topic in "abc"}
    total = get(api, "a->b").ok()["forwarded_total"]
    api.close()
    server.kill()
    server.restart()
    api = Api(server.host, server.port)
    closing.callback(api.close)
    assert {topic: api.read(topic, limit=1000)["records"] for topic in "abc"} == before
    assert get(api, "a->b").ok()["forwarded_total"] == total
    api.write("a", {"data": "after", "tag": "keep"})
    assert api.read("c", limit=1000)["records"][-1]["data"] == "after"
