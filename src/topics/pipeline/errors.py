"""What keeps a pipeline from running, in one line, without what Spark wraps around it."""

from __future__ import annotations

import re
from typing import Final

# What follows the message: where it happened, the statement, the plan, which is set off by a semicolon.
_APPENDIX: Final = re.compile(r"\nJVM stacktrace|\n=== Streaming Query|\n\tat |\s*== SQL|;\n")
_SOURCE_ERROR: Final = re.compile(r"topics\.(?:spark\.errors|pipeline\.errors)\.\w+: (.*?)(?:\n|$)")


class PipelineError(Exception):
    """The pipeline cannot run; the message says why."""


def reason(failure: BaseException) -> str:
    """What went wrong, as one line, without what Spark wraps around it."""
    text = str(failure)
    found = _SOURCE_ERROR.search(text)
    if found is not None:
        return found[1].strip()
    text = re.sub(r"^An error occurred while calling \S+\n: ", "", _APPENDIX.split(text)[0])
    return " ".join(text.split()) or type(failure).__name__
