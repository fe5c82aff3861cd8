"""Parameters: a function whose parameters are made by a program, in the form that typer reads.

Options that many commands share are declared once, and added to each command by a decorator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def with_parameters(function: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """The function, which takes these as keywords."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    return function


def optional(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    """A parameter that may be left out."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def after_first(command: Callable[..., None], added: Mapping[str, Any]) -> list[inspect.Parameter]:
    """The parameters of a command but for its first one, which a decorator gives it, and the options of `added`."""
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    return keywords + [optional(name, kind) for name, kind in added.items()]
