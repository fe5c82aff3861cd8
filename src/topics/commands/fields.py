"""Fields: `FIELD=VALUE` on a command line as the config of a topic.

The fields and their types are those of the library (`ConfigOptions`). A span of time may have a unit and then needs no
`_ms` (`ttl=7d`), and so may a size (`cap_bytes=10GB`). A name that is none comes with the one that was probably meant.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Sequence
from typing import Any, Final

import typer

from topics.client.operations.topic_calls import ConfigOptions
from topics.commands.spans import size_bytes, span_ms

_TYPES: Final = typing.get_type_hints(ConfigOptions)
_NONE: Final = ("", "none", "null")
_SWITCH: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

QUEUE_ONLY: Final = frozenset(
    {"lease_ms", "claim_jitter_ms", "max_deliveries", "dead_letter", "leases_durable", "backoff_ms", "backoff_max_ms"}
)


def config_of(assignments: Sequence[str]) -> dict[str, Any]:
    """The fields that the arguments set. Raises BadParameter."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator:
            raise typer.BadParameter(f'"{assignment}" is not FIELD=VALUE, such as ttl=7d')
        field = name if name in _TYPES else f"{name}_ms"
        if field not in _TYPES:
            close = difflib.get_close_matches(name, [*_TYPES, *(each.removesuffix("_ms") for each in _TYPES)], 1)
            hint = f'did you mean "{close[0]}"?' if close else f"they are: {', '.join(_TYPES)}"
            raise typer.BadParameter(f'a topic has no field "{name}"; {hint}')
        found[field] = _value(field, value)
    return found


def _value(field: str, text: str) -> Any:
    kind = _TYPES[field]
    choices = typing.get_args(kind)
    if type(None) in choices:
        if text.lower() in _NONE:
            return None
        [kind] = [each for each in choices if each is not type(None)]
    elif choices:
        if text not in choices:
            raise typer.BadParameter(f'{field} is "{text}"; it must be {", ".join(choices[:-1])} or {choices[-1]}')
        return text
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise typer.BadParameter(f'{field} is "{text}"; it must be true or false')
        return _SWITCH[text.lower()]
    if field.endswith("_ms"):
        return span_ms(text)
    if field.endswith("_bytes"):
        return size_bytes(text)
    if kind is int:
        try:
            return int(text)
        except ValueError:
            raise typer.BadParameter(f'{field} is "{text}"; it must be a whole number') from None
    return text
