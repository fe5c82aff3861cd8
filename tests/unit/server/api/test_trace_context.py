"""The trace context of a write is kept with its records, where the operator asks for that (LOG-5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.server import ManualServer
from topics.settings import Settings

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def written(manual: ManualServer, records: list[dict[str, Any]], traceparent: str = PARENT) -> list[Any]:
    """The meta of records that were written with this header."""
    (reply,) = manual.send("POST", "/v0/topics/t", {"records": records}, f"traceparent: {traceparent}").replies()
    first = reply.ok()["first_seq"]
    (reply,) = manual.send("POST", "/v0/topics/t/diff", {"from_seq": first - 1}).replies()
    return [record.get("meta") for record in reply.ok(200)["records"]]


@pytest.fixture
def tracing() -> ManualServer:
    return ManualServer(settings=Settings(trace_context=True))


def test_every_record_of_a_write_has_it(tracing: ManualServer) -> None:
    """LOG-5: besides the meta that the client gave, and never in the place of a trace of its own."""
    records = [{"data": 1}, {"data": 2, "meta": {"a": "b"}}, {"data": 3, "meta": {"traceparent": "mine"}}]
    assert written(tracing, records) == [
        {"traceparent": PARENT},
        {"a": "b", "traceparent": PARENT},
        {"traceparent": "mine"},
    ]


@pytest.mark.parametrize("size", [4_000, 40_000], ids=["400 kB", "4 MB"])
def test_every_record_of_a_large_write_has_it(tracing: ManualServer, size: int) -> None:
    """LOG-5: one that is decoded in parts, and one that is laid out besides."""
    metas: list[Any] = [None, {"a": "b"}, {"traceparent": "mine"}, {}]
    records = [{"data": "x" * size, **({} if meta is None else {"meta": meta})} for meta in metas * 25]
    (reply,) = tracing.send("POST", "/v0/topics/t", {"records": records}, f"traceparent: {PARENT}").replies()
    assert reply.ok()["last_seq"] == 100
    kept: list[Any] = []
    while len(kept) < 100:
        (reply,) = tracing.send("POST", "/v0/topics/t/diff", {"from_seq": len(kept)}).replies()
        kept += [record.get("meta") for record in reply.ok(200)["records"]]
    mine = {"traceparent": PARENT}
    assert kept == [mine, {"a": "b", **mine}, {"traceparent": "mine"}, mine] * 25


def test_a_large_write_that_it_makes_too_large_is_refused(tracing: ManualServer) -> None:
    """LOG-5: as any other."""
    records = [{"data": "x" * 4_000} for _ in range(99)] + [{"data": 1, "meta": {"a": "x" * (16 * 1024 - 30)}}]
    (reply,) = tracing.send("POST", "/v0/topics/t", {"records": records}, f"traceparent: {PARENT}").replies()
    reply.refused(400, "record_too_large")


@pytest.mark.parametrize("header", ["secret", PARENT.upper(), "ff" + PARENT[2:], PARENT + "-more"])
def test_what_is_no_trace_context_is_not_kept(tracing: ManualServer, header: str) -> None:
    """LOG-5."""
    assert written(tracing, [{"data": 1}], header) == [None]


def test_it_is_off_unless_asked_for() -> None:
    """LOG-5."""
    assert written(ManualServer(), [{"data": 1}]) == [None]


@pytest.mark.parametrize("meta", [{"n": 1}, [1], "x", 5, {"\u00e9": []}])
def test_bad_meta_is_refused_as_ever(tracing: ManualServer, meta: Any) -> None:
    """LOG-5: the trace context hides no mistake, and the refusal is the same."""
    body = {"records": [{"data": 1, "meta": meta}]}
    refused = []
    for headers in ((), (f"traceparent: {PARENT}",)):
        (reply,) = tracing.send("POST", "/v0/topics/t", body, *headers).replies()
        reply.refused(400, "invalid_request")
        refused.append(reply.json["error"]["message"])
    assert refused[0] == refused[1]


def test_it_counts_towards_the_limit_of_meta() -> None:
    """LOG-5: a record may not grow beyond its limit by it."""
    manual = ManualServer(settings=Settings(trace_context=True))
    body = {"records": [{"data": 1, "meta": {"a": "x" * (16 * 1024 - 30)}}]}
    (reply,) = manual.send("POST", "/v0/topics/t", body, f"traceparent: {PARENT}").replies()
    reply.refused(400, "record_too_large")
