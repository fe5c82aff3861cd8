"""Shape: the columns that JSON data asks for, and how a value fits into the columns that a table has.

A shape grows as it sees values. What is only ever null, an empty object or an empty array asks for no column yet.
Whole numbers are `bigint`; once a fraction is seen beside them they are `double`. Values of kinds that do not go
together, and whole numbers beyond 64 bits, are `string`, and are kept there as JSON text. Objects and arrays nest up to
a depth; what is below it is JSON text too.

A column of a table keeps its type, because every reader of the table relies on it; only a column of whole numbers may
become one of fractions. So what a table has wins over what later data asks for: columns are added, and a value that
does not fit its column is a `Misfit`.

Readers ignore the case of column names, and some characters cannot be in a name: keys that would be the same column are
the same column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

DEPTH_MAX: Final = 8
COLUMNS_MAX: Final = 1_000
_ELEMENT: Final = ""
"""The name of an array's only field."""

_BIGINT_MAX: Final = (1 << 63) - 1
_UNSAFE: Final = re.compile(r"[ ,;{}()\n\t=.`]")
_LEAVES: Final = {"boolean": pa.bool_(), "bigint": pa.int64(), "double": pa.float64(), "string": pa.string()}
_NUMBERS: Final = frozenset(("bigint", "double"))
_encode: Final = msgspec.json.Encoder().encode


class Misfit(Exception):
    """A value that does not fit the columns; the message says which column, its type and what came."""


class Shape:
    """One node: `null` as long as nothing is known, a leaf type, `struct` with fields, or `array` with its element."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str = "null") -> None:
        self.kind = kind
        self.fields: dict[str, tuple[str, Shape]] = {}
        """By the name in lower case: the name as it was first seen, and its shape. An array has one: its element."""

    def see(self, value: Any, depth: int = 0) -> None:
        """Grow so that the value fits."""
        kind = _kind_of(value)
        if kind == "null" or self.kind == "string":
            return
        if depth >= DEPTH_MAX and kind in ("struct", "array"):
            kind = "string"
        self._become(kind)
        if self.kind == "struct":
            for key, member in value.items():
                self.field(column_name(key)).see(member, depth + 1)
        elif self.kind == "array":
            element = self.field(_ELEMENT)
            for member in value:
                element.see(member, depth + 1)

    def take(self, other: Shape) -> None:
        """Grow so that everything that fits the other shape fits this one."""
        if other.kind == "null" or self.kind == "string":
            return
        self._become(other.kind)
        if self.kind == other.kind:
            for name, shape in other.fields.values():
                self.field(name).take(shape)

    def _become(self, kind: str) -> None:
        if self.kind == "null":
            self.kind = kind
        elif {self.kind, kind} == _NUMBERS:
            self.kind = "double"
        elif self.kind != kind:
            self.kind, self.fields = "string", {}

    def field(self, name: str) -> Shape:
        """The field of this name, added if there is none; beyond the limit it is not kept."""
        if len(self.fields) >= COLUMNS_MAX and name.lower() not in self.fields:
            return Shape()
        return self.fields.setdefault(name.lower(), (name, Shape()))[1]

    def whole_beside_fractions(self, wanted: Shape) -> list[str]:
        """The columns of whole numbers that are wanted as fractions, without those within objects and arrays."""
        found = []
        for key, (name, known) in self.fields.items():
            if known.kind == "bigint" and key in wanted.fields and wanted.fields[key][1].kind == "double":
                found.append(name)
        return found

    def widen(self, wanted: Shape) -> None:
        """Add the columns that are wanted and not there; what is there keeps its type."""
        self._widen(wanted, COLUMNS_MAX - sum(1 for _ in self._leaves()))

    def _widen(self, wanted: Shape, room: int) -> int:
        if self.kind == wanted.kind:
            for key, (name, shape) in wanted.fields.items():
                known = self.fields.get(key)
                if known is not None:
                    room = known[1]._widen(shape, room)
                elif shape.is_known:
                    cost = sum(1 for _ in shape._leaves())
                    if cost <= room:
                        self.fields[key] = (name, shape)
                        room -= cost
        return room

    def _leaves(self) -> Iterator[str]:
        if self.kind not in ("null", "struct", "array"):
            yield self.kind
        for _, shape in self.fields.values():
            yield from shape._leaves()

    @property
    def is_known(self) -> bool:
        """Whether there is anything to make a column of."""
        return next(self._leaves(), None) is not None

    def arrow(self) -> Any:
        """The Arrow type; only of a shape that is known."""
        if self.kind == "struct":
            return pa.struct([(name, shape.arrow()) for name, shape in self.fields.values() if shape.is_known])
        if self.kind == "array":
            return pa.list_(self.field(_ELEMENT).arrow())
        return _LEAVES[self.kind]

    def fit(self, value: Any, path: str = "data", grows: bool = False) -> Any:
        """The value as its column holds it. Raises Misfit; where the columns may still grow, not for a new one."""
        if value is None:
            return None
        if self.kind == "string":
            return value if isinstance(value, str) else _encode(value).decode()
        kind = _kind_of(value)
        if grows and self.kind == "null":
            return value
        if self.kind == "double" and kind == "bigint" and int(float(value)) == value:
            return float(value)
        if grows and {self.kind, kind} == _NUMBERS and _is_column(path):
            return value
        if self.kind == "bigint" and kind == "double" and value == int(value) and abs(value) <= _BIGINT_MAX >> 10:
            return int(value)
        if kind != self.kind:
            raise Misfit(f"{path} is {self.kind}, and the value is {shown(value)}")
        if kind == "struct":
            return self._fit_struct(value, path, grows)
        if kind == "array":
            element = self.field(_ELEMENT)
            return [element.fit(member, f"{path}[]", grows) for member in value]
        return value

    def _fit_struct(self, value: dict[str, Any], path: str, grows: bool) -> dict[str, Any]:
        fitted: dict[str, Any] = {}
        for key, member in value.items():
            name = column_name(key)
            known = self.fields.get(name.lower())
            if known is None or not known[1].is_known:
                if grows or _is_blank(member):
                    continue
                raise Misfit(f"{path}.{name} is no column, and there is no room for more than {COLUMNS_MAX}")
            if known[0] in fitted:
                raise Misfit(f"{path} has two keys for the column {known[0]}")
            fitted[known[0]] = known[1].fit(member, f"{path}.{name}", grows)
        return fitted

    def to_json(self) -> Any:
        """The shape as lists and text, from which `of_json` makes it again."""
        return [self.kind, [[name, shape.to_json()] for name, shape in self.fields.values()]]


def of_json(given: Any) -> Shape:
    """The shape of which `to_json` made this."""
    shape = Shape(given[0])
    shape.fields = {name.lower(): (name, of_json(member)) for name, member in given[1]}
    return shape


def of_arrow(kind: Any) -> Shape:
    """The shape of the column types that a table has."""
    if pa.types.is_struct(kind):
        shape = Shape("struct")
        shape.fields = {field.name.lower(): (field.name, of_arrow(field.type)) for field in kind}
        return shape
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        shape = Shape("array")
        shape.fields = {_ELEMENT: (_ELEMENT, of_arrow(kind.value_type))}
        return shape
    for name, leaf in _LEAVES.items():
        if kind == leaf:
            return Shape(name)
    return Shape("string")


def column_name(key: str) -> str:
    """The name of the column for a key: the characters that a column cannot have become underscores."""
    return _UNSAFE.sub("_", key) or "_"


def _is_column(path: str) -> bool:
    """Whether a path names a column, and not something within one."""
    return path.count(".") == 1 and not path.endswith("[]")


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -_BIGINT_MAX - 1 <= value <= _BIGINT_MAX else "string"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "string"
    return "struct" if isinstance(value, dict) else "array"


def _is_blank(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_blank(member) for member in value.values())
    return value is None or (isinstance(value, list) and all(_is_blank(member) for member in value))


def shown(value: Any) -> str:
    """A value as JSON text, cut where it is long."""
    text = _encode(value).decode()
    return text if len(text) <= 80 else f"{text[:80]}..."
