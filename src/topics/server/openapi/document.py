"""The OpenAPI document: the table of routes, and for each route its operation (OPENAPI-1).

Methods, paths, scopes and how a key may be sent come from the rows that the server serves; bodies and answers from the
structs that decode and encode them; limits from the settings; errors from their classes. A row without an operation
cannot be described and fails here, which a test notices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import cleandoc
from typing import Any, Final

from msgspec import UNSET

from topics import __version__, errors
from topics.names import ROUTER_NAME, TOPIC_NAME
from topics.server.api.principal import SCOPE_NAMES
from topics.server.api.route import Row
from topics.server.openapi.operation import JSON, Answer, Errors, Operation, Parameter
from topics.server.openapi.operations import OPERATIONS
from topics.server.openapi.schemas import Schema, Schemas
from topics.server.openapi.shapes import Failure
from topics.settings import Settings

EVERYWHERE: Final[Errors] = (
    errors.InvalidRequest,
    errors.RequestTimeout,
    errors.PayloadTooLarge,
    errors.ExpectationFailed,
    errors.MisdirectedRequest,
    errors.Throttled,
    errors.HeadTooLarge,
    errors.Internal,
    errors.ShuttingDown,
)
"""How every request can fail, whatever it asks for."""

_NAMES: Final[dict[str, Schema]] = {
    "topic": {"type": "string", "pattern": TOPIC_NAME, "examples": ["orders"]},
    "router": {"type": "string", "pattern": ROUTER_NAME, "examples": ["orders->audit"]},
    "wid": {"type": "string", "examples": ["wid_8Yv3nZk2QmG1cTf0LxWb7A"]},
    "backup": {"type": "string", "examples": ["9f86d081884c7d65"]},
}
_PATH_TEXTS: Final = {"topic": "The topic.", "router": "The router.", "wid": "The session.", "backup": "The backup."}
_GROUPS: Final = (
    ("Topics", "Create, configure, look at, list and delete topics."),
    ("Records", "Write, read and delete records."),
    ("Queues", "A topic of type `queue` hands its records out as jobs, each to one worker at a time."),
    ("Routers", "Copy what is appended to one topic to another."),
    ("Streams", "Records as they come, over server-sent events or a WebSocket."),
    ("Backups", "Copy the files of a server that goes on serving; `topics backup` does this."),
    ("Server", "Probes, metrics, and what is served to people and pages."),
)
_TEXT: Final = """A persistent event engine: named logs and queues of JSON records, over HTTP.

Bodies are JSON, sent as `application/json`, plain or with `Content-Encoding: gzip`. Fields that the server does not
know are ignored. Every answer is a JSON object with `performance`, and every error an object `error` with a stable
`code`. `HEAD` is answered wherever `GET` is. What was lost before it was read is never skipped silently: a tombstone
names the range and the reason.

The numbers in this document are the limits of this very server."""
_KEY: Final = "key"
_TOKEN: Final = "token"  # noqa: S105
_HEADERS: Final[dict[int, tuple[str, str]]] = {
    401: ("WWW-Authenticate", "Always `Bearer`."),
    405: ("Allow", "The methods that this path takes."),
    429: ("Retry-After", "Seconds after which to try again."),
    503: ("Retry-After", "Seconds after which to try again."),
}


def document(
    rows: Iterable[Row], settings: Settings, *, guarded: bool, rest: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The document of a server with these routes and settings; a `guarded` one asks for keys.

    `rest` is called between any two operations.
    """
    described = Described(settings, guarded=guarded)
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        if not row.file:
            path = re.sub(r":(\w+)", r"{\1}", row.path)
            paths.setdefault(path, {})[row.method.lower()] = described.operation(row, OPERATIONS[row.method, row.path])
            rest()
    # How a request fails that is for no operation of this document.
    described.failure(404, (errors.NotFound,))
    described.failure(405, (errors.MethodNotAllowed,))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": __version__,
            "description": _TEXT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _GROUPS],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(described.schemas.components.items())),
            "responses": described.failures,
            "securitySchemes": _security_schemes(),
        },
        "x-errors": {kind.code: {"status": kind.status, "message": _message(kind)} for kind in kinds()},
    }


def kinds() -> list[type[errors.TopicsError]]:
    """Every error that has a code of its own, by status."""
    found: dict[str, type[errors.TopicsError]] = {}
    left: list[type[errors.TopicsError]] = [errors.TopicsError]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__ == errors.__name__:
            found.setdefault(kind.code, kind)
    return sorted(found.values(), key=lambda kind: (kind.status, kind.code))


def _security_schemes() -> dict[str, Any]:
    return {
        _KEY: {
            "type": "http",
            "scheme": "bearer",
            "description": "`Authorization: Bearer <key>`. A key has scopes (`read`, `write`, `delete`, `admin`), and"
            " may be limited to names with certain prefixes. Only a server with keys asks for one.",
        },
        _TOKEN: {
            "type": "apiKey",
            "in": "query",
            "name": "token",
            "description": "The same key, for the EventSource of a browser, which cannot send headers.",
        },
    }


class Described:
    """What a document collects while its operations are described."""

    def __init__(self, settings: Settings, *, guarded: bool) -> None:
        self.schemas = Schemas(settings)
        self.failures: dict[str, Any] = {}
        self._guarded = guarded
        self._probe_auth = settings.probe_auth
        envelope = self.schemas.answer(Failure, timed=True)
        self._envelope = {JSON: {"schema": envelope}}
        codes = self.schemas.components["Problem"]["properties"]["code"]
        codes["enum"] = [kind.code for kind in kinds()]

    def operation(self, row: Row, said: Operation) -> dict[str, Any]:
        """One operation of the document."""
        responses = {str(status): self._answers(answers) for status, answers in said.answers.items()}
        by_status: dict[int, list[type[errors.TopicsError]]] = {}
        for kind in dict.fromkeys((*self._failing(row), *said.errors)):
            by_status.setdefault(kind.status, []).append(kind)
        for status, failing in sorted(by_status.items()):
            responses[str(status)] = self.failure(status, tuple(failing))
        found: dict[str, Any] = {
            "operationId": said.id,
            "tags": [said.group],
            "summary": said.summary,
            "description": said.text,
            "parameters": [*_in_path(row.path), *map(_parameter, said.parameters)],
            "responses": responses,
            "security": self._security(row),
        }
        if said.body is not None:
            content: dict[str, Any] = {"schema": self.schemas.request(said.body), "example": said.example}
            found["requestBody"] = {"required": said.body_required, "content": {JSON: content}}
        if said.events:
            found["x-events"] = {name: self.schemas.answer(shape, timed=False) for name, shape in said.events.items()}
        if said.header is not None:
            found["x-header"] = self.schemas.answer(said.header, timed=True)
        if said.sends:
            found["x-messages"] = {
                "sends": [self.schemas.request(shape) for shape in said.sends],
                "receives": [self.schemas.answer(shape, timed=False) for shape in said.receives],
            }
        return found

    def failure(self, status: int, failing: Errors) -> Schema:
        """A reference to the response with this status and one of these codes."""
        codes = sorted({kind.code for kind in failing})
        name = ".".join(map(str, (status, *codes)))
        response = self.failures[name] = {
            "description": " ".join(f"`{kind.code}`: {_message(kind)}" for kind in failing),
            "content": self._envelope,
            "x-codes": codes,
        }
        if status in _HEADERS:
            header, text = _HEADERS[status]
            response["headers"] = {header: {"description": text, "schema": {"type": "string"}}}
        return {"$ref": f"#/components/responses/{name}"}

    def _failing(self, row: Row) -> Iterable[type[errors.TopicsError]]:
        """How a request of this row can fail before its handler sees it."""
        yield from EVERYWHERE
        if row.scopes is not None or row.probe:
            yield errors.Unauthorized
        if row.scopes or row.check_name is not None or row.method != "GET" or row.get_changes:
            yield errors.Forbidden
        if row.body:
            yield errors.UnsupportedMediaType
        if not row.always_open:
            yield errors.NotReady

    def _answers(self, answers: tuple[Answer, ...]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for answer in answers:
            if not answer.content_type:
                continue
            schema = answer.schema
            if answer.shape is not None:
                schema = self.schemas.answer(answer.shape, timed=answer.timed)
            media = content[answer.content_type] = {"schema": schema}
            if answer.example is not UNSET:
                media["example"] = answer.example
        described = {"description": answers[0].text}
        return {**described, "content": content} if content else described

    def _security(self, row: Row) -> list[dict[str, list[str]]]:
        if row.scopes is None and not (row.probe and self._probe_auth):
            return []
        scopes = [name for bit, name in SCOPE_NAMES.items() if (row.scopes or 0) & bit]
        ways = [{_KEY: scopes}, {_TOKEN: scopes}] if row.token else [{_KEY: scopes}]
        return ways if self._guarded else [*ways, {}]


def _in_path(path: str) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "description": _PATH_TEXTS[name], "schema": _NAMES[name]}
        for name in re.findall(r":(\w+)", path)
    ]


def _parameter(said: Parameter) -> Schema:
    found = {"name": said.name, "in": said.place, "description": said.text, "schema": said.schema}
    return {**found, "required": True} if said.required else found


def _message(kind: type[errors.TopicsError]) -> str:
    return cleandoc(kind.__doc__ or "").split("\n")[0]
