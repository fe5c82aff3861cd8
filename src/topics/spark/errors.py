"""What can go wrong between Spark and a server, in words that a user can act on.

Spark shows the text of an exception from a worker far away from the line that caused it. Therefore each of these names
the option and its value, or the topic and the seqs, and says what to do; and a worker that raises one reports this
text alone, without the frames around it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's own switch for what a worker reports of an exception."""
_Called = TypeVar("_Called", bound=Callable[..., Any])


class SourceError(Exception):
    """The data source cannot go on."""


class BadOption(SourceError):
    """An option of the data source has a value that cannot be used."""

    def __init__(self, option: str, value: object, reason: str) -> None:
        text = str(value)
        shown = text if len(text) <= 200 else text[:200] + "..."
        super().__init__(f'option "{option}" is "{shown}": {reason}')

    def __reduce__(self) -> tuple[object, ...]:
        return SourceError, (str(self),)


class ServerRefused(SourceError):
    """The server answered with an error; `status` and `code` are its own."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.status, self.code)


class Unreachable(SourceError):
    """The server could not be reached within the time allowed for retries."""


class DataLoss(SourceError):
    """Records that the query was to read are gone."""

    def __init__(self, topic: str, gap_from: int, gap_to: int, reason: str) -> None:
        super().__init__(
            f'topic "{topic}" lost the records {gap_from} to {gap_to} (reason: {reason}) before they were read; '
            f'set the option "failOnDataLoss" to "false" to go on after them, and "includeTombstones" to "true" to '
            f"get a row for each such gap"
        )
        self.range = (topic, gap_from, gap_to, reason)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self.range


def plainly(called: _Called) -> _Called:
    """What Spark calls on a worker, such that a SourceError that it raises is reported as one line.

    The switch is set in a worker that is about to end: Spark reports the exception and stops the process.
    """

    @functools.wraps(called)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return called(*args, **kwargs)
        except SourceError:
            _hide_traceback()
            raise

    @functools.wraps(called)
    def generate(*args: Any, **kwargs: Any) -> Any:
        try:
            yield from called(*args, **kwargs)
        except SourceError:
            _hide_traceback()
            raise

    return generate if inspect.isgeneratorfunction(called) else call  # type: ignore[return-value]


def _hide_traceback() -> None:
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    if started is not None and started.name.startswith("pyspark."):
        os.environ[HIDE_TRACEBACK] = "1"
