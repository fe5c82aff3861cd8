"""What keeps a pipeline from running, in one line, without what Spark wraps around it."""

from __future__ import annotations

import re
from typing import Final

_SOURCE_ERROR: Final = re.compile(r"topics\.(?:spark\.errors|pipeline\.errors)\.\w+: (.*?)(?:\n|$)")


class PipelineError(Exception):
    """The pipeline cannot run; the message says why."""


def reason(failure: BaseException) -> str:
    """What went wrong, without what Spark wraps around it."""
    text = str(failure)
    found = _SOURCE_ERROR.search(text)
    if found is not None:
        return found[1].strip()
    text = re.split(r"\nJVM stacktrace|\n=== Streaming Query|\n\tat ", text)[0]
    return re.sub(r"^An error occurred while calling \S+\n: ", "", text).strip() or type(failure).__name__
