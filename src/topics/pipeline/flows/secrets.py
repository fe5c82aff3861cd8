"""Secrets: texts that are in no message, report or log line, whatever part of Spark or of a store the message is from.

Known are the key of each server, what a file took from the environment, and what the environment holds under a name
that sounds like a secret, such as `AWS_SECRET_ACCESS_KEY`. In a message each of them is its name in angle brackets. The
name and password of an address are left out too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

CHARS_MIN: Final = 4
"""Shorter texts are in every other word; none of them is a secret worth the name."""
_NAMES: Final = re.compile(r"(?i)secret|password|passwd|token|credential|access_?key|api_?key|private_?key|signature")
_ADDRESS: Final = re.compile(r"(?<=://)[^/\s@]+:[^/\s@]+(?=@)")
_BEARER: Final = re.compile(r"(?i)(bearer\s+)\S+")


class Secrets:
    """The secrets of one application."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._names: dict[str, str] = {}
        for name, value in environ.items():
            if _NAMES.search(name):
                self.add(name, value)

    def add(self, name: str, value: str | None) -> None:
        """Never show this value again."""
        if value is not None and len(value.strip()) >= CHARS_MIN:
            self._names.setdefault(value.strip(), name)

    def hidden(self, text: str) -> str:
        """The text without any secret in it."""
        # The longest first: one may be part of another.
        for value in sorted(self._names, key=len, reverse=True):
            text = text.replace(value, f"<{self._names[value]}>")
        return _BEARER.sub(r"\1<key>", _ADDRESS.sub("<name>:<password>", text))
