"""Gathering: the small writes to a topic that arrive in one turn of the loop go to the engine together.

Many clients write one record each at the same time. Every one of them gets its own seq and its own answer; but one
Block, one frame of the WAL and one publish serve them all (`Engine.write_together`). Writes to a topic keep their
order: one that cannot be gathered, and any other request, is handled behind what was gathered before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from topics.errors import Internal, TopicsError

if TYPE_CHECKING:
    from topics.engine import Engine
    from topics.engine.requests import Write
    from topics.engine.write.ticket import OnDone
    from topics.server.flow.admission import Writer

    Gathered = tuple[Write, OnDone, Writer]

GATHERED_RECORDS_MAX: Final = 512
GATHERED_BYTES_MAX: Final = 256 * 1024

log = logging.getLogger("topics.server")


class Gathering:
    """The writes of this turn, by topic."""

    def __init__(self, engine: Engine, write: Callable[[str, Write, OnDone, Writer], None]) -> None:
        """`write` takes one write alone; it may raise."""
        self._engine = engine
        self._write = write
        self.waiting: dict[str, list[Gathered]] = {}
        self._records = self._bytes = 0

    def add(self, name: str, write: Write, on_done: OnDone, writer: Writer) -> bool:
        """Take a write that may go with others; False, and what waits is written, if it may not."""
        if not self._engine.joins(name, write):
            if self.waiting:
                self.flush()
            return False
        writes = self.waiting.get(name)
        if writes is None:
            if not self.waiting:
                self._engine.journal.wake()
            writes = self.waiting[name] = []
        writes.append((write, on_done, writer))
        self._records += 1
        self._bytes += len(write.records[0].data)
        if self._records >= GATHERED_RECORDS_MAX or self._bytes >= GATHERED_BYTES_MAX:
            self.flush()
        return True

    def flush(self) -> None:
        """Write everything that was gathered."""
        waiting, self.waiting = self.waiting, {}
        self._records = self._bytes = 0
        for name, writes in waiting.items():
            if len(writes) > 1:
                try:
                    self._engine.write_together(name, writes)
                    continue
                except TopicsError:
                    # Nothing has changed: each is taken, or told why not, for itself.
                    pass
                except Exception:
                    log.exception("%d writes to %s failed", len(writes), name)
                    for _, _, writer in writes:
                        writer.fail(Internal())
                    continue
            for write, on_done, writer in writes:
                try:
                    self._write(name, write, on_done, writer)
                except TopicsError as error:
                    writer.fail(error)
                except Exception:
                    log.exception("a write to %s failed", name)
                    writer.fail(Internal())
