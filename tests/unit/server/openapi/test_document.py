"""The document says everything: every route, field, parameter, scope and error code (the OPENAPI rules)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.api import Json
from tests.harness.openapi import answers, operations
from tests.harness.server import ManualServer
from topics import errors
from topics.engine.limits import Limits
from topics.errors import TopicsError
from topics.names import TOPIC_NAME
from topics.server.api.principal import SCOPE_NAMES
from topics.server.api.route import Row
from topics.server.http.query import Query
from topics.server.openapi.document import document
from topics.server.openapi.operations import OPERATIONS
from topics.settings import Settings

ROWS = ManualServer().assembly.rows


def made(guarded: bool = False, **settings: Any) -> Json:
    return document(ROWS, Settings(**settings), guarded=guarded)


WHOLE = made()


def operation(method: str, path: str, whole: Json = WHOLE) -> Json:
    found: Json = whole["paths"][re.sub(r":(\w+)", r"{\1}", path)][method.lower()]
    return found


def families(kind: type[TopicsError]) -> Iterator[type[TopicsError]]:
    yield kind
    for part in kind.__subclasses__():
        yield from families(part)


def test_every_route_is_described() -> None:
    """OPENAPI-1: and nothing else is; files of pages are no part of the API."""
    served = {(row.method, re.sub(r":(\w+)", r"{\1}", row.path)) for row in ROWS if not row.file}
    assert {(method, path) for method, path, _ in operations(WHOLE)} == served
    assert {(row.method, row.path) for row in ROWS if not row.file} == set(OPERATIONS)
    assert all(row.path.startswith(("/console/", "/v0/docs/")) for row in ROWS if row.file)


def test_there_is_a_rest_after_every_operation() -> None:
    """OPENAPI-1: a thread that made it without a pause would hold up the loop."""
    rests: list[None] = []
    whole = document(ROWS, Settings(), guarded=False, rest=lambda: rests.append(None))
    assert len(rests) == sum(map(len, whole["paths"].values()))


def test_a_route_without_a_description_is_noticed() -> None:
    """OPENAPI-1."""
    with pytest.raises(KeyError):
        document([*ROWS, Row("GET", "/v0/new", None, print)], Settings(), guarded=False)


def test_operations_have_names_of_their_own() -> None:
    """OPENAPI-1: generators make a function of each."""
    names = [each["operationId"] for _, _, each in operations(WHOLE)]
    assert len(names) == len(set(names))
    groups = {group["name"] for group in WHOLE["tags"]}
    for method, path, each in operations(WHOLE):
        assert each["summary"], (method, path)
        assert set(each["tags"]) <= groups


@pytest.mark.parametrize("name", sorted(WHOLE["components"]["schemas"]))
def test_every_field_is_explained(name: str) -> None:
    """OPENAPI-3."""
    schema = WHOLE["components"]["schemas"][name]
    assert schema["description"]
    assert not re.search(r"\b[A-Z]+-\d|rules", schema["description"]), "ids of rules mean nothing to a reader"
    for field, inner in schema.get("properties", {}).items():
        assert inner.get("description"), f"{name}.{field} has no text in fields.py"


def test_every_parameter_and_answer_is_explained() -> None:
    """OPENAPI-3: and every answer in JSON has an example, at least under one status."""
    for method, path, each in operations(WHOLE):
        assert all(parameter["description"] for parameter in each["parameters"]), (method, path)
        good = {status: said for status, said in each["responses"].items() if status < "4"}
        assert all(said["description"] for said in good.values()), (method, path)
        shapes = [said["content"].get("application/json", {}) for said in good.values() if "content" in said]
        if any("$ref" in shape.get("schema", {}) for shape in shapes):
            assert any("example" in shape for shape in shapes), (method, path)
        if "requestBody" in each:
            assert "example" in each["requestBody"]["content"]["application/json"]


def test_scopes_and_ways_to_send_a_key() -> None:
    """OPENAPI-5: those of the table of routes; only a server with keys insists on one."""
    whole = made(guarded=True)
    for row in ROWS:
        if row.file:
            continue
        security = operation(row.method, row.path, whole)["security"]
        if row.scopes is None:
            assert security == []
            continue
        scopes = [name for bit, name in SCOPE_NAMES.items() if row.scopes & bit]
        assert security == [{"key": scopes}, {"token": scopes}][: 1 + row.token]
        assert operation(row.method, row.path)["security"] == [*security, {}]
    assert operation("GET", "/v0/health", made(guarded=True, probe_auth=True))["security"] == [{"key": []}]


# Stands for the other codes of its status; nothing answers with it as such.
ABSTRACT = {"conflict"}


def test_every_error_code_is_described() -> None:
    """OPENAPI-5: with its status, in the list of codes and in some response."""
    defined = {kind.code: kind.status for kind in families(TopicsError) if kind.__module__ == errors.__name__}
    assert {code: said["status"] for code, said in WHOLE["x-errors"].items()} == defined
    assert set(WHOLE["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == set(defined)
    responses = WHOLE["components"]["responses"]
    assert {code for said in responses.values() for code in said["x-codes"]} == set(defined) - ABSTRACT
    for name, said in responses.items():
        assert {str(defined[code]) for code in said["x-codes"]} == {name.partition(".")[0]}


def test_limits_are_those_of_the_server() -> None:
    """OPENAPI-2: of this one, not those that servers have by default."""
    schemas = made(max_batch_records=7, max_tag_bytes=9, max_claim=3)["components"]["schemas"]
    assert schemas["Write"]["properties"]["records"]["maxItems"] == 7
    assert schemas["RecordIn"]["properties"]["tag"]["maxLength"] == 9
    assert schemas["AckJobs"]["properties"]["seqs"]["maxItems"] == 3
    whole = WHOLE["components"]["schemas"]
    assert whole["Write"]["properties"]["records"]["maxItems"] == Limits().max_batch_records
    assert whole["Diff"]["properties"]["from_seq"]["maximum"] == 2**64 - 1
    assert whole["PutRouter"]["properties"]["source"]["pattern"] == TOPIC_NAME


def test_what_may_be_left_out() -> None:
    """OPENAPI-2: a field with a default in a request, and one that may be unset in an answer."""
    schemas = WHOLE["components"]["schemas"]
    assert schemas["Write"]["required"] == ["records"]
    assert schemas["ConfigPatch"]["required"] == []
    config = schemas["TopicConfig"]
    assert set(config["required"]) == set(config["properties"])
    state = schemas["TopicState"]
    assert set(state["properties"]) - set(state["required"]) == {"queue"}
    assert {"TopicState", "Read", "Ack", "JobEvent", "Failure"} <= answers(WHOLE)


class Recorded:
    """Which parameters the handlers look for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: set[str] = set()
        for method in ("text", "has", "flag", "number"):
            monkeypatch.setattr(Query, method, self._recording(getattr(Query, method)))
        monkeypatch.setattr(Query, "cursor", self._named("cursor", Query.cursor))

    def _recording(self, look: Any) -> Any:
        def recorded(query: Query, name: str, *args: Any, **kwargs: Any) -> Any:
            self.names.add(name)
            return look(query, name, *args, **kwargs)

        return recorded

    def _named(self, name: str, look: Any) -> Any:
        def recorded(query: Query) -> Any:
            self.names.add(name)
            return look(query)

        return recorded


ASKED = {
    "/v0/topics/:topic/plan": "?from_seq=0&from_ts=0&to_ts=0",
    "/v0/topics/:topic/work": "?node=w&lease_ms=1000",
    "/v0/routers": "?source=t&dest=d",
}
BODIES = {
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [1]},
    "nack": {"node": "w", "seqs": [1]},
    "extend": {"node": "w", "seqs": [1], "lease_ms": 1000},
    "write": {"records": [{"data": 1}]},
    "deleteRecords": {"before_seq": 1},
    "putRouter": {"source": "t", "dest": "d"},
    "watch": {"topics": {"t": {}}},
}


# The document itself is made on a thread, which this server has none of.
LOOKING = [row for row in ROWS if not row.file and row.path != "/v0/openapi.json"]


@pytest.mark.parametrize("row", LOOKING, ids=lambda row: f"{row.method} {row.path}")
def test_parameters_are_those_that_the_handler_looks_for(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPENAPI-2: a parameter that is read and not described fails, and so does one that nobody reads."""
    server = ManualServer()
    kind = "queue" if "Queues" in operation(row.method, row.path)["tags"] else "log"
    server.send("PUT", "/v0/topics/t", {"type": kind, "dead_letter": "d"} if kind == "queue" else {})
    server.send("PUT", "/v0/routers/r", {"source": "s", "dest": "e"})
    path = row.path.replace(":topic", "t").replace(":router", "r") + ASKED.get(row.path, "")
    recorded = Recorded(monkeypatch)
    server.send(row.method, path, BODIES.get(operation(row.method, row.path)["operationId"], {}))
    described = {each["name"] for each in operation(row.method, row.path)["parameters"] if each["in"] == "query"}
    assert recorded.names - ({"token"} if row.token else set()) == described
