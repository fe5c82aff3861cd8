"""Schemas: the structs that decode requests and encode answers, as JSON Schema (OPENAPI-2).

Each struct becomes one component under its own name. In a request a field with a default may be left out; in an answer
it is always there, unless its type says that it may be unset. A whole number of a request that has no smaller bound is
at most a u64, as `Body` checks it.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import NODEFAULT, Raw, Struct, inspect, to_builtins

from topics.server.api.bodies import U64_MAX
from topics.server.openapi.fields import MATCH, TEXTS, limits
from topics.server.openapi.shapes import Performance
from topics.settings import Settings

Schema = dict[str, Any]

_PLACE: Final = "#/components/schemas/"
# Ids of rules mean something to those who work on the product only.
_RULES: Final = re.compile(r" ?\((?:the )?[A-Z]+[ -](?:rules|\d+)[^)]*\)")


class Schemas:
    """The components of one document."""

    def __init__(self, settings: Settings) -> None:
        self._limits = limits(settings)
        self.components: dict[str, Schema] = {"Match": MATCH}
        self._shapes: dict[str, tuple[type, bool]] = {}

    def request(self, shape: type[Struct]) -> Schema:
        """A reference to the schema of what a client sends."""
        return self._struct(inspect.type_info(shape), answer=False)

    def answer(self, shape: type[Struct], *, timed: bool) -> Schema:
        """A reference to the schema of what it gets, with its `performance` where that is added."""
        reference = self._struct(inspect.type_info(shape), answer=True)
        if timed:
            schema = self.components[shape.__name__]
            performance = self._struct(inspect.type_info(Performance), answer=True)
            schema["properties"]["performance"] = {**performance, "description": TEXTS["performance"]}
            schema["required"] = sorted({*schema["required"], "performance"})
        return reference

    def _struct(self, kind: Any, *, answer: bool) -> Schema:
        shape = kind.cls
        name = shape.__name__
        reference = {"$ref": _PLACE + name}
        known = self._shapes.setdefault(name, (shape, answer))
        assert known == (shape, answer), f"two different schemas are called {name}"
        if name in self.components:
            return reference
        properties: dict[str, Schema] = {}
        self.components[name] = schema = {
            "type": "object",
            "title": name,
            "description": _RULES.sub("", (shape.__doc__ or "").strip()),
            "properties": properties,
            "required": [],
        }
        if kind.tag_field is not None:
            properties[kind.tag_field] = {"const": kind.tag, "description": TEXTS[kind.tag_field]}
            schema["required"].append(kind.tag_field)
        for field in kind.fields:
            properties[field.encode_name] = self._field(name, field, answer=answer)
            if field.required or (answer and field.default is not NODEFAULT):
                schema["required"].append(field.encode_name)
        return reference

    def _field(self, shape: str, field: Any, *, answer: bool) -> Schema:
        name = field.encode_name
        found = self._limits.get(f"{shape}.{name}", self._limits.get(name, {}))
        schema = {} if "$ref" in found or "anyOf" in found else self._type(field.type, answer=answer)
        schema |= found
        schema["description"] = TEXTS.get(f"{shape}.{name}", TEXTS.get(name, ""))
        default = field.default
        if not answer and default not in (NODEFAULT, None) and not isinstance(default, Raw):
            schema["default"] = to_builtins(default)
        return schema

    def _type(self, kind: Any, *, answer: bool) -> Schema:
        """The schema of a type, as far as types occur in this API."""
        match kind:
            case inspect.StructType():
                return self._struct(kind, answer=answer)
            case inspect.UnionType():
                return {"anyOf": [self._type(each, answer=answer) for each in kind.types]}
            case inspect.ListType():
                bounds = _given(minItems=kind.min_length, maxItems=kind.max_length)
                return {"type": "array", "items": self._type(kind.item_type, answer=answer), **bounds}
            case inspect.TupleType():
                items = [self._type(each, answer=answer) for each in kind.item_types]
                return {"type": "array", "items": items[0], "minItems": len(items), "maxItems": len(items)}
            case inspect.DictType():
                bounds = _given(minProperties=kind.min_length, maxProperties=kind.max_length)
                return {"type": "object", "additionalProperties": self._type(kind.value_type, answer=answer), **bounds}
            case inspect.IntType():
                most = U64_MAX if kind.le is None and kind.ge is not None and not answer else kind.le
                return {"type": "integer", **_given(minimum=kind.ge, maximum=most)}
            case inspect.LiteralType():
                return {"type": "string", "enum": list(kind.values)}
        return dict(_PLAIN[type(kind)])


_PLAIN: Final[dict[type, Schema]] = {
    inspect.StrType: {"type": "string"},
    inspect.BoolType: {"type": "boolean"},
    inspect.FloatType: {"type": "number"},
    inspect.NoneType: {"type": "null"},
    inspect.AnyType: {},
    inspect.RawType: {},
}


def _given(**bounds: int | None) -> Schema:
    return {name: bound for name, bound in bounds.items() if bound is not None}
