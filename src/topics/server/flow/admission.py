"""Admission: how a write reaches the engine: together with others of its turn, alone, or after it was parked.

Many clients write one record each at the same time. The small writes to a topic that arrive in one turn of the loop
are gathered, and `flush` hands them to the engine together: each gets its own seq and its own answer, but one Block,
one frame of the WAL and one publish serve them all (`Engine.write_together`). The driver flushes once per turn, before
it has the frames written.

Writes to a topic keep their order: one that cannot be gathered, and any request that is no write, is handled after what
was gathered before it. A write that finds the storage's queue or its memory full, or the server under too much
pressure, is parked. Then others wait for their turn after it, except for small writes to other topics: they take hardly
any room. A write may need a Block from the disk, because what has expired makes room for it: it is admitted again once
that is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from topics.engine import Engine
from topics.engine.journal import OnDone
from topics.engine.requests import Write
from topics.engine.write.room import SMALL_BYTES
from topics.errors import Internal, TopicsError
from topics.server.flow.parking import Parking, Writer
from topics.storage.job import Miss
from topics.storage.wal.shard import QueueFull

GATHERED_RECORDS_MAX: Final = 512
GATHERED_BYTES_MAX: Final = 256 * 1024

Gathered = tuple[Write, OnDone, Writer]

log = logging.getLogger("topics.server")


class Admission:
    """The way of a write to the engine, see the module."""

    def __init__(self, engine: Engine, parking: Parking, wake: Callable[[], None]) -> None:
        """`wake` asks for the turn that will `flush`."""
        self._engine = engine
        self._parking = parking
        self._wake = wake
        self.gathered: dict[str, list[Gathered]] = {}
        self._records = self._bytes = 0

    def write(self, name: str, write: Write, on_done: OnDone, writer: Writer) -> None:
        """Append, with others or when there is room; `on_done` gets the ticket, whose context is `writer`.

        Raises where the write is refused at once; `writer.fail`, or `on_done` with a ticket that has failed, is called
        where it is refused later.
        """
        parking = self._parking
        parked = (parking.shut and not write.disable_backpressure) or parking.waiting
        if not self._engine.joins(name, write) or (parked and (parking.shut or not self._passes(name, write))):
            if self.gathered:
                self.flush()
            self._write_alone(name, write, on_done, writer)
            return
        writes = self.gathered.get(name)
        if writes is None:
            if not self.gathered:
                self._wake()
            writes = self.gathered[name] = []
        writes.append((write, on_done, writer))
        self._records += 1
        self._bytes += len(write.records[0].data)
        if self._records >= GATHERED_RECORDS_MAX or self._bytes >= GATHERED_BYTES_MAX:
            self.flush()

    def _passes(self, name: str, write: Write) -> bool:
        """Whether a write of one record need not wait for those that are parked."""
        return len(write.records[0].data) <= SMALL_BYTES and not self._parking.holds(name)

    def flush(self) -> None:
        """Hand everything that was gathered to the engine."""
        gathered, self.gathered = self.gathered, {}
        self._records = self._bytes = 0
        for name, writes in gathered.items():
            if len(writes) > 1:
                try:
                    self._engine.write_together(name, writes)
                    continue
                except TopicsError:
                    # Nothing has changed: each is written, or refused, by itself.
                    pass
                except Exception:
                    log.exception("%d writes to %s failed", len(writes), name)
                    for _, _, writer in writes:
                        writer.fail(Internal())
                    continue
            for write, on_done, writer in writes:
                try:
                    self._write_alone(name, write, on_done, writer)
                except TopicsError as error:
                    writer.fail(error)
                except Exception:
                    log.exception("a write to %s failed", name)
                    writer.fail(Internal())

    def _write_alone(self, name: str, write: Write, on_done: OnDone, writer: Writer) -> None:
        parking = self._parking
        if not (parking.shut or parking.waiting) or self._is_let_through(name, write):
            try:
                self._engine.write(name, write, on_done, writer)
            except QueueFull:
                pass
            except Miss as miss:
                self._read_then_write(miss, name, write, on_done, writer)
                return
            else:
                return
        self._park(name, write, on_done, writer)

    def _is_let_through(self, name: str, write: Write) -> bool:
        """Whether a write is not parked although others are, or would be."""
        parking = self._parking
        if parking.shut and not write.disable_backpressure:
            return False
        return not parking.waiting or (len(write.records) == 1 and self._passes(name, write))

    def _park(self, name: str, write: Write, on_done: OnDone, writer: Writer) -> None:
        def go_on() -> None:
            try:
                self._engine.write(name, write, on_done, writer)
            except Miss as miss:
                self._read_then_write(miss, name, write, on_done, writer)

        self._parking.park(go_on, writer, opted_out=write.disable_backpressure, topic=name)

    def _read_then_write(self, miss: Miss, name: str, write: Write, on_done: OnDone, writer: Writer) -> None:
        def again() -> None:
            # What came in the meantime goes first, as it would have without the read.
            self.flush()
            self.gathered[name] = [(write, on_done, writer)]
            self.flush()

        self._engine.read_then(miss, again)
        self._wake()
