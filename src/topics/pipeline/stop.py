"""Stop: a signal asks a query to stop, and it does so between two batches.

On SIGTERM and SIGINT a file is created that the source looks for before it plans the next batch, so the query finishes
the one it is at.
"""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any


class Stop:
    """Turns signals into a file that the source looks for."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="topics-pipeline-")
        self.file = Path(self._scratch.name) / "stop"
        self.asked = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._scratch.cleanup()

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        # In this order: whoever sees that it is asked can rely on the file.
        self.file.touch()
        self.asked += 1
