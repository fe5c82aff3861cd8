"""Options: a keyword argument that a call does not know is refused, as Python refuses it for any function.

The options of a call are a TypedDict, which Python itself does not check: one that is misspelt would do nothing, and
so would a word that is none of those to choose from. A time may be given as a `datetime` that says its zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def check_options(call: str, options: Mapping[str, Any], kind: Any) -> None:
    """Raise TypeError for an option that `kind`, a TypedDict, does not have."""
    known: frozenset[str] = kind.__optional_keys__
    for name in options:
        if name not in known:
            raise TypeError(
                f"{call}() got an unexpected keyword argument {name!r}; its options are {', '.join(sorted(known))}"
            )


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ValueError for a word that is none of those to choose from."""
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")


def milliseconds(name: str, value: int | datetime) -> int:
    """A time as the API has it: milliseconds since the epoch. A `datetime` without a zone could mean any."""
    if not isinstance(value, datetime):
        return value
    if value.tzinfo is None:
        raise ValueError(f"{name} must have a time zone, as in datetime.now(UTC); {value!r} has none")
    return round(value.timestamp() * 1000)
