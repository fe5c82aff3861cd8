"""Requests that the reference allows and requests that it forbids, made by Schemathesis (OPENAPI-7).

Whatever is sent, the answer must be one that is described: its status, its content type, its code, and every field.
What the schema forbids must be refused. What it allows may be refused only for a reason that no schema can say
(`RULES`).

The examples are the same in every run. Each operation finds the same few topics, so that what one has done does not
decide what another is answered.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import Case, GenerationMode
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.harness.api import Api
from tests.harness.openapi import Described, strict
from tests.harness.server import ManualServer
from topics.server.openapi.document import document
from topics.settings import Settings
from topics.testing import ServerProcess

EXAMPLES: Final = int(os.environ.get("TOPICS_OPENAPI_EXAMPLES", "12"))
TIMEOUT_S: Final = 60
DOCUMENT: Final = json.loads(json.dumps(document(ManualServer().assembly.rows, Settings(), guarded=False)))

NAMES: Final = {"topic": ("orders", "jobs", "new"), "router": ("new", "orders->audit"), "wid": ("wid_unknown",)}
U32_MAX: Final = 2**32 - 1

RULES: Final[dict[str, set[str]]] = {
    "write": {"producer_id", "records[].deliver_at", "dead_letter", "records[].tag", "records[].node", "node"},
    "deleteRecords": {"before_seq"},
    "ack": {"lease_ids", "node"},
    "nack": {"lease_ids", "node"},
    "extend": {"lease_ids", "node"},
    "claim": {"node"},
    "blocks": {"to_seq"},
    "putRouter": {"dest"},
    "putTopic": {"dead_letter"},
    "watch": {"cursor"},
    "listTopics": {"cursor"},
    "listRouters": {"cursor"},
    "describeSegments": {"segments"},
    "readBackup": {"file"},
}
"""The fields for which an operation may refuse what its schema allows, because of a rule that no schema says."""

ENDLESS: Final = {"openWatch", "work", "websocket"}
"""Streams are for the tests of streams."""

schema = schemathesis.openapi.from_dict(strict(DOCUMENT))
operations: Final = {
    operation.label: operation
    for operation in (found.ok() for found in schema.get_all_operations())
    if operation.definition.raw["operationId"] not in ENDLESS
}


@pytest.fixture(scope="module")
def running() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server


@pytest.fixture(scope="module")
def described() -> Described:
    return Described(DOCUMENT)


@pytest.fixture
def staged(running: ServerProcess) -> ServerProcess:
    """The server with a log, a queue with a leased job, a router, and no topic `new`."""
    with closing(Api(running.host, running.port)) as api:
        stage(api)
    return running


def stage(api: Api) -> None:
    record = {"tag": "customer:7", "node": "web", "meta": {"trace": "1"}}
    for name in ("orders", "jobs", "dead", "audit", "new"):
        api.remove(name).ok(200)
    api.call("DELETE", "/v0/routers/orders->audit").ok(200)
    api.put("jobs", type="queue", dead_letter="dead", max_deliveries=3).ok(201)
    api.fill("orders", 5, **record)
    api.fill("jobs", 5, **record)
    api.call("POST", "/v0/topics/jobs/claim", {"node": "worker-1", "max": 2}).ok(200)
    api.call("PUT", "/v0/routers/orders->audit", {"source": "orders", "dest": "audit"}).ok(201)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        yield opened


@pytest.mark.parametrize("label", operations)
def test_every_answer_is_one_that_is_described(
    label: str, staged: ServerProcess, session: requests.Session, described: Described
) -> None:
    """OPENAPI-7."""

    def check(case: Case) -> None:
        aim(case)
        response = case.call_and_validate(
            base_url=staged.url, session=session, timeout=TIMEOUT_S, excluded_checks=[positive_data_acceptance]
        )
        if response.status_code >= 400:
            check_refusal(case, response.json(), response.status_code, described)

    # Not through the plugin for pytest, which gives all operations one and the same name.
    config = HypothesisTestConfig(schema.config, list(HypothesisTestMode), hypothesis.settings(max_examples=EXAMPLES))
    create_test(operation=operations[label], test_func=check, config=config)()


def aim(case: Case) -> None:
    """Make the case one that finds something, and that does not wait for long."""
    for name, choices in NAMES.items():
        value = (case.path_parameters or {}).get(name)
        if isinstance(value, str) and re.fullmatch("[A-Za-z0-9]{1,255}", value):
            case.path_parameters[name] = choices[len(value) % len(choices)]
    if isinstance(case.body, dict):
        wait_ms = case.body.get("wait_ms")
        if type(wait_ms) is int and 0 <= wait_ms <= U32_MAX:
            case.body["wait_ms"] = 0
    # JSON Schema does not tell 5.0 from 5; this API does.
    whole = _whole(case.body)
    if repr(whole) != repr(case.body):
        case.body = whole


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


def check_refusal(case: Case, body: Any, status: int, described: Described) -> None:
    """Check the code of an error, and that what the schema allows is refused for a reason only."""
    method, id = case.method.lower(), case.operation.definition.raw["operationId"]
    if method != case.operation.method.lower():
        assert body["error"]["code"] == "method_not_allowed"
        return
    described.check_answer(id, status, body)
    refused = body["error"]["code"] == "invalid_request"
    if refused and case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE:
        field = re.sub(r"\[\d+\]", "[]", body["error"].get("detail", {}).get("field", ""))
        assert field in RULES.get(id, set()), f"{id} refused what its schema allows: {body['error']}"
