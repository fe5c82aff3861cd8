"""What the reference of the API says, and answers held against it.

`Described` checks an answer twice: by JSON Schema, where a field that the schema does not name is wrong too, and field
by field, remembering what it has seen. So a test can tell fields that are sent and not described from fields that are
described and never sent.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from tests.harness.api import Json

_SCHEMAS = "#/components/schemas/"


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Every operation with its method and its path."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def answers(document: Json) -> set[str]:
    """The names of the schemas that a client gets."""
    left: list[Any] = [document["components"]["responses"]]
    for _, _, operation in operations(document):
        left += [operation.get(part) for part in ("responses", "x-events", "x-header")]
        left.append(operation.get("x-messages", {}).get("receives"))
    found: set[str] = set()
    while left:
        part = left.pop()
        if isinstance(part, dict):
            name = str(part.get("$ref", "")).partition(_SCHEMAS)[2]
            if name and name not in found:
                found.add(name)
                left.append(document["components"]["schemas"][name])
            left += part.values()
        elif isinstance(part, list):
            left += part
    return found


def strict(document: Json) -> Json:
    """The document where an answer may have no field that it does not name."""
    changed: Json = copy.deepcopy(document)
    for name in answers(changed):
        schema = changed["components"]["schemas"][name]
        if "properties" in schema:
            schema["additionalProperties"] = False
    return changed


class Described:
    """A document, and which fields of its answers have been seen."""

    def __init__(self, document: Json) -> None:
        self.document = strict(document)
        self.schemas = self.document["components"]["schemas"]
        self.seen: set[tuple[str, str]] = set()
        self._by_id = {operation["operationId"]: operation for _, _, operation in operations(self.document)}

    def operation(self, id: str) -> Json:
        """One operation."""
        found: Json = self._by_id[id]
        return found

    def fields(self) -> set[tuple[str, str]]:
        """Every field of every answer."""
        named = answers(self.document)
        return {(name, field) for name in named for field in self.schemas[name].get("properties", {})}

    def check_answer(self, id: str, status: int, body: Any) -> None:
        """Check a JSON answer of an operation."""
        responses = self.operation(id)["responses"]
        assert str(status) in responses, f"{id} is described without {status}: {body}"
        response = responses[str(status)]
        if "$ref" in response:
            response = self.document["components"]["responses"][response["$ref"].rpartition("/")[2]]
            assert body["error"]["code"] in response["x-codes"], f"{id}: {body}"
        self.check(response["content"]["application/json"]["schema"], body)

    def check(self, schema: Json, value: Any) -> None:
        """Check a value against a schema of the document."""
        whole = {**schema, "components": self.document["components"]}
        problems = [f"{error.instance_path}: {error.message}" for error in jsonschema_rs.iter_errors(whole, value)]
        assert not problems, f"{problems} in {value}"
        self._look(schema, value)

    def _look(self, schema: Json, value: Any) -> None:
        name = schema.get("$ref", "").partition(_SCHEMAS)[2]
        if name:
            for field in value if isinstance(value, dict) else ():
                self.seen.add((name, field))
            self._look(self.schemas[name], value)
        for each in schema.get("anyOf", ()):
            if value is not None:
                self._look(each, value)
        if isinstance(value, list):
            for item in value:
                self._look(schema.get("items", {}), item)
        if isinstance(value, dict):
            named = schema.get("properties", {})
            others = schema.get("additionalProperties")
            for field, inner in value.items():
                self._look(named.get(field) or (others if isinstance(others, dict) else {}), inner)
