"""Schema: which keys a file of pipelines may have, and what each of them takes.

Every field has a type, and a description that completes "it must be ...". `checked` holds a mapping against one of
these structs and notes everything that is wrong at once: a key that does not exist with the nearest that does, a value
with what is allowed, a key that is missing.
"""

from __future__ import annotations

import difflib
import functools
import typing
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from topics.pipeline.flows.yaml_file import Where, YamlFile, dotted

Text = Annotated[str, Meta(min_length=1, description="text")]
Switch = Annotated[bool, Meta(description="true or false")]
Whole = Annotated[int, Meta(ge=1, le=1 << 62, description="a whole number of at least 1")]
SPAN: Final = r"^\d{1,9} (millisecond|second|minute|hour|day)s?$"
SPAN_TEXT: Final = 'a span of time such as "10 seconds" or "1 minute"'
Span = Annotated[str, Meta(pattern=SPAN, description=SPAN_TEXT)]
TopicList = Annotated[str | list[str], Meta(description="the name of a topic, or a list of names")]
Format = Annotated[Literal["delta", "iceberg", "parquet"], Meta(description="delta, iceberg or parquet")]
Mode = Annotated[Literal["append", "update", "complete"], Meta(description="append, update or complete")]
Conf = Annotated[dict[str, str | bool | int | float], Meta(description="a mapping of Spark's settings to values")]
Mapping = Annotated[dict[str, Any], Meta(description="a mapping")]

_MS: Final = {"millisecond": 1, "second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}

T = TypeVar("T", bound=Struct)


def span_ms(span: str) -> int:
    """A span of the file in milliseconds."""
    count, unit = span.split()
    return int(count) * _MS[unit.removesuffix("s")]


class ServerKeys(Struct, kw_only=True):
    """A server and the key for it; what is left out is found as for every other command."""

    url: Text | None = None
    profile: Text | None = None
    token: Text | None = None
    token_file: Text | None = None


class SparkKeys(Struct, kw_only=True):
    """The Spark application."""

    master: Text = "local[2]"
    conf: Conf = {}


class RestartKeys(Struct, kw_only=True):
    """How long a flow waits after a failure: `first`, then twice as long each time up to `most`.

    One that has run for `calm` without a failure begins with `first` again.
    """

    first: Span = "1 second"
    most: Span = "5 minutes"
    calm: Span = "1 minute"


class ArchiveKeys(Struct, kw_only=True):
    """A flow of the kind `archive`."""

    kind: Literal["archive"]
    to: Text
    topics: TopicList | None = None
    prefix: Text | None = None
    format: Format = "delta"
    catalog: Text | None = None
    namespace: Text = "topics"
    checkpoint: Text | None = None
    typed: Switch = False
    follow_deletes: Switch = False
    target_file_bytes: Whole = 128 << 20
    min_partitions: Whole | None = None
    max_offsets: Whole | None = None
    interval: Span = "1 second"
    server: Mapping | None = None


class TransformKeys(Struct, kw_only=True):
    """A flow of the kind `transform`."""

    kind: Literal["transform"]
    topics: TopicList
    to: Text
    checkpoint: Text
    sql: Text | None = None
    sql_file: Text | None = None
    watermark: Span = "10 seconds"
    mode: Mode = "append"
    error_topic: Text | None = None
    staging: Text | None = None
    max_offsets: Whole | None = None
    interval: Span = "1 second"
    server: Mapping | None = None


class FileKeys(Struct, kw_only=True):
    """The whole file."""

    flows: Annotated[dict[str, Any], Meta(min_length=1, description="a mapping of names to flows")]
    server: Mapping | None = None
    spark: Mapping | None = None
    restart: Mapping | None = None


def checked(document: YamlFile, path: Where, value: Any, shape: type[T], hides: tuple[str, ...] = ()) -> T | None:
    """The value at a path as one of the structs above, or None where something is wrong with it.

    The values of the keys in `hides` are in no message.
    """
    if not isinstance(value, dict):
        document.problem(path, f"{dotted(path)} is {document.shown(path, value)}; it must be a mapping")
        return None
    before = len(document.problems)
    hints = _hints(shape)
    for key in (key for key in value if key not in hints):
        document.problem((*path, key), f"{dotted((*path, key))}: there is no such key; {_nearest(key, list(hints))}")
    for field in msgspec.structs.fields(shape):
        place = (*path, field.name)
        if field.name not in value:
            if field.required:
                wanted = _wanted(hints[field.name])
                document.problem(path, f"{dotted(path)} has no key {field.name}; it must be {wanted}")
            continue
        try:
            msgspec.convert(value[field.name], hints[field.name], strict=False)
        except msgspec.ValidationError:
            shown = "not right" if field.name in hides else document.shown(place, value[field.name])
            document.problem(place, f"{dotted(place)} is {shown}; it must be {_wanted(hints[field.name])}")
    return msgspec.convert(value, shape, strict=False) if len(document.problems) == before else None


@functools.cache
def _hints(shape: type[Struct]) -> dict[str, Any]:
    return typing.get_type_hints(shape, include_extras=True)


def _wanted(hint: Any) -> str:
    """What a field takes, in words."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(map(str, typing.get_args(hint)))
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, Meta) and note.description is not None:
            return note.description
    return next((found for each in typing.get_args(hint) if (found := _wanted(each))), "")


def _nearest(key: str, allowed: list[str]) -> str:
    """A hint for a key that does not exist."""
    close = difflib.get_close_matches(key, allowed, 1, 0.6)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(allowed))}"
