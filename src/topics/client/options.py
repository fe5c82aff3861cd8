"""Options: a keyword argument that a call does not know is refused, as Python refuses it for any function.

The options of a call are a TypedDict, which Python itself does not check: one that is misspelt would do nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_options(call: str, options: Mapping[str, Any], kind: Any) -> None:
    """Raise TypeError for an option that `kind`, a TypedDict, does not have."""
    known: frozenset[str] = kind.__optional_keys__
    for name in options:
        if name not in known:
            raise TypeError(
                f"{call}() got an unexpected keyword argument {name!r}; its options are {', '.join(sorted(known))}"
            )
